"""The fields of a published configuration, each of which must be read or known to have no effect."""

from collections.abc import Mapping
from math import isfinite
from reprlib import repr as short
from typing import Any, TypeVar

from attnkit.registry import ConfigurationError

T = TypeVar("T")
LARGEST = 2**31
KINDS: dict[type, str] = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a string", list: "a list"}

NO_EFFECT = frozenset({
    # names and formats of files, and initialisation
    *("_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "initializer_range"),
    # the outputs of transformers, and alternative ways of computing them
    *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "chunk_size_feed_forward", "torchscript", "use_bfloat16"),
    *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "pretraining_tp", "gradient_checkpointing"),
    *("reorder_and_upcast_attn", "cache_implementation", "experts_implementation", "_experts_implementation", "auto_map"),
    *("output_router_logits", "output_past", "transformers.js_config"),
    # read only by training programs, or by none at all
    *("is_llama_config", "n_special", "predict_special_tokens", "tf_legacy_loss", "xla_device"),
    # for classifiers made from the model
    *("num_labels", "_num_labels", "id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params", "classifier_dropout"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
    # defaults of transformers' `generate` in older files
    *("do_sample", "early_stopping", "max_length", "min_length", "num_beams", "num_return_sequences", "temperature", "top_k", "top_p"),
    *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "pad_token_id", "num_beam_groups", "diversity_penalty", "typical_p"),
    *("encoder_no_repeat_ngram_size", "bad_words_ids", "output_scores", "return_dict_in_generate", "remove_invalid_values", "prefix"),
    *("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens"),
    # for tokenizers and encoder-decoders
    *("tokenizer_class", "sep_token_id", "cls_token_id", "decoder_start_token_id"),
    # training lengths, which do not limit the computation
    *("n_ctx", "max_position_embeddings"),
})  # fmt: skip
"""Fields that have no effect on the computation."""


class Fields:
    """A mapping of fields that tracks which ones were read.

    Args:
        values: The fields.
        source: Where the fields come from, for messages.

    Example:
        >>> fields = Fields({"width": 4, "tie": True, "use_cache": False, "speed": 3}, "config.json")
        >>> fields.read("width", int), fields.read("depth", int, 2)
        (4, 2)
        >>> fields.require(tie=True, bias=False)
        >>> fields.finish()
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: config.json has the field speed (3), which is unknown to attnkit, so the imported ...
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.source, self._left = source, dict(values)

    def take(self, name: str, default: Any = None) -> Any:
        """Return a field unchecked, or `default` if it is missing."""
        return self._left.pop(name, default)

    def read(self, name: str, kind: type[T], default: T | None = None, *, least: int = 1) -> T:
        """Return a field of this type, or `default` if it is missing; raise if there is no default either.

        Integers must be at least `least`; they are also accepted as floats.
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
        """Return a field of this type, or None if it is null, or `default` if it is missing."""
        return self.take(name) if self._left.get(name, default) is None else self.read(name, kind, default)

    def positive(self, name: str, default: float) -> float:
        """Return a positive number."""
        if (value := self.read(name, float, default)) > 0:
            return value
        raise ConfigurationError(f"{self.source}: {name} must be positive, but is {value}")

    def ignore(self, *names: str) -> None:
        """Drop fields that occur in published files but that no model of the family reads."""
        for name in names:
            self.take(name)

    def section(self, name: str) -> "Fields":
        """Return the fields inside a field that is a mapping; empty if it is missing or null."""
        value = self.take(name)
        if not isinstance(value, Mapping | None):
            raise ConfigurationError(f"{self.source}: {name} must be a mapping, but is {short(value)}")
        return Fields(value or {}, f"{self.source}: {name}")

    def within(self, name: str) -> "Fields":
        """Return the fields inside a field that is a mapping, together with those around it, which take precedence."""
        part = self.section(name)
        return Fields({**part._left, **self._left}, part.source)

    def require(self, **expected: Any) -> None:
        """Raise unless each of these fields is missing or has the only value that can be imported (null counts as false)."""
        for name, value in expected.items():
            found = self.take(name, value)
            if found is None and value is False:
                continue
            if found != value or isinstance(found, bool) is not isinstance(value, bool):
                raise ConfigurationError(f"{self.source}: {name} is {short(found)}, but attnkit only imports models where it is {value!r}")

    def finish(self) -> None:
        """Raise if an unread field is left that may affect the model."""
        for name, value in self._left.items():
            if name not in NO_EFFECT:
                raise ConfigurationError(
                    f"{self.source} has the field {name} ({short(value)}), which is unknown to attnkit, so the imported model could differ"
                )

    def __bool__(self) -> bool:
        return bool(self._left)


def _fits(value: Any, kind: type, least: int) -> bool:
    if kind is int:
        return type(value) is int and least <= value < LARGEST
    return type(value) is kind and (not isinstance(value, float) or isfinite(value))
