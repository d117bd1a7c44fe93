import pytest
import torch
import torch.nn.functional as F

import attnkit
from attnkit.feed_forward import make_activation
from attnkit.task.parameters import parameter_groups

X = torch.linspace(-3, 3, 24, dtype=torch.float64).view(2, 3, 4)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "gelu_tanh", "tanh", "relu_squared", "quick_gelu", "softplus", "identity"])
@pytest.mark.parametrize("bias", [True, False])
def test_mlp(name: str, bias: bool, seed: int) -> None:
    phi = {
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "tanh": torch.tanh,
        "relu_squared": lambda x: torch.relu(x) ** 2,
        "identity": lambda x: x,
        "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    }.get(name) or getattr(F, name)
    mlp = attnkit.feed_forwards.build({"name": "mlp", "ffn_dim": 5, "activation": name, "bias": bias}, d_model=4).double()
    hidden = phi(X @ mlp.input.weight.T + (mlp.input.bias if bias else 0))
    torch.testing.assert_close(mlp(X), hidden @ mlp.output.weight.T + (mlp.output.bias if bias else 0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("activation", "phi"), [("silu", F.silu), ("gelu", F.gelu), ("relu", F.relu), ("sigmoid", torch.sigmoid)])
def test_glu(activation: str, phi: object, seed: int) -> None:  # SwiGLU, GEGLU, ReGLU, GLU
    assert callable(phi)
    glu = attnkit.feed_forwards.build({"name": "glu", "ffn_dim": 5, "activation": activation}, d_model=4).double()
    expected = (phi(X @ glu.gate.weight.T) * (X @ glu.input.weight.T)) @ glu.output.weight.T
    torch.testing.assert_close(glu(X), expected, rtol=1e-12, atol=1e-12)
    assert not any("bias" in key for key in glu.state_dict())


@pytest.mark.parametrize("d_model", [8, 24, 96, 512])
def test_default_widths_give_similar_parameter_counts(d_model: int) -> None:
    mlp, glu = (attnkit.feed_forwards.build({"name": n, "bias": False}, d_model=d_model) for n in ("mlp", "glu"))
    sizes = [sum(p.numel() for p in m.parameters()) for m in (mlp, glu)]
    assert 0 <= sizes[1] - sizes[0] < 3 * 8 * d_model
    assert glu.gate.out_features % 8 == 0


def test_dropout_acts_on_hidden_elements_and_only_in_training(seed: int) -> None:
    for name in ("mlp", "glu"):
        piece = attnkit.feed_forwards.build({"name": name, "dropout": 0.5}, d_model=4).double()
        assert not torch.equal(piece.train()(X), piece(X))
        assert torch.equal(piece.eval()(X), piece(X))


@pytest.mark.parametrize("name", ["mlp", "glu"])
def test_unknown_activations_are_refused_with_a_suggestion(name: str) -> None:
    with pytest.raises(attnkit.ConfigurationError, match=r"unknown activation 'relru'. Did you mean 'relu'\? Names: .*gelu"):
        attnkit.feed_forwards.build({"name": name, "activation": "relru"}, d_model=4)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("swish", "silu"), ("gelu_new", "gelu_tanh"), ("relu2", "relu_squared"), ("linear", "identity")]
)
def test_an_activation_name_of_transformers_suggests_ours(theirs: str, ours: str) -> None:
    with pytest.raises(attnkit.ConfigurationError, match=f"unknown activation '{theirs}'. It is '{ours}' here. Names: "):
        attnkit.feed_forwards.build({"name": "mlp", "activation": theirs}, d_model=4)


@pytest.mark.parametrize("name", ["mlp", "glu"])
def test_non_positive_widths_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="ffn_dim must be positive, but is 0"):
        attnkit.feed_forwards.build({"name": name, "ffn_dim": 0}, d_model=4)


ACT2FN = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "hardswish": "hardswish", "leaky_relu": "leaky_relu",
    "linear": "identity", "mish": "mish", "quick_gelu": "quick_gelu", "relu": "relu", "relu2": "relu_squared", "relu6": "relu6",
    "sigmoid": "sigmoid", "silu": "silu", "swish": "silu", "tanh": "tanh",
}  # fmt: skip
"""Activations of transformers, and our names."""


@pytest.mark.parametrize("theirs", ACT2FN)
def test_activations_match_transformers(theirs: str) -> None:
    from transformers.activations import ACT2FN as REGISTRY

    torch.testing.assert_close(make_activation(ACT2FN[theirs])(X), REGISTRY[theirs](X), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "glu"])
def test_xielu_matches_transformers_and_is_learned(name: str, seed: int) -> None:
    from transformers.activations import XIELUActivation

    ours = attnkit.feed_forwards.build({"name": name, "ffn_dim": 5, "activation": "xielu"}, d_model=4).double()
    theirs = XIELUActivation(dtype=torch.float64)
    for parameter, initial in ((ours.activation.positive, theirs.alpha_p), (ours.activation.negative, theirs.alpha_n)):
        torch.testing.assert_close(parameter, initial.to(parameter.dtype), rtol=1e-6, atol=0)  # ours were drawn in fp32
        torch.nn.init.normal_(parameter)
        initial.data.copy_(parameter)
    x = (3 * X).requires_grad_()
    hidden = theirs(ours.input(x)) if name == "mlp" else theirs(ours.gate(x)) * ours.input(x)
    expected, y = ours.output(hidden), ours(x)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    wanted = torch.autograd.grad(expected.square().sum(), [x, theirs.alpha_p, theirs.alpha_n])
    found = torch.autograd.grad(y.square().sum(), [x, ours.activation.positive, ours.activation.negative])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_xielu_keeps_the_precision_and_finite_gradients(dtype: torch.dtype) -> None:
    phi, x = make_activation("xielu"), torch.tensor([-200.0, -1e-6, 0.0, 1e-6, 200.0], dtype=dtype, requires_grad=True)
    y = phi(x)
    y.sum().backward()
    assert y.dtype == x.dtype
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    torch.testing.assert_close(y.float(), phi.double()(x.detach().double()).float(), rtol=1e-2, atol=1e-6)  # type: ignore[attr-defined]


def test_xielu_does_not_decay_and_is_not_shared() -> None:
    sizes = {"d_model": 8, "num_layers": 2, "num_heads": 2, "vocab_size": 9}
    model = attnkit.compose(stack="decoder", **sizes, feed_forward={"name": "mlp", "activation": "xielu"})
    undecayed = {id(p) for group in parameter_groups(model) if group.get("weight_decay") == 0.0 for p in group["params"]}
    learned = [p for name, p in model.named_parameters() if ".activation." in name]
    assert len(learned) == 4
    assert {id(p) for p in learned} <= undecayed


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("name", ["mlp", "glu"])
def test_a_sub_norm_applies_before_the_output(name: str, norm: str, seed: int) -> None:
    normed, plain = (
        attnkit.feed_forwards.build({"name": name, "ffn_dim": 5, **own}, d_model=4).double() for own in ({"sub_norm": norm}, {})
    )
    plain.load_state_dict({key: x for key, x in normed.state_dict().items() if "sub_norm" not in key})
    for parameter in normed.sub_norm.parameters():
        torch.nn.init.normal_(parameter)
    plain.output.register_forward_pre_hook(lambda module, args: (normed.sub_norm(args[0]),))
    torch.testing.assert_close(normed(X), plain(X), rtol=1e-12, atol=1e-12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert normed.float()(X.float()).dtype == torch.bfloat16


def test_glu_with_bounds_and_an_offset(seed: int) -> None:  # gpt-oss
    spec = {"name": "glu", "ffn_dim": 5, "activation": "quick_gelu", "limit": 0.5, "offset": 1.0}
    glu = attnkit.feed_forwards.build(spec, d_model=4).double()
    gate, value = (X @ glu.gate.weight.T).clamp(max=0.5), (X @ glu.input.weight.T).clamp(-0.5, 0.5)
    expected = (gate / (1 + torch.exp(-1.702 * gate)) * (value + 1)) @ glu.output.weight.T
    torch.testing.assert_close(glu(X), expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="limit must be positive, but is 0"):
        attnkit.feed_forwards.build({"name": "glu", "limit": 0.0}, d_model=4)
