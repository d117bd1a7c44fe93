"""Comparisons of tensors; a failure says where and by how much they differ."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn


def assert_finite(tensors: dict[str, Tensor], where: str) -> None:
    """Raise unless every element is finite."""
    for name, tensor in tensors.items():
        assert torch.isfinite(tensor).all(), f"{name} is not finite: {where}"


def assert_close(actual: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Raise unless the tensors are equal up to `tolerance` times the largest expected element (or one)."""
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)} instead of {tuple(expected.shape)}"
    actual, expected = actual.detach().double(), expected.detach().double()
    error = (actual - expected).abs().max().item() if actual.numel() else 0.0
    allowed = tolerance * max(1.0, expected.abs().max().item() if expected.numel() else 0.0)
    assert error <= allowed, f"{what}: off by {error:.3g}, where {allowed:.3g} is allowed"


def assert_exact_gradients(module: nn.Module, run: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> None:
    """Raise unless the gradients of the inputs and of all parameters match finite differences, in float64.

    `run` computes outputs from the inputs; its first argument calls the module, with a tuple and a dictionary of arguments.
    """
    names = [name for name, _ in module.named_parameters()]
    parameters = [p.detach().clone().requires_grad_() for p in module.parameters()]

    def outputs(*values: Tensor) -> Tensor | tuple[Tensor, ...]:
        given = dict(zip(names, values[len(inputs) :], strict=True))
        return run(partial(torch.func.functional_call, module, given), *values[: len(inputs)])

    assert torch.autograd.gradcheck(outputs, (*inputs, *parameters), fast_mode=True)
