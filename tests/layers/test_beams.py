from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnkit
from attnkit.decoding import Hypotheses
from attnkit.layers import TransformerState
from attnkit.mixer.key_values import KeyValues
from attnkit.state import State

B, BEAMS, NEW = 3, 3, 7
REAL = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).bool()
SHARED = [
    *({"position": name} for name in attnkit.positions.names() if name not in ("learned",)),
    {"position": {"name": "learned", "max_length": 5 + NEW}},
    {"position": "rotary", "mixer": {"name": "multi_head", "memory_keys": 2}, "num_kv_heads": 1},
    {"mixer": "latent_attention", "position": "rotary"},
    {"attention": "additive", "residual": "hyper_connections"},
]
COPIED = [{"window": 3}, {"mixer": "gru"}, {"mixer": "parallel"}, {"layers": [{"mixer": "gru"}, {}]}]
LEGAL = [
    (stack, options)
    for stack in ("decoder", "encoder_decoder")
    for options in [*SHARED, *COPIED]
    if stack == "decoder" or options.get("position") not in ("cope", "xpos")  # which an encoder cannot have
]


def build(stack: str, options: dict[str, Any]) -> nn.Module:
    sizes = {"src_vocab_size": 12, "tgt_vocab_size": 12} if stack == "encoder_decoder" else {"vocab_size": 12}
    model = attnkit.compose(stack={"name": stack, "d_model": 16, "num_layers": 2, "num_heads": 2, **options}, **sizes).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def search(model: Any, tokens: Tensor, real: Tensor | None) -> Hypotheses:
    found: Hypotheses = model.n_best(tokens, real, beam_size=BEAMS, max_length=NEW)
    return found


@pytest.mark.parametrize(("stack", "options"), LEGAL, ids=str)
@pytest.mark.parametrize("real", [None, REAL], ids=["full", "padded"])
def test_a_shared_cache_gives_the_same_hypotheses_as_separate_ones(
    stack: str, options: dict[str, Any], real: Tensor | None, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(stack, options)
    tokens = torch.randint(3, 12, (B, 5))
    shared = search(model, tokens, real)
    monkeypatch.setattr(TransformerState, "branch", State.branch)
    alone = search(model, tokens, real)
    assert torch.equal(shared.tokens, alone.tokens)
    torch.testing.assert_close(shared.scores, alone.scores, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [SHARED[0], *COPIED], ids=str)
def test_the_cache_is_shared_when_masks_restrict_every_layer(options: dict[str, Any], seed: int) -> None:
    model: Any = build("encoder_decoder", options)
    states: list[TransformerState] = []
    step = model.step
    model.step = lambda tokens, state: (states.append(state), step(tokens, state))[1]
    search(model, torch.randint(3, 12, (B, 5)), None)
    memory = states[-1].memory[0]
    assert isinstance(memory, KeyValues)
    is_shared = options is SHARED[0]
    assert (states[-1].beams is not None) == is_shared
    assert memory.key.shape[0] == (B if is_shared else B * BEAMS)


def test_selecting_rows_of_a_shared_state_keeps_their_beams(seed: int) -> None:
    model: Any = build("decoder", {"position": "rotary"})
    with torch.no_grad():
        state = model.step(torch.randint(3, 12, (B, 5)), None)[1].branch(torch.arange(B)[:, None].expand(-1, BEAMS))
        tokens = torch.randint(3, 12, (B, BEAMS))
        logits, after = model.step(tokens.view(-1, 1), state)
        kept = torch.tensor([2, 0])
        fewer, _ = model.step(tokens[kept].view(-1, 1), state.select(kept))
    torch.testing.assert_close(fewer, logits.view(B, BEAMS, -1)[kept].flatten(0, 1))
    assert after.positions.shape[1] == 5 + BEAMS
