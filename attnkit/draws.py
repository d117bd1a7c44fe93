# https://doi.org/10.1145/2660193.2660195
r"""Counter-based random numbers: each depends only on its purpose, not on when, where or with what else it is drawn.

A number depends on the key of its example, the site that draws it (a module, a kind of mask) and its coordinates there. A run therefore
draws the same numbers on any number of processes, in any batch, in eager or compiled code, and when activations are recomputed.

Equation:
    $$x = \mathrm{mix}(\mathrm{mix}(\mathrm{key} + \mathrm{site}) + c_1 \, \mathrm{row} + c_2 \, \mathrm{word})$$

with 64-bit integers, odd constants $c$, and the output function of SplitMix64 (Steele, Lea and Flood 2014) as $\mathrm{mix}$.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

FIELDS = 4  # number of 16-bit numbers in a 64-bit word


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


ROW, WORD, FIRST, SECOND = map(_signed, (0x9E3779B97F4A7C15, 0xD1342543DE82EF95, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""The factors of rows and of words, and the two factors in the mix."""

_current: Tensor | None = None


def seed_generators(seed: int) -> None:
    """Seed the generators of all devices in use.

    (`torch.manual_seed` would also record the whole call stack for each unused device, which is slow.)
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def begin(keys: Tensor | None) -> None:
    """Set the keys [B] of the current training examples, or None to use torch's generators.

    They stay in force until the next call, because the backward pass may recompute activations.
    """
    global _current
    _current = keys


def current() -> Tensor | None:
    """Return the keys [B] that `begin` set, or None."""
    return _current


@contextmanager
def using(keys: Tensor | None) -> Iterator[None]:
    """Use other keys inside the `with` block, for a batch with different rows or another use of the same modules.

    Example:
        >>> with using(torch.tensor([1, 2])):
        ...     current()
        tensor([1, 2])
    """
    before = current()
    begin(keys)
    try:
        yield
    finally:
        begin(before)


def again(keys: Tensor, use: int) -> Tensor:
    """Return the keys [B] for a further `use` (1, 2, ...) of the same modules in a step, such as of a layer shared by several depths.

    Example:
        >>> keys = torch.tensor([1, 2])
        >>> torch.equal(again(keys, 1), again(keys, 1)), bool((again(keys, 1) == again(keys, 2)).any())
        (True, False)
    """
    return _mix(keys + _signed(use * 0xD1342543DE82EF95 % 2**64))


def make_keys(example: Tensor, *words: int) -> Tensor:
    """Return a key for each example, int64 [B], from the example numbers [B] and further words in order, such as a seed and an epoch.

    Example:
        >>> examples = torch.tensor([7, 8])
        >>> torch.equal(make_keys(examples, 42, 0), make_keys(examples.flip(0), 42, 0).flip(0))
        True
        >>> torch.equal(make_keys(examples, 42, 0), make_keys(examples, 42, 1))
        False
    """
    key = _mix(_product(example.long(), ROW))
    for word in words:
        key = _mix(key + _signed((word * 0x9E3779B97F4A7C15 + 1) % 2**64))
    return key


def site(path: str) -> int:
    """Return a site's number, a hash of its path.

    Example:
        >>> site("model.dropout") == site("model.dropout"), site("a") == site("b")
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "little", signed=True)


def name_sites(model: nn.Module) -> None:
    """Set the `site` of every module that has one from its path, so that modules at the same path in two models draw the same numbers.

    Example:
        >>> from attnkit.dropout import Dropout
        >>> model = nn.Sequential(Dropout(0.1))
        >>> name_sites(model)
        >>> model[0].site == site("0")
        True
    """
    for path, module in model.named_modules():
        if hasattr(module, "site"):
            module.site = site(path)


def bases(keys: Tensor, site: int, rows: Tensor) -> Tensor:
    """Return what all words of a row have in common, int64 [B, ...]; see `words`."""
    return _mix(keys + site).view(-1, *[1] * rows.ndim) + _product(rows, ROW)


def words(keys: Tensor, site: int, rows: Tensor, count: int, *, first: int = 0) -> Tensor:
    """Return `count` random 64-bit words per row, int64 [B, ..., W], from word `first` on; `rows` [...] are the row numbers."""
    return _mix(bases(keys, site, rows)[..., None] + _product(torch.arange(first, first + count, device=keys.device), WORD))


def fields(keys: Tensor, site: int, rows: Tensor, count: int, *, first: int = 0) -> Tensor:
    """Return random integers in [-2^15, 2^15), [B, ..., count]: the columns of `rows`, from `first` on. A word yields four.

    Example:
        >>> key, rows = torch.tensor([1]), torch.arange(3)
        >>> torch.equal(fields(key, 2, rows, 9)[..., 5:], fields(key, 2, rows, 4, first=5))
        True
    """
    if not torch.compiler.is_compiling():
        before, skipped = divmod(first, FIELDS)
        drawn = words(keys, site, rows, -(-(skipped + count) // FIELDS), first=before).view(torch.int16)
        return drawn[..., skipped : skipped + count]
    column = torch.arange(first, first + count, device=keys.device)  # compilers can fuse shifts, but cannot view words as int16
    word = _mix(bases(keys, site, rows)[..., None] + (column >> 2) * WORD)
    return (word << (48 - 16 * (column & 3))) >> 48


def uniform(keys: Tensor, site: int, count: int) -> Tensor:
    """Return uniform random numbers in [0, 1), float64 [B, count].

    Example:
        >>> long, short = uniform(torch.tensor([1, 2]), 3, 5), uniform(torch.tensor([2]), 3, 4)
        >>> bool((long[1, :4] == short[0]).all())
        True
    """
    drawn = words(keys, site, torch.zeros((), dtype=torch.int64, device=keys.device), count)
    return (drawn >> 11).bitwise_and(2**53 - 1).double() * 2.0**-53


def _product(index: Tensor, factor: int) -> Tensor:
    """Return `index * factor`, modulo 2^64.

    In compiled code, an `arange` becomes the variable of a C++ loop. Overflow of its products is undefined there, so the compiler concludes
    that the loop ends before, and drops its end: it wrote past its tensors. So products have less than 64 bits, and `& -1` keeps inductor
    from making one factor the step of a 32-bit counter.
    """
    if not torch.compiler.is_compiling():
        return index * factor
    index, low, high = index & -1, factor % 2**32, (factor >> 32) % 2**32
    return index * low + ((index * high).bitwise_and(2**32 - 1) << 32)


def _mix(word: Tensor) -> Tensor:
    """Apply the output function of SplitMix64; sign bits from arithmetic right shifts are masked off."""
    word = (word ^ (word >> 30).bitwise_and(2**34 - 1)) * FIRST
    word = (word ^ (word >> 27).bitwise_and(2**37 - 1)) * SECOND
    return word ^ (word >> 31).bitwise_and(2**33 - 1)
