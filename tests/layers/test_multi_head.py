from typing import Any

import pytest
import torch

from attnkit.layers import Transformer, TransformerConfig, check_compatible
from attnkit.mixer import Tokens
from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.registry import ConfigurationError

SIZES: dict[str, Any] = {"d_model": 8, "num_heads": 2}


def transformer(*, causal: bool = True, **options: Any) -> Transformer:
    return Transformer(TransformerConfig(**{**SIZES, "num_layers": 1, **options}), causal=causal)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_heads": 3}, r"num_heads \(3\) must divide d_model \(8\)"),
        ({"num_heads": 0}, r"num_heads \(0\)"),
        ({"num_kv_heads": 0}, r"num_kv_heads \(0\)"),
        ({"num_heads": 4, "num_kv_heads": 3}, r"num_kv_heads \(3\)"),
        ({"head_dim": 0}, "head_dim must be positive, but is 0"),
        ({"d_model": 0}, "d_model must be positive, but is 0"),
        ({"attention_dropout": 1.5}, r"attention_dropout must be in \[0, 1\], but is 1.5"),
        ({"backend": "sdpa", "attention": "additive"}, "Additive has no backend 'sdpa'"),
        ({"backend": "flash"}, "no backend 'flash'; choose 'auto' or one of reference, chunked, sdpa, tiled, blockwise"),
    ],
)
def test_invalid_sizes_are_rejected(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{**SIZES, **wrong})


@pytest.mark.parametrize("wrong", [{"num_layers": 0}, {"window": 0}, {"dropout": -0.1}, {"attention_dropout": 2.0}])
def test_a_transformer_rejects_out_of_range_numbers(wrong: dict[str, Any]) -> None:
    [(name, number)] = wrong.items()
    with pytest.raises(ValueError, match=rf"{name} must be (positive|at least 2|in \[0, 1\]), but is {number}"):
        TransformerConfig(**{**SIZES, "num_layers": 1, **wrong})


def test_a_head_may_be_wider_than_its_share(seed: int) -> None:
    attention = MultiHeadAttention(**SIZES, head_dim=6)
    x = torch.randn(1, 3, 8)
    assert attention(x, Tokens())[0].shape == (1, 3, 8)
    assert attention.query.out_features == 12


def test_bias_false_removes_all_biases() -> None:
    assert not [n for n, _ in MultiHeadAttention(**SIZES, bias=False).named_parameters() if "bias" in n]


def test_illegal_pairs_are_rejected_with_the_reason_and_alternatives() -> None:
    message = "position 'rotary' does not work with attention 'additive': .* not an inner product. .*cosine, .*scaled_dot_product"
    with pytest.raises(ConfigurationError, match=message):
        check_compatible(attention="additive", position={"name": "rotary", "base": 100.0})
    with pytest.raises(ConfigurationError, match=message):
        transformer(attention="additive", position="rotary")


def test_sequences_longer_than_learned_positions_are_refused(seed: int) -> None:
    model = transformer(position={"name": "learned", "max_length": 4})
    _, state = model(torch.randn(1, 4, 8))
    for x, past in ((torch.randn(1, 5, 8), None), (torch.randn(1, 1, 8), state)):
        with pytest.raises(ValueError, match="a sequence of 5 tokens does not fit into positions that end at 4"):
            model(x, state=past)


def test_a_new_tokens_position_follows_the_real_tokens_not_the_padding(seed: int) -> None:
    model = transformer(position={"name": "learned", "max_length": 9}).double()
    x, new = torch.randn(1, 3, 8).double(), torch.randn(1, 1, 8).double()
    key_mask = torch.tensor([[True, False, True]])
    _, state = model(x, key_mask=key_mask)
    y, after = model(new, state=state)
    assert after.positions.tolist() == [[0, 0, 1, 2]]
    alone, _ = model(torch.cat([x[:, [0, 2]], new], 1))
    torch.testing.assert_close(y[:, 0], alone[:, -1], rtol=1e-10, atol=1e-10)


def test_integer_key_masks_are_refused(seed: int) -> None:
    model = transformer(causal=False)
    with pytest.raises(TypeError, match="key_mask must be a bool tensor with True = attend"):
        model(torch.randn(1, 3, 8), key_mask=torch.ones(1, 3))


def test_key_masks_of_another_shape_are_refused(seed: int) -> None:
    model = transformer(causal=False)
    with pytest.raises(ValueError, match=r"key_mask must have shape \[2, 3\].*\[2, 4\]"):
        model(torch.randn(2, 3, 8), key_mask=torch.ones(2, 4, dtype=torch.bool))
