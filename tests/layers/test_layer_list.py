"""Lists of layers: patterns, sharing, options of one layer, and what is refused."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit import masks
from attnkit.layers import Transformer, TransformerConfig, transformer
from attnkit.position import Position
from attnkit.recipe import merge
from attnkit.registry import ConfigurationError

SIZES: dict[str, Any] = {"d_model": 8, "num_heads": 2}


def stack(*, causal: bool = True, **options: Any) -> Transformer:
    return Transformer(TransformerConfig(**SIZES, **options), causal=causal).double().eval()


def test_a_pattern_of_one_plain_layer_equals_the_plain_stack(seed: int) -> None:
    torch.manual_seed(1)
    plain = stack(num_layers=3)
    torch.manual_seed(1)
    listed = stack(layers=[{}], num_layers=3)
    assert {k: v.tolist() for k, v in plain.state_dict().items()} == {k: v.tolist() for k, v in listed.state_dict().items()}


def test_each_layer_overrides_the_options_of_the_stack() -> None:
    layers = stack(layers=[{"attention": "additive", "repeat": 2}, {"num_heads": 4, "feed_forward": "glu"}], num_layers=5).layers
    assert [type(layer.mixer.attention).__name__ for layer in layers] == [
        "Additive",
        "Additive",
        "ScaledDotProduct",
        "Additive",
        "Additive",
    ]
    assert [layer.mixer.attention.num_heads for layer in layers] == [2, 2, 4, 2, 2]
    assert [type(layer.feed_forward).__name__ for layer in layers] == ["MLP", "MLP", "GLU", "MLP", "MLP"]


def test_shared_layers_have_one_set_of_parameters_and_separate_states(seed: int) -> None:
    model = stack(layers=[{"share": True}, {}], num_layers=4, position="rotary")
    assert model.order == [0, 1, 0, 2]
    assert len(model.layers) == 3
    x = torch.randn(2, 5, 8).double()
    whole, _ = model(x)
    state, steps = None, []
    for t in range(5):
        y, state = model(x[:, t : t + 1], state=state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-10, atol=1e-10)
    assert len(state.layers) == 4
    untied = stack(num_layers=4, position="rotary")
    for layer, index in zip(untied.layers, model.order, strict=True):
        layer.load_state_dict(model.layers[index].state_dict())
    untied.final_norm.load_state_dict(model.final_norm.state_dict())
    torch.testing.assert_close(untied(x)[0], whole, rtol=1e-12, atol=1e-12)


def test_single_layers_may_have_their_own_windows_and_positions(seed: int) -> None:
    """A stack of local layers with rotation and a global one without equals layers applied one by one."""
    local = {"window": 2, "position": {"name": "rotary", "base": 100.0}}
    model = stack(layers=[local, {}], position="none")
    x = torch.randn(1, 6, 8).double()
    first, second = stack(num_layers=1, final_norm=False, **local), stack(num_layers=1, position="none")
    first.layers[0].load_state_dict(model.layers[0].state_dict())
    second.layers[0].load_state_dict(model.layers[1].state_dict())
    second.final_norm.load_state_dict(model.final_norm.state_dict())
    torch.testing.assert_close(model(x)[0], second(first(x)[0])[0], rtol=1e-12, atol=1e-12)
    far = x.clone()
    far[:, 0] = torch.randn(8).double()
    assert torch.equal(first(x)[0][:, 2:], first(far)[0][:, 2:])
    assert not torch.allclose(model(x)[0][:, 5], model(far)[0][:, 5])


def test_layers_with_equal_positions_share_their_parameters() -> None:
    model = stack(layers=[{}, {"position": {"name": "relative", "num_buckets": 8}, "repeat": 2}], position="relative")
    assert len(model.other_positions) == 1
    assert model.other_positions[0].num_buckets == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the stack needs num_layers, or layers"),
        ({"layers": [], "num_layers": 2}, "layers must have at least one entry"),
        ({"layers": [{"mixr": "none"}]}, r"layers[0]: layer 'transformer_layer' has no argument 'mixr'. Did you mean 'mixer'?"),
        ({"layers": [{}, {"attention": "adaptive"}]}, "layers[1].attention: unknown attention 'adaptive'. Did you mean 'additive'?"),
        ({"layers": [{"repeat": 0}]}, "layers[0]: repeat must be positive and at most 100,000, but is 0"),
        ({"layers": [{"share": True}], "num_layers": 10**9}, "a stack has at most 100,000 layers, but this one has 1,000,000,000"),
        ({"layers": [{"repeat": 3}, {"mixer": "none"}], "num_layers": 3}, "num_layers 3 ends before layers[1], so this entry is never"),
        ({"layers": [{"mixer": "none", "window": 4}, {}]}, "window has no effect in a layer with the mixer 'none'"),
        (
            {"layers": [{"mixer": "none", "position": "rotary"}, {}]},
            "position 'rotary' has no effect in a layer with the mixer 'none'",
        ),
        (
            {"layers": [{"position": "learned"}]},
            "position 'learned' is added to the embeddings before the first layer: set it for the stack",
        ),
        ({"layers": [{"attention": "additive"}], "position": "rotary"}, "position 'rotary' does not work with attention 'additive'"),
        (
            {"layers": [{"mixer": {"name": "multi_head", "memory_keys": 2}, "position": "xpos"}, {}]},
            "position 'xpos' does not work with memory_keys: it scales queries",
        ),
        (
            {"num_layers": 2, "mixer": {"name": "parallel", "mixers": [{"name": "multi_head", "memory_keys": 2}]}, "position": "xpos"},
            "position 'xpos' does not work with memory_keys: it scales queries",
        ),
        (
            {"num_layers": 2, "mixer": "none", "position": "rotary"},
            "position 'rotary' has no effect: no mixer of this stack reads it",
        ),
        ({"num_layers": 2, "mixer": "retention", "position": "alibi"}, "position 'alibi' has no effect: no mixer of this stack reads it"),
        (
            {"num_layers": 2, "mixer": "latent_attention", "position": "cope"},
            "position 'cope' has no effect",
        ),
        ({"layers": [{"position": "rotary"}], "position": "kerple"}, "position 'kerple' has no effect: every entry of layers sets another"),
        (
            {"layers": [{"position": "rotary"}, {"mixer": "rwkv"}], "position": "kerple"},
            "position 'kerple' has no effect: no mixer of this stack reads it (mixers: rwkv)",
        ),
        ({"layers": [{"mixer": "none"}], "mixer": "rwkv"}, "mixer 'rwkv' has no effect: every entry of layers sets its own mixer"),
        ({"num_layers": 2, "mixer": "none", "attention": "additive"}, "attention has no effect: no layer has a mixer that reads it"),
        ({"num_layers": 2, "mixer": "none", "window": 3}, "window has no effect: no layer has a mixer that reads it"),
        ({"num_layers": 2, "mixer": "linear_attention", "num_kv_heads": 1}, "num_kv_heads has no effect: no layer has a mixer that"),
        ({"num_layers": 2, "mixer": "none", "head_dim": 2}, "head_dim has no effect: no layer has a mixer that reads it"),
        ({"layers": [{"mixer": "none", "num_heads": 4}]}, "num_heads has no effect in a layer with the mixer 'none'"),
        ({"layers": [{"mixer": "latent_attention", "num_kv_heads": 1}]}, "num_kv_heads has no effect in a layer with the mixer"),
        ({"layers": [{"mixer": "linear_attention", "backend": "sdpa"}]}, "backend has no effect in a layer with the mixer"),
    ],
)
def test_invalid_or_ineffective_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        attnkit.stacks.build({"name": "decoder", **SIZES, **options})


class Both(Position):
    """A position that adds to the embeddings and biases the logits."""

    def embedding(self, positions: Tensor) -> Tensor:
        return positions[..., None].float()

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return -(query_positions[:, None, :, None] - key_positions[:, None, None, :]).abs().float()


def test_a_position_whose_bias_would_be_ignored_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attnkit.positions._classes, "both", Both)
    options = {"name": "decoder", **SIZES, "num_layers": 2, "position": "both"}
    message = r"position 'both' adds to the embeddings, but its bias would be lost: no mixer of this stack reads it \(mixers: retention\)"
    with pytest.raises(ConfigurationError, match=message + r"\. Choose one of: none, learned, .*rotary"):
        attnkit.stacks.build({**options, "mixer": "retention"})
    attnkit.stacks.build({**options, "layers": [{}, {"mixer": "retention"}]})  # a hybrid, as with any other position


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cross_mixer": "linear_attention", "cross_position": "rotary"}, "cross_position 'rotary' has no effect: the cross_mixer"),
        ({"cross_mixer": "linear_attention", "cross_attention": "additive"}, "cross_attention has no effect: the cross_mixer"),
        ({"cross_mixer": "latent_attention", "cross_attention": "additive"}, "cross_attention has no effect: the cross_mixer"),
        ({"decoder_layers": [{"mixer": "linear_attention", "window": 3}]}, "window has no effect in a layer with the mixer"),
    ],
)
def test_options_that_a_memory_ignores_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        attnkit.stacks.build({"name": "encoder_decoder", **SIZES, "num_layers": 1, **options})


def test_a_layer_may_set_options_that_only_its_memory_reads() -> None:
    layers = [{"mixer": "linear_attention", "num_kv_heads": 1}]
    stack = attnkit.stacks.build({"name": "encoder_decoder", **SIZES, "num_layers": 1, "decoder_layers": layers})
    assert stack.decoder.layers[0].cross_mixer.key.out_features == 4


def test_every_mixer_rejects_causal_positions_in_an_encoder() -> None:
    with pytest.raises(ConfigurationError, match="position 'xpos' does not work in an encoder"):
        stack(num_layers=1, mixer="latent_attention", position="xpos", causal=False)


def test_a_mixer_that_cannot_read_an_attention_mask_rejects_it() -> None:
    mask = torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(ConfigurationError, match="attn_mask cannot restrict the mixer 'none'"):
        stack(layers=[{"mixer": "none"}, {}])(torch.zeros(1, 3, 8).double(), attn_mask=mask)


def test_a_layer_without_sublayers_does_not_affect_streams_or_final_norm() -> None:
    nothing = {"mixer": "none", "feed_forward": "none"}
    assert stack(layers=[{}, nothing]).final_norm is not None
    assert stack(layers=[{}, nothing], residual="post_norm").final_norm is None
    assert stack(layers=[nothing, {}], residual="hyper_connections").streams == 4
    assert stack(layers=[nothing]).streams == 1


def test_the_spec_records_given_options_and_rebuilds_the_model() -> None:
    layers = [{"mixer": "none", "repeat": 2}, {"attention": {"name": "additive", "hidden_dim": 3}}]
    model = attnkit.compose(stack="decoder", **SIZES, layers=layers, vocab_size=9)
    assert model.spec["layers"] == [
        {"name": "transformer_layer", "mixer": {"name": "none"}, "repeat": 2, "share": False},
        {"name": "transformer_layer", "attention": {"name": "additive", "hidden_dim": 3}, "repeat": 1, "share": False},
    ]
    again = attnkit.compose(**model.spec)
    assert again.state_dict().keys() == model.state_dict().keys()


def test_a_stack_without_heads_needs_none() -> None:
    attnkit.compose(stack="decoder", d_model=8, num_layers=1, mixer="none", vocab_size=9)
    with pytest.raises(ConfigurationError, match="the mixer 'multi_head' needs num_heads"):
        attnkit.compose(stack="decoder", d_model=8, num_layers=1, vocab_size=9)


def test_encoder_and_decoder_may_have_different_layers() -> None:
    sizes = {"src_vocab_size": 9, "tgt_vocab_size": 9}
    model = attnkit.compose(
        stack="encoder_decoder", **SIZES, num_layers=2, layers=[{"mixer": "none"}, {}], decoder_layers=[{}], num_decoder_layers=3, **sizes
    )
    assert [layer.mixer_residual is None for layer in model.stack.encoder.layers] == [True, False]
    assert [layer.mixer_residual is None for layer in model.stack.decoder.layers] == [False] * 3


def test_one_layer_is_changed_by_its_index() -> None:
    dropped: list[str] = []
    base = {"layers": [{"mixer": "none"}, {"attention": {"name": "additive", "hidden_dim": 3}}]}
    changed = merge(base, {"layers": {"1": {"attention": "cosine", "repeat": 2}}}, dropped=dropped)
    assert changed == {"layers": [{"mixer": "none"}, {"attention": "cosine", "repeat": 2}]}
    assert dropped == ["layers.1.attention: cosine replaces additive, so hidden_dim=3 no longer applies"]
    with pytest.raises(ConfigurationError, match=r"layers has 2 entries, numbered from 0, so there is no layers\.2"):
        merge(base, {"layers": {"2": {"mixer": "none"}}}, dropped=[])


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([{"mixer": "rwkv"}], 0),
        ([{"mixer": "rwkv"}, {}], 1),
        ([{"mixer": "rwkv"}, {}, {"window": 2}], 2),
        ([{"mixer": {"name": "parallel", "mixers": ["rwkv", "convolution"]}}], 0),
        ([{"mixer": {"name": "parallel", "mixers": ["rwkv", "multi_head"]}}], 1),
    ],
)
def test_masks_are_built_only_for_mixers_that_read_them(layers: list[Any], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    between = transformer.mask_between
    monkeypatch.setattr(transformer, "mask_between", lambda *a, **k: made.append(a) or between(*a, **k))
    documents = torch.tensor([[0, 0, 0, 1, 1]])
    restrictions: list[object] = []
    document = masks.document
    monkeypatch.setattr(transformer.masks, "document", lambda *a: restrictions.append(a) or document(*a))
    stack(layers=layers)(torch.zeros(1, 5, 8).double(), documents=documents)
    assert len(made) == expected
    assert len(restrictions) == (expected > 0)
