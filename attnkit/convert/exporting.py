"""Writes a model in transformers' format and reads it back to verify it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from attnkit.convert.architecture import Exportable, architecture, differences
from attnkit.convert.family import Family
from attnkit.convert.fields import Fields
from attnkit.convert.importing import DECODERS, ENCODERS, load
from attnkit.convert.labelled import CLASSES, TASKS, label_fields, labelled, unnamed
from attnkit.convert.masked import BIAS, OWN_BIAS, MaskedVocabulary, masked_vocabulary_of
from attnkit.convert.renames import expand
from attnkit.convert.tokenizer_files import Ends, tokenizer_files
from attnkit.convert.vocabulary import TABLE, Vocabulary, vocabulary_of
from attnkit.files import new_folder
from attnkit.head.linear import NEVER
from attnkit.models import ClassifierModel, DecoderModel, EncoderModel, compose
from attnkit.registry import FAMILIES, ConfigurationError, nearest, require_at_least
from attnkit.tokenizer import Tokenizer

EXPORTED = ("causal_lm", "masked_lm", *TASKS.values())
LENGTH = 2048
"""The context length written to the configuration if the positions do not limit it and none is given."""
IMPLIED = ("embedding_position: ", "norm: None")
"""The beginnings of differences that merely follow from others, in positions or in the final norm."""


class Saved(NamedTuple):
    """The result of `save`: the `model_type`, and notes on differences from the model in attnkit."""

    model_type: str
    notes: list[str]


class _Form(NamedTuple):
    """A candidate form of a model that a family may be able to express."""

    architecture: dict[str, Any]
    weights: dict[str, Tensor]
    notes: list[str]


def save(model: Any, folder: str | Path, *, model_type: str | None = None, context: int | None = None, mode: int | None = None) -> Saved:
    """Write a model as a folder in transformers' format, the mirror of `load` and `load_task`.

    The folder holds config.json, model.safetensors, for a decoder generation_config.json, and for a task tokenizer.json and
    tokenizer_config.json. It appears only once it is complete and `load` has read it back as the same model with the same weights.

    Args:
        model: A task `causal_lm`, `masked_lm`, `classification`, `tagging` or `question_answering` on texts, or the model of one. A task
            that was made from a published model is written with the ids of that model.
        folder: The folder to write, which must be missing or empty.
        model_type: The family (default: the first that can express the model).
        context: The context length written for other programs (default: that of the positions, or else 2048). For an encoder, texts are
            truncated to this length or to that of its positions, whichever is less.
        mode: The mode whose read and write permissions the files get (default: those of any new file).

    Returns:
        The family, and notes.

    Raises:
        ConfigurationError: No family, or not `model_type`, can express the model (the message names the options), or the folder is not
            empty.

    Example:
        >>> import tempfile
        >>> import attnkit
        >>> from attnkit import convert
        >>> model = attnkit.compose(
        ...     stack="decoder", d_model=16, num_layers=2, num_heads=2, position="rotary", norm="rms_norm", feed_forward="glu", bias=False,
        ...     embedding={"name": "token", "scale": False}, vocab_size=20)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     convert.save(model, f"{folder}/new").model_type, convert.load(f"{folder}/new").spec["num_heads"]
        ('llama', 2)
    """
    require_at_least(1, context=context)
    name = getattr(model, "registered_name", None)
    task = model if name in EXPORTED else None
    if task is not None:
        task.configure_model()
        model = task.model
    if not isinstance(model, DecoderModel | EncoderModel | ClassifierModel):
        found = type(model).__name__ if name is None else f"the task {name!r}"
        raise ConfigurationError(f"only {', '.join(EXPORTED)} and their models can be exported to transformers, not {found}")
    if own := _replaced_in(model):
        raise ConfigurationError(
            f"{own[0]} replaces a built-in component, so no family in transformers has it: `attnkit export` without --format writes it"
        )
    form, published = _form(model, task)
    head = _head(model, name)
    families = DECODERS if isinstance(model, DecoderModel) else ENCODERS
    if head is not None:
        families = {kind: labelled(each, head, model.spec["num_classes"]) for kind, each in ENCODERS.items() if head in each.labelled}
    kind, form = _expressed(form, families, model_type, published)
    family, config = families[kind], families[kind].fields(form.architecture)
    length, is_known = _length(form.architecture, context)
    ends = _ends(model, task, published)
    theirs = _theirs(family, config, form)
    fields = {
        "architectures": [family.model_class], "model_type": kind, "vocab_size": form.architecture["vocab_size"], **ends,
        **({} if "n_positions" in config else {"max_position_embeddings": length}), **config,
        "torch_dtype": str(next(iter(theirs.values())).dtype).removeprefix("torch."),
    }  # fmt: skip
    if head in CLASSES:
        fields |= label_fields(unnamed(model.spec["num_classes"]) if task is None else task.classes)
    files, notes = {"config.json": fields}, list(form.notes)
    if isinstance(model, DecoderModel):
        files["generation_config.json"] = ends
    if not is_known:
        notes.append(f"max_position_embeddings is {LENGTH}, because the model does not limit how many tokens it reads")
    if task is not None:
        between = task.separators if head == "QuestionAnswering" else 2 if kind == "roberta" else 1
        around = None if isinstance(model, DecoderModel) else Ends(config.get("type_vocab_size", 0), between)
        limit = length if around is None else min(length, context or length)  # longer texts are truncated
        try:
            files |= tokenizer_files(task.tokenizer, published, kind=kind, length=limit, ends=around)
        except ConfigurationError as error:
            notes.append(f"written without a tokenizer, because the model's, {task.tokenizer.spec['name']!r}, cannot be expressed: {error}")
    with new_folder(folder) as draft:
        for name, content in files.items():
            (draft / name).write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
        save_file(theirs, draft / "model.safetensors", metadata={"format": "pt"})
        for file in draft.iterdir():  # safetensors makes its files readable only by their owner
            file.chmod(((draft / "config.json").stat().st_mode if mode is None else mode) & 0o666)
        _require_equal(load(draft), form, kind)
    return Saved(kind, notes)


def _replaced_in(model: Exportable) -> list[str]:
    """Return the classes in a model that replace built-in components (`override=True`), whose names its spec has."""
    replaced = {path for registry in FAMILIES for name in registry.built_in() if (path := registry.replacement(name)) is not None}
    return sorted(replaced & {f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()})


def _head(model: Exportable, task: str | None) -> str | None:
    """Return the kind of a labelling head, or None if the head predicts tokens."""
    if not isinstance(model, ClassifierModel):
        return None
    by_task = {ours: kind for kind, ours in TASKS.items()}
    return by_task.get(task or ("tagging" if model.pooling == "none" else "classification"))


def _form(model: Exportable, task: Any) -> tuple[_Form, Vocabulary | MaskedVocabulary | None]:
    """Return the form of a model, and the published vocabulary if the model is to be written with its ids."""
    weights = {name: weight.detach().cpu() for name, weight in model.state_dict().items()}
    described = architecture(model)
    if task is None:
        return _Form(described, weights, []), None
    published: Vocabulary | MaskedVocabulary | None
    if isinstance(model, DecoderModel):
        published = vocabulary_of(task.tokenizer.spec)
        if published is None or described["head"].get("excluded") != published.excluded:
            return _Form(described, weights, []), None
        described = {**described, "head": {**described["head"], "excluded": None}}
    else:
        published = masked_vocabulary_of(task.tokenizer.spec)
        never = _excluding(weights, task.first_id) if isinstance(model, EncoderModel) else {}
        if published is None:
            return _Form(described, weights | never, []), None
    outside = weights if described["num_classes"] is None else {TABLE: weights[TABLE]}
    theirs, notes = published.theirs(outside)
    theirs = {**{name: weight for name, weight in weights.items() if name not in outside}, **theirs}
    tie = described["tie"] if theirs.keys() == weights.keys() else "none"
    size, pad = len(theirs[TABLE]), getattr(published, "pad", described["pad_id"])
    return _Form({**described, "vocab_size": size, "pad_id": pad, "tie": tie}, theirs, notes), published


def _excluding(weights: Mapping[str, Tensor], first: int) -> dict[str, Tensor]:
    """Return biases that keep the model from predicting ids below `first`, which the task never predicts either."""
    found = {name: weights[name] for name in (BIAS, OWN_BIAS) if name in weights}
    return {name: torch.cat([torch.full_like(bias[:first], NEVER), bias[first:]]) for name, bias in found.items()}


def _expressed(
    form: _Form, families: Mapping[str, Family], model_type: str | None, published: Vocabulary | MaskedVocabulary | None
) -> tuple[str, _Form]:
    """Return the first family that can express a model, or raise an error that names the options that the closest one cannot express."""
    if model_type is not None and model_type not in families:
        raise ConfigurationError(
            f"attnkit cannot export model_type {model_type!r}.{nearest(model_type, families)} It can: {', '.join(families)}."
        )
    refused: dict[str, list[str]] = {}
    candidates = [form]
    for change in (_without_factor, _with_segments):
        candidates += [changed for candidate in candidates for changed in change(candidate)]
    is_roberta = isinstance(published, MaskedVocabulary) and published.names["cls"] == "<s>"
    for kind in sorted(families, key=lambda kind: is_roberta and kind != "roberta") if model_type is None else [model_type]:
        for candidate in candidates:
            wrong = _refused(families[kind], candidate.architecture)
            if not wrong:
                return kind, candidate
            refused[kind] = min(wrong, refused.get(kind, wrong), key=len)
            if not any(each.startswith("embedding.") for each in wrong):
                break  # candidates differ only in their embeddings
    closest = min(refused, key=lambda kind: len(refused[kind]))
    others = ", and no other family that attnkit exports can express the model: `attnkit export` without --format writes it"
    others = "; without model_type, the first family that can express it is used" if model_type else others
    raise ConfigurationError(f"{closest} cannot express {', '.join(refused[closest])}{others}")


def _refused(family: Family, wanted: dict[str, Any]) -> list[str]:
    """Return the options of an architecture that differ when its configuration is read back.

    A model with one layer of each kind is tried first, because it is quick to build.
    """
    layers = wanted["layers"]
    wrong: list[str] = []
    for some in ([layer for i, layer in enumerate(layers) if layer not in layers[:i]], layers):
        each = {**wanted, "layers": some}
        try:
            found = architecture(_empty(family, family.fields(each) | {"vocab_size": wanted["vocab_size"]}))
        except ConfigurationError as error:
            return [f"this model ({error})"]
        if wrong := list(dict.fromkeys(differences(each, found))):
            break
    return [each for each in wrong if not each.startswith(IMPLIED)] or wrong


def _spec(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    spec = family.spec(fields := Fields(config, "its config.json"))
    fields.finish()
    return spec


def _empty(family: Family, config: Mapping[str, Any]) -> Exportable:
    """Return the model of a configuration on the meta device, without weights."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model: Exportable = compose(**_spec(family, config), eos_id=None)
    return model


def _without_factor(form: _Form) -> Iterator[_Form]:
    """Yield the same model without an embedding scale: the table is multiplied by it, and the norm before a tied head divided by it.

    This is not done in half precision with a tied head, which would amplify the rounding.
    """
    described, factor = form.architecture, form.architecture["embedding"]["scale"]
    table, is_tied = form.weights[TABLE], described["tie"] == "output"
    norm = "head.norm" if "head.norm.weight" in form.weights else f"stack.{described['stack']}.final_norm"
    names = [name for name in (f"{norm}.{x}" for x in ("weight", "bias")) if is_tied and name in form.weights]
    if factor == 1.0 or (is_tied and (not names or table.dtype not in (torch.float32, torch.float64))):
        return
    changed = {TABLE: table * factor, **{name: form.weights[name] / factor for name in names}}
    divided = f", and the {'norm of the head' if norm == 'head.norm' else 'final norm'} divided by it" if is_tied else ""
    note = f"the embeddings are stored multiplied by {factor:.6g}{divided}"
    yield _Form({**described, "embedding": {**described["embedding"], "scale": 1.0}}, form.weights | changed, [*form.notes, note])


def _with_segments(form: _Form) -> Iterator[_Form]:
    """Yield the same encoder with two segments whose embeddings are zero."""
    described = form.architecture
    if described["stack"] == "encoder" and not described["embedding"]["num_segments"]:
        zeros = torch.zeros_like(form.weights[TABLE][:2])
        embedding = {**described["embedding"], "num_segments": len(zeros)}
        yield _Form({**described, "embedding": embedding}, form.weights | {"embedding.segment": zeros}, form.notes)


def _length(described: Mapping[str, Any], context: int | None) -> tuple[int, bool]:
    """Return the context length of a model, and whether it is known."""
    position = described["layers"][0]["position"]
    if (most := position.get("max_length")) is not None:
        return int(most), True
    scaling = position.get("scaling") or {}
    if "original_length" in scaling:  # some versions of transformers compute `yarn` from the ratio of the two lengths
        return round(scaling["original_length"] * scaling["factor"]), True
    return (LENGTH, False) if context is None else (context, True)


def _ends(model: Exportable, task: Any, published: Vocabulary | MaskedVocabulary | None) -> dict[str, int | None]:
    """Return the ids of the special tokens; without a tokenizer, a decoder has only the end token, and an encoder only padding."""
    ids: tuple[int | None, ...]
    if isinstance(published, MaskedVocabulary):
        ids = (*published.rows[:2], published.pad)
    elif published is not None:
        ids = (published.bos, published.eos, published.pad)
    elif task is not None:
        ids = (Tokenizer.bos_id, Tokenizer.eos_id, Tokenizer.pad_id)
    else:
        ids = (None, model.eos_id, None) if isinstance(model, DecoderModel) else (None, None, model.pad_id)
    return dict(zip(("bos_token_id", "eos_token_id", "pad_token_id"), ids, strict=True))


def _theirs(family: Family, config: Mapping[str, Any], form: _Form) -> dict[str, Tensor]:
    """Return the weights under the family's names."""
    spec = _spec(family, {**config, "vocab_size": form.architecture["vocab_size"]})
    left, names = dict(form.weights), {name: alias for alias, name in family.aliases.items()}
    found: dict[str, Tensor] = {}
    for row in expand(family.renames(spec), form.weights):
        tensors = row.to_theirs([left.pop(name) for name in row.ours])
        found |= {names.get(name, name): tensor.contiguous() for name, tensor in zip(row.theirs, tensors, strict=True)}
    if left:
        raise ConfigurationError(f"the model has the weight {min(left)}, which the family has no place for")
    return found | {name: found[copy].clone() for copy, name in family.copies.items() if copy in found and name not in found}


def _require_equal(found: Exportable, form: _Form, kind: str) -> None:
    """Raise unless the model read back equals the one written; norm weights that a family stores minus one may be rounded."""
    if wrong := list(differences(form.architecture, architecture(found))):
        raise ConfigurationError(f"{kind} cannot express {', '.join(wrong)}")
    weights = found.state_dict()
    for name, weight in form.weights.items():
        close = 1.2e-7 if kind.startswith("gemma") and "norm" in name else 0.0
        is_equal = torch.allclose(weights[name], weight.to(weights[name].dtype), rtol=close, atol=close, equal_nan=True)
        if weights[name].dtype != weight.dtype or not is_equal:
            raise ConfigurationError(f"{kind} cannot express {name} in {weight.dtype}")
