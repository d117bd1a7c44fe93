import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnkit
from attnkit.init.base import parts
from attnkit.task.parameters import FACTOR, parameter_groups

SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 2, "num_heads": 4}
WIDE: dict[str, Any] = {"d_model": 256, "num_layers": 2, "num_heads": 4, "vocab_size": 300}


def make(seed: int = 1, **arguments: Any) -> Any:
    torch.manual_seed(seed)
    sizes = {"src_vocab_size": 20, "tgt_vocab_size": 30} if arguments["stack"].endswith("encoder_decoder") else {"vocab_size": 20}
    return attnkit.compose(**{**SIZES, **sizes, **arguments})


def std(weight: Tensor) -> float:
    return float(weight.detach().std())


PIECES: dict[str, dict[str, Any]] = {
    "score": {"attention": "additive"},
    "positions with a table": {"position": "learned"},
    "norm": {"norm": "rms_norm", "residual": "post_norm"},
    "feed-forward": {"feed_forward": "glu"},
    "depth": {"num_layers": 3},
    "embedding": {"embedding": {"name": "token", "num_segments": 1}},
    "vocabulary": {"tgt_vocab_size": 31},
}


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("init", ["default", "gpt2", "bert", "t5"])
def test_parameters_of_equal_name_and_shape_start_equal(piece: str, init: str) -> None:
    one, other = (make(stack="encoder_decoder", init=init, **changes).state_dict() for changes in ({}, PIECES[piece]))
    both = [name for name in one if name in other and one[name].shape == other[name].shape]
    if init == "gpt2" and piece == "depth":
        both = [name for name in both if ".output." not in name]
    assert len(both) >= 40
    different = [name for name in both if not torch.equal(one[name], other[name])]
    assert different == []


def test_parameters_of_recurrent_cells_are_initialised_independently() -> None:
    stack: dict[str, Any] = {"stack": "recurrent_encoder_decoder", "num_layers": 1, "num_heads": 1}
    one, other = (make(**stack, input_feeding=feeds).state_dict() for feeds in (False, True))
    assert one["stack.decoder.recurrent.layers.0.input_weight"].shape != other["stack.decoder.recurrent.layers.0.input_weight"].shape
    assert all(torch.equal(one[name], other[name]) for name in one if one[name].shape == other[name].shape)


def test_score_parameters_do_not_depend_on_the_number_of_key_heads() -> None:
    one, other = (make(stack="decoder", attention="additive", num_kv_heads=heads).state_dict() for heads in (4, 2))
    name = "stack.decoder.layers.0.mixer.attention.key_weight"
    assert torch.equal(one[name][:2], other[name])
    assert [name for name in one if one[name].shape == other[name].shape and not torch.equal(one[name], other[name])] == []


def test_the_seed_determines_weights_and_consecutive_models_differ() -> None:
    one, same, other = make(1, stack="encoder"), make(1, stack="encoder"), make(2, stack="encoder")
    after = attnkit.compose(stack="encoder", **SIZES, vocab_size=20)
    name = "head.projection.weight"
    assert torch.equal(one.get_parameter(name), same.get_parameter(name))
    assert not any(torch.equal(one.get_parameter(name), m.get_parameter(name)) for m in (other, after))
    layers = [one.get_parameter(f"stack.encoder.layers.{i}.feed_forward.input.weight") for i in range(2)]
    assert not torch.equal(*layers)


def test_every_model_advances_the_global_generator_equally() -> None:
    after = set()
    for changes in PIECES.values():
        make(stack="encoder_decoder", **changes)
        after.add(float(torch.rand(())))
    assert len(after) == 1


def test_a_spec_records_its_init() -> None:
    model = make(stack="encoder", init={"name": "gpt2", "std": 0.1})
    assert model.spec["init"] == {"name": "gpt2", "std": 0.1}
    torch.manual_seed(1)
    again = attnkit.compose(**model.spec)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_parts_have_the_expected_roles_and_branches() -> None:
    model = make(stack="encoder_decoder", num_decoder_layers=3)
    found = {part.path: part for part in parts(model)}
    assert found["embeddings.src"].role == found["embeddings.tgt"].role == "table"
    assert found["head.projection"].role == "head"
    branches = {path: part.branches for path, part in found.items() if part.role == "branch"}
    assert len(branches) == 2 * 2 + 3 * 3
    assert {count for path, count in branches.items() if "encoder." in path} == {4}
    assert {count for path, count in branches.items() if "stack.decoder." in path} == {9}
    assert found["stack.encoder.layers.0.feed_forward.input"].role == "hidden"
    assert found["stack.encoder.final_norm"].role == "other"
    without = set()
    for mixer in attnkit.mixers.built_in():
        layer = make(stack="encoder" if mixer == "fourier" else "decoder", mixer=mixer, feed_forward="none", position="none")
        without |= set() if any(part.role == "branch" for part in parts(layer)) else {mixer}
    assert without == {"fourier", "gru", "lstm", "none", "rnn", "slstm"}  # which end with no linear map


@pytest.mark.parametrize("init", ["gpt2", "bert", "t5", "deep_norm", {"name": "mup", "base_width": 4}])
@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"position": "fire"}, "position"),
        ({"mixer": {"name": "convolution", "kernel_size": None}}, "kernel"),
        ({"mixer": "mlstm"}, "input_gate|forget_gate"),
        ({"mixer": "rwkv7"}, r"(decay|rate|gate)\.0"),
        ({"mixer": "selective_state_space"}, "step"),
    ],
)
def test_parts_with_their_own_initialisation_keep_it_under_every_init(init: Any, options: dict[str, Any], parts: str) -> None:
    own, default = (make(stack="decoder", init=kind, **{"position": "none", **options}).state_dict() for kind in (init, "default"))
    names = [name for name in own if re.search(rf"\.({parts})\.", name)]
    assert len(names) >= 4
    assert all(torch.equal(own[name], default[name]) for name in names)


def test_shared_layers_count_every_use_as_a_branch() -> None:
    model = make(stack="decoder", num_layers=4, layers=[{"share": True}, {}])
    assert {part.branches for part in parts(model) if part.role == "branch"} == {8}
    own = make(stack="decoder", num_layers=4, init="deep_norm")
    shared = make(stack="decoder", num_layers=4, init="deep_norm", layers=[{"share": True}])
    path = "stack.decoder.layers.0.mixer.output.weight"
    assert torch.equal(shared.state_dict()[path], own.state_dict()[path])


def test_gpt2_is_scaled_by_depth() -> None:
    model = attnkit.compose(stack="decoder", init="gpt2", position="learned", **WIDE)
    assert std(model.embedding.weight) == pytest.approx(0.02, rel=0.05)
    for part in parts(model):
        if isinstance(part.module, nn.Linear):
            assert std(part.weight) == pytest.approx(0.02 / 2 if part.role == "branch" else 0.02, rel=0.05), part.path
            assert part.module.bias is None or not part.module.bias.any()
        elif "norm" in part.path:
            assert bool((part.weight == 1).all())


def test_bert_truncates_the_normal_distribution() -> None:
    model = attnkit.compose(stack="encoder", init="bert", **WIDE)
    for part in parts(model):
        if part.role != "other":
            assert part.weight.abs().max() <= 0.04
            assert std(part.weight) == pytest.approx(0.02 * 0.8796, rel=0.05), part.path  # of a normal distribution cut off at 2


def test_t5_uses_the_deviations_of_transformers() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 64, "d_kv": 16, "num_heads": 8, "d_ff": 200, "num_layers": 2, "vocab_size": 500}
    theirs = T5ForConditionalGeneration(T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False)).state_dict()
    model = attnkit.compose(
        stack="encoder_decoder", d_model=64, num_layers=2, num_heads=8, head_dim=16, attention="dot_product", position="relative",
        feed_forward={"name": "glu", "ffn_dim": 200}, bias=False, src_vocab_size=500, tgt_vocab_size=500, init="t5",
        embedding={"name": "token", "scale": False},
    )  # fmt: skip
    ours = model.state_dict()
    pairs = {
        "shared.weight": "embeddings.src.weight",
        "encoder.block.0.layer.0.SelfAttention.q.weight": "stack.encoder.layers.0.mixer.query.weight",
        "encoder.block.0.layer.0.SelfAttention.k.weight": "stack.encoder.layers.0.mixer.key.weight",
        "encoder.block.0.layer.0.SelfAttention.o.weight": "stack.encoder.layers.0.mixer.output.weight",
        "decoder.block.1.layer.1.EncDecAttention.q.weight": "stack.decoder.layers.1.cross_mixer.query.weight",
        "encoder.block.1.layer.1.DenseReluDense.wi_0.weight": "stack.encoder.layers.1.feed_forward.gate.weight",
        "encoder.block.1.layer.1.DenseReluDense.wo.weight": "stack.encoder.layers.1.feed_forward.output.weight",
    }
    for their_name, our_name in pairs.items():
        size = theirs[their_name].numel()
        assert std(ours[our_name]) == pytest.approx(std(theirs[their_name]), rel=6 / (2 * size) ** 0.5), their_name
    # where transformers differs from the authors' code (Mesh TensorFlow and T5X): its logits start at the square root of d_model
    assert std(ours["head.projection.weight"]) == pytest.approx(64**-0.5, rel=0.03)
    biases = ours["stack.encoder.position.weight"]  # [32, 8]
    assert 0.9 * (6 / 40) ** 0.5 < biases.abs().max() <= (6 / 40) ** 0.5


def logit_change(width: int, init: Any) -> float:
    """Return how far the logits move in a few steps of Adam."""
    torch.manual_seed(0)
    model = attnkit.compose(
        stack="decoder", d_model=width, num_layers=1, num_heads=width // 16, vocab_size=20, init=init, position="none",
        feed_forward={"name": "mlp", "ffn_dim": 2 * width}, eos_id=None,
    )  # fmt: skip
    groups = parameter_groups(model)
    for group in groups:
        group["lr"] = 0.01 * group.pop(FACTOR, 1.0)
    optimizer = torch.optim.Adam([{k: v for k, v in g.items() if k in ("params", "lr")} for g in groups])
    x = torch.randint(20, (8, 12))
    before = model(x).detach()
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
        optimizer.step()
    return float((model(x).detach() - before).square().mean().sqrt())


def test_mup_keeps_the_size_of_updates_across_widths() -> None:
    ours = [logit_change(width, {"name": "mup", "base_width": 32}) for width in (32, 128, 512)]
    default = [logit_change(width, "default") for width in (32, 128, 512)]
    assert max(ours) < 1.6 * min(ours)
    assert default[2] > 3 * default[0]


def test_mup_declares_learning_rate_factors_for_the_optimizer() -> None:
    mup = {"name": "mup", "base_width": 4}
    model = make(stack="decoder", init=mup)
    assert model.learning_rates["stack.decoder.layers.0.feed_forward.input.weight"] == 0.25
    assert model.learning_rates["embedding.weight"] == 0.5  # its factor grows with the square root of the width
    assert "stack.decoder.layers.0.feed_forward.input.bias" not in model.learning_rates
    assert make(stack="decoder", init=mup, embedding={"name": "token", "scale": False}).learning_rates.keys() == (
        model.learning_rates.keys() - {"embedding.weight"}
    )
    assert make(stack="decoder", init={"name": "mup", "base_width": 16}).learning_rates == {}
    groups = parameter_groups(model)
    assert [(group["matrices"], group.get(FACTOR)) for group in groups] == [(True, 0.25), (False, 0.5), (False, 0.25), (False, None)]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_mup_does_not_scale_the_learning_rate_of_patches() -> None:
    image = {"embedding": {"name": "patch", "patch_size": 4}, "image_shape": [1, 8, 8], "num_classes": 3}
    model = attnkit.compose(stack="encoder", **SIZES, **image, init={"name": "mup", "base_width": 4})
    assert "head.projection.weight" in model.learning_rates
    assert not [name for name in model.learning_rates if name.startswith("embedding")]


@pytest.mark.parametrize(
    ("options", "fixed"),
    [
        ({"mixer": {"name": "convolution", "kernel_size": None}}, ["kernel.hidden", "kernel.output"]),
        ({"mixer": "gated_linear_attention"}, ["decay.1"]),
        ({"mixer": "latent_attention"}, ["mixer.key", "mixer.value"]),
        ({"mixer": {"name": "latent_attention", "query_latent_dim": 6}}, ["mixer.query", "mixer.key", "mixer.value"]),
        ({"position": "fire"}, ["position.input", "position.output"]),
        ({}, []),
    ],
)
def test_mup_does_not_scale_maps_with_fixed_fan_in(options: dict[str, Any], fixed: list[str]) -> None:
    """The declared ones are those whose inputs are as wide in a model of twice the width and twice the heads."""
    common = {"stack": "decoder", "num_layers": 1, "vocab_size": 9, "position": "none", "init": {"name": "mup", "base_width": 4}, **options}
    narrow, wide = (attnkit.compose(d_model=width, num_heads=width // 8, **common) for width in (32, 64))
    widths = {path: module.in_features for path, module in narrow.named_modules() if isinstance(module, torch.nn.Linear)}
    same = {path for path, module in wide.named_modules() if isinstance(module, torch.nn.Linear) and module.in_features == widths[path]}
    assert {path for path in widths if f"{path}.weight" not in wide.learning_rates} == same
    assert [path for path in widths if path in same and path.endswith(tuple(fixed))] == [path for path in widths if path in same]
    assert len(same) == len(fixed)


@pytest.mark.parametrize(
    ("options", "maps"),
    [
        ({"residual": "hyper_connections"}, {"mixing_weight", "writing_weight"}),
        ({"residual": {"name": "hyper_connections", "dynamic": False}}, set()),
        ({"residual": "manifold_hyper_connections"}, {"reading_weight", "writing_weight", "mixing_weight"}),
        ({"mixer": {"name": "multi_head", "talking_heads": True}}, {"logits", "weights"}),
    ],
)
def test_mup_scales_growing_parameters_outside_linear_maps(options: dict[str, Any], maps: set[str]) -> None:
    common: dict[str, Any] = {"stack": "decoder", "num_layers": 1, "vocab_size": 9, "init": {"name": "mup", "base_width": 16}, **options}
    model = attnkit.compose(d_model=64, num_heads=4, **common)
    others = {name: factor for name, factor in model.learning_rates.items() if not isinstance(_owner(model, name), nn.Linear)}
    others.pop("embedding.weight")
    assert {name.rpartition(".")[2] for name in others} == maps
    assert set(others.values()) <= {0.25}


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def test_mup_rejects_models_it_has_no_rule_for() -> None:
    mup = {"name": "mup", "base_width": 4}
    with pytest.raises(attnkit.ConfigurationError, match="set tie to 'none'"):
        make(stack="decoder", tie="output", init=mup)
    with pytest.raises(attnkit.ConfigurationError, match="no rule for recurrent cells"):
        attnkit.compose(stack="recurrent_decoder", d_model=8, num_layers=1, vocab_size=9, init=mup)
    with pytest.raises(attnkit.ConfigurationError, match="base_width must be positive"):
        make(stack="decoder", init={"name": "mup", "base_width": 0})


def test_deep_norm_scales_weights_that_write_to_the_stream() -> None:
    sizes = {"src_vocab_size": 20, "tgt_vocab_size": 20, "num_layers": 2, "num_decoder_layers": 3}
    plain, deep = (make(stack="encoder_decoder", init=init, **sizes) for init in ("default", "deep_norm"))
    for name, weight in deep.named_parameters():
        beta = 1.0
        if ".layers." in name and name.endswith(".weight") and "norm" not in name and ".query." not in name and ".key." not in name:
            beta = (12 * 3) ** -0.25 if "stack.decoder." in name else (8 * 2) ** -0.25
        torch.testing.assert_close(weight, beta * plain.get_parameter(name), rtol=1e-6, atol=0, msg=lambda m, n=name: f"{n}: {m}")


VALUES = {
    "convolution": (["output"], slice(32, None)),
    "delta_rule": (["output"], slice(32, None)),
    "gated_delta": (["output"], slice(32, None)),
    "gated_linear_attention": (["output", "value"], None),
    "latent_attention": (["output", "value"], None),
    "mlstm": (["output", "value"], None),
    "retention": (["output", "value"], None),
    "rg_lru": (["input", "output"], None),
    "rwkv": (["output", "value"], None),
    "rwkv7": (["output", "value"], None),
    "selective_state_space": (["input", "output"], None),
    "slstm": ([], None),
    "state_space": (["output"], slice(0, 32)),
}
"""The maps of a mixer that the values pass through, and the rows of a map `input` that others share."""


@pytest.mark.parametrize("mixer", VALUES)
def test_deep_norm_scales_only_the_value_path(mixer: str) -> None:
    plain, deep = (make(stack="decoder", num_layers=1, mixer=mixer, init=init, feed_forward="glu") for init in ("default", "deep_norm"))
    (scaled, rows), prefix = VALUES[mixer], "stack.decoder.layers.0."
    scaled = [f"mixer.{name}" for name in scaled] + ["feed_forward.input", "feed_forward.output"]
    for name, weight in deep.named_parameters():
        expected = plain.get_parameter(name).clone()
        if name.startswith(prefix) and name.removeprefix(prefix).removesuffix(".weight") in scaled:
            expected *= 8**-0.25
        elif rows is not None and name == f"{prefix}mixer.input.weight":
            expected[rows] *= 8**-0.25
        torch.testing.assert_close(weight, expected, rtol=1e-6, atol=0, msg=lambda m, n=name: f"{n}: {m}")
