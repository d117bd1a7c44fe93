"""A probe during training."""

import csv

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger

from attnkit.callback import Probing
from attnkit.registry import probes
from tests.probe.subjects import DECODER, subject

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),  # Lightning 2.6 on torch 2.13
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


def test_training_with_a_probe_is_bit_identical_and_logs_results(tmp_path) -> None:
    states = []
    for number, callbacks in enumerate(([], [Probing(probe={"name": "saturation", "widths": [8, 16]}), Probing(probe="recall")])):
        task, data = subject(DECODER, optimizer={"name": "adam", "lr": 0.01}, prompts=[])
        logger = CSVLogger(tmp_path, version=number)
        trainer = Trainer(
            max_epochs=2, accelerator="cpu", logger=logger, callbacks=callbacks, enable_checkpointing=False, log_every_n_steps=1,
            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        trainer.fit(task, datamodule=data)
        states.append(task.state_dict())
    assert all(torch.equal(x, states[1][key]) for key, x in states[0].items())
    logged = (tmp_path / "lightning_logs/version_1/metrics.csv").read_text()
    assert "probe/exact_match/distance_64" in logged
    assert "/width_16" in logged
    assert "probe/variance/stack.decoder.layers.0" in logged


@pytest.mark.filterwarnings("ignore:.*overrides the configure_model")
def test_a_probe_after_a_validation_measures_the_averaged_weights(tmp_path) -> None:
    task, data = subject(DECODER, optimizer={"name": "adam", "lr": 0.01}, prompts=[])
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", logger=CSVLogger(tmp_path, version=0), num_sanity_val_steps=0, enable_checkpointing=False,
        callbacks=[Probing(probe="saturation"), EMAWeightAveraging(decay=0.9)], enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(task, datamodule=data)
    with (tmp_path / "lightning_logs/version_0/metrics.csv").open() as file:
        *_, row = (row for row in csv.DictReader(file) if any(value for name, value in row.items() if name.startswith("probe/")))
    expected = probes.build("saturation")(task, data).scalars()  # at the end of a fit, the task has the averages
    assert expected
    assert {name: float(row[f"probe/{name}"]) for name in expected} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("check", "every", "expected"), [(2, 2, [2, 4, 6]), (2, 3, [2, 6]), (1, 3, [1, 4]), (1, 1, [1, 2, 3, 4, 5, 6])])
def test_a_probe_runs_every_n_epochs_when_the_run_validates(tmp_path, check, every, expected) -> None:
    task, data = subject(DECODER, prompts=[])
    trainer = Trainer(
        max_epochs=6, accelerator="cpu", logger=CSVLogger(tmp_path, version=0), num_sanity_val_steps=1, enable_checkpointing=False,
        callbacks=[Probing(probe={"name": "gradient", "length": 2, "rows": 1}, every_n_epochs=every)], check_val_every_n_epoch=check,
        limit_train_batches=1, limit_val_batches=1, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(task, datamodule=data)
    with (tmp_path / "lightning_logs/version_0/metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row.get("probe/gradient/distance_0")]
    assert steps == expected
