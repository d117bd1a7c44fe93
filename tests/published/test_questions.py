"""Question answering equals transformers' BERT with copied weights, which marks question and passage by segments."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from published.engine import Pair, assert_close, double, families
from published.family import rename
from samples.framed import framed

from attnkit import tasks

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own
QUESTIONS = (("who sat", "the black cat sat"), ("where did the old dog sleep", "on a mat"))


def test_questions_and_passages_match_bert(tmp_path: Path) -> None:
    path = tmp_path / "questions.tsv"
    rows = [f"{question}\t{passage}\t{passage.split()[0]}\t0\n" for question, passage in QUESTIONS]
    path.write_text("question\tpassage\tanswer\tstart\n" + "".join(rows), encoding="utf-8")
    data = framed("questions", train=str(path), validation=str(path), tokenizer="word", batch_tokens=64)
    batch = next(iter(data.val_dataloader()))
    assert len(batch["text"]) == len(QUESTIONS)
    tokens, mask = batch["tokens"], batch["tokens"] != 0
    assert not mask.all()
    segments = torch.zeros_like(tokens)
    for row, found in zip(segments, batch["text"], strict=True):  # [CLS] question [SEP]: 0, passage [SEP]: 1
        start = 1 + len(found.question.split()) + 1
        row[start : start + len(found.passage.split()) + 1] = 1

    bert = next(family for family in families() if family.name == "BERT")
    spec = {key: value for key, value in bert.spec.items() if key not in ("tie", "head")} | {"vocab_size": len(data.tokenizer)}
    pair = Pair(
        replace(
            bert,
            theirs=("BertConfig", "BertForQuestionAnswering"),
            config={**bert.config, "vocab_size": len(data.tokenizer)},
            spec={**spec, "num_classes": 2, "pooling": "none"},
            renames=(*(row for row in bert.renames if not row.ours[0].startswith("head.")), *rename("head.projection.*", "qa_outputs.*")),
        )
    )
    options = {
        key: spec[key] for key in ("d_model", "num_layers", "num_heads", "position", "norm", "residual", "embedding_norm", "feed_forward")
    }
    task: Any = tasks.build(
        {
            "name": "question_answering",
            "stack": {"name": "encoder", **options},
            "embedding": spec["embedding"],
            "tokenizer": data.tokenizer_spec,
        }
    )
    task.configure_model()
    task.double().eval()
    task.model.load_state_dict(pair.ours.state_dict())
    with double():
        found = pair.theirs(input_ids=tokens, attention_mask=mask.long(), token_type_ids=segments)
    theirs, ours = torch.stack([found.start_logits, found.end_logits], -1), task(tokens)
    assert_close(ours[mask], theirs[mask], "scores", 1e-10)
    direction = torch.randn_like(theirs) * mask[..., None]
    names = [name for name, _ in pair.theirs.named_parameters()]
    wanted = pair.read(dict(zip(names, torch.autograd.grad((theirs * direction).sum(), pair.theirs.parameters()), strict=True)))
    gradients = torch.autograd.grad((ours * direction).sum(), task.model.parameters())
    for (name, _), gradient in zip(task.model.named_parameters(), gradients, strict=True):
        assert_close(gradient, wanted[name], f"gradient of {name}", 1e-10)
    assert (wanted["embedding.segment"].abs().amax(1) > 1e-3).all()
