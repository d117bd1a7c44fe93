"""Texts from any task that generates: batches, n-best lists and streams."""

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import attnkit
from attnkit import ConfigurationError
from attnkit.task.generating import text_pieces
from attnkit.task.texts import BATCH

CORPUS = ["naïve café 안녕 ≤ 🙂", "low lower lowest", "a b"] * 3
TEXTS = ["abc", "f", "deadbeef"]


@pytest.fixture
def task(make_task: Any, seed: int) -> Any:
    """An untrained task with larger weights than at the start, drawn until its outputs differ."""
    while True:
        made = make_task(max_length=8)
        made.configure_model()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.mul_(3)
        made.double()
        if all(len(set(made.generate(TEXTS, beam_size=size))) > 1 for size in (1, 3)):
            return made


@pytest.mark.parametrize(
    "options",
    [{}, {"beam_size": 3}, {"temperature": 1.2}, {"temperature": 0.9, "top_p": 0.8}, {"repetition_penalty": 1.5, "min_length": 2}],
)
def test_text_i_uses_seed_plus_i_regardless_of_batching(task: Any, words: Any, options: dict[str, Any], seed: int) -> None:
    texts = [*words(BATCH + 30, longest=9), *TEXTS, "", "ab"]
    seeds = [{"seed": seed + i} if "temperature" in options else {} for i in range(len(texts))]
    outputs = task.generate(texts, **options, **seeds[0])
    assert len(set(outputs)) > 1
    for i in [*random.sample(range(len(texts)), 20), 0, BATCH, len(texts) - 1]:
        assert outputs[i] == task.generate([texts[i]], **options, **seeds[i])[0]


def test_options_override_those_of_the_task(task: Any) -> None:
    task.config = replace(task.config, beam_size=3)
    [short], [whole] = task.generate(["abc"], max_length=3, beam_size=1), task.generate(["abc"], beam_size=1)
    assert whole.startswith(short)  # a token may be more than a character, as <unk> is
    assert task.generate(["abc", "fe"]) == [row[0].text for row in task.n_best(["abc", "fe"], 3)]
    assert task.generate(["abc"], temperature=1.0, seed=3)  # draws, although the task has beams


def test_a_length_penalty_needs_beams(task: Any) -> None:
    task.config = replace(task.config, length_penalty=0.5)
    plain, (ranked,) = task.generate(["abc"]), task.n_best(["abc"], 1)
    assert plain == [ranked[0].text]
    assert ranked[0].score != task.n_best(["abc"], 1, length_penalty=1.0)[0][0].score
    for options in ({}, {"temperature": 1.0}):
        with pytest.raises(ConfigurationError, match="length_penalty ranks the outputs of a beam search, so it would have no effect"):
            task.generate(["abc"], length_penalty=0.5, **options)
    spec = {"name": "causal_lm", "stack": {"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2}, "length_penalty": 0.5}
    assert attnkit.tasks.resolve(spec).unread.keys() == {"length_penalty"}
    assert attnkit.tasks.resolve({**spec, "beam_size": 2}).unread == attnkit.tasks.resolve({**spec, "length_penalty": 1.0}).unread == {}


@pytest.mark.parametrize("beam_size", [None, 5])
def test_n_best_is_ranked_and_starts_with_the_beams_best(task: Any, beam_size: int | None) -> None:
    options = {} if beam_size is None else {"beam_size": beam_size}
    found = task.n_best(TEXTS, 4, **options)
    assert [len(row) for row in found] == [4, 4, 4]
    assert [row[0].text for row in found] == task.generate(TEXTS, beam_size=beam_size or 4)
    for text, row in zip(TEXTS, found, strict=True):
        assert [h.score for h in row] == sorted((h.score for h in row), reverse=True)
        assert [h.text for h in task.n_best([text], 4, **options)[0]] == [h.text for h in row]


def test_n_best_returns_at_most_the_possible_outputs(task: Any) -> None:
    [row] = task.n_best(["ab"], 30, max_length=1)
    assert len(row) == len(task.tgt_tokenizer)  # ten ids, special ones included
    assert sum(torch.tensor([h.score for h in row]).exp().tolist()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5}, {"min_length": 4, "repetition_penalty": 2.0}])
def test_joined_stream_pieces_equal_the_output(task: Any, words: Any, options: dict[str, Any], seed: int) -> None:
    for i, word in enumerate(words(8)):
        seeds = {"seed": seed + i} if "temperature" in options else {}
        pieces = list(task.stream(word, **options, **seeds))
        assert all(pieces)
        assert "".join(pieces) == task.generate([word], beam_size=1, **options, **seeds)[0]


def test_invalid_requests_are_rejected(task: Any) -> None:
    for refused in (lambda: task.generate("word"), lambda: task.n_best("word", 2)):
        with pytest.raises(TypeError, match=r"must be a list, as in \['word'\]"):
            refused()
    for n, beam_size in ((0, 1), (4, 3)):
        with pytest.raises(ConfigurationError, match=rf"n_best must be from 1 to beam_size \({beam_size}\), but is {n}"):
            task.n_best(["ab"], n, beam_size=beam_size)
    with pytest.raises(ConfigurationError, match="cannot stream"):
        task.stream("ab", beam_size=2)
    with pytest.raises(ConfigurationError, match="n_best ranks the outputs of a beam search, but a temperature samples"):
        task.n_best(["ab"], 2, temperature=1.0)
    with pytest.raises(ConfigurationError, match=r"Did you mean 'temperature'"):
        task.generate([], temperatur=1.0)


@pytest.mark.parametrize("name", ["character", "word", "bpe"])
def test_streamed_pieces_are_never_revised(name: str, seed: int) -> None:
    spec = {"name": "bpe", "vocab_size": 270} if name == "bpe" else name
    tokenizer = attnkit.tokenizers.build(spec).train(CORPUS)
    for text in CORPUS[:3]:
        pieces = list(text_pieces(tokenizer.encode(text), tokenizer))
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)
    for _ in range(50):  # bytes at random, few of which are text
        ids = [random.randrange(len(tokenizer)) for _ in range(random.randrange(12))]
        assert "".join(text_pieces(ids, tokenizer)) == tokenizer.decode(ids)


def test_a_piece_is_yielded_as_soon_as_it_is_complete() -> None:
    tokenizer = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 260}).train(["a"])
    taken = 0

    def ids() -> Any:
        nonlocal taken
        for token in tokenizer.encode("é안b"):
            taken += 1
            yield token

    assert [(piece, taken) for piece in text_pieces(ids(), tokenizer)] == [("é", 2), ("안", 5), ("b", 6)]


def test_the_how_tos_python_runs_and_prints_the_documented_output(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/generate.md").read_text(encoding="utf-8")
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["2 True", "torch.Size([2, 4]) True", "True"]
    assert (len(lines), lines[6], lines[-1]) == (11, "2", "True")
