"""Checks the operations of a pickle without executing them."""

import torch

from attnkit.checkpoint.errors import ArchiveError, ForeignError
from attnkit.checkpoint.limits import MAX_OPERATIONS
from attnkit.files import MAX_DEPTH
from attnkit.registry import ConfigurationError

GLOBALS = frozenset(
    {
        "_codecs encode",  # bytes
        "builtins set",
        "builtins complex",
        "__builtin__ set",
        "__builtin__ complex",
        "collections OrderedDict",
        "collections Counter",
        "torch Size",
        "torch device",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_tensor_v3",
        "torch._utils _rebuild_parameter",
        "torch.storage UntypedStorage",
        *(f"torch {name}" for name in vars(torch) if name.endswith("Storage")),
        *(f"torch {str(kind).removeprefix('torch.')}" for kind in vars(torch).values() if isinstance(kind, torch.dtype)),
    }
)
"""The names, each after its module, that the pickle in an archive may refer to."""


def check_pickle(data: bytes) -> None:
    """Check the operations of a pickle without executing them.

    Names of protocol 4 (`STACK_GLOBAL`) are not checked: torch's reader lacks that operation, and other readers have their own lists.

    Example:
        >>> import pickle
        >>> check_pickle(pickle.dumps({"a": [1, 2.5, None]}, protocol=2))
        >>> check_pickle(pickle.dumps(print, protocol=2))
        Traceback (most recent call last):
        attnkit.checkpoint.errors.ForeignError: it refers to __builtin__.print
    """
    position = operations = 0
    depths: list[int] = []  # of the tuples on the stack: hashing one that is too deep overflows the C stack
    marks: list[int] = []
    memo: dict[int, int] = {}
    try:
        while (code := data[position]) != _STOP:
            size, effect = _OPERATIONS[code]
            start = position + 1
            position = start + size
            if effect == _PUSH:
                depths.append(0)
            elif effect == _TEXT:
                position += int.from_bytes(data[start:position], "little")
                depths.append(0)
            elif effect == _PUT:
                index = int.from_bytes(data[start:position], "little") if size else len(memo)
                if index > MAX_OPERATIONS:
                    raise ArchiveError(f"its pickle has the memo {index:,}")  # C allocates an array of that length
                memo[index] = depths[-1]
            elif effect == _GET:
                depths.append(memo[int.from_bytes(data[start:position], "little")])
            elif effect == _MARK:
                marks.append(len(depths))
            elif effect == _GLOBAL:
                position = data.index(b"\n", data.index(b"\n", start) + 1) + 1
                if (name := data[start : position - 1].decode().replace("\n", " ", 1)) not in GLOBALS:
                    raise ForeignError(f"it refers to {name.replace(' ', '.', 1)[:200]}")
                depths.append(0)
            elif effect >= _POP:
                del depths[len(depths) - (effect - _POP) :]
            elif effect == _POP_TO_MARK:
                del depths[marks.pop() :]
            elif effect != _NOTHING:  # a tuple of the last 1, 2 or 3, or of all since the mark
                first = marks.pop() if effect == _TUPLE else len(depths) - effect
                depths[first:] = [1 + max(depths[first:], default=0)]
                if depths[-1] > MAX_DEPTH:
                    raise ArchiveError(f"its tuples are nested more than {MAX_DEPTH} deep")
            operations += 1
            if operations > MAX_OPERATIONS:
                raise ArchiveError(f"its pickle has more than {MAX_OPERATIONS:,} operations")
    except KeyError as error:
        raise ArchiveError(f"its pickle has the operation {code:#x}, which plain data does not need") from error
    except (IndexError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ArchiveError("its pickle is truncated or damaged") from error


_STOP = ord(".")
_POP = 10  # plus how many
_TUPLE, _POP_TO_MARK, _PUSH, _TEXT, _PUT, _GET, _MARK, _GLOBAL, _NOTHING = range(-1, -10, -1)
_EFFECTS: dict[int, dict[int, str]] = {  # operations by their effect and the number of bytes that follow them
    _PUSH: {0: "N\x88\x89])}\x8f", 1: "K", 2: "M", 4: "J", 8: "G"},
    _TEXT: {1: "U\x8a\x8c", 4: "X"},
    _PUT: {0: "\x94", 1: "q", 4: "r"},
    _GET: {1: "h", 4: "j"},
    _MARK: {0: "("},
    _GLOBAL: {0: "c"},
    _NOTHING: {0: "Q", 1: "\x80", 8: "\x95"},
    1: {0: "\x85"},
    2: {0: "\x86"},
    3: {0: "\x87"},
    _TUPLE: {0: "t"},
    _POP + 1: {0: "Rb\x81\x93a"},
    _POP + 2: {0: "s"},
    _POP_TO_MARK: {0: "eu"},
}
_OPERATIONS = {ord(code): (size, effect) for effect, sizes in _EFFECTS.items() for size, codes in sizes.items() for code in codes}
