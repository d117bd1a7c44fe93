"""The models that `attnkit bench` times: a recipe's task, with stand-ins for what it takes from its data, and the model of a spec."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from attnkit.checkpoint import CheckpointError
from attnkit.corpus.sound_reading import FEATURES
from attnkit.models import compose
from attnkit.recipe import merged, read_layers, read_yaml
from attnkit.registry import ConfigurationError, ResolvedSpec, datasets, embeddings, tasks
from attnkit.task import Task
from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.base import MASK
from attnkit.train.inheritance import inherited_layer, read_init_from


def is_spec(subject: str) -> bool:
    """Return whether a subject is a spec rather than a recipe."""
    return subject.lstrip().startswith("{")


def timed_model(subject: str, *, vocab: int, classes: int, shape: Sequence[int] | None, recomputes: bool = True) -> nn.Module:
    """Return the task of a recipe or the model of a spec, with random weights; without `recomputes`, nothing is checkpointed."""
    if is_spec(subject):
        return _of_spec(subject, vocab)
    return _of_recipe(subject, vocab, classes, shape, recomputes)


def _of_spec(subject: str, vocab: int) -> nn.Module:
    found: Any = read_yaml(subject, where="bench")
    if not isinstance(found, Mapping) or "stack" not in found:
        raise ConfigurationError(f"{subject} names no stack to build")
    stack = found["stack"]
    name = str(stack.get("name") if isinstance(stack, Mapping) else stack)
    sizes = {"src_vocab_size": "src_shape", "tgt_vocab_size": ""} if "encoder_decoder" in name else {"vocab_size": "image_shape"}
    own = {size: vocab for size, shape in sizes.items() if shape not in found}
    if other := [key for key in own if found.get(key, vocab) != vocab]:
        raise ConfigurationError(f"{subject} has {other[0]}, but --vocab {vocab} is the vocabulary of all models: make the two agree")
    return compose(**{**own, **found})  # type: ignore[no-any-return]


def _of_recipe(recipe: str, vocab: int, classes: int, shape: Sequence[int] | None, recomputes: bool) -> Task:
    whole = merged(read_layers([recipe]))
    spec = tasks.resolve(_with_start(whole.get("model", {})))
    if not issubclass(tasks.get(spec.name), Task):
        raise ConfigurationError(f"{recipe} trains {spec.name}, which is not an attnkit task: bench knows no batch for it")
    source = spec.get("src_embedding") or spec.get("embedding")
    reads = "tokens" if source is None else embeddings.get(source.name).reads
    wanted = tasks.from_data(spec.name)
    mask = [MASK]
    words = [f"w{i}" for i in range(vocab - len(Tokenizer.special_tokens) - len(mask))]
    tokenizer = {"name": "word", "tokens": words, "extra_tokens": mask}
    values: dict[str, Any] = {"classes": [str(i) for i in range(classes)], "counts": [1] * vocab, "separators": 1}
    for argument, attribute in wanted.items():
        if argument in ("image_shape", "src_shape"):
            values[argument] = None if reads == "tokens" else [*(shape or _shape(recipe, whole, reads, attribute))]
        elif argument.endswith("tokenizer"):
            values[argument] = None if reads != "tokens" and argument != "tgt_tokenizer" else tokenizer
    if unknown := [argument for argument in wanted if argument not in values]:
        raise ConfigurationError(f"{recipe}: bench has no stand-in for {unknown[0]}, which the task {spec.name!r} takes from its data")
    values = {argument: values[argument] for argument in wanted} | {"init_from": None, "compile": False}
    task: Task = tasks.build(spec.replace(**values, **({} if recomputes else {"activation_checkpointing": "none"})))
    task.configure_model()
    return task


def _with_start(model: Any) -> Any:
    """Return a recipe's model with what it takes from the checkpoint `init_from`, as in training; the checkpoint may be missing."""
    if not isinstance(model, Mapping):
        return model
    try:
        start = read_init_from(model.get("init_from"))
    except CheckpointError as error:
        if "stack" not in model:
            raise
        print(f"note: the model is built from the recipe alone. {error}")
        return model
    return model if start is None else merged([inherited_layer(start, model.get("name")), {"model": model}])["model"]


def _shape(recipe: str, whole: Mapping[str, Any], reads: str, attribute: str) -> Sequence[int]:
    """Return the shape of a frame of sound, or of the images of a recipe's data."""
    if reads == "frames":
        return [FEATURES]
    try:
        data: ResolvedSpec = datasets.resolve(whole.get("data") or {}, path="data")
        found: Sequence[int] = data.get("image_shape") or getattr(datasets.build(data), attribute)
    except ConfigurationError as error:
        raise ConfigurationError(f"{recipe} reads images, whose size its data tell; or give it, as in --shape 1 28 28. {error}") from error
    return found
