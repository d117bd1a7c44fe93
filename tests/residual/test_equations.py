from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnkit
from attnkit.layers import Transformer, TransformerConfig, TransformerLayer
from attnkit.mixer import Tokens
from attnkit.registry import ConfigurationError
from attnkit.residual import Sublayer


def hyper(x: Tensor, f: Any, r: Any) -> Tensor:
    """Algorithm 2 of the paper, token by token."""
    y = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            h = x[b, t]  # [N, D]
            normed = torch.stack([r.stream_norm(row) for row in h])
            mixing = r.mixing + r.scales[0] * torch.tanh(normed @ r.mixing_weight)
            writing = r.writing + r.scales[1] * torch.tanh(normed @ r.writing_weight)
            read = sum(mixing[n, 0] * h[n] for n in range(len(h)))
            out = f(r.norm(read)[None, None])[0, 0]
            for n in range(len(h)):
                y[b, t, n] = sum(mixing[m, 1 + n] * h[m] for m in range(len(h))) + writing[n] * out
    return y


def manifold_hyper(x: Tensor, f: Any, r: Any) -> Tensor:
    """Equations 7 and 8 of the paper, token by token, with the epsilons of DeepSeek's code."""
    n, y = x.shape[-2], torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            h = x[b, t]  # [N, D]
            flat = h.reshape(-1) / (h.square().mean() + r.norm_eps).sqrt()
            reading = torch.sigmoid(r.scales[0] * (r.reading_weight @ flat) + r.reading_bias) + r.eps
            writing = 2 * torch.sigmoid(r.scales[1] * (r.writing_weight @ flat) + r.writing_bias)
            mixing = torch.exp(r.scales[2] * (r.mixing_weight @ flat) + r.mixing_bias).view(n, n)
            for i in range(r.iterations):
                mixing = mixing / (mixing.sum(1)[:, None] + (r.eps if i else 0)) + (0 if i else r.eps)
                mixing = mixing / (mixing.sum(0)[None] + r.eps)
            out = f(r.norm(sum(reading[i] * h[i] for i in range(n)))[None, None])[0, 0]
            for j in range(n):
                y[b, t, j] = sum(mixing[i, j] * h[i] for i in range(n)) + writing[j] * out
    return y


EQUATIONS = {
    "none": lambda x, f, r: f(x),
    "post_norm": lambda x, f, r: r.norm(x + f(x)),
    "pre_norm": lambda x, f, r: x + f(r.norm(x)),
    "output_norm": lambda x, f, r: x + r.norm(f(x)),
    "deep_norm": lambda x, f, r: r.norm(12**0.25 * x + f(x)),
    "layer_scale": lambda x, f, r: x + r.scale * f(r.norm(x)),
    "parallel": lambda x, f, r: x + f(r.norm(x)),
    "sandwich_norm": lambda x, f, r: x + r.output_norm(f(r.input_norm(x))),
    "rezero": lambda x, f, r: x + r.gate * f(x),
    "hyper_connections": hyper,
    "manifold_hyper_connections": manifold_hyper,
}
NORMS = {"none": 0, "rezero": 0, "sandwich_norm": 2, "hyper_connections": 2}
PLACE = Sublayer(layer=1, num_layers=6)
SIZES: dict[str, Any] = {"d_model": 8, "num_heads": 2}


def build(name: str | dict[str, Any], **options: Any) -> Any:
    return attnkit.residuals.build(name, **{"make_norm": lambda: nn.LayerNorm(4), "d_model": 4, "sublayer": PLACE, **options})


def stream(residual: Any) -> Tensor:
    return torch.randn(2, 3, *([residual.streams] if residual.streams > 1 else []), 4).double()


def test_every_built_in_residual_has_its_equation_here() -> None:
    assert set(EQUATIONS) == attnkit.residuals.built_in()


@pytest.mark.parametrize("name", EQUATIONS)
def test_equation(name: str, seed: int) -> None:
    residual = build(name).double()
    for parameter in residual.parameters():
        nn.init.normal_(parameter)
    x, matrix = stream(residual), torch.randn(4, 4).double()

    def f(x: Tensor) -> Tensor:
        return torch.tanh(x @ matrix)

    y = residual.after(x, f(residual.before(x)))
    torch.testing.assert_close(y, EQUATIONS[name](x, f, residual), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", EQUATIONS)
def test_norms_are_created_only_if_needed(name: str) -> None:
    made: list[nn.Module] = []

    def make_norm() -> nn.Module:
        made.append(nn.LayerNorm(4))
        return made[-1]

    build(name, make_norm=make_norm)
    assert len(made) == NORMS.get(name, 1)


@pytest.mark.parametrize("name", EQUATIONS)
def test_dropout_acts_on_the_branch_and_never_on_the_stream(name: str) -> None:
    residual = build(name, make_norm=nn.Identity, dropout=1.0).train()
    x = torch.ones_like(stream(residual), dtype=torch.float32)
    expected = torch.zeros_like(x) if name == "none" else 12**0.25 * x if name == "deep_norm" else x
    torch.testing.assert_close(residual.after(x, 5 * residual.before(x)), expected)


def test_a_rezero_layer_starts_as_the_identity(seed: int) -> None:
    residual = build("rezero", make_norm=nn.Identity)
    x = torch.randn(1, 2, 4)
    assert torch.equal(residual.after(x, torch.randn(1, 2, 4)), x)


@pytest.mark.parametrize(("depth", "initial"), [(18, 0.1), (24, 1e-5), (36, 1e-6)])
def test_layer_scale_initialises_as_in_the_paper(depth: int, initial: float) -> None:
    stack = Transformer(TransformerConfig(**SIZES, num_layers=depth, residual="layer_scale"), causal=True)
    assert {value for layer in stack.layers for value in layer.mixer_residual.scale.tolist()} == {torch.tensor(initial).item()}


def test_deep_norm_derives_alpha_from_its_stack() -> None:
    model = attnkit.stacks.build({"name": "encoder_decoder", **SIZES, "num_layers": 4, "num_decoder_layers": 9, "residual": "deep_norm"})
    assert {layer.mixer_residual.alpha for layer in model.encoder.layers} == {8**0.25}
    assert {layer.cross_mixer_residual.alpha for layer in model.decoder.layers} == {27**0.25}


@pytest.mark.parametrize("shared", [True, False])
def test_parallel_sublayers_read_the_input_of_the_layer(shared: bool, seed: int) -> None:
    layer = TransformerLayer(**SIZES, residual={"name": "parallel", "shared_norm": shared}).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 3, 8).double()
    first = layer.mixer_residual.norm
    second = first if shared else layer.feed_forward_residual.norm
    expected = x + layer.mixer(first(x), Tokens())[0] + layer.feed_forward(second(x))
    torch.testing.assert_close(layer(x, Tokens())[0], expected, rtol=1e-12, atol=1e-12)
    norms = [name for name, _ in layer.named_parameters() if "norm" in name]
    assert len(norms) == (2 if shared else 4)


def test_a_shared_norm_needs_a_mixer() -> None:
    with pytest.raises(ConfigurationError, match="with a shared norm needs a mixer in addition to the feed-forward network"):
        TransformerLayer(**SIZES, mixer="none", residual="parallel")


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "hyper_connections", "num_streams": 3},
        {"name": "hyper_connections", "num_streams": 3, "dynamic": False},
        {"name": "manifold_hyper_connections", "num_streams": 3},
    ],
)
def test_hyper_connections_initially_equal_pre_norm(spec: dict[str, Any], seed: int) -> None:
    """Equal streams, each written alike: their sum is N times the stream of a pre-norm stack, which the final norm takes out."""
    hyper_stack = Transformer(TransformerConfig(**SIZES, num_layers=2, residual=spec), causal=True).double().eval()
    plain = Transformer(TransformerConfig(**SIZES, num_layers=2), causal=True).double().eval()
    plain.load_state_dict(hyper_stack.state_dict(), strict=False)
    x = torch.randn(2, 5, 8).double()
    torch.testing.assert_close(hyper_stack(x)[0], plain(x)[0], rtol=1e-4, atol=1e-5)  # the norm's eps weighs N^2 times less


@pytest.mark.parametrize("name", ["hyper_connections", "manifold_hyper_connections"])
def test_hyper_connections_support_stepwise_decoding(name: str, seed: int) -> None:
    stack = Transformer(TransformerConfig(**SIZES, num_layers=2, residual=name), causal=True).double().eval()
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 5, 8).double()
    whole, state = stack(x)[0], None
    for t in range(5):
        y, state = stack(x[:, t : t + 1], state=state)
        torch.testing.assert_close(y[:, 0], whole[:, t], rtol=1e-10, atol=1e-10)


def test_autocast_does_not_round_manifold_streams(seed: int) -> None:
    residual, x = build("manifold_hyper_connections"), torch.randn(2, 3, 4, 4)
    for parameter in residual.parameters():
        nn.init.normal_(parameter)
    expected = residual.after(x, torch.zeros(2, 3, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(residual.after(x, torch.zeros(2, 3, 4)), expected)


def test_manifold_mixing_keeps_the_sum_and_equal_streams(seed: int) -> None:
    """The rows and the columns of the mixing matrices sum to 1."""
    residual = build({"name": "manifold_hyper_connections", "eps": 0.0}).double()
    for parameter in residual.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, nothing = stream(residual), torch.zeros(2, 3, 4).double()
    torch.testing.assert_close(residual.after(x, nothing).sum(-2), x.sum(-2), rtol=1e-9, atol=1e-9)  # 20 iterations suffice for such logits
    equal = x[..., :1, :].expand_as(x)
    torch.testing.assert_close(residual.after(equal, nothing), equal, rtol=1e-12, atol=1e-12)


def test_layers_with_different_streams_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="these have 1 and 4: use one residual for all"):
        Transformer(TransformerConfig(**SIZES, layers=[{}, {"residual": "hyper_connections"}]), causal=True)


@pytest.mark.parametrize("depth", [4, 5])
def test_skips_add_the_mirrored_layers_output(depth: int, seed: int) -> None:
    stack = Transformer(TransformerConfig(**SIZES, num_layers=depth, skips=True, position="none", final_norm=False), causal=True).double()
    nn.init.normal_(stack.skips)
    x = torch.randn(1, 3, 8).double()
    y, outputs = x, []
    for i, layer in enumerate(stack.layers):
        mirror = depth - 1 - i
        if i > mirror:
            y = y + stack.skips[mirror] * outputs[mirror]
        y = layer(y, Tokens(mask=attnkit.masks.Mask(causal=True)))[0]
        outputs.append(y)
    torch.testing.assert_close(stack(x)[0], y, rtol=1e-12, atol=1e-12)


def test_skips_are_rejected_for_a_single_layer() -> None:
    with pytest.raises(attnkit.ConfigurationError, match="skips has no effect in a stack of one layer"):
        attnkit.stacks.build({"name": "decoder", **SIZES, "num_layers": 1, "skips": True})
