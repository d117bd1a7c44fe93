# https://docs.pytorch.org/docs/stable/notes/extending.html#extending-all-torch-api-with-modes
"""A step as the list of its calls of torch's functions: a CPU repeats them without the other Python code of the modules."""

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
"""The functions whose numbers depend on sizes and types only (`__get__` reads a property, such as `shape`)."""

_checked: WeakKeyDictionary[Any, dict[Any, CodeType | None]] = WeakKeyDictionary()
"""By owner, and by the calls without the values in them: their code, or None if they must not be repeated."""


class Calls(TorchFunctionMode):
    """Inside the `with` block, record the calls of torch's functions; `program` repeats them.

    Tensors that exist before are read and written where they are; all others are computed anew.

    Raises:
        RuntimeError: The numbers in a tensor decide what to compute, or autocast is on, whose changes are not calls.

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
        self.values: list[Any] = []  # the arguments that no call has computed
        self._results: dict[int, str] = {}  # expressions for results, by id
        self._held: list[Any] = []  # keeps these ids from being used again

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
        """Return a function that repeats the calls and returns what is now `result`.

        Args:
            result: A result of a call.
            again: Does the same as was done inside the `with` block. It is called once for each owner and list of calls.
            owner: Makes the calls: the model.

        Raises:
            RuntimeError: `again` makes other calls, or the numbers in a tensor decide the size of another.
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
        program: Callable[[], Tensor] = names.pop("program")  # a function that its own globals hold would be freed late
        return program

    def _compiled(self, result: Tensor) -> CodeType:
        returned = self._written(result)
        lines, used = [f"return {returned}"], set(re.findall(r"r\d+", returned))
        for line in reversed(self.lines):
            last = sorted(set(re.findall(r"\br\d+", line)) - used)  # frees memory where the step itself does
            used.update(last)
            lines.append(f"{line}; del {', '.join(last)}" if last else line)
        return compile("def program():\n " + "\n ".join(reversed(lines)), "<calls>", "exec")

    def _is_repeated(self, again: Callable[[], Any]) -> bool:
        """Return whether `again` makes the same calls, which read the same tensors and equal other values, and sizes are fixed."""
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
