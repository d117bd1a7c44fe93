"""The fields of a published configuration, each of which must be read or be known to change nothing."""

from collections.abc import Mapping
from typing import Any

from attnkit.registry import ConfigurationError

_MISSING = object()

NO_MATHEMATICS = frozenset({
    # names and formats of files, and the numbers from which training began
    *("_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "initializer_range"),
    # what transformers returns, and how it computes the same
    *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "chunk_size_feed_forward", "torchscript", "use_bfloat16"),
    *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "pretraining_tp", "reorder_and_upcast_attn"),
    # for classifiers made from the model
    *("id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params", "summary_type", "summary_use_proj"),
    *("summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
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
        source: Where they stand, for messages.

    Example:
        >>> fields = Fields({"width": 4, "tie": True, "use_cache": False, "speed": 3}, "config.json")
        >>> fields.read("width"), fields.read("depth", 2)
        (4, 2)
        >>> fields.require(tie=True, bias=False)
        >>> fields.finish()
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: config.json has the field speed (3), which attnkit does not know, so the model would ...
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.source, self._left = source, dict(values)

    def read(self, name: str, default: Any = _MISSING) -> Any:
        """Return a field, by default `default`; raise if it is missing and has no default."""
        value = self._left.pop(name, default)
        if value is _MISSING:
            raise ConfigurationError(f"{self.source} has no field {name}")
        return value

    def section(self, name: str) -> "Fields":
        """Return the fields of a field that is a mapping, or null; there are none if it is missing."""
        value = self.read(name, None) or {}
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"{self.source}: {name} must be a mapping, but is {value!r}")
        return Fields(value, f"{self.source}: {name}")

    def require(self, **expected: Any) -> None:
        """Raise unless each of these fields is missing, or has this value: nothing else can be imported."""
        for name, value in expected.items():
            if (found := self.read(name, value)) != value:
                raise ConfigurationError(f"{self.source}: {name} is {found!r}, but attnkit imports only models where it is {value!r}")

    def finish(self) -> None:
        """Raise if a field is left that may change the model."""
        for name, value in self._left.items():
            if name not in NO_MATHEMATICS:
                raise ConfigurationError(
                    f"{self.source} has the field {name} ({value!r}), which attnkit does not know, so the model would be another one"
                )

    def __bool__(self) -> bool:
        return bool(self._left)
