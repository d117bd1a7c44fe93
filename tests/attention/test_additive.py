"""Additive attention never materialises the full tensor of tanh values, B.H.Q.K.A."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attnkit

B, H, T, A, D = 2, 2, 24, 16, 4


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation creates."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_neither_pass_creates_a_tensor_of_all_pairs(kv_heads: int, seed: int) -> None:
    attention = attnkit.attentions.build({"name": "additive", "hidden_dim": A}, head_dim=D, num_heads=H, num_kv_heads=kv_heads)
    query, key, value = torch.randn(B, H, T, D), torch.randn(B, kv_heads, T, D), torch.randn(B, kv_heads, T, D)
    query.requires_grad_()
    mask = torch.rand(B, H, T, T) < 0.7
    attention.chunk_elements = B * H * T * A * 3  # three queries
    with LargestTensor() as largest:
        output = attention(query, key, value, mask=mask, dropout=0.1)
        output.sum().backward()
        attention.weights(query, key, mask=mask)
    assert B * H * T * A < largest.numel <= B * H * 3 * T * A
    attention.chunk_elements = 2**22  # now it fits, which shows that the measurement works
    with LargestTensor() as largest:
        attention(query, key, value, mask=mask)
    assert largest.numel == B * H * T * T * A


def test_memory_for_the_backward_pass_does_not_grow_with_the_pairs(seed: int) -> None:
    attention = attnkit.attentions.build({"name": "additive", "hidden_dim": A}, head_dim=D, num_heads=H)
    attention.chunk_elements = B * H * T * A * 2
    query, key, value = torch.randn(3, B, H, T, D)
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):  # type: ignore[func-returns-value]
        attention(query.requires_grad_(), key, value)
    assert 0 < max(kept, default=0) <= B * H * T * A


def test_the_hidden_width_is_positive() -> None:
    with pytest.raises(ValueError, match="hidden_dim must be positive, but is 0"):
        attnkit.attentions.build({"name": "additive", "hidden_dim": 0}, head_dim=4)
