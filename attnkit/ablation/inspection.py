"""Inspects compositions without training them: a worker process builds them on the meta device. Answers are cached by content."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attnkit
from attnkit.files import code_version
from attnkit.registry import ConfigurationError
from attnkit.worker.answers import Inspection
from attnkit.worker.folder import READ_ONLY, key_of, stored, write_json
from attnkit.worker.job import INSPECTION, ask
from attnkit.worker.records import read
from attnkit.worker.sources import unchanged


def inspect(recipe: str, compositions: Sequence[Mapping[str, Any]], *, match: Any, cache: Path) -> list[Inspection]:
    """Return the inspection of each composition, given as overrides by dotted key; the first is the baseline, whose size `match` refers to.

    A composition that was rejected before is inspected again: what it lacked, such as a file, may exist by now.
    """
    shared = [attnkit.__version__, code_version(), str(Path(recipe).resolve()), Path(recipe).read_text(encoding="utf-8"), match]
    matched = list(compositions[0].items()) if match else None  # a list, as the order matters: a later override wins
    files = [cache / f"{key_of([shared, matched, list(overrides.items())])}.json" for overrides in compositions]
    known = [stored(Inspection, file) for file in files]
    if asked := [i for i, answer in enumerate(known) if answer is None or answer.error or not unchanged(answer.sources)]:
        question = {"recipe": recipe, "match": match, "baseline": compositions[0], "compositions": [compositions[i] for i in asked]}
        answers, why = ask(INSPECTION, question)
        if why:
            raise ConfigurationError(f"the recipe {recipe} cannot be inspected: {why}")
        for i, answer in zip(asked, answers, strict=True):
            known[i] = read(Inspection, answer, where="its content")
            try:
                write_json(files[i], answer)
            except OSError as error:  # read-only results of others can be planned too
                if error.errno not in READ_ONLY:
                    raise
    return [inspection for inspection in known if inspection is not None]
