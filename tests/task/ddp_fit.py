"""One rank of `test_sums.py`: trains the task in a payload on this rank's batches, and writes its weights and logged values."""

import os
import sys

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

import attnkit


def main() -> None:
    payload, out = sys.argv[1:]
    given = torch.load(payload, weights_only=True)
    task = attnkit.tasks.build(given["task"])
    task.configure_model()
    task.load_state_dict(given["weights"])
    rank = int(os.environ["LOCAL_RANK"])
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", precision="64-true", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, num_sanity_val_steps=0,
        accumulate_grad_batches=given["accumulate"], gradient_clip_val=given["clip"],
    )  # fmt: skip
    trainer.fit(task, DataLoader(given["train"][rank], batch_size=None), DataLoader(given["val"][rank], batch_size=None))
    if rank == 0:
        torch.save({"weights": task.state_dict(), "logged": dict(trainer.callback_metrics)}, out)


if __name__ == "__main__":
    main()
