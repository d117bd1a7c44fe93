"""Every way in which a task reads a user's text says what of it is unknown."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import attnkit
from attnkit.task import Task
from attnkit.tokenizer.unknown import UnknownTokens

WORDS = attnkit.tokenizers.build({"name": "word", "extra_tokens": ["<mask>"]}).train(["so very good"]).spec
ENCODER = {"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2}
SPECS: dict[str, dict[str, Any]] = {
    "seq2seq": {"stack": {**ENCODER, "name": "encoder_decoder"}, "src_tokenizer": WORDS, "tgt_tokenizer": WORDS, "max_length": 3},
    "causal_lm": {"stack": {**ENCODER, "name": "decoder"}, "tokenizer": WORDS, "max_length": 3},
    "masked_lm": {"stack": ENCODER, "tokenizer": WORDS},
    "classification": {"stack": ENCODER, "tokenizer": WORDS, "classes": ["bad", "good"]},
}
WAYS: list[tuple[str, Callable[[Any, list[str]], object]]] = [
    ("seq2seq", lambda task, texts: task.generate(texts)),
    ("seq2seq", lambda task, texts: task.n_best(texts, 2)),
    ("seq2seq", lambda task, texts: list(task.stream(texts[1]))),
    ("causal_lm", lambda task, texts: task.generate(texts, temperature=1.0, seed=0)),
    ("masked_lm", lambda task, texts: task.fill(texts)),
    ("masked_lm", lambda task, texts: task.generate(texts)),
    ("classification", lambda task, texts: task.predict_texts(texts)),
]


@pytest.mark.parametrize(("name", "read"), WAYS)
def test_unknown_tokens_warn_once_for_all_texts(name: str, read: Callable[[Any, list[str]], object]) -> None:
    task: Task = attnkit.tasks.build({"name": name, **SPECS[name]})
    with pytest.warns(UnknownTokens) as warned:
        read(task, ["so good", "so <mask> bad"])
    (only,) = warned
    assert str(only.message) == "unknown to the tokenizer, so the model sees <unk> instead: 'bad' in 'so <mask> bad'"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(task, ["so good", "very <mask>"])
