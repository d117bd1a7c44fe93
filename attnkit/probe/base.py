"""The base of probes: a question to a model, and its answer as plain data."""

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule

from attnkit.drawing import draw_lines, draw_points
from attnkit.registry import ConfigurationError, registered_name
from attnkit.task import Task

Row = dict[str, Any]


@dataclass(frozen=True)
class Findings:
    """The answer of a probe.

    Attributes:
        probe: The name of the probe.
        limits: A sentence about the conclusions that it allows, and those that it does not.
        rows: Plain data: the numbers, and the values that tell them apart.
        x: The column on the horizontal axis.
        y: The columns that were measured; each has its own panel.
        lines: The column whose values each get a line, or None.
        log: The axes with a logarithmic scale, among `x` and `y`.
        as_points: Whether each row is a point of a plane with axes `y`, labelled with its `x`.

    Example:
        >>> found = Findings("gradient", "Nothing.", ({"distance": 0, "gradient": 1.0}, {"distance": 1, "gradient": 0.25}),
        ...                  x="distance", y=("gradient",))
        >>> print(found.table())
        distance  gradient
               0         1
               1      0.25
        >>> found.scalars()
        {'gradient/distance_0': 1.0, 'gradient/distance_1': 0.25}
    """

    probe: str
    limits: str
    rows: Sequence[Row]
    x: str
    y: Sequence[str]
    lines: str | None = None
    log: str = ""
    as_points: bool = False

    def scalars(self) -> dict[str, float]:
        """Return the measured numbers by name, as a logger takes them."""
        named: dict[str, float] = {}
        for row in self.rows:
            line = "" if self.lines is None else f"/{row[self.lines]}"
            named |= {f"{y}{line}/{self.x}_{row[self.x]}": float(row[y]) for y in self.y if row.get(y) is not None}
        return named

    def json(self) -> str:
        """Return the findings as JSON, with one line for each row."""
        head = {"probe": self.probe, "limits": self.limits, "x": self.x, "y": list(self.y), "lines": self.lines}
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in self.rows)
        return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "rows": [\n{rows}\n]}}\n'

    def table(self) -> str:
        """Return the rows as a text table, with four significant digits."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        cells = [names, *([_shown(row.get(name)) for name in names] for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)

    def svg(self) -> str:
        """Return a figure as SVG.

        Raises:
            ConfigurationError: matplotlib is not installed.
        """
        if self.as_points:
            return draw_points(self.rows, label=self.x, x=self.y[0], y=self.y[1], title=self.probe)
        return draw_lines(self.rows, x=self.x, y=self.y, lines=self.lines, log=self.log, title=self.probe)


class Probe(ABC):
    """A question about the model of a task. Subclasses are registered (`@attnkit.probes.register`), and return rows.

    The docstring has a paragraph that begins with `Limits:`, a sentence that says what the probe can and cannot show.

    A probe changes neither weights, nor modes, nor the global random state.

    Its attributes `x`, `y`, `lines`, `log` and `as_points` are those of its `Findings`; `needs_data` says whether it reads batches of data,
    and `on_cpu` whether `attnkit probe` computes it on the CPU even if there is a GPU.
    """

    x: ClassVar[str]
    y: ClassVar[Sequence[str]]
    lines: ClassVar[str | None] = None
    log: ClassVar[str] = ""
    as_points: ClassVar[bool] = False
    needs_data: ClassVar[bool] = True
    on_cpu: bool = False

    def __call__(self, task: Task, data: LightningDataModule | None = None) -> Findings:
        """Ask the model of a task.

        Args:
            task: The task, trained or not. A new one gets its weights now.
            data: The data, for a probe that reads some: the validation split, or the test split if there is none.

        Raises:
            ConfigurationError: The probe does not apply to this task or these data; the message says why.
        """
        name = registered_name(f"{type(self).__module__}.{type(self).__qualname__}")
        if self.needs_data and data is None:
            raise ConfigurationError(f"the probe {name!r} reads data, but got none")
        task.configure_model()
        rows = self.rows(task, data)
        return Findings(name, limits(type(self)), rows, x=self.x, y=self.y, lines=self.lines, log=self.log, as_points=self.as_points)

    @abstractmethod
    def rows(self, task: Task, data: Any) -> list[Row]:
        """Return the rows of the answer; the task has its model."""


def limits(probe: type[Probe]) -> str:
    """Return what a probe can and cannot show, from its docstring."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in (inspect.getdoc(probe) or "").split("\n\n"))
    return next((text.removeprefix("Limits: ") for text in paragraphs if text.startswith("Limits:")), "")


def vocabulary_of(task: Task) -> int:
    """Return the number of tokens that a task's model reads.

    Raises:
        ConfigurationError: It is not a model of attnkit, or reads no tokens.
    """
    if (spec := getattr(task.model, "spec", None)) is None:
        raise ConfigurationError(f"this probe needs a model of attnkit.compose, but the task has a {type(task.model).__name__}")
    if (size := spec.get("src_vocab_size") or spec.get("vocab_size")) is None:
        raise ConfigurationError("this probe reads tokens, but the model reads images")
    return int(size)


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
