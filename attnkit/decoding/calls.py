# https://docs.pytorch.org/docs/stable/notes/extending.html#extending-all-torch-api-with-modes
"""A step as a list of calls of torch functions, which a CPU repeats without the other Python code of the modules."""

import re
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

FORM = {
    "__get__", "__len__", "dim", "element_size", "is_complex", "is_contiguous", "is_floating_point", "is_inference", "numel", "size",
    "stride",
}  # fmt: skip
"""The functions whose results depend only on sizes and types (`__get__` reads a property, such as `shape`)."""

_checked: WeakKeyDictionary[Any, dict[Any, CodeType | None]] = WeakKeyDictionary()
"""The code of calls by owner and by the calls without their values; None if they must not be repeated."""


class Calls(TorchFunctionMode):
    """Inside the `with` block, record the calls of torch functions; `program` repeats them.

    Tensors that existed before are read and written in place; all others are computed again.

    Raises:
        RuntimeError: The numbers in a tensor decide the computation, or autocast is on, whose casts are not calls.

    Example:
        >>> x = torch.tensor([1.0, 2.0])
        >>> def total():
        ...     return x.exp().sum()
        >>> with Calls() as calls:
        ...     y = total()
        >>> repeated = calls.program(y, total, owner=total)
        >>> _ = x.zero_()
        >>> repeated()
        tensor(2.)
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []  # r2 = f2(a3, r1)
        self.functions: list[Callable[..., Any]] = []
        self.values: list[Any] = []  # the arguments that are not results of recorded calls
        self._results: dict[int, str] = {}  # expressions for results, by id
        self._held: list[Any] = []  # keeps the results alive, so that their ids are not reused

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Call the function, and record the call."""
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("autocast is on")
        result = func(*args, **(kwargs or {}))
        parts = result if isinstance(result, tuple | list) else (result,)
        if result is None or any(isinstance(part, Tensor) for part in parts):
            self.add(func, args, kwargs or {}, result)
        elif func.__name__ not in FORM and not isinstance(result, torch.dtype | torch.device):
            raise RuntimeError(f"{func.__name__} reads numbers from a tensor")
        return result

    def add(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Record a call with this result."""
        given = [*map(self._written, args), *(f"{name}={self._written(value)}" for name, value in kwargs.items())]
        number = len(self.lines)
        self.lines.append(f"r{number} = f{number}({', '.join(given)})")
        self.functions.append(function)
        self._held.append(result)
        if isinstance(result, Tensor):
            self._results[id(result)] = f"r{number}"
        elif result is not None:
            self._results.update((id(part), f"r{number}[{i}]") for i, part in enumerate(result))

    def program(self, result: Tensor, again: Callable[[], Any], *, owner: Any) -> Callable[[], Tensor]:
        """Return a function that repeats the calls and returns the new value of `result`.

        Args:
            result: A result of a call.
            again: A function that does the same as the `with` block. It is called once for each owner and list of calls.
            owner: The object that makes the calls, that is, the model.

        Raises:
            RuntimeError: `again` makes different calls, or the numbers in a tensor decide the size of another.
        """
        checked = _checked.setdefault(owner, {})
        key = (*self.lines, *self.functions)
        if key not in checked:
            checked[key] = self._compiled(result) if self._is_repeated(again) else None
        if (code := checked[key]) is None:
            raise RuntimeError("the calls are not always the same")
        names: dict[str, Any] = {f"a{i}": value for i, value in enumerate(self.values)}
        names.update((f"f{i}", function) for i, function in enumerate(self.functions))
        exec(code, names)
        program: Callable[[], Tensor] = names.pop("program")  # a function in its own globals would be a reference cycle, and be freed late
        return program

    def _compiled(self, result: Tensor) -> CodeType:
        returned = self._written(result)
        lines, used = [f"return {returned}"], set(re.findall(r"r\d+", returned))
        for line in reversed(self.lines):
            last = sorted(set(re.findall(r"\br\d+", line)) - used)  # frees memory where the step itself would
            used.update(last)
            lines.append(f"{line}; del {', '.join(last)}" if last else line)
        return compile("def program():\n " + "\n ".join(reversed(lines)), "<calls>", "exec")

    def _is_repeated(self, again: Callable[[], Any]) -> bool:
        """Return whether `again` makes the same calls, with the same tensors and otherwise equal values, and sizes are fixed."""
        try:
            with Calls() as calls, FixedSizes():  # type: ignore[no-untyped-call]
                again()
        except RuntimeError:
            return False
        count = len(calls.lines)
        return (calls.lines, calls.functions) == (self.lines[:count], self.functions[:count]) and all(
            a is b or (type(a) is type(b) and not isinstance(a, Tensor) and a == b) for a, b in zip(calls.values, self.values, strict=False)
        )

    def _written(self, value: Any) -> str:
        """Return an expression for a value."""
        if isinstance(value, Tensor) and (name := self._results.get(id(value))):
            return name
        if isinstance(value, tuple | list):
            inside = "".join(f"{self._written(x)}, " for x in value)
            return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
        self.values.append(value)
        return f"a{len(self.values) - 1}"


class FixedSizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside the `with` block, raise RuntimeError if the numbers in a tensor decide a branch or the size of another tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Check the operation, and run it."""
        is_gather = func is torch.ops.aten.index.Tensor and all(i is None or i.dtype is torch.long for i in args[1])
        if not is_gather and {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags):
            raise RuntimeError(f"{func} depends on the numbers in a tensor")
        return func(*args, **(kwargs or {}))
