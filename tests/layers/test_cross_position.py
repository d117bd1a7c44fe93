"""Positions inside cross-attention: by the distance between a target token and a source token."""

from typing import Any

import pytest
import torch

import attnkit
from attnkit.layers import Transformer, TransformerConfig
from attnkit.mixer import Tokens
from attnkit.registry import ConfigurationError

KINDS = [p for p in attnkit.positions.names() if p not in ("sinusoidal", "learned", "cope", "xpos")]


def model(**arguments: Any) -> Any:
    chosen = {"position": "none", "attention": "scaled_dot_product", "num_layers": 2, "num_heads": 2, **arguments}
    return attnkit.compose(stack="encoder_decoder", d_model=16, src_vocab_size=12, tgt_vocab_size=12, **chosen).double()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_batching_do_not_change_outputs(kind: str, seed: int) -> None:
    m = model(cross_position=kind)
    src, tgt = torch.randint(3, 12, (2, 7)), torch.randint(3, 12, (2, 5))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, 5:] = False  # padding on the right, and on the left
    mask[1, :3] = False
    both = m(src, tgt, src_mask=mask)
    torch.testing.assert_close(both[:1], m(src[:1, :5], tgt[:1]), rtol=0, atol=1e-10)
    torch.testing.assert_close(both[1:], m(src[1:, 3:], tgt[1:]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_in_chunks_equals_the_whole(kind: str, seed: int) -> None:
    m = model(cross_position=kind)
    src, tgt = torch.randint(3, 12, (2, 7)), torch.randint(3, 12, (2, 5))
    whole = m(src, tgt)
    state = m.encode(src)
    first, state = m.step(tgt[:, :3], state)
    last, _ = m.step(tgt[:, 3:], state)
    torch.testing.assert_close(first, whole[:, 2], rtol=0, atol=1e-10)
    torch.testing.assert_close(last, whole[:, 4], rtol=0, atol=1e-10)


def test_cross_attention_ignores_source_order_only_without_positions(seed: int) -> None:
    src, tgt = torch.randperm(9)[None] + 3, torch.randint(3, 12, (1, 4))
    turned = src.flip(1)
    for kind in KINDS:
        m = model(cross_position=kind)
        if kind == "relative":
            torch.nn.init.normal_(m.stack.decoder.cross_position.weight)
        same = torch.allclose(m(src, tgt), m(turned, tgt), atol=1e-10)
        assert same is (kind == "none"), kind


def test_a_rotated_score_depends_only_on_the_distance(seed: int) -> None:
    """Shifting target and source positions by the same amount changes no output: left padding shifts neither, a prefix shifts both."""
    config = TransformerConfig(d_model=16, num_layers=1, num_heads=2, position="none")
    body = Transformer(config, causal=True, cross_mixer="multi_head", cross_attention="dot_product", cross_position="rotary").double()
    layer, x, memory = body.layers[0], torch.randn(1, 3, 16).double(), torch.randn(1, 5, 16).double()
    here, there = torch.arange(3)[None], torch.arange(5)[None]

    def attend(shift: int) -> torch.Tensor:
        keys = layer.remember(memory, Tokens(rotation=body.cross_position.rotation(there + shift)))
        y, _ = layer.cross_mixer(x, Tokens(rotation=body.cross_position.rotation(here + shift)), keys)
        return y

    torch.testing.assert_close(attend(0), attend(11), rtol=0, atol=1e-5)  # the table of angles is fp32
    assert not torch.allclose(attend(0), layer.cross_mixer(x, Tokens(), layer.remember(memory, Tokens()))[0], atol=1e-3)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_kinds_that_add_to_the_embeddings_are_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cross_position '{kind}' does not work.*fire, kerple, none, .*shaw"):
        model(cross_position=kind)


def test_rotations_are_rejected_for_scores_other_than_inner_products() -> None:
    model(cross_position="rotary", attention="additive", cross_attention="general")
    with pytest.raises(ConfigurationError, match="does not work with attention 'additive'"):
        model(cross_position="rotary", cross_attention="additive")


@torch.no_grad()
@pytest.mark.parametrize("num_heads", [1, None])
def test_layers_with_different_heads_read_positions_of_matching_widths(num_heads: int | None, seed: int) -> None:
    layers = [{"num_heads": 2}, {"num_heads": 4}, {"num_heads": 2, "head_dim": 16}]
    for kind in ("rotary", "alibi"):
        m = model(cross_position=kind, num_heads=num_heads, num_layers=None, layers=layers)
        seen = list[Tokens]()
        for layer in m.stack.decoder.layers:
            layer.cross_mixer.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[1]))
        m(torch.randint(3, 12, (1, 5)), torch.randint(3, 12, (1, 5)))
        columns = torch.arange(5)[None]
        for tokens, (heads, width) in zip(seen, [(2, 8), (4, 4), (2, 16)], strict=True):
            position = attnkit.positions.build(kind, head_dim=width, num_heads=heads, bidirectional=True).double()
            if kind == "rotary":
                assert torch.equal(tokens.rotation.sin, position.rotation(columns).sin)
            else:
                assert torch.equal(tokens.bias.values, position.bias(columns, columns))
