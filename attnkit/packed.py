"""Packed weights for generation, where products have few rows and most of their time goes into reading the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnkit import panels
from attnkit.half import has_bfloat16
from attnkit.panels import Panels
from attnkit.processor import IS_INTEL
from attnkit.transforms import observed, traced, transformed

MIN_NUMBERS = {torch.float32: 2**18, torch.bfloat16: 2**14}
"""Minimum size of a weight, by dtype, to be reordered or multiplied by oneDNN, whose calls take at least 15 to 30 microseconds."""

MIN_PRODUCTS = 2**20  # oneDNN also multiplies a smaller weight if its size times the number of rows reaches this

MIN_PANELED = 2**14
"""Minimum size of a weight to be multiplied in panels, whose calls take a microsecond more than torch's."""

MAX_ROWS = {torch.float32: 32, torch.bfloat16: 8}
"""Up to this many rows, by dtype, products in panels are faster than oneDNN's."""

MIN_USES = 8
"""Number of uses after which a weight is packed. One is enough, and shows which weights share an input, if the weight was packed in the
block before, has not changed, and now multiplies few rows. Packing pays off after 25 or more; for 64 new tokens, a threshold of 8 was
faster than 32, and a short generation packs nothing."""


class Packed:
    """Weights in the memory order that is fastest to multiply; weights that multiply the same input are joined into one matrix.

    Args:
        owner: A module with these weights. While it lives, the matrices of the last block that packed any are kept for later blocks
            (default: only this object keeps them).
    """

    def __init__(self, owner: nn.Module | None = None) -> None:
        self.uses: dict[int, _Use] = {}  # by id of the weight, which the use keeps alive
        self._owner = owner
        self._before: dict[_Key, _Kept] = {} if owner is None else _kept.get(owner, {})
        self._packed_before = {
            number: versions
            for (_, numbers), kept in self._before.items()
            for number, (versions, *_) in zip(numbers, kept.state, strict=True)
        }
        self._matrices: dict[_Key, _Kept] = {}
        self._input: Tensor | None = None
        self._together: list[int] = []

    def multiply(self, x: Tensor, weight: nn.Parameter, bias: Tensor | None) -> Tensor:
        """Return the product of `x` [..., I] and the transpose of `weight` [O, I], plus `bias` [O]: [..., O]."""
        use, rows = self.uses.get(id(weight)), _rows(x)
        is_few = rows <= MAX_ROWS[weight.dtype]
        if use is None or not use.holds(bias):
            use = self.uses[id(weight)] = _Use(weight, bias, _versions(weight, bias))
        elif use.product is not None and (is_few or not isinstance(use.product.matrix.weight, Panels)):
            return use.product.part(x, use.place)
        is_early = is_few and self._packed_before.get(id(weight)) == use.versions  # the rows of a prompt would decide on another order
        if use.product is not None or use.count < (1 if is_early else MIN_USES):
            if x is not self._input or x.is_inference():  # inference tensors have no version counter
                self._input, self._together = x, []
            if id(weight) not in self._together:
                self._together.append(id(weight))
                use.count, use.together = use.count + 1, self._together
            return _Matrix(weight.detach(), bias, _order(weight.numel(), weight, rows, is_kept=False))(x)
        joined = [other for number in use.together if (other := self.uses[number]).joins(use)]
        product = _Product(self._matrix(joined, rows), [len(other.weight) for other in joined])
        for place, other in enumerate(joined):
            other.product, other.place = product, place
        return product.part(x, use.place)

    def _matrix(self, uses: list["_Use"], rows: int) -> "_Matrix":
        """Return the joined matrix of these uses, from an earlier block unless a weight or bias has changed."""
        weights, biases = [use.weight.detach() for use in uses], [use.bias.detach() for use in uses if use.bias is not None]
        order = _order(sum(weight.numel() for weight in weights), weights[0], rows, is_kept=True)
        if len(uses) == 1 and order in ("torch", "onednn"):
            return _Matrix(weights[0], uses[0].bias, order)  # no copy
        state = tuple((use.versions, _checksum(use.weight), _checksum(use.bias)) for use in uses)
        key = (order, tuple(id(use.weight) for use in uses))
        found = self._before.get(key)
        if found is None or found.state != state:
            matrix = _Matrix(torch.cat(weights), torch.cat(biases) if biases else None, order)
            found = _Kept(matrix, state)
        self._matrices[key] = found
        if self._owner is not None:
            _kept[self._owner] = self._matrices
        return found.matrix


@contextmanager
def packing(weights: Packed) -> Iterator[None]:
    """Inside the `with` block, speed up `linear` for few rows, in fp32 and bf16 on a CPU, without gradients.

    - Products of one input with several weights become one product, once they are used often enough.
    - With few rows, a product takes about as long as reading the matrix. The compiled loops of `attnkit.panels`, which need a C++ compiler,
      read it at least as fast as the libraries below.
    - Otherwise, oneDNN's fp32 product takes half the time of MKL's on processors that MKL does not know, and even less with a matrix in
      oneDNN's own order. On Intel processors, fp32 products are torch's own (MKL's).
    - On processors without bf16 products, fp32 products with converted weights take a seventh of the time of torch's bf16 products.

    Copies are made once a weight has been used often. They double the memory of large weights, or triple it where bf16 weights are
    copied to fp32. A later block of the same owner reuses them, from the second use on, if the versions and checksums of the weights are
    unchanged. Within a block, only versions are compared, which miss edits through `weight.data`.

    Args:
        weights: Receives the copies; a weight that has changed since is copied again.

    Example:
        >>> from attnkit.linear import Linear
        >>> layer, x = Linear(512, 512), torch.ones(4, 512)
        >>> with torch.no_grad(), packing(Packed()):
        ...     y = layer(x)
        >>> bool(torch.allclose(y, layer(x), atol=1e-5))
        True
    """
    is_open = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled  # type: ignore[no-untyped-call]
    is_open = is_open and not torch.is_autocast_enabled("cpu")
    token = _packed.set(weights if is_open else None)
    try:
        yield
    finally:
        _packed.reset(token)


_packed: ContextVar[Packed | None] = ContextVar("packed", default=None)


def packed_for(x: Tensor, weight: Tensor) -> Packed | None:
    """Return the object that multiplies `x` and `weight` in this block, or None to leave it to torch.

    torch does it under gradients, compilation, `torch.func` and tensor subclasses, and for weights that are not parameters: a module may
    compute a new one for each call, and all of them would be kept.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    packed = _packed.get()
    if packed is None or type(weight) is not nn.Parameter or type(x) is not Tensor:
        return None
    is_ours = x.dtype is torch.bfloat16 or (x.dtype is torch.float32 and not (IS_INTEL and _rows(x) > MAX_ROWS[x.dtype]))
    is_fast = is_ours and x.dtype is weight.dtype and x.is_cpu and weight.is_cpu and bool(x.numel())
    return packed if is_fast and not weight.is_inference() and not transformed() else None


@dataclass(eq=False)
class _Use:
    """Counts the uses of a weight with a bias, and lists the weights that multiplied the same input."""

    weight: nn.Parameter
    bias: Tensor | None
    versions: tuple[int, int]
    count: int = 0
    together: list[int] = field(default_factory=list)  # ids of weights: a list of uses would be a reference cycle
    product: "_Product | None" = None
    place: int = 0

    def holds(self, bias: Tensor | None) -> bool:
        """Return whether the bias is the same, and neither it nor the weight has changed."""
        return self.bias is bias and self.versions == _versions(self.weight, bias)

    def joins(self, leader: "_Use") -> bool:
        """Return whether this weight can share a matrix with the leader's."""
        return self is leader or (self.product is None and (self.bias is None) is (leader.bias is None) and self.holds(self.bias))


class _Product:
    """The product of one input with joined weights of `sizes` outputs, of which each weight takes its part."""

    def __init__(self, matrix: "_Matrix", sizes: list[int]) -> None:
        self.matrix, self.sizes = matrix, sizes
        self.input: Tensor | None = None
        self.version = 0
        self.parts: list[Tensor | None] = []

    def part(self, x: Tensor, place: int) -> Tensor:
        """Return the product with the weight at this place, keeping the other weights' parts for later."""
        if len(self.sizes) == 1:
            return self.matrix(x)
        if x is not self.input or x.is_inference() or x._version != self.version or self.parts[place] is None:
            self.parts = list(torch.split(self.matrix(x), self.sizes, -1))
            self.input, self.version = x, 0 if x.is_inference() else x._version
        part, self.parts[place] = self.parts[place], None  # handed out once, since the caller may write into it
        assert part is not None
        return part


Order = Literal["torch", "onednn", "reordered", "panels"]
"""The memory order of a matrix: torch's (multiplied by torch or by oneDNN), oneDNN's own (reordered), or that of `attnkit.panels`."""


def _order(numbers: int, weight: Tensor, rows: int, *, is_kept: bool) -> Order:
    """Return the fastest order for this many rows, for a matrix of this size with the dtype of `weight`."""
    is_paneled = is_kept and numbers >= MIN_PANELED and rows <= MAX_ROWS[weight.dtype] and panels.serve()
    if is_paneled and not observed() and not traced():  # neither would see the loops
        return "panels"
    if weight.dtype is torch.float32 and IS_INTEL:
        return "torch"
    if rows == 1 and weight.dtype is torch.bfloat16 and not has_bfloat16():
        return "torch"
    if numbers >= MIN_NUMBERS[weight.dtype] or numbers * rows >= MIN_PRODUCTS:
        return "reordered" if is_kept else "onednn"
    return "torch"


class _Matrix:
    """A matrix [O, I] and a bias [O], in the given order and the dtype that goes with it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, order: Order) -> None:
        self.bias, self.is_onednn = bias, order in ("onednn", "reordered")
        self.weight = Panels(weight, bias) if order == "panels" else weight
        if self.is_onednn:
            weight = weight if weight.dtype is not torch.bfloat16 or has_bfloat16() else weight.float()
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight) if order == "reordered" else weight
            # oneDNN ignores the strides of the bias
            self.bias = None if bias is None else bias.to(weight.dtype).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self.weight, Panels):
            return panels.product(x, self.weight)
        if not self.is_onednn:
            return nn.functional.linear(x, self.weight, self.bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x.to(self.weight.dtype), self.weight, self.bias, "none", [], "")
        return y.to(x.dtype)


_Key = tuple[Order, tuple[int, ...]]  # order of a matrix, ids of its weights


@dataclass(frozen=True)
class _Kept:
    """A matrix that may outlive its block, with the versions and checksums of its weights and biases."""

    matrix: _Matrix
    state: tuple[tuple[tuple[int, int], int, int], ...]


_kept: WeakKeyDictionary[nn.Module, dict[_Key, _Kept]] = WeakKeyDictionary()
"""The matrices of the last block that packed any, by owner. (Weak references to parameters would break `torch.utils.swap_tensors`.)"""


def _checksum(weight: Tensor | None) -> int:
    """Return a checksum of a tensor's data: ids and versions may be reused, and miss edits of `weight.data`."""
    return 0 if weight is None else panels.checksum(weight.detach().contiguous())


def _versions(weight: Tensor, bias: Tensor | None) -> tuple[int, int]:
    return weight._version, 0 if bias is None or bias.is_inference() else bias._version


def _rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1]
