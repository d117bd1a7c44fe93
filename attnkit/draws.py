# https://doi.org/10.1145/2660193.2660195
r"""Random numbers that are functions of what they are for, never of when, where or beside what they are drawn.

A number depends on the key of its example, on the site that draws it (a module, a kind of mask) and on its coordinates there. So a run
draws the same on any number of processes, in any batch, eager or compiled, and again when activations are recomputed.

Equation:
    $$x = \mathrm{mix}(\mathrm{mix}(\mathrm{key} + \mathrm{site}) + c_1 \, \mathrm{row} + c_2 \, \mathrm{word})$$

with 64-bit integers, odd constants $c$, and the output function of SplitMix64 (Steele, Lea and Flood 2014) as $\mathrm{mix}$.
"""

import hashlib

import torch
from torch import Tensor, nn

FIELDS = 4
"""Numbers of 16 bits in a word."""


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


_ROW, _WORD, _FIRST, _SECOND = map(_signed, (0x9E3779B97F4A7C15, 0xD1342543DE82EF95, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

_current: Tensor | None = None


def begin(keys: Tensor | None) -> None:
    """Set the keys [B] of the examples that models are trained on from here on; None: there are none, so torch's generators are used.

    They stay until the next call, for the backward pass may recompute activations.
    """
    global _current
    _current = keys


def current() -> Tensor | None:
    """Return the keys [B] that `begin` has set."""
    return _current


def make_keys(example: Tensor, *words: int) -> Tensor:
    """Return a key for each example.

    Args:
        example: int64 [B], a number for each example.
        words: What the keys depend on too, in this order: a seed, an epoch.

    Example:
        >>> examples = torch.tensor([7, 8])
        >>> torch.equal(make_keys(examples, 42, 0), make_keys(examples.flip(0), 42, 0).flip(0))
        True
        >>> torch.equal(make_keys(examples, 42, 0), make_keys(examples, 42, 1))
        False
    """
    key = _mix(example.long() * _ROW)
    for word in words:
        key = _mix(key + _signed((word * 0x9E3779B97F4A7C15 + 1) % 2**64))
    return key


def site(path: str) -> int:
    """Return the number of a site, which follows from its name.

    Example:
        >>> site("model.dropout") == site("model.dropout"), site("a") == site("b")
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(path.encode(), digest_size=8).digest(), "little", signed=True)


def name_sites(model: nn.Module) -> None:
    """Give every module that draws (one with an attribute `site`) the site of its path, so that equal parts of two models draw alike."""
    for path, module in model.named_modules():
        if hasattr(module, "site"):
            module.site = site(path)


def words(keys: Tensor, site: int, rows: Tensor, count: int, *, first: int = 0) -> Tensor:
    """Return random words of 64 bits.

    Args:
        keys: int64 [B].
        site: Of the draw.
        rows: int64 [...], the number of each row.
        count: Words W in a row.
        first: Number of the first of them.

    Returns:
        int64 [B, ..., W].
    """
    base = _mix(keys + site).view(-1, *[1] * rows.ndim) + rows * _ROW  # [B, ...]
    return _mix(base[..., None] + torch.arange(first, first + count, device=keys.device) * _WORD)


def fields(keys: Tensor, site: int, rows: Tensor, count: int, *, first: int = 0) -> Tensor:
    """Return random integers from -2^15 to 2^15 - 1, [B, ..., count]: the columns of `rows` from `first` on; four come from each word."""
    if not torch.compiler.is_compiling():
        before, skipped = divmod(first, FIELDS)
        drawn = words(keys, site, rows, -(-(skipped + count) // FIELDS), first=before).view(torch.int16)
        return drawn[..., skipped : skipped + count]
    column = torch.arange(first, first + count, device=keys.device)  # a compiler fuses this, and cannot view words as fields
    base = _mix(keys + site).view(-1, *[1] * rows.ndim) + rows * _ROW
    word = _mix(base[..., None] + (column >> 2) * _WORD)
    return (word << (48 - 16 * (column & 3))) >> 48


def uniform(keys: Tensor, site: int, count: int) -> Tensor:
    """Return numbers in [0, 1), float64 [B, count].

    Example:
        >>> long, short = uniform(torch.tensor([1, 2]), 3, 5), uniform(torch.tensor([2]), 3, 4)
        >>> bool((long[1, :4] == short[0]).all())
        True
    """
    drawn = words(keys, site, torch.zeros((), dtype=torch.int64, device=keys.device), count)
    return (drawn >> 11).bitwise_and(2**53 - 1).double() * 2.0**-53


def _mix(word: Tensor) -> Tensor:
    """Return the output function of SplitMix64; shifts keep the sign, so it is masked away."""
    word = (word ^ (word >> 30).bitwise_and(2**34 - 1)) * _FIRST
    word = (word ^ (word >> 27).bitwise_and(2**37 - 1)) * _SECOND
    return word ^ (word >> 31).bitwise_and(2**33 - 1)
