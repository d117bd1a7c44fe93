from typing import Any

import pytest
import torch
from torch import nn

import attnkit
from attnkit import state as states

OPTIONS = [
    {"position": "rotary"},
    {"position": "alibi", "num_kv_heads": 1},
    {"window": 3},
    {"mixer": "latent_attention", "position": "rotary"},
    {"mixer": "parallel"},
]
REAL = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).bool()


def build(options: dict[str, Any], dtype: torch.dtype) -> Any:
    model = attnkit.compose(stack={"name": "decoder", "d_model": 16, "num_layers": 2, "num_heads": 2, **options}, vocab_size=12).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


@torch.no_grad()
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_in_place_writes_are_bit_identical(options: dict[str, Any], dtype: torch.dtype, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = build(options, dtype), torch.randint(3, 12, (3, 20))

    def logits() -> list[torch.Tensor]:
        start = model.begin(tokens[:, :5], REAL)
        found, state = [], start.state
        for t in range(5, 20):
            y, state = model.step(tokens[:, t : t + 1], state)
            found.append(y)
            if t == 12:  # a second continuation, and reordered rows
                found.append(model.step(tokens[:, :1], state)[0])
                state = state.select(torch.tensor([2, 0, 0]))
        return found

    written = logits()
    monkeypatch.setattr(states, "_writes", lambda storage, new: False)
    assert all(torch.equal(a, b) for a, b in zip(written, logits(), strict=True))


@torch.no_grad()
@pytest.mark.parametrize("options", [OPTIONS[0], {"mixer": "gru"}], ids=str)
def test_finished_rows_are_dropped_and_the_others_continue(options: dict[str, Any], seed: int) -> None:
    model, tokens = build(options, torch.float64), torch.randint(3, 12, (8, 4))
    rows: list[int] = []
    step = model.step
    model.step = lambda tokens, state: (rows.append(len(tokens)), step(tokens, state))[1]
    choice: dict[str, Any] = {"max_length": 12, "end_tokens": [4, 7, 9], "temperature": 1.5, "seed": 3, "repetition_penalty": 1.2}
    together = model.generate(tokens, **choice)
    assert rows[0] == 8
    assert rows[-1] < 8
    for i, row in enumerate(together):
        alone = model.generate(tokens[i : i + 1], **{**choice, "seed": 3 + i})[0]
        assert torch.equal(row[: len(alone)], alone)
        assert (row[len(alone) :] == model.pad_id).all()
