from dataclasses import fields
from typing import Any

import pytest
import torch

from attnkit import ConfigurationError
from attnkit.decoding import Generation, Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, "max_length must be at least 1, but is 0"),
        ({"beam_size": -2}, "beam_size must be at least 1, but is -2"),
        ({"min_length": -1}, "min_length must be at least 0"),
        ({"min_length": 5, "max_length": 4}, r"min_length \(5\) must not exceed max_length \(4\)"),
        ({"temperature": 0.0}, "temperature must be above 0 and finite, but is 0.0; omit it to take the most probable token"),
        ({"temperature": float("inf")}, "temperature must be above 0 and finite"),
        ({"temperature": float("nan")}, "temperature must be above 0 and finite"),
        ({"temperature": 1.0, "top_k": 0}, "top_k must be at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p must be above 0 and at most 1, but is 0.0"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p must be above 0 and at most 1"),
        ({"temperature": 1.0, "seed": -1}, "seed must be at least 0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
        ({"length_penalty": float("nan")}, "length_penalty must be finite"),
        ({"end_tokens": [2, -1]}, r"end_tokens must be token ids, which are never negative, but are \[2, -1\]"),
        ({"end_tokens": 2}, "end_tokens must be a list of token ids, but is 2"),
        ({"end_tokens": iter([2])}, "end_tokens must be a list of token ids, but is <list_iterator"),
        ({"end_tokens": [2.0]}, r"end_tokens must be a list of token ids, but is \[2.0\]"),
        ({"min_length": 1.5}, "min_length must be a whole number, but is 1.5"),
        ({"temperature": 1.0, "seed": 2**63}, "seed must be below 9223372036854775808, but is"),
        ({"top_k": 3, "seed": 1}, "without a temperature, nothing is sampled, so top_k and seed would have no effect; add temperature=1.0"),
        ({"temperature": 1.0, "beam_size": 2}, "temperature=1.0 and beam_size=2 are mutually exclusive: beam search looks for"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Generation(**options)


@pytest.mark.parametrize("end_tokens", [{3, 2}, torch.tensor([2, 3])])
def test_end_tokens_may_be_any_collection(end_tokens: Any) -> None:
    assert sorted(Generation(end_tokens=end_tokens).end_tokens or ()) == [2, 3]


def test_an_unknown_option_gets_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r"generation has no option 'temprature'. Did you mean 'temperature'"):
        Generation.of({"temprature": 1.0})  # type: ignore[typeddict-unknown-key]


def test_the_keyword_arguments_match_the_fields() -> None:
    assert {field.name: field.type for field in fields(Generation)} == Options.__annotations__
    assert Generation.of({}) == Generation()
