"""A linear map that a recurrence applies step by step, with a single weight gradient for all steps."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnkit.transforms import transformed


class Repeated:
    """The products of a weight with T inputs, each of which is known only after the previous product.

    Accumulating over T steps would write the weight's gradient T times. Instead, the backward pass collects the gradients of the outputs,
    [T, B, O], and multiplies them by all inputs at once. Second derivatives raise an error. Under `torch.compile` and `torch.func`, torch's
    own gradients are used. The weight is [O, I]; under autocast, all products are in autocast's precision.

    Example:
        >>> weight = torch.ones(3, 2, requires_grad=True)
        >>> product, x = Repeated(weight, batch=1, steps=2), torch.ones(1, 2)
        >>> (product(x) + product(2 * x)).sum().backward()
        >>> weight.grad
        tensor([[3., 3.],
                [3., 3.],
                [3., 3.]])
    """

    def __init__(self, weight: Tensor, *, batch: int, steps: int) -> None:
        device = weight.device.type
        if torch.is_autocast_enabled(device) and weight.dtype != torch.float64:
            weight = weight.to(torch.get_autocast_dtype(device))
        self.weight = weight
        self.inputs: list[Tensor] = []
        self.slots: tuple[Tensor, ...] = ()
        if torch.compiler.is_compiling() or transformed():
            return
        if torch.is_grad_enabled() and weight.requires_grad:
            self.weight, self.slots = weight.detach(), _Collected.apply(weight, self.inputs, batch, steps).unbind()  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product [B, O] of the next step's input `x` [B, I] and the transposed weight."""
        x = x.to(self.weight.dtype)
        if not self.slots:
            return nn.functional.linear(x, self.weight)
        product: Tensor = _Product.apply(x, self.weight, self.slots[len(self.inputs)])  # type: ignore[no-untyped-call]
        self.inputs.append(x.detach())
        return product


class _Product(torch.autograd.Function):
    """A product that also passes the gradient of its output to a slot."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return nn.functional.linear(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        (weight,) = ctx.saved_tensors
        return gradient @ weight, None, gradient


class _Collected(torch.autograd.Function):
    """Slots [T, B, O], whose gradients become the gradient of the weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, inputs: list[Tensor], batch: int, steps: int) -> Tensor:
        ctx.inputs = inputs
        return weight.new_zeros(()).expand(steps, batch, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return gradients[: len(ctx.inputs)].flatten(0, 1).T @ torch.cat(ctx.inputs), None, None, None
