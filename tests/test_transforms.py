"""torch.func and differentiation in forward mode agree with the backward pass, whatever custom operators compute."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

import attnkit
from attnkit.attention import Attention
from attnkit.layers import reading

# torch itself scripts decompositions when forward mode is first used
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

LENGTH = 140  # several chunks


def decoder(**options: Any) -> torch.nn.Module:
    model = attnkit.compose(**{"stack": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 7, **options})
    return model.double().eval()


def tangents(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.randn_like(parameter) for name, parameter in parameters.items()}


MIXERS = [name for name in attnkit.mixers.names() if name not in ("none", "fourier", "parallel")]
PIECES: list[dict[str, Any]] = [
    *({"mixer": name, "position": "none"} for name in MIXERS),
    *({"attention": name, "position": "none"} for name in attnkit.attentions.names()),
    *({"position": name} for name in ("alibi", "rotary", "relative", "kerple")),
    {"window": 16},
]


@pytest.mark.parametrize("piece", PIECES, ids=str)
def test_forward_mode_agrees_with_the_backward_pass(piece: dict[str, Any]) -> None:
    model, tokens = decoder(**piece), torch.randint(3, 7, (2, LENGTH))
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    directions = tangents(parameters)
    output, tangent = jvp(lambda p: functional_call(model, p, (tokens,)), (parameters,), (directions,))
    torch.testing.assert_close(output, model(tokens))
    cotangent = torch.randn_like(tangent)
    gradients = torch.autograd.grad((model(tokens) * cotangent).sum(), list(model.parameters()))
    pairs = zip(gradients, directions.values(), strict=True)
    torch.testing.assert_close((tangent * cotangent).sum(), torch.stack([(g * d).sum() for g, d in pairs]).sum())


@pytest.mark.parametrize("mixer", ["gated_linear_attention", "rwkv", "selective_state_space", "state_space"])
def test_per_example_gradients_sum_to_the_batch_gradient(mixer: str) -> None:
    model, tokens = decoder(mixer=mixer, position="none"), torch.randint(3, 7, (2, LENGTH))
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    single = vmap(grad(lambda p, row: functional_call(model, p, (row[None],)).square().sum()), (None, 0))(parameters, tokens)
    whole = torch.autograd.grad(model(tokens).square().sum(), list(model.parameters()))
    for found, expected in zip(single.values(), whole, strict=True):
        torch.testing.assert_close(found.sum(0), expected)


ENSEMBLES: list[dict[str, Any]] = [
    *({"position": name} for name in ("cope", "fire", "relative")),
    *({"mixer": name, "position": "none"} for name in ("gru", "lstm", "rnn")),
]


@pytest.mark.parametrize("piece", ENSEMBLES, ids=str)
def test_an_ensemble_trains_under_vmap(piece: dict[str, Any]) -> None:
    models, tokens = [decoder(**piece) for _ in range(2)], torch.randint(3, 7, (2, 5))
    real = torch.tensor([[True] * 5, [False, True, True, True, False]])
    parameters, buffers = stack_module_state(models)  # type: ignore[arg-type]  # it also takes lists
    logits = vmap(lambda p, b: functional_call(models[0], (p, b), (tokens, real)))(parameters, buffers)
    logits[:, real].square().sum().backward()
    for i, model in enumerate(models):
        model(tokens, real)[real].square().sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameters[name].grad[i], parameter.grad)


@pytest.mark.parametrize("piece", [{"position": "alibi"}, {"attention": "additive"}], ids=str)
def test_long_sequences_have_gradients_under_torch_func(piece: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONG", 8)
    monkeypatch.setattr(Attention, "chunk_elements", 64)
    model, tokens = decoder(**piece), torch.randint(3, 7, (2, 12))
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = grad(lambda p: functional_call(model, p, (tokens,)).square().sum())(parameters)
    model(tokens).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_dual_tensors_keep_their_tangents_outside_torch_func() -> None:
    model = decoder(mixer="rg_lru", position="none").stack
    x, direction = torch.randn(2, 1, LENGTH, 8, dtype=torch.float64)
    _, expected = jvp(lambda x: model(x)[0], (x,), (direction,))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(model(forward_ad.make_dual(x, direction))[0]).tangent
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["sdpa", "tiled", "blockwise"])
def test_a_backend_without_forward_mode_raises(backend: str) -> None:
    model, tokens = decoder(backend=backend), torch.randint(3, 7, (1, 4))
    parameters = dict(model.named_parameters())
    with pytest.raises(ValueError, match=f"backend '{backend}' cannot compute this call: .*forward-mode.*; choose 'auto'"):
        jvp(lambda p: functional_call(model, p, (tokens,)), (parameters,), (tangents(parameters),))
