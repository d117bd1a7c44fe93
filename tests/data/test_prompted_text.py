"""Prompts and answers: what is scored, and what exact match means."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import attnkit
from attnkit import ConfigurationError, datasets
from attnkit.data.loading import Share
from attnkit.data.prompted_text import Answers
from attnkit.task.causal_lm import CausalLM

SMALL = {"train_rows": 64, "validation_rows": 32, "test_rows": 32}


def framed(corpus, **arguments):
    return datasets.build({"name": "prompted_text", "corpus": corpus, "tokenizer": "word", "batch_tokens": 256, **arguments})


def test_only_answers_and_eos_are_scored() -> None:
    data = framed({"name": "associative_recall", "pairs": 2, "vocabulary": 8, **SMALL})
    rows = {" ".join(row): row for row in data.corpus.turns("test")}
    for batch in data.test_dataloader():
        for tokens, targets, answers in zip(batch["tokens"], batch["targets"], batch["answers"].tolist(), strict=True):
            read, scored = data.tokenizer.tokens(tokens.tolist()), data.tokenizer.tokens(targets.tolist())
            row = rows.pop(" ".join(read[1:]))
            assert [token for token in scored if token != "<pad>"] == [*row[1::2], "<eos>"]
            assert answers == len(row) // 2
            assert all(target == following for target, following in zip(scored, [*read[1:], "<eos>"], strict=True) if target != "<pad>")
    assert not rows


def test_text_pairs_become_prompts_with_one_answer(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a b =\tA B\nc =\tC\n")
    batch = next(iter(framed(str(tmp_path / "pairs.tsv")).train_dataloader()))
    assert sorted((batch["targets"] != 0).sum(1).tolist()) == [2, 3]
    assert "answers" not in batch


def test_a_filler_scores_nothing() -> None:
    examples = Answers([[[5], [6]]], counts=True)
    filler = examples[Share(batch=[0], rank=1, processes=2)]
    assert not filler["targets"].any()
    assert filler["answers"].tolist() == [0]
    assert examples[Share(batch=[0])]["targets"].tolist() == [[0, 6, 2]]


def test_rows_beyond_max_length_are_omitted_from_training_only() -> None:
    corpus = {"name": "copy", "length": 3, **SMALL}
    with pytest.raises(ConfigurationError, match=r"longer than max_length=8"):
        framed(corpus, max_length=8).train_dataloader()
    assert len(framed(corpus, max_length=8).test_dataloader()) == len(framed(corpus).test_dataloader())


def test_exact_match_agrees_with_greedy_decoding() -> None:
    data = framed({"name": "copy", "length": 3, "vocabulary": 9, **SMALL}, batch_tokens=64)
    torch.manual_seed(0)
    stack = {"name": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2}
    task = CausalLM(stack=stack, tokenizer=data.tokenizer_spec, max_length=4)
    task.configure_model()
    optimizer = torch.optim.Adam(task.parameters(), lr=0.02)
    task.train()
    learned = next(iter(data.test_dataloader()))  # by heart, so that some rows are right
    for _ in range(60):
        optimizer.zero_grad()
        task.objective(learned).loss.backward()
        optimizer.step()
    task.eval()
    task.log = lambda *_, **__: None
    for batch in data.test_dataloader():
        with torch.no_grad():
            task.test_step(batch, 0)
    prompts, answers = zip(*data.corpus.turns("test"), strict=True)
    right = [given == answer for given, answer in zip(task.generate(prompts), answers, strict=True)]
    assert 0 < sum(right) < len(right)  # or this would show nothing
    assert task.evaluation["test"]["exact_match"].compute() == pytest.approx(sum(right) / len(right))


def test_without_answers_there_is_no_exact_match() -> None:
    tokenizer = attnkit.tokenizers.build("word").train(["a b"]).spec
    task = CausalLM(stack={"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 1}, tokenizer=tokenizer)
    task.configure_model()
    task.log = lambda *_, **__: None
    task.test_step({"tokens": torch.tensor([[1, 4]]), "targets": torch.tensor([[4, 5]])}, 0)
    assert not task.evaluation["test"]["exact_match"].update_called


@pytest.mark.parametrize(
    ("framing", "header", "train", "validation", "unit"),
    [
        ("prompted_text", "source\ttarget", ["é =\tA", "b =\tB"], ["e\u0301 =\tC", "c =\tA"], "row"),
        ("tagged_text", "words\ttags", ["é b\tX Y", "b\tX"], ["e\u0301  b\tX X", "b b\tX X"], "sentence"),
        ("questions", "question\tpassage\tanswer\tstart", ["a\té\té\t0", "b\tc\tc\t0"],
         ["a\te\u0301\te\u0301\t0", "b\té\té\t0"], "question"),
    ],
)  # fmt: skip
def test_inputs_that_are_also_in_the_training_data_are_counted(
    framing: str, header: str, train: list[str], validation: list[str], unit: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if another Unicode form of them is, which a tokenizer reads alike."""
    caplog.set_level("INFO")
    for name, rows in (("train", train), ("validation", validation)):
        (tmp_path / f"{name}.tsv").write_text("\n".join([header, *rows]))
    corpus = {"name": "files", **{name: str(tmp_path / f"{name}.tsv") for name in ("train", "validation")}}
    data = datasets.build({"name": framing, "corpus": corpus, "tokenizer": {"name": "bpe", "vocab_size": 260}})
    data.trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"), distributed_sampler_kwargs=None)
    data.val_dataloader()
    assert f"validation: 2 {unit}s; 1 also in the training data, no unknown tokens" in caplog.messages
