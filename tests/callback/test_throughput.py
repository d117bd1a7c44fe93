"""Speed and memory of a training, from what was really done."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from attnkit.callback import Throughput, throughput
from attnkit.callback.throughput import known_peak, peak_memory
from attnkit.lightning_internals import read_rows
from attnkit.profile.flops import forward_flops
from attnkit.registry import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")


def speeds(folder: Path) -> list[dict[str, float]]:
    rows = read_rows(folder / "lightning_logs/version_0/metrics.csv")[1]
    return [found for row in rows if (found := {k: float(v) for k, v in row.items() if k.startswith("speed/") and v})]


def test_logged_speeds_are_consistent(words: Any, make_batch: Any, make_task: Any, fit: Any, tmp_path: Path) -> None:
    chosen = [words(5) for _ in range(8)]
    task = make_task()
    fit(
        task,
        [make_batch(c) for c in chosen],
        callbacks=[Throughput(peak_tflops=0.5)],
        logger=CSVLogger(tmp_path, version=0),
        log_every_n_steps=2,
        accumulate_grad_batches=2,
    )
    logged = speeds(tmp_path)
    assert len(logged) == 2
    formula = forward_flops(task)
    for values, steps in zip(logged, (chosen[:4], chosen[4:]), strict=True):
        lengths = [len(word) + 1 for batch in steps for word in batch]  # with its end; of the target, with its start
        flops = 3 * sum(c * n ** (a + b) for n in lengths for (a, b), c in formula.items())
        seconds = 2 / values["speed/steps_per_second"]
        assert values["speed/examples_per_second"] * seconds == pytest.approx(20, rel=1e-4)
        assert values["speed/tokens_per_second"] * seconds == pytest.approx(2 * sum(lengths), rel=1e-4)
        assert values["speed/model_tflops"] * seconds * 1e12 == pytest.approx(flops, rel=1e-4)
        assert values["speed/mfu"] == pytest.approx(values["speed/model_tflops"] / 0.5, rel=1e-4)


def test_validation_time_is_excluded(
    words: Any, make_batch: Any, make_task: Any, fit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, validation = time.perf_counter, [0.0]
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: clock() + validation[0])

    class Slow(Callback):
        def on_validation_batch_end(self, *_: Any) -> None:
            validation[0] += 1000

    batches = [make_batch(words(3)) for _ in range(4)]
    logger = CSVLogger(tmp_path, version=0)
    fit(make_task(), batches, val=batches[:1], callbacks=[Throughput(), Slow()], logger=logger, log_every_n_steps=4, val_check_interval=2)
    (logged,) = speeds(tmp_path)
    assert validation[0] == 2000
    assert 4 / logged["speed/steps_per_second"] < 1000
    assert "speed/mfu" not in logged  # nobody knows the peak of this CPU


def test_a_fit_without_logging_counts_no_flops(
    words: Any, make_batch: Any, make_task: Any, fit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Any] = []
    monkeypatch.setattr(throughput, "forward_flops", lambda task: counted.append(task) or {})
    for steps in (3, 2):  # of which one run logs none, and the other two
        logger = CSVLogger(tmp_path / str(steps), version=0)
        fit(make_task(), [make_batch(words(3))] * 2 * (4 - steps), callbacks=[Throughput()], logger=logger, log_every_n_steps=steps)
        assert len(counted) == 3 - steps


def test_a_run_that_never_logs_has_no_speed(words: Any, make_batch: Any, make_task: Any, fit: Any, tmp_path: Path) -> None:
    trainer = fit(make_task(), [make_batch(words(3))], callbacks=[Throughput()], logger=CSVLogger(tmp_path, version=0), log_every_n_steps=0)
    assert trainer.global_step == 1
    assert not any(name.startswith("speed/") for name in trainer.callback_metrics)


def test_a_peak_must_be_positive() -> None:
    with pytest.raises(ConfigurationError, match="peak_tflops must be positive, but is 0"):
        Throughput(peak_tflops=0)


def test_memory_is_measured_for_the_process() -> None:
    before = peak_memory(torch.device("cpu"))
    kept = torch.ones(64 * 2**20 // 4)
    after = peak_memory(torch.device("cpu"))
    assert before is not None
    assert after is not None
    assert kept.numel() * 4 / 2 < after < 2**40
    assert before <= after


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_is_measured_on_the_gpu() -> None:
    device = torch.device("cuda")
    kept = torch.ones(2**20, device=device)
    assert peak_memory(device) == torch.cuda.max_memory_allocated(device) >= 4 * kept.numel()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_utilisation_is_relative_to_its_peak(words: Any, make_batch: Any, make_task: Any, fit: Any, tmp_path: Path) -> None:
    peak = known_peak(torch.device("cuda"))
    if peak is None:
        pytest.skip(f"nobody knows the peak of {torch.cuda.get_device_name()}")
    options = {"accelerator": "gpu", "devices": 1, "precision": "bf16-mixed", "log_every_n_steps": 2}
    fit(make_task(), [make_batch(words(5)) for _ in range(4)], callbacks=[Throughput()], logger=CSVLogger(tmp_path, version=0), **options)
    logged = speeds(tmp_path)
    assert len(logged) == 2
    for values in logged:
        assert 0 < values["speed/mfu"] < 1
        assert values["speed/mfu"] == pytest.approx(values["speed/model_tflops"] / peak, rel=1e-4)
        assert values["speed/peak_memory_gib"] > 0
