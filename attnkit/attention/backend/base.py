"""The backend interface, and the choice of a backend for each call."""

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from attnkit.attention.bias import LazyBias
from attnkit.attention.decay import DecayBias
from attnkit.masks import Mask
from attnkit.registry import ConfigurationError, backends

if TYPE_CHECKING:
    from attnkit.attention.base import Attention


class Inputs(NamedTuple):
    """The inputs of one attention call.

    Attributes:
        query: [B, H, Q, E], projected by the score.
        key: [B, Hkv, K, E], projected by the score.
        value: [B, Hkv, K, Dv].
        mask: In rows without any key, all keys are allowed; the caller then sets the output of these rows to zero.
        bias: Finite, broadcastable to [B, H, Q, K], with at least two dimensions; or None. A `LazyBias` only if `reads_lazy_bias`.
        dropout: Probability of dropping a weight; 0 in evaluation mode.
        first_query: Position of the first query, for dropout.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    bias: Tensor | LazyBias | DecayBias | None
    dropout: float
    first_query: int


def is_symbolic(inputs: Inputs) -> bool:
    """Return whether the window, the documents or the bias of the positions is symbolic, as for long sequences."""
    return isinstance(inputs.bias, LazyBias) or (inputs.mask is not None and inputs.mask.is_symbolic)


class Refused(ConfigurationError):
    """A backend requested by name cannot compute a score or a call."""


class Backend(ABC):
    """A stateless implementation of attention, which agrees with `reference` in values and gradients.

    Attributes:
        rank: `auto` tries backends of higher rank first: `reference` has 0, `chunked` 10, `sdpa` 20; the default is 30.
        options: The options of `Attention.configure` that it reads. An attention that uses any other option never runs on this backend.
        reads_lazy_bias: Whether it accepts a `LazyBias` instead of the whole tensor.

    Example:
        >>> import attnkit
        >>> attnkit.attentions.build("dot_product", head_dim=4).backends  # those that can compute this score
        ('reference', 'chunked', 'sdpa', 'tiled', 'blockwise')
    """

    rank: ClassVar[int] = 30
    options: ClassVar[frozenset[str]] = frozenset()
    reads_lazy_bias: ClassVar[bool] = False

    def refuses(self, attention: "Attention") -> str | None:
        """Return why this backend cannot compute an attention: an option that it does not read, or the score; or None if it can."""
        unread = [option for option in attention.options if option not in self.options]
        return f"it uses {' and '.join(unread)}" if unread else self.refuses_score(attention)

    def refuses_score(self, attention: "Attention") -> str | None:
        """Return why this backend cannot compute the score, as in "its score is not ...", or None if it can."""
        return None

    def refuses_device(self, device: torch.device) -> str | None:
        """Return why this backend cannot compute on a device of this machine, or None if it can."""
        return None

    def refuses_inputs(self, attention: "Attention", inputs: Inputs) -> str | None:
        """Return why this backend cannot compute a call (its dtype, mask, bias or dropout), or None if it can."""
        return None

    def suits(self, attention: "Attention", inputs: Inputs) -> bool:
        """Return whether `auto` should prefer this backend to those of lower rank for a call, if it can compute it.

        It is called before the other checks, and so also for calls and attentions that the backend cannot compute.
        """
        return True

    def readable(self, attention: "Attention", inputs: Inputs) -> Inputs:
        """Return the inputs of a call with a bias that `compute` reads."""
        bias = inputs.bias
        if isinstance(bias, DecayBias) or (isinstance(bias, LazyBias) and not self.reads_lazy_bias):
            return inputs._replace(bias=bias.values)
        return inputs

    @abstractmethod
    def compute(self, attention: "Attention", inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]; rows of queries without any key may hold any finite values."""


_ordered: dict[int, dict[str, Backend]] = {}  # for the current version of the registry


def ordered() -> dict[str, Backend]:
    """Return all backends by name, highest rank first."""
    if backends.version not in _ordered:
        found: dict[str, Backend] = {}
        for name in backends.names():
            with suppress(ConfigurationError):  # a broken plugin; the registry has already warned
                found[name] = backends.build(name)
        _ordered.clear()
        _ordered[backends.version] = dict(sorted(found.items(), key=lambda item: -item[1].rank))
    return _ordered[backends.version]


def computing(attention: "Attention") -> tuple[str, ...]:
    """Return the names of the backends that can compute a score on the device of its parameters, `reference` first."""
    device = next((parameter.device for parameter in attention.parameters()), torch.device("cpu"))
    able = {name: backend for name, backend in ordered().items() if backend.refuses_device(device) is None}
    return tuple(name for name, backend in reversed(able.items()) if backend.refuses(attention) is None)


def named(name: str, attention: "Attention") -> Backend:
    """Return the backend of this name; raise `Refused` with the reason if there is none or it cannot compute the score."""
    backend = ordered().get(name)
    reason = None if backend is None else backend.refuses(attention)
    if backend is None or reason is not None:
        why = "" if reason is None else f": {reason}"
        choice = ", ".join(computing(attention))
        raise Refused(f"{type(attention).__name__} has no backend {name!r}{why}; choose 'auto' or one of {choice}")
    return backend


def choose(name: str, attention: "Attention", inputs: Inputs) -> Backend:
    """Return the backend for a call: the named one, or for `auto` the first that suits. Raise `Refused` if it cannot compute the call."""
    if name != "auto":
        backend = named(name, attention)
        if (reason := _refuses_call(backend, attention, inputs)) is not None:
            raise Refused(f"backend {name!r} cannot compute this call: {reason}; choose 'auto'")
        return backend
    for backend in ordered().values():
        if backend.suits(attention, inputs) and backend.refuses(attention) is None and _refuses_call(backend, attention, inputs) is None:
            return backend
    raise Refused(f"no backend can compute {type(attention).__name__}")


def _refuses_call(backend: Backend, attention: "Attention", inputs: Inputs) -> str | None:
    reason = backend.refuses_device(inputs.query.device)
    return backend.refuses_inputs(attention, inputs) if reason is None else reason
