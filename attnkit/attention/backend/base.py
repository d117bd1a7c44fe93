"""What a backend is, and which one computes a call."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor

from attnkit.masks import Mask
from attnkit.registry import ConfigurationError, backends

if TYPE_CHECKING:
    from attnkit.attention.base import Attention


class Inputs(NamedTuple):
    """One call of an attention.

    Attributes:
        query: [B, H, Q, E], projected by the score.
        key: [B, Hkv, K, E], projected by the score.
        value: [B, Hkv, K, Dv].
        mask: Rows without any key are opened; their output is set to zero afterwards, whatever it is.
        bias: Finite, broadcasts to [B, H, Q, K], at least two dimensions; or None.
        dropout: Probability of dropping a weight; 0 in evaluation mode.
        first_query: Position of the first query, for dropout.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    bias: Tensor | None
    dropout: float
    first_query: int


class Refused(ValueError):
    """A backend that was asked for by name cannot compute a score, or a call."""


class Backend(ABC):
    """One way to compute attention. It has no state, and agrees with `reference` in values and gradients.

    Attributes:
        rank: `auto` asks backends of a higher rank first: 0 is `reference`, 10 `chunked`, 20 `sdpa`.
    """

    rank: ClassVar[int] = 30

    def refuses_score(self, attention: "Attention") -> str | None:
        """Return why this backend cannot compute the score, as in "its score is not ..."; None if it can."""
        return None

    def refuses_inputs(self, attention: "Attention", inputs: Inputs) -> str | None:
        """Return why this backend cannot compute a call: its device, dtype, mask, bias or dropout; None if it can."""
        return None

    def suits(self, attention: "Attention", inputs: Inputs) -> bool:
        """Return whether `auto` takes this backend for a call that it can compute, before those of a lower rank."""
        return True

    @abstractmethod
    def compute(self, attention: "Attention", inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]; the rows of queries without any key may hold anything that is finite."""


class _Ordered:
    """Every backend by name, the preferred first; made anew after a registration."""

    def __init__(self) -> None:
        self.version = -1
        self.kernels: dict[str, Backend] = {}

    def __call__(self) -> dict[str, Backend]:
        if self.version != backends.version:
            found: dict[str, Backend] = {}
            for name in backends.names():
                try:
                    found[name] = backends.build(name)
                except ConfigurationError:  # a broken plugin; the registry has warned of it
                    continue
            self.kernels = dict(sorted(found.items(), key=lambda item: -item[1].rank))
            self.version = backends.version
        return self.kernels


ordered = _Ordered()
"""Return every backend by name, the preferred first."""


def computing(attention: "Attention") -> tuple[str, ...]:
    """Return the names of the backends that compute a score, `reference` first."""
    return tuple(name for name, backend in reversed(ordered().items()) if backend.refuses_score(attention) is None)


def named(name: str, attention: "Attention") -> Backend:
    """Return the backend of this name.

    Raises:
        Refused: There is none, or it does not compute the score; the message says why.
    """
    backend = ordered().get(name)
    reason = None if backend is None else backend.refuses_score(attention)
    if backend is None or reason is not None:
        why = "" if reason is None else f": {reason}"
        choice = ", ".join(computing(attention))
        raise Refused(f"{type(attention).__name__} has no backend {name!r}{why}; choose 'auto' or one of {choice}")
    return backend


def choose(name: str, attention: "Attention", inputs: Inputs) -> Backend:
    """Return the backend that computes a call: the one of this name, or the first that suits for `auto`.

    Raises:
        Refused: The backend of this name cannot compute the score or the call.
    """
    if name != "auto":
        backend = named(name, attention)
        if (reason := backend.refuses_inputs(attention, inputs)) is not None:
            raise Refused(f"backend {name!r} cannot compute this call: {reason}; choose 'auto'")
        return backend
    for backend in ordered().values():
        refused = backend.refuses_score(attention) or backend.refuses_inputs(attention, inputs)
        if refused is None and backend.suits(attention, inputs):
            return backend
    raise Refused(f"no backend computes {type(attention).__name__}")
