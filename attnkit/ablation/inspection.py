"""What a composition is, without training it: its complete recipe and size, or why it cannot be. Asked of a second process.

That process imports torch and builds models without memory. Its answers are kept by content, so that planning again is quick.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import attnkit
from attnkit.ablation.store import key_of, read_json, write_json
from attnkit.registry import ConfigurationError

INSPECTOR = "attnkit.cli.inspection"


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The answer for one composition.

    Attributes:
        recipe: All of `model` and `data` written out, and what the recipe says of the trainer.
        notes: Arguments that the merging of layers dropped.
        parameters: How many the model has.
        flops: Of a pass through a batch of validation data, if they are matched.
        adjusted: The width that `match` found.
        takes_seed: Whether the data have a seed of their own.
        error: Why it cannot be.
        kind: `mistake`: a wrong name, argument or value; `illegal`: pieces that do not go together.
    """

    recipe: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()
    parameters: int | None = None
    flops: int | None = None
    adjusted: int | None = None
    takes_seed: bool = False
    error: str | None = None
    kind: Literal["mistake", "illegal"] | None = None


def inspect(recipe: str, compositions: Sequence[Sequence[Mapping[str, Any]]], *, match: Any, cache: Path) -> list[Inspection]:
    """Return what each composition is.

    Args:
        recipe: The file of the recipe.
        compositions: Layers over it; those of the baseline first, to whose size others are matched.
        match: The fields of `Match`, or None.
        cache: The folder of the answers.

    Raises:
        ConfigurationError: The second process failed.
    """
    shared = [attnkit.__version__, source_version(), str(Path(recipe).resolve()), Path(recipe).read_text(encoding="utf-8"), match]
    files = [cache / f"{key_of([shared, compositions[0] if match else None, layers])}.json" for layers in compositions]
    asked = [i for i, file in enumerate(files) if _stored(file) is None]
    if asked:
        question = {"recipe": recipe, "match": match, "baseline": compositions[0], "compositions": [compositions[i] for i in asked]}
        for i, answer in zip(asked, _answers(question), strict=True):
            write_json(files[i], answer)
    found = [_stored(file) for file in files]
    if missing := [file for file, inspection in zip(files, found, strict=True) if inspection is None]:
        raise ConfigurationError(f"{missing[0]} is not what the inspection wrote; remove it")
    return [inspection for inspection in found if inspection is not None]


def _stored(file: Path) -> Inspection | None:
    """Return the answer in a file; None if there is none, or it is damaged."""
    try:
        inspection = Inspection(**read_json(file))
    except (TypeError, ConfigurationError):
        return None
    shapes = (("recipe", Mapping | None), ("notes", list | tuple), ("parameters", int | None), ("flops", int | None), ("error", str | None))
    has_shape = all(isinstance(getattr(inspection, name), shape) for name, shape in shapes)
    is_known = inspection.error is not None or (inspection.recipe is not None and isinstance(inspection.recipe.get("data"), Mapping))
    return inspection if has_shape and is_known else None


def _answers(question: Any) -> Iterable[dict[str, Any]]:
    process = subprocess.Popen(
        [sys.executable, "-m", INSPECTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = process.communicate(json.dumps(question))
    if process.returncode:
        last = err.strip().splitlines()[-1:] or ["no message"]
        raise ConfigurationError(f"the recipe {question['recipe']} cannot be inspected: {last[0].removeprefix('attnkit: error: ')}")
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def source_version() -> float:
    """Return when attnkit's own code last changed: answers of other code are not used."""
    return max(file.stat().st_mtime for file in Path(attnkit.__file__).parent.rglob("*.py"))


def as_plain(match: Any) -> Any:
    """Return a dataclass as a mapping, and None as None."""
    return None if match is None else asdict(match)
