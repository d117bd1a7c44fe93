"""Components registered in this process: the processes of a study know them through `imports`; otherwise they are refused."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnkit
from attnkit import ConfigurationError
from attnkit.ablation.plan import Plan
from attnkit.worker.folder import read_json, status_of, write_json
from attnkit.worker.job import Job
from attnkit.worker.warm import shared
from tests.ablation.conftest import study

MODULE = """
import attnkit
from attnkit.attention.scaled_dot_product import ScaledDotProduct

@attnkit.attentions.register("mine")
class Mine(ScaledDotProduct):
    WIDTH = 1
"""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    attnkit.attentions._classes.pop("mine", None)


def planned(*imports: str) -> Plan:
    return study(seeds=2, factors={"model.stack.attention": ["mine"]}, imports=list(imports)).plan(Path("runs"))


@pytest.mark.parametrize(
    ("module", "what"),
    [("__main__", "move the class to a module and list that"), ("my_attention", "list the module 'my_attention'")],
)
def test_a_component_registered_only_in_this_process_is_rejected_with_advice(module: str, what: str) -> None:
    exec(MODULE, {"__name__": module})
    with pytest.raises(ConfigurationError) as refused:
        planned()
    said = str(refused.value)
    assert "unknown attention 'mine': 'mine' is registered in this process, but the runs of a study are separate processes" in said
    assert f"To make them import it, {what} under imports, as in imports: [my_module]" in said


def test_runs_and_inspections_import_the_modules_of_the_study(folder: Path) -> None:
    (folder / "my_attention.py").write_text(f"{MODULE}\nopen('scale.txt').close()\n", encoding="utf-8")
    (folder / "scale.txt").write_text("0.1")
    [run, _] = [run for run in planned("my_attention").runs if run.variants == ("attention=mine",)]
    write_json(folder / "run/job.json", run.job)
    Job(folder=folder / "run", directory=folder).carry_out(server=shared())
    assert status_of(folder / "run")["status"] == "ok", (folder / "run/stderr.txt").read_text()
    recipe = read_json(folder / "run/job.json")["recipe"]
    assert (recipe["imports"], recipe["model"]["stack"]["attention"]["name"]) == (["my_attention"], "mine")
    made = read_json(folder / "run/provenance.json")
    assert ("my_attention" in made["code"], "scale.txt" in made["data"]) == (True, True)
    answers = {file: file.stat().st_mtime_ns for file in (folder / "runs/inspections").iterdir()}
    assert all(str(folder / "my_attention.py") in json.loads(file.read_text())["sources"] for file in answers)
    planned("my_attention")
    assert all(file.stat().st_mtime_ns == time for file, time in answers.items()), "nothing had changed"
    (folder / "my_attention.py").write_text(MODULE.replace("= 1", "= 2"), encoding="utf-8")
    planned("my_attention")
    assert all(file.stat().st_mtime_ns != time for file, time in answers.items()), "an answer of other code was used"
