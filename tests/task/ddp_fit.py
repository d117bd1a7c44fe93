"""One of two ranks: trains the task in a payload on this rank's batches, and writes its weights and logged values.

Usage: python -m ddp_fit PAYLOAD OUT RANK PORT
"""

import os
import sys

import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

import attnkit


def main() -> None:
    payload, out, rank, port = sys.argv[1:]
    os.environ |= {  # as torchrun sets it
        "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "tests",
    }  # fmt: skip
    given = torch.load(payload, weights_only=True)
    task = attnkit.tasks.build(given["task"])
    task.configure_model()
    task.load_state_dict(given["weights"])
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", precision="64-true", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, num_sanity_val_steps=0,
        accumulate_grad_batches=given["accumulate"], gradient_clip_val=given["clip"],
    )  # fmt: skip
    trainer.fit(task, DataLoader(given["train"][int(rank)], batch_size=None), DataLoader(given["val"][int(rank)], batch_size=None))
    if rank == "0":
        torch.save({"weights": task.state_dict(), "logged": dict(trainer.callback_metrics)}, out)


if __name__ == "__main__":
    main()
