"""Models that cannot be split, and why."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import attnkit
from attnkit.layers import TransformerLayer
from attnkit.registry import ConfigurationError
from attnkit.strategy.preparation import layers
from attnkit.strategy.tensor_parallel import check_splittable, split_layers
from attnkit.task.parameters import parameter_groups


def layer_of(**options: Any) -> TransformerLayer:
    return TransformerLayer(**options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 6}, "needs num_heads to be a multiple of 4, but it is 6"),
        ({"num_heads": 8, "num_kv_heads": 2}, "needs num_kv_heads to be a multiple of 4, but it is 2"),
        ({"num_heads": 4, "feed_forward": {"name": "glu", "ffn_dim": 10}}, "needs ffn_dim to be a multiple of 4, but it is 10"),
    ],
)
def test_indivisible_counts_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_splittable([layer_of(d_model=24, **arguments)], 4)


@pytest.mark.parametrize("stack", ["recurrent_encoder", "recurrent_decoder", "recurrent_encoder_decoder"])
def test_recurrent_stacks_are_refused(stack: str) -> None:
    sizes = {"src_vocab_size": 9, "tgt_vocab_size": 9} if "encoder_decoder" in stack else {"vocab_size": 9}
    model = attnkit.compose(stack=stack, d_model=8, num_layers=1, **sizes)
    with pytest.raises(ConfigurationError, match=r"needs the whole previous recurrent state.*Use strategy fsdp2 or ddp"):
        check_splittable(layers(model), 2)


def test_layers_with_nothing_to_split_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"nothing to split: .* computes the mixers rwkv in full. Use strategy fsdp2 or ddp"):
        check_splittable([layer_of(d_model=8, mixer="rwkv", feed_forward="none")], 2)
    check_splittable([layer_of(d_model=8, mixer="rwkv")], 2)  # its feed-forward network is split


def test_a_value_factor_shared_by_all_heads_is_rejected() -> None:
    layer = layer_of(d_model=8, num_heads=2, mixer={"name": "multi_head", "value_residual": 0.5})
    with pytest.raises(ConfigurationError, match=r"share the parameter 'value_residual.factor'; use strategy fsdp2 or ddp"):
        check_splittable([layer], 2)


def test_a_parameter_shared_by_all_heads_is_rejected() -> None:
    layer = layer_of(d_model=8, num_heads=2)
    layer.mixer.attention.temperature = nn.Parameter(torch.ones(1))
    with pytest.raises(ConfigurationError, match="share the parameter 'temperature'"):
        check_splittable([layer], 2)


def test_a_module_shared_by_all_heads_outside_the_score_is_rejected() -> None:
    layer = layer_of(d_model=8, num_heads=2)
    layer.mixer.query_norm = nn.LayerNorm(4)
    with pytest.raises(ConfigurationError, match=r"heads of MultiHeadAttention share the parameter 'query_norm.weight'"):
        check_splittable([layer], 2)


@pytest.mark.parametrize("position", ["cope", "shaw"])
def test_position_vectors_shared_by_all_heads_are_rejected(position: str) -> None:
    model = attnkit.compose(stack="decoder", d_model=8, num_layers=1, num_heads=2, position=position, vocab_size=9)
    with pytest.raises(ConfigurationError, match="share the parameter 'weight'; use strategy fsdp2 or ddp"):
        split_layers(model, layers(model), cast(DeviceMesh, SimpleNamespace(size=lambda: 2)))


@pytest.mark.parametrize("name", attnkit.normalizers.names())
def test_every_normalizer_can_be_split(name: str) -> None:
    layer = layer_of(d_model=8, num_heads=4, num_kv_heads=2)
    layer.mixer.attention.configure(normalizer=name)
    check_splittable([layer], 2)


@pytest.mark.parametrize(
    ("option", "value", "name"), [("activation", "xielu", "activation.positive"), ("sub_norm", "rms_norm", "sub_norm.w")]
)
def test_a_parameter_shared_by_all_hidden_units_is_rejected(option: str, value: str, name: str) -> None:
    layer = TransformerLayer(d_model=8, num_heads=2, feed_forward={"name": "mlp", option: value})
    with pytest.raises(ConfigurationError, match=rf"hidden units of MLP share the parameter '{name}.*; use strategy fsdp2"):
        check_splittable([layer], 2)


WHOLE = {"name": "rms_norm", "learned": False}
OVER_ALL = {"name": "multi_head", "query_key_norm_over": "all"}


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"mixer": {"name": "multi_head", "sub_norm": WHOLE}}, "some of the heads, but 'sub_norm' of MultiHeadAttention normalises all"),
        ({"mixer": OVER_ALL, "query_key_norm": WHOLE}, "some of the heads, but 'query_norm' of MultiHeadAttention normalises all"),
        ({"feed_forward": {"name": "glu", "sub_norm": WHOLE}}, "some of the hidden units, but 'sub_norm' of GLU normalises all"),
        ({"query_key_norm": WHOLE}, None),
        ({"mixer": OVER_ALL, "query_key_norm": "none"}, None),
    ],
)
def test_norms_over_all_heads_or_hidden_units_are_rejected(options: dict[str, Any], refused: str | None) -> None:
    layer = TransformerLayer(d_model=8, num_heads=2, **options)
    with nullcontext() if refused is None else pytest.raises(ConfigurationError, match=f"{refused}.*use strategy fsdp2 or ddp"):
        check_splittable([layer], 2)


def test_talking_heads_are_refused() -> None:
    layer = layer_of(d_model=8, num_heads=2)
    layer.mixer.attention.configure(talking_heads=True)
    with pytest.raises(ConfigurationError, match=r"share the parameter 'talking_heads.logits'"):
        check_splittable([layer], 2)


def counted(model: nn.Module) -> list[tuple[int, float | None]]:
    """Return how many parameters each group has, and its weight decay."""
    return [(len(group["params"]), group.get("weight_decay")) for group in parameter_groups(model)]


def test_split_parameters_stay_free_of_weight_decay() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = attnkit.compose(
            stack="decoder", d_model=8, num_layers=1, num_heads=2, vocab_size=9, position="kerple", residual="hyper_connections",
            mixer={"name": "multi_head", "memory_keys": 2},
        )  # fmt: skip
        whole = counted(model)
        split_layers(model, layers(model), DeviceMesh("cpu", [0]))
        split = counted(model)
    finally:
        torch.distributed.destroy_process_group()
    assert split == whole


@pytest.mark.parametrize("name", attnkit.attentions.names())
def test_every_attention_can_be_split(name: str) -> None:
    check_splittable([layer_of(d_model=8, num_heads=4, num_kv_heads=2, attention=name)], 2)
