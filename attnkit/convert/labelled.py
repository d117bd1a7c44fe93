"""Encoders with heads other than for masked tokens: for classes of texts or tokens, and for spans of passages."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

from attnkit.convert.family import Family
from attnkit.convert.fields import Fields
from attnkit.convert.renames import Rename
from attnkit.registry import ConfigurationError

TASKS = {"SequenceClassification": "classification", "TokenClassification": "tagging", "QuestionAnswering": "question_answering"}
"""attnkit's tasks, by the suffixes of transformers' class names."""
OPTIONS: dict[str, dict[str, Any]] = {kind: {"pooling": "none"} for kind in TASKS}
OPTIONS["SequenceClassification"] = {"pooling": "class_token", "pooler": True}
CLASSES = ("SequenceClassification", "TokenClassification")
"""The heads whose outputs are named classes."""
MASKED = "ForMaskedLM"


def class_of(family: Family, kind: str) -> str:
    """Return transformers' class name of a family with this head.

    Example:
        >>> from attnkit.convert.bert import FAMILIES
        >>> class_of(FAMILIES["bert"], "QuestionAnswering")
        'BertForQuestionAnswering'
    """
    return f"{family.model_class.removesuffix(MASKED)}For{kind}"


def labelled(family: Family, kind: str, classes: int) -> Family:
    """Return a family with another head, of the given kind and number of outputs."""
    rows = family.labelled[kind]
    read = {name for row in rows for name in row.theirs}

    def spec(fields: Fields) -> dict[str, Any]:
        body = {name: value for name, value in family.spec(fields).items() if name not in ("tie", "head")}
        return {**body, "num_classes": classes, **OPTIONS[kind]}

    def config(architecture: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in family.fields(architecture).items() if name != "tie_word_embeddings"}

    def renames(spec: dict[str, Any]) -> Sequence[Rename]:
        body = family.renames({**spec, "tie": "output"})
        return (*(row for row in body if not row.ours[0].startswith("head.")), *rows)

    unread = tuple(pattern for pattern in family.unread if not any(fnmatch(name, pattern) for name in read))
    return replace(family, spec=spec, config=config, renames=renames, model_class=class_of(family, kind), unread=unread, copies={})


def labels(fields: Fields, kind: str) -> tuple[int, list[str] | None]:
    """Return the number of outputs and their names, if they have any.

    Raise unless each text or token has exactly one class, or the outputs are the two ends of a span.
    """
    found, count = fields.take("id2label"), fields.optional("num_labels", int)
    fields.ignore("label2id")
    if (problem := fields.take("problem_type")) not in (None, "single_label_classification"):
        raise ConfigurationError(f"{fields.source}: problem_type is {problem!r}, but attnkit only imports models with a single label")
    names = None
    if found is not None:
        if not isinstance(found, Mapping) or sorted(found) != sorted(str(i) for i in range(len(found))):
            raise ConfigurationError(f"{fields.source}: id2label must map the ids 0, 1, 2, ... to names")
        names = [found[str(i)] for i in range(len(found))]
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names) or not names:
            raise ConfigurationError(f"{fields.source}: the names in id2label must be distinct strings")
    count = (count or 2) if names is None else len(names)
    if kind not in CLASSES and count != 2:
        raise ConfigurationError(f"{fields.source}: there are {count} labels (id2label, num_labels), but a span has two ends")
    return count, names


def unnamed(count: int) -> list[str]:
    """Return the names that transformers gives to unnamed classes.

    Example:
        >>> unnamed(2)
        ['LABEL_0', 'LABEL_1']
    """
    return [f"LABEL_{i}" for i in range(count)]


def label_fields(classes: Sequence[str]) -> dict[str, Any]:
    """Return the fields that `labels` reads."""
    return {"id2label": {str(i): name for i, name in enumerate(classes)}, "label2id": {name: i for i, name in enumerate(classes)}}
