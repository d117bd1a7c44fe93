"""What a run of a study keeps of its evaluations."""

from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

import attnkit
from attnkit.task.metrics import TokenErrorRate
from attnkit.worker.evaluation import Evaluation
from attnkit.worker.folder import Result
from attnkit.worker.records import read


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning")  # Lightning 2.6 on torch 2.13
@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
def test_captions_have_metrics_by_the_length_of_the_text_alone() -> None:
    tokenizer = attnkit.tokenizers.build("character").train(["bag"]).spec
    stack = {"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 1}
    images: Any = {"src_shape": [1, 4, 4], "src_embedding": {"name": "patch", "patch_size": 2}}
    task = attnkit.tasks.build({"name": "seq2seq", "stack": stack, "tgt_tokenizer": tokenizer, "max_length": 4, **images})
    batch = {"src": torch.rand(2, 1, 4, 4), "tgt": torch.tensor([[1, 4, 5, 2], [1, 4, 2, 0]]), "example": torch.arange(2)}
    texts = {"source": ["one.png", "other.png"], "references": [["ab"], ["a"]]}
    kept = Evaluation()
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(accelerator="cpu", callbacks=[kept], **quiet)
    trainer.validate(task, DataLoader([{**batch, **texts}], batch_size=None), verbose=False)  # type: ignore[arg-type]
    found = kept.by_length()
    assert set(found) == {"target"}
    assert [(row["length"], row["count"]) for row in found["target"]] == [(1, 1), (2, 1)]
    assert sum(kept.sums()["sequence_error_rate"][1]) == 2


def test_a_metric_that_a_length_does_not_define_leaves_the_run_readable() -> None:
    kept = Evaluation()
    kept._count["target"].update({0: 2, 1: 1})
    for length, texts in {0: ["", ""], 1: ["a"]}.items():
        metric = kept._metrics["target"][length]["token_error_rate"] = TokenErrorRate(tokenize=str.split)
        metric.update(texts, [[text] for text in texts])  # 0 / 0 for empty texts
    rows: Any = [{"length": 0, "count": 2, "token_error_rate": None}, {"length": 1, "count": 1, "token_error_rate": 0.0}]
    assert kept.by_length() == {"target": rows}
    assert read(Result, {"metrics": {}, **kept.kept()}, where="result").lengths == {"target": tuple(rows)}
