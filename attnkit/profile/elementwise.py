# https://docs.pytorch.org/docs/stable/library.html
"""The element-wise operations of a task's forward pass: all that FLOPs, which are matrix products, leave out."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from attnkit.profile.flops import model_inputs, traced, trained_outputs
from attnkit.task.base import Task

aten = torch.ops.aten
DECOMPOSED = frozenset(
    {aten._softmax, aten._log_softmax, aten._safe_softmax, aten.native_layer_norm, aten._fused_rms_norm, aten.native_dropout}
)
"""Operators of torch that stand for several element-wise ones, as which they are counted."""
RUNNING = frozenset({aten.cumsum, aten.cumprod, aten.logcumsumexp, aten.cummax})
TRANSFORMS = frozenset({aten._fft_r2c, aten._fft_c2r, aten._fft_c2c})
Formula = Callable[..., int]
FORMULAS: dict[OpOverloadPacket, Formula] = {}


def register_elementwise_formula(operator: OpOverloadPacket) -> Callable[[Formula], Formula]:
    """Declare the element-wise operations of your own operator, as `torch.utils.flop_counter.register_flop_formula` declares its FLOPs.

    Operators of torch need no formula, and neither does a piece that is written with them. A formula takes the arguments of the operator,
    with the shape of each tensor in its place, and those of the result as the keyword argument `out_shape`.

    Args:
        operator: The operator without its overload, as in `torch.ops.mine.distance`.

    Raises:
        TypeError: `operator` is not an operator of `torch.ops`, or is one of its overloads.

    Example:
        >>> @torch.library.custom_op("doctest::distance", mutates_args=())
        ... def distance(query: Tensor, key: Tensor) -> Tensor:
        ...     return torch.cdist(query, key, p=1)
        >>> @register_elementwise_formula(torch.ops.doctest.distance)
        ... def _(query: torch.Size, key: torch.Size, *, out_shape: torch.Size) -> int:
        ...     return 3 * out_shape.numel() * query[-1]  # a difference, an absolute value and a sum for each channel of a pair
        >>> with ElementwiseCounter() as counter:
        ...     _ = distance(torch.ones(5, 4), torch.ones(6, 4))
        >>> counter.total
        360
    """
    if not isinstance(operator, OpOverloadPacket):
        raise TypeError(
            f"an element-wise formula belongs to an operator such as torch.ops.mine.distance, without its overload, not {operator!r}"
        )

    def register(formula: Formula) -> Formula:
        FORMULAS[operator] = formula
        return formula

    return register


class ElementwiseCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's mode is untyped
    """Count element-wise operations, as `torch.utils.flop_counter.FlopCounterMode` counts matrix products.

    A pointwise function (torch's tag `pointwise`) counts once for each element that it writes, even one as expensive as an exponential. A
    reduction or a running sum counts once for each element that it reads. Softmax, norms and dropout count as the functions and reductions
    that they consist of. A Fourier transform of N complex numbers counts 5 N log2 N, one of real numbers half of that. Moving data does not
    count, and neither do other packages' operators without a formula (`register_elementwise_formula`). `total` is the count so far.

    Example:
        >>> with ElementwiseCounter() as counter:
        ...     _ = (torch.ones(3, 4) * 2).sum()
        >>> counter.total
        24
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run an operator, and count its operations."""
        kwargs = kwargs or {}
        if func.overloadpacket in DECOMPOSED:
            with self:
                return decomposition_table[func](*args, **kwargs)
        out = func(*args, **kwargs)
        self.total += _operations(func, args, kwargs, out)
        return out


def _operations(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> int:
    if func.overloadpacket in FORMULAS:
        inputs, named, result = tree_map(lambda x: x.shape if isinstance(x, Tensor) else x, (args, dict(kwargs), out))
        return FORMULAS[func.overloadpacket](*inputs, **named, out_shape=result)
    if torch.Tag.pointwise in func.tags:
        return 0 if func is aten.clone.default else _elements(out)
    if torch.Tag.reduction in func.tags or func.overloadpacket in RUNNING:
        return _elements(args[0])
    if func.overloadpacket in TRANSFORMS:
        x, dims = max(args[0], out, key=Tensor.numel), args[1]
        length = math.prod(x.shape[dim] for dim in dims)
        operations: int = round((5 if x.is_complex() else 2.5) * x.numel() * math.log2(length))
        return operations
    return 0


def _elements(tensors: Any) -> int:
    return sum(leaf.numel() for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor))


def elementwise_operations(task: Task, s: int, t: int) -> int:
    """Return the element-wise operations of a forward pass of a row with `s` input tokens and `t` target tokens.

    Nothing is computed: the operations are counted on fake tensors, with the same implementation of each piece as its FLOPs
    (`forward_flops`), so attention computes all pairs, including those that its mask forbids. An operator that states its FLOPs has no
    element-wise operations, unless it states them, too (`register_elementwise_formula`).

    Args:
        task: The task.
        s: Input tokens; frames are rounded up to a multiple of those that the embedding stacks. Images have no length.
        t: Target tokens; 0 without a target.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("character").train(["ab"]).spec
        >>> stack = {"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "position": "none"}
        >>> task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": tokenizer})
        >>> elementwise_operations(task, 32, 0) > 2 * elementwise_operations(task, 16, 0)  # softmax is quadratic
        True
    """
    with traced(task) as model, ElementwiseCounter() as counter:
        model(*model_inputs(model, s, t), **trained_outputs(model))
    total: int = counter.total
    return total
