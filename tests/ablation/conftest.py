"""A very small recipe and studies of it, and an engine whose workers are a few lines of Python instead of training runs."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnkit.ablation import Study, engine
from attnkit.ablation.results import Results
from attnkit.worker.answers import Inspection
from attnkit.worker.folder import PROVENANCE, write_json
from attnkit.worker.provenance import Provenance, processor

RECIPE: dict[str, Any] = {
    "model": {
        "name": "seq2seq",
        "stack": {
            "name": "encoder_decoder",
            "d_model": 8,
            "num_layers": 1,
            "num_heads": 2,
            "attention": {"name": "additive", "hidden_dim": 4},
            "dropout": 0.1,
        },
        "metrics": [],
        "optimizer": {"name": "adamw", "lr": 5e-3},
        "schedule": "constant",
        "max_length": 6,
    },
    "data": {
        "name": "text_pairs",
        "corpus": {"name": "files", "train": "words.tsv", "validation": "words.tsv", "test": "words.tsv"},
        "batch_tokens": 64,
    },
    "trainer": {"max_epochs": 2, "accelerator": "cpu"},
}
STUDY: dict[str, Any] = {"recipe": "tiny.yaml", "seeds": 3, "factors": {"model.stack.position": ["none", "learned"]}}


SEEDS = {"initialisation": 1, "data": 2, "dropout": 3}
"""The seeds in a job, all different, so that a mix-up shows."""


def write_recipe(folder: Path) -> None:
    """Write the recipe and its data."""
    words = "".join(f"{a}{b}{c}\t{c} {b} {a}\n" for a in "abcd" for b in "abcd" for c in "ab")
    (folder / "words.tsv").write_text(f"source\ttarget\n{words}", encoding="utf-8")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with a recipe and its data."""
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path)
    return tmp_path


def study(**changes: Any) -> Study:
    """Return the study with other settings; those that are None are removed."""
    content = {k: v for k, v in {**STUDY, "name": "s", **changes}.items() if v is not None}
    return Study.from_dict(content, file=Path("s.yaml"))


def made(**changes: Any) -> Provenance:
    """Return the provenance of a run that is up to date."""
    return Provenance(**{"code": {}, "data": {}, "packages": {}, "processor": processor(1)} | changes)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write reports without figures, for tests of their text: drawing takes most of the time."""
    monkeypatch.setattr("attnkit.ablation.report.figures", lambda results: [])


@pytest.fixture
def guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make inspections import nothing: a recipe is what the overrides say."""

    def inspect(recipe: str, compositions: Any, **_: Any) -> list[Inspection]:
        return [Inspection(recipe={"model": over, "data": {"name": "d"}}, parameters=10, takes_seed=True) for over in compositions]

    monkeypatch.setattr("attnkit.ablation.planning.inspect", inspect)


WORKER = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
job = json.loads((folder / "job.json").read_text())
def write(name, content):
    (folder / (name + ".part")).write_text(json.dumps(content)); os.replace(folder / (name + ".part"), folder / name)
with open("ran.txt", "a") as file:
    file.write(folder.name + chr(10))
write("provenance.json", PROVENANCE)
value = job["seeds"]["data"] % 97 + len(json.dumps(job["recipe"]["model"]))
BODY
write("result.json", {"metrics": {"val/loss": value}, "curve": [], "batch_hash": str(job["seeds"]["data"])})
write("status.json", {"status": "ok", "wall_seconds": 1.0})
with open("ended.txt", "a") as file:
    file.write(folder.name + chr(10))
"""


@pytest.fixture
def worker(folder: Path, monkeypatch: pytest.MonkeyPatch, guessed: None) -> Callable[[str], None]:
    """Set what a run does before it writes its result (default: nothing)."""

    def use(body: str = "") -> None:
        text = WORKER.replace("BODY", body).replace("PROVENANCE", repr(asdict(made())))
        (folder / "fake_worker.py").write_text(text, encoding="utf-8")
        monkeypatch.setattr(engine, "RUN", "fake_worker")

    use()
    return use


BASE = [2.0, 2.1, 1.9, 2.05, 1.95, 2.0]


def stored(
    values: dict[str, list[float | str]],
    *,
    hashes: dict[int, str] | None = None,
    starts: dict[str, dict[str, str]] | None = None,
    **changes: Any,
) -> Results:
    """Return the results of a study whose runs have these values; a string is a status."""
    plan = study(**{"seeds": 6, "min_effect": 0.05} | changes).plan(Path("runs"))
    plan.lock()
    for run in plan.runs:
        value = values[run.variants[0]][run.seed]
        folder = plan.run_folder(run.key)
        number = None if isinstance(value, str) else value
        curve = [{"tokens": t, "seconds": t / 10, "val/loss": (number or 1.0) + 1 / t} for t in (10, 20, 30)]
        digest = (hashes or {}).get(run.seed, "h") if run.variants[0] == "baseline" else "h"
        lengths = [{"length": n, "count": 30, "sequence_error_rate": n / 10} for n in (1, 2, 4)]
        cost = {"flops_per_token": 60, "tokens": 500, "tokens_per_second": 12_345.6, "memory": 2.5e9, "seconds": 40.0, "clock": "processor"}
        result = {
            "metrics": {"val/loss": number},
            "curve": curve,
            "batch_hash": digest,
            "starts": (starts or {}).get(run.variants[0], {}),
            "parameters": 10,
            "lengths": {"target": lengths},
            **cost,
        }
        status = {"status": "ok"} if number is not None else {"status": value, "kind": "timeout", "message": "took more than 3 s"}
        write_json(folder / PROVENANCE, asdict(made(packages={"torch": "2.13"})))
        write_json(folder / "result.json", result)
        write_json(folder / "status.json", status)
    return Results(plan)


@pytest.fixture
def results() -> Results:
    better = [v - 0.5 - 0.01 * i for i, v in enumerate(BASE)]
    lost: list[float | str] = ["diverged"] * 6
    return stored({"baseline": list(BASE), "position=none": list(better), "position=learned": lost})
