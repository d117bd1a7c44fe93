"""Comparisons of tensors; a failure says where and by how much they differ."""

import torch
from torch import Tensor


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
