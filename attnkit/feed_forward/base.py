"""The interface of feed-forward networks, and activations by name."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.feed_forward.xielu import XIELU
from attnkit.registry import ConfigurationError, nearest


class FeedForward(nn.Module, ABC):
    """A map [..., D] -> [..., D], applied to each token independently.

    A subclass that is also a `Reporter` leaves a loss and statistics for the task in each training step.

    Attributes:
        breaks_graphs: Whether torch.compile cannot trace it as a whole, because shapes depend on data; the rest of a layer is compiled.
        splits: The linear maps whose outputs tensor parallelism splits by hidden units. Such a network ends with a linear map `output`. If
            empty, every process computes the whole network.
    """

    breaks_graphs: ClassVar[bool] = False
    splits: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Transform the last axis of `x` [..., D].

        Args:
            x: [..., D].
            real: [...] bool, True = real token (default: all). Only losses and statistics depend on it, not the outputs of real tokens.
        """


def _identity(x: Tensor) -> Tensor:
    return x


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)  # CLIP's approximation


def _relu_squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


_OWN: dict[str, Callable[[Tensor], Tensor]] = {  # named functions, since modules that hold them are pickled
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # GPT-2's approximation, also Gemma's and T5 1.1's
    "identity": _identity,
    "quick_gelu": _quick_gelu,
    "relu_squared": _relu_squared,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
_ELSEWHERE = {  # names in transformers
    **{"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_python_tanh": "gelu_tanh"},
    **{"gelu_python": "gelu", "swish": "silu", "relu2": "relu_squared", "linear": "identity"},
}
_TORCH = {
    *("celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish"),
    *("relu", "relu6", "selu", "silu", "softplus", "softshrink", "softsign", "tanhshrink"),
}


def make_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by name: an element-wise function of `torch.nn.functional`, or one of a few others; `xielu` is a new module.

    Example:
        >>> make_activation("relu")(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    if name == "xielu":
        return XIELU()
    if name in _OWN:
        return _OWN[name]
    if name in _TORCH:
        function: Callable[[Tensor], Tensor] = getattr(F, name)
        return function
    names = sorted({"xielu", *_TORCH, *_OWN})
    hint = f" It is {_ELSEWHERE[name]!r} here." if name in _ELSEWHERE else nearest(name, names)
    raise ConfigurationError(f"unknown activation {name!r}.{hint} Names: {', '.join(names)}.")
