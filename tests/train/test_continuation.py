from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from attnkit.callback import LastCheckpoint
from attnkit.train.continuation import Continuation

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory .* exists and is not empty:UserWarning"),
]


class Killed(Exception):
    pass


class Stranger(LightningModule):
    """Shuffled batches and dropout, both drawn from the global generator; notes the rows of each batch and its loss."""

    def __init__(self, killed_at: int | None, workers: int, *, by_epoch: bool, batch_size: int) -> None:
        super().__init__()
        self.workers, self.by_epoch, self.batch_size = workers, by_epoch, batch_size
        self.layers = nn.Sequential(nn.Linear(1, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        self.killed_at, self.seen = killed_at, list[Any]()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if self.global_step == self.killed_at:
            raise Killed
        loss = self.layers(batch[0]).square().mean()
        self.seen.append((self.current_epoch, batch[0].flatten().tolist(), loss.item()))
        return loss  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)

    def train_dataloader(self) -> DataLoader[Any]:
        rows = TensorDataset(torch.arange(12.0)[:, None] / 12)
        sampler: Any = DistributedSampler(rows, 1, 0) if self.by_epoch else RandomSampler(rows)
        return DataLoader(rows, self.batch_size, sampler=sampler, num_workers=self.workers)


def fit(
    folder: Path,
    *,
    epochs: int = 4,
    killed_at: int | None = None,
    resumed: bool = False,
    workers: int = 0,
    by_epoch: bool = False,
    accumulated: dict[int, int] | None = None,
) -> list[Any]:
    seed_everything(3)
    module = Stranger(killed_at, workers, by_epoch=by_epoch, batch_size=4 if accumulated is None else 2)
    others = [] if accumulated is None else [GradientAccumulationScheduler(accumulated)]
    trainer = Trainer(
        max_epochs=epochs, callbacks=[LastCheckpoint(every_n_steps=1), *others, Continuation()], default_root_dir=folder, logger=False,
        accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with suppress(Killed):
        trainer.fit(module, ckpt_path=folder / "checkpoints" / "last.ckpt" if resumed else None, weights_only=True if resumed else None)
    return module.seen


@pytest.mark.parametrize("killed_at", [1, 3, 5, 11])
def test_a_custom_module_resumes_with_the_same_batches_and_dropout(tmp_path: Path, killed_at: int) -> None:
    whole = fit(tmp_path / "whole")
    orders = [[row for _, rows, _ in whole[start : start + 3] for row in rows] for start in range(0, 12, 3)]
    assert len({tuple(order) for order in orders}) == 4
    assert fit(tmp_path / "parts", killed_at=killed_at) == whole[:killed_at]
    assert fit(tmp_path / "parts", resumed=True) == whole[killed_at:]


@pytest.mark.parametrize("killed_at", [2, 6, 11])
def test_an_epoch_seeded_sampler_resumes_in_the_checkpoints_epoch(tmp_path: Path, killed_at: int) -> None:
    whole = fit(tmp_path / "whole", by_epoch=True)
    assert sorted(whole[0][1]) != sorted(whole[3][1]) or whole[0][1] != whole[3][1]
    assert fit(tmp_path / "parts", by_epoch=True, killed_at=killed_at) == whole[:killed_at]
    assert fit(tmp_path / "parts", by_epoch=True, resumed=True) == whole[killed_at:]


def test_scheduled_accumulation_resumes_within_an_epoch(tmp_path: Path) -> None:
    scheduled = {0: 1, 1: 2, 3: 3}
    whole = fit(tmp_path / "whole", accumulated=scheduled)  # 6, 3, 3 and 2 steps
    for killed_at in (6, 8, 13):
        folder = tmp_path / f"{killed_at}"
        before = fit(folder, accumulated=scheduled, killed_at=killed_at)
        after = fit(folder, accumulated=scheduled, resumed=True)
        assert before[: len(whole) - len(after)] + after == whole


@pytest.mark.parametrize(("workers", "kills", "epochs"), [(0, (1, 2, 4, 5, 7), 4), (2, (1, 2), 2)])
def test_a_run_may_be_killed_many_times_in_an_epoch(tmp_path: Path, workers: int, kills: tuple[int, ...], epochs: int) -> None:
    parts = []
    for step in kills:
        parts += fit(tmp_path / "parts", epochs=epochs, killed_at=step, resumed=bool(parts), workers=workers)
    parts += fit(tmp_path / "parts", epochs=epochs, resumed=True, workers=workers)
    assert parts == fit(tmp_path / "whole", epochs=epochs, workers=workers)


def test_extending_a_finished_run_equals_a_longer_run(tmp_path: Path) -> None:
    fit(tmp_path / "parts", epochs=2)
    assert fit(tmp_path / "parts", resumed=True) == fit(tmp_path / "whole")[6:]


@pytest.mark.parametrize("tuned", [False, True])
def test_a_note_names_optimizer_settings_that_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tuned: bool
) -> None:
    fit(tmp_path, epochs=1)
    monkeypatch.setattr(Stranger, "configure_optimizers", lambda self: torch.optim.SGD(self.parameters(), 0.5, momentum=0.1))
    if tuned:  # by a tuner, in the checkpoint's run
        path = tmp_path / "checkpoints" / "last.ckpt"
        checkpoint = torch.load(path, weights_only=True)
        checkpoint["optimizer_states"][0]["param_groups"][0] |= {"lr": 0.5, "momentum": 0.1}
        torch.save(checkpoint, path)
    fit(tmp_path, epochs=2, resumed=True)
    fit(tmp_path, epochs=3, resumed=True)  # the note comes again
    found = [line for line in capsys.readouterr().err.splitlines() if "not those of configure_optimizers" in line]
    assert len(found) == (0 if tuned else 2)
    assert all(line.endswith(": lr=0.01 (not 0.5), momentum=0 (not 0.1)") for line in found)
