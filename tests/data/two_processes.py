"""Run by test_distributed.py: two processes train, validate and predict, and each records the examples it saw.

Usage: python two_processes.py PAIRS.tsv OUTPUT_FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from attnkit.data import Seq2SeqBatch
from attnkit.data.text_pairs import TextPairs

BATCH_TOKENS = 200


class Witness(LightningModule):
    """Records the source of each example, by part and epoch."""

    def __init__(self, data: TextPairs) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.data = data
        self.seen: dict[str, list[list[str]]] = {}

    def note(self, part: str, batch: Seq2SeqBatch) -> None:
        texts = [self.data.src_tokenizer.decode(row) for row in batch["src"][batch["example"] >= 0]]
        self.seen.setdefault(f"{part} {self.current_epoch}", []).append(texts)

    def training_step(self, batch: Seq2SeqBatch) -> torch.Tensor:
        self.note("train", batch)
        return self.weight.sum()

    def validation_step(self, batch: Seq2SeqBatch) -> None:
        if not self.trainer.sanity_checking:
            self.note("validation", batch)

    def predict_step(self, batch: Seq2SeqBatch) -> None:
        self.note("predict", batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def main(pairs: str, output: Path) -> None:
    data = TextPairs(corpus={"name": "files", "train": pairs, "validation": pairs}, predict=pairs, batch_tokens=BATCH_TOKENS)
    witness = Witness(data)
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, default_root_dir=output, **options)
    trainer.fit(witness, datamodule=data)
    trainer.predict(witness, datamodule=data, return_predictions=False)
    (output / f"{trainer.global_rank}.json").write_text(json.dumps(witness.seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
