"""Positions that differ by layer: each mixer is handed those of its own layer."""

from typing import Any

import pytest
import torch

import attnkit
from attnkit.mixer import Tokens
from attnkit.position import QueryBias

SLOW = {"name": "rotary", "base": 1e6, "scaling": {"name": "linear", "factor": 8.0}}
PATTERN: list[Any] = ["rotary", "none", SLOW, "cope", "shaw", "rotary"]


def model() -> Any:
    layers = [{"position": position} for position in PATTERN]
    return attnkit.compose(stack="decoder", d_model=16, num_heads=2, layers=layers, position="none", vocab_size=9).double().eval()


def test_each_layer_reads_its_own_positions_and_only_learned_ones_have_parameters(seed: int) -> None:
    m, seen = model(), list[Tokens]()
    for layer in m.stack.decoder.layers:
        layer.mixer.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    m(torch.randint(3, 9, (1, 5)))
    for spec, tokens in zip(PATTERN, seen, strict=True):
        position = attnkit.positions.build(spec, head_dim=8).double()
        rotation = position.rotation(torch.arange(5)[None])
        assert (tokens.rotation is None) == (rotation is None)
        if rotation is not None and tokens.rotation is not None:
            assert torch.equal(tokens.rotation.sin, rotation.sin)
        assert isinstance(tokens.bias, QueryBias) == position.reads_queries
    learned = [name for name in m.state_dict() if "position" in name]
    assert len(learned) == 2, learned


@torch.no_grad()
def test_stepwise_decoding_equals_the_full_pass(seed: int) -> None:
    m, tokens = model(), torch.randint(3, 9, (2, 7))
    for name, parameter in m.named_parameters():
        if "position" in name:
            torch.nn.init.normal_(parameter)
    whole, state = m(tokens), None
    x = m.embedding(tokens)
    for t in range(7):
        y, state = m.stack(x[:, t : t + 1], state=state)
        torch.testing.assert_close(m.head(y)[:, 0], whole[:, t], rtol=0, atol=1e-12)


@torch.no_grad()
def test_layers_share_positions_or_have_their_own(seed: int) -> None:
    sizes: dict[str, Any] = {"stack": "decoder", "d_model": 16, "num_heads": 2, "num_layers": 3, "position": "relative", "vocab_size": 9}
    shared, own = (attnkit.compose(**sizes, shared_positions=share).double().eval() for share in (True, False))
    tables = [[name for name in m.state_dict() if "position" in name] for m in (shared, own)]
    assert [len(names) for names in tables] == [1, 3]
    weights = {name: shared.state_dict()[tables[0][0] if "position" in name else name] for name in own.state_dict()}
    own.load_state_dict(weights)
    tokens = torch.randint(3, 9, (2, 7))
    torch.testing.assert_close(own(tokens), shared(tokens), rtol=0, atol=1e-12)
    last = own.stack.decoder.other_positions[-1]
    before = [own.stack.decoder.layers[i].mixer.register_forward_pre_hook for i in range(3)]
    seen = list[Tokens]()
    for hook in before:
        hook(lambda _, args: seen.append(args[1]))
    last.weight += 1
    own(tokens)
    assert torch.equal(seen[0].bias.values, seen[1].bias.values)
    torch.testing.assert_close(seen[2].bias.values, seen[0].bias.values + 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", ["relative", "shaw", "cope"])
@pytest.mark.parametrize("own", [{"head_dim": 4}, {"num_heads": 4}])
def test_all_positions_are_used_if_every_layer_sets_its_own_widths(seed: int, position: str, own: dict[str, int]) -> None:
    layers = [{"mixer": "gru"}, own, {**own, "num_kv_heads": 1}]
    m = attnkit.compose(stack="decoder", d_model=16, num_heads=2, layers=layers, position=position, vocab_size=9)
    m(torch.randint(3, 9, (2, 7))).logsumexp(-1).sum().backward()
    assert [name for name, parameter in m.named_parameters() if "position" in name]
    assert not [name for name, parameter in m.named_parameters() if parameter.grad is None]
