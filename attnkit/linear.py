# https://proceedings.mlr.press/v9/glorot10a.html
"""The linear maps that all components use."""

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functional_call
from torch.nn.modules.module import _has_any_global_hook
from typing_extensions import override

from attnkit.packed import packed_for


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product of `x` [..., I] and the transpose of `weight` [O, I], plus `bias` [O]: [..., O]; see `attnkit.packed`."""
    packed = packed_for(x, weight)
    # only parameters can be packed
    return nn.functional.linear(x, weight, bias) if packed is None else packed.multiply(x, weight, bias)  # type: ignore[arg-type]


def joined(x: Tensor, *maps: nn.Linear) -> tuple[Tensor, ...] | None:
    """Return the outputs of these maps for `x` [..., I], computed as one product, or None if that is no faster.

    Returns None, too, if a map has hooks, parametrizations, sharded weights or its own `forward`, or if there are global hooks.
    """
    if not pays(x) or _has_any_global_hook():  # type: ignore[no-untyped-call]
        return None
    if not all(is_plain(one) and (one.bias is None) == (maps[0].bias is None) for one in maps):
        return None
    bias = None if maps[0].bias is None else torch.cat([one.bias for one in maps])
    product = nn.functional.linear(x, torch.cat([one.weight for one in maps]), bias)
    return torch.split(product, [one.out_features for one in maps], -1)


def is_plain(one: nn.Module) -> bool:
    """Return whether a map computes just what `weight` and `bias` say: without hooks, parametrizations, sharded weights or its own
    `forward`, such as those of LoRA or of pruning.
    """
    has_hooks = one._forward_hooks or one._forward_pre_hooks or one._backward_hooks or one._backward_pre_hooks or "forward" in vars(one)
    return type(one) in (Linear, nn.Linear) and type(one.weight) in (Tensor, nn.Parameter, FakeTensor) and not has_hooks


def called(one: nn.Module, x: Tensor) -> Tensor:
    """Return the output of a map that is not plain for `x` [..., I], computed in the precision of `x`, [..., O]."""
    weights = {name: p.to(x.dtype) for name, p in one.named_parameters() if p.is_floating_point()}  # quantised ones are not
    y: Tensor = functional_call(one, weights, (x,))
    return y.to(x.dtype)


def pays(x: Tensor) -> bool:
    """Return whether one product with joined weights saves time in spite of the concatenation: in training on a GPU."""
    return x.is_cuda and torch.is_grad_enabled()


class Linear(nn.Linear):
    """A linear map with Glorot's uniform initialisation and zero bias.

    Glorot and Bengio 2010, https://proceedings.mlr.press/v9/glorot10a.html; used by Vaswani et al. 2017 in tensor2tensor.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        bias: Whether to learn a bias.
        fixed_inputs: Whether the width of the input is fixed, whatever the width of the model; initialisations may read it.

    Example:
        >>> Linear(2, 3).bias.tolist()
        [0.0, 0.0, 0.0]
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, fixed_inputs: bool = False) -> None:
        self.fixed_inputs = fixed_inputs
        super().__init__(in_features, out_features, bias=bias)

    def reset_parameters(self) -> None:
        """Initialise the weight Glorot-uniform and the bias to zero."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class BlockDiagonal(nn.Module):
    """A block-diagonal linear map, one block of `width` channels per head, with normal weights and zero bias."""

    def __init__(self, num_heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, width, width))
        self.bias = nn.Parameter(torch.empty(num_heads, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weight with variance 1 / width and the bias to zero."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` [B, T, H width] to the same shape."""
        heads = torch.unflatten(x, -1, (self.weight.shape[0], -1))
        return (torch.einsum("bthi,hij->bthj", heads, self.weight.to(x.dtype)) + self.bias).flatten(-2)


def low_rank(first: Linear, outputs: int, *inside: nn.Module, bias: bool = False) -> nn.Sequential:
    """Return a map through the few channels that `first` gives, with modules `inside`, to `outputs`, which has a bias on request.

    Example:
        >>> low_rank(Linear(8, 2, bias=False), 6)(torch.randn(3, 8)).shape
        torch.Size([3, 6])
    """
    return nn.Sequential(first, *inside, Linear(first.out_features, outputs, bias=bias, fixed_inputs=True))
