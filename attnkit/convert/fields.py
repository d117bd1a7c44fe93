"""The fields of a published configuration, each of which must be read or be known to change nothing."""

from collections.abc import Mapping
from math import isfinite
from reprlib import repr as short
from typing import Any, TypeVar

from attnkit.registry import ConfigurationError

T = TypeVar("T")
LARGEST = 2**31
KINDS: dict[type, str] = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text", list: "a list"}

NO_MATHEMATICS = frozenset({
    # names and formats of files, and the numbers from which training began
    *("_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "initializer_range"),
    # what transformers returns, and how it computes the same
    *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "chunk_size_feed_forward", "torchscript", "use_bfloat16"),
    *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "pretraining_tp", "gradient_checkpointing"),
    *("reorder_and_upcast_attn", "cache_implementation", "experts_implementation", "_experts_implementation", "auto_map"),
    *("output_router_logits",),
    # for classifiers made from the model
    *("id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params", "summary_type", "summary_use_proj"),
    *("summary_activation", "summary_proj_to_labels", "summary_first_dropout", "classifier_dropout"),
    # defaults of transformers' `generate` in older files
    *("do_sample", "early_stopping", "max_length", "min_length", "num_beams", "num_return_sequences", "temperature", "top_k", "top_p"),
    *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "pad_token_id"),
    # lengths of training, which limit no computation
    *("n_ctx", "max_position_embeddings"),
})  # fmt: skip
"""Fields that do not change what the model computes."""


class Fields:
    """A mapping of fields that remembers which were read.

    Args:
        values: The fields.
        source: Where they come from, for messages.

    Example:
        >>> fields = Fields({"width": 4, "tie": True, "use_cache": False, "speed": 3}, "config.json")
        >>> fields.read("width", int), fields.read("depth", int, 2)
        (4, 2)
        >>> fields.require(tie=True, bias=False)
        >>> fields.finish()
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: config.json has the field speed (3), which attnkit does not know, so the imported ...
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.source, self._left = source, dict(values)

    def take(self, name: str, default: Any = None) -> Any:
        """Return a field as it is, by default `default`."""
        return self._left.pop(name, default)

    def read(self, name: str, kind: type[T], default: T | None = None, *, least: int = 1) -> T:
        """Return a field of this type, by default `default`; raise if it is missing and has no default.

        Whole numbers are at least `least`, and may stand for others.
        """
        if name not in self._left and default is None:
            raise ConfigurationError(f"{self.source} has no field {name}")
        value = self.take(name, default)
        found: Any = float(value) if kind is float and type(value) is int and abs(value) < LARGEST else value
        if not _fits(found, kind, least):
            wanted = KINDS[kind] + (f" from {least}" if kind is int else "")
            raise ConfigurationError(f"{self.source}: {name} must be {wanted}, but is {short(value)}")
        return found  # type: ignore[no-any-return]

    def optional(self, name: str, kind: type[T], default: T | None = None) -> T | None:
        """Return a field of this type, or None if it is null; by default `default`."""
        return self.take(name) if self._left.get(name, default) is None else self.read(name, kind, default)

    def positive(self, name: str, default: float) -> float:
        """Return a positive number."""
        if (value := self.read(name, float, default)) > 0:
            return value
        raise ConfigurationError(f"{self.source}: {name} must be positive, but is {value}")

    def ignore(self, *names: str) -> None:
        """Drop fields that published files have, and that no model of the family reads."""
        for name in names:
            self.take(name)

    def section(self, name: str) -> "Fields":
        """Return the fields of a field that is a mapping, or null; there are none if it is missing."""
        value = self.take(name)
        if not isinstance(value, Mapping | None):
            raise ConfigurationError(f"{self.source}: {name} must be a mapping, but is {short(value)}")
        return Fields(value or {}, f"{self.source}: {name}")

    def within(self, name: str) -> "Fields":
        """Return the fields of a field that is a mapping, and those around it, which go first."""
        part = self.section(name)
        return Fields({**part._left, **self._left}, part.source)

    def require(self, **expected: Any) -> None:
        """Raise unless each of these fields is missing, or has this value (false may be null): nothing else can be imported."""
        for name, value in expected.items():
            found = self.take(name, value)
            if found is None and value is False:
                continue
            if found != value or isinstance(found, bool) is not isinstance(value, bool):
                raise ConfigurationError(f"{self.source}: {name} is {short(found)}, but attnkit imports only models where it is {value!r}")

    def finish(self) -> None:
        """Raise if a field is left that may change the model."""
        for name, value in self._left.items():
            if name not in NO_MATHEMATICS:
                raise ConfigurationError(
                    f"{self.source} has the field {name} ({short(value)}), which attnkit does not know, so the imported model could differ"
                )

    def __bool__(self) -> bool:
        return bool(self._left)


def _fits(value: Any, kind: type, least: int) -> bool:
    if kind is int:
        return type(value) is int and least <= value < LARGEST
    return type(value) is kind and (not isinstance(value, float) or isfinite(value))
