"""Commands on a GPU: runs are resumed exactly, checkpoints move between devices, and callbacks, probes, plans and studies work there.

ATTNKIT_TEST_DEVICE=cpu tries these tests where there is no GPU.
"""

import gc
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import yaml

from attnkit.ablation.gpus import measured
from attnkit.lightning_internals import read_rows
from attnkit.registry import probes
from attnkit.task import Task
from attnkit.task.seq2seq import Seq2Seq
from attnkit.train.out_of_memory import ADVICE
from tests.ablation.conftest import RECIPE
from tests.probe.subjects import INAPPLICABLE, QUICK, SUBJECTS
from tests.train.test_resume import RUN, SAVED, assert_equal_runs, exact_rows, scalars, write_recipe

DEVICE = os.environ.get("ATTNKIT_TEST_DEVICE", "cuda")
GPU = ("--trainer.accelerator", "gpu" if DEVICE == "cuda" else "cpu", "--trainer.devices", 1)
Command = Callable[..., Any]

pytestmark = [
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore"),
]
on_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA GPU")


def fit(attnkit: Command, folder: Path, *flags: object, steps: int | None = None) -> Any:
    """Fit the tiny recipe in a folder, and stop in the middle if there are to be only some steps."""
    os.chdir(folder)
    with pytest.MonkeyPatch.context() as patch:
        if steps is not None:
            objective, calls = Seq2Seq.objective, iter(range(1000))

            def signalled(*arguments: Any) -> Any:
                if next(calls) == steps:
                    os.kill(os.getpid(), signal.SIGINT)
                return objective(*arguments)

            patch.setattr(Seq2Seq, "objective", signalled)
        return attnkit("fit", "--config", "tiny.yaml", *GPU, *flags)


STRATEGIES = [  # of precision and processes
    ("32-true", "auto"),
    ("bf16-mixed", "auto"),
    ("16-mixed", "auto"),
    ("bf16-true", "auto"),
    ("bf16-mixed", "ddp"),
    ("32-true", "fsdp2"),
]


@pytest.mark.parametrize(("precision", "strategy"), STRATEGIES)
def test_a_stopped_run_resumes_to_the_same_result(
    precision: str, strategy: str, attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, again, stopped = (tmp_path / name for name in ("whole", "again", "stopped"))
    for folder in (whole, again, stopped):
        write_recipe(folder, Random(0))
        if strategy == "fsdp2":  # which cannot average weights
            recipe = yaml.safe_load((folder / "tiny.yaml").read_text())
            del recipe["trainer"]["callbacks"][0]
            (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    flags = ["--trainer.precision", precision, "--trainer.strategy", strategy]
    outcome = fit(attnkit, whole, *flags)
    assert outcome.status == 0, outcome.err
    assert fit(attnkit, again, *flags).status == 0
    compare(strategy, whole, again)  # otherwise some kernel gives other results each time
    outcome = fit(attnkit, stopped, *flags, steps=11)
    assert outcome.status == 130, outcome.err
    outcome = fit(attnkit, stopped, *flags, "--resume")
    assert outcome.status == 0, outcome.err
    compare(strategy, whole, stopped)


def compare(strategy: str, first: Path, second: Path) -> None:
    """Compare what two runs logged and saved; with `fsdp2`, what they logged."""
    if strategy != "fsdp2":
        assert_equal_runs(first, second)
        return
    assert len(exact_rows(first / RUN / "metrics.csv")) > 1
    assert exact_rows(first / RUN / "metrics.csv") == exact_rows(second / RUN / "metrics.csv")
    assert scalars(first / RUN) == scalars(second / RUN)


@pytest.mark.parametrize("to_gpu", [True, False], ids=["cpu to gpu", "gpu to cpu"])
def test_checkpoints_are_portable_between_devices(to_gpu: bool, attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path, Random(0))
    cpu = ("--trainer.accelerator", "cpu")
    first, second = (cpu, GPU) if to_gpu else (GPU, cpu)
    assert fit(attnkit, tmp_path, *first, "--trainer.max_epochs", 1).status == 0
    outcome = fit(attnkit, tmp_path, *second, "--resume")
    assert outcome.status == 0, outcome.err
    assert torch.load(SAVED / "last.ckpt", weights_only=True)["epoch"] == 1
    texts = ["abc", "fed", "a"]
    task = Task.load(SAVED / "best.ckpt")
    expected = [text.generate(texts, beam_size=2) for text in (task, task.to(DEVICE))]
    assert expected[0] == expected[1]
    for words in (("generate", SAVED / "best.ckpt", *texts, "--beam_size", 2), ("probe", "gradient", SAVED / "best.ckpt")):
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.max_memory_allocated()
        outcome = attnkit(*words)
        assert outcome.status == 0, outcome.err
        assert words[0] != "generate" or outcome.out.splitlines() == expected[0]
        assert DEVICE != "cuda" or torch.cuda.max_memory_allocated() > before, "it computed on the CPU"
    for command in ("validate", "test"):
        outcome = attnkit(command, "--config", "tiny.yaml", "--ckpt_path", SAVED / "best.ckpt", *second)
        assert outcome.status == 0, outcome.err
    outcome = attnkit("export", SAVED / "best.ckpt", "--out", "exported.safetensors")
    assert outcome.status == 0, outcome.err
    assert Path("exported.safetensors").stat().st_size > 1000


def test_every_callback_works_on_a_gpu(attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path, Random(0))
    recipe = yaml.safe_load((tmp_path / "tiny.yaml").read_text())
    names = ["AttentionMaps", "Divergence"]
    found = [{"class_path": f"attnkit.callback.{name}"} for name in names]
    found += [{"class_path": "attnkit.callback.Probing", "init_args": {"probe": "saturation"}}]
    recipe["trainer"]["callbacks"] += found
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    outcome = fit(attnkit, tmp_path, "--trainer.precision", "bf16-mixed")
    assert outcome.status == 0, outcome.err
    columns = {name for row in read_rows(RUN / "metrics.csv")[1] for name, value in row.items() if value}
    assert {"speed/tokens_per_second", "train/gradient_norm", "val/loss"} <= columns, columns
    if DEVICE == "cuda":
        assert {"speed/peak_memory_gib"} <= columns, columns


def test_the_origin_of_a_non_finite_value_is_reported(attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path, Random(0))
    from attnkit.feed_forward.mlp import MLP

    forward, calls = MLP.forward, iter(range(1000))
    monkeypatch.setattr(MLP, "forward", lambda self, *args: forward(self, *args) * (float("nan") if next(calls) >= 20 else 1.0))
    outcome = fit(attnkit, tmp_path)
    assert outcome.status != 0
    assert "feed_forward" in outcome.err
    assert "nan" in outcome.err


@on_gpu
def test_out_of_memory_is_reported_with_advice(attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path, Random(0))
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved() + (64 << 20)
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        outcome = fit(attnkit, tmp_path, "--model.stack.d_model", 2048)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert outcome.status != 0
    assert ADVICE[:40] in outcome.err, outcome.err


@pytest.mark.parametrize("name", sorted(probes.built_in()))
@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_probe_agrees_with_the_cpu(kind: str, name: str) -> None:
    if (kind, name) in INAPPLICABLE:
        pytest.skip("no attention")
    task, data = SUBJECTS[kind]()
    task.configure_model()
    probe = probes.build({"name": name, **QUICK.get(name, {})})
    expected = probe(task, data).rows
    found = probe(task.to(DEVICE), data).rows
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row.keys() == other.keys()
        for key, value in row.items() if name != "cost" else ():
            assert value == (pytest.approx(other[key], rel=1e-2, abs=1e-3) if isinstance(value, float) else other[key]), key


TEXT = {
    "model": {
        "name": "causal_lm",
        "stack": {"name": "decoder", "d_model": 512, "num_layers": 6, "num_heads": 8, "position": {"name": "learned", "max_length": 512}},
        "tie": "output",
        "optimizer": {"name": "adamw", "lr": 1e-4},
    },
    "data": {
        "name": "text", "corpus": {"name": "files", "train": "text.txt", "validation": "text.txt", "test": "text.txt"},
        "tokenizer": {"name": "bpe", "vocab_size": 300}, "context": 512, "batch_tokens": 4096,
    },
    "trainer": {"max_steps": 30, "limit_val_batches": 0, "log_every_n_steps": 10, "gradient_clip_val": 1.0},
}  # fmt: skip


def write_text(folder: Path) -> None:
    rng = Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 7))) for _ in range(400)]
    (folder / "text.txt").write_text("\n".join(" ".join(rng.choices(words, k=30)) for _ in range(2000)))
    (folder / "text.yaml").write_text(yaml.safe_dump(TEXT))


@on_gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_planned_memory_matches_cudas_allocation(precision: str, attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    outcome = attnkit("plan", "--config", "text.yaml", "--precision", precision, "--measure")
    assert outcome.status == 0, outcome.err
    print(outcome.out)
    off = re.search(r"estimate .*\(([-+][\d.]+)%\)", outcome.out)
    assert off is not None, outcome.out
    assert abs(float(off[1])) < 15, outcome.out


@pytest.mark.parametrize("compiled", ["false", "true"])
def test_speed_is_measured(compiled: str, attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE != "cuda":
        pytest.skip("needs a CUDA GPU")
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    outcome = attnkit("fit", "--config", "text.yaml", *GPU, "--trainer.precision", "bf16-mixed", "--model.compile", compiled)
    assert outcome.status == 0, outcome.err
    rows = [row for row in read_rows(Path("runs/text/version_0/metrics.csv"))[1] if row.get("speed/mfu")]
    print([{k: v for k, v in row.items() if k.startswith("speed/")} for row in rows])
    assert 0.001 < float(rows[-1]["speed/mfu"]) < 0.9
    assert 0.05 < float(rows[-1]["speed/peak_memory_gib"]) < 20


@on_gpu
def test_the_rates_of_the_gpu_and_of_models_are_measured(attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rates = attnkit("bench")
    assert rates.status == 0, rates.err
    assert torch.cuda.get_device_name() in rates.out
    model = "{stack: decoder, d_model: 64, num_layers: 2, num_heads: 4}"
    outcome = attnkit("bench", model, "--lengths", 64, "--rounds", 2, "--precision", "bf16", "--peers", "torch")
    assert outcome.status == 0, outcome.err
    print(rates.out, outcome.out)  # last: each command empties what was captured before it


@on_gpu
def test_nvidia_smi_reports_the_gpus_memory() -> None:
    found = measured()
    assert found, "runs of a study share no GPU here"
    used, total = found[0]
    assert 0 <= used <= total
    assert total == pytest.approx(torch.cuda.get_device_properties(0).total_memory, rel=0.1)


@on_gpu
def test_runs_of_a_study_share_the_gpu_and_their_results_stay_valid(
    attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "".join(f"{a}{b}{c}\t{c} {b} {a}\n" for a in "abcd" for b in "abcd" for c in "ab")
    (tmp_path / "words.tsv").write_text(f"source\ttarget\n{words}")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**RECIPE, "trainer": {**RECIPE["trainer"], "accelerator": "gpu", "devices": 1}}))
    study = {"recipe": "tiny.yaml", "seeds": 3, "factors": {"model.stack.position": ["none"]}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(study))
    outcome = attnkit("ablate", "run", "s.yaml", "--gpus", "0", "--jobs", 3)
    assert outcome.status == 0, outcome.out + outcome.err
    first = outcome.out + outcome.err
    outcome = attnkit("ablate", "run", "s.yaml", "--gpus", "0", "--jobs", 3)
    assert outcome.status == 0, outcome.out + outcome.err
    said = outcome.out + outcome.err
    print(first, said)
    assert "lacks" not in said, said
    assert "failed" not in said, said
