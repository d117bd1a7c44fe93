"""Builds the model of a published checkpoint."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from attnkit.checkpoint.errors import REAL, CheckpointError, misfit
from attnkit.checkpoint.rebuilding import dtype_of, no_larger_than, size_of
from attnkit.convert import bert, experts, gemma, gpt2, gpt_neox, llama, modern_bert, phi3, qwen3_5, starcoder2
from attnkit.convert.family import Family
from attnkit.convert.fields import Fields
from attnkit.convert.folder import read_config, read_weights, with_prefix
from attnkit.convert.labelled import CLASSES, TASKS, class_of, labelled, labels, unnamed
from attnkit.convert.masked import BIAS, OWN_BIAS, read_masked_vocabulary
from attnkit.convert.renames import Rename, expand
from attnkit.convert.vocabulary import HEAD, TABLE, read_vocabulary, without_tokenizer
from attnkit.models import ClassifierModel, DecoderModel, EncoderModel, compose
from attnkit.registry import ConfigurationError, nearest, tasks

DECODERS = {
    name: family for module in (gpt2, gpt_neox, llama, experts, gemma, phi3, starcoder2) for name, family in module.FAMILIES.items()
}
ENCODERS = {**bert.FAMILIES, **modern_bert.FAMILIES}
FAMILIES = {**DECODERS, **qwen3_5.FAMILIES, **ENCODERS}
"""The families, by the `model_type` of their configuration."""


class _Described(NamedTuple):
    family: Family
    spec: dict[str, Any]  # arguments of `compose`
    bos: int | None  # which may lie outside the vocabulary; the other two do not
    eos: int | None
    pad: int | None
    head: str | None  # the labelling head, a key of `TASKS`, if any
    classes: list[str] | None


def load(folder: str | Path) -> DecoderModel | EncoderModel | ClassifierModel:
    """Return the model of a published checkpoint in transformers' format, with its weights, in their precision.

    Its ids are those of its own tokenizer. Each field of config.json is honoured, known to have no effect, or rejected.

    Args:
        folder: A folder with config.json and model.safetensors (or its shards and their index), as written by `save_pretrained`.

    Raises:
        ConfigurationError: A file is missing or damaged, the family is unknown, a field asks for something that attnkit does not support,
            or a weight is missing, left over or of the wrong shape.

    Example:
        >>> from attnkit import convert
        >>> convert.load("models/gpt2").spec["num_layers"]  # doctest: +SKIP
        12
    """
    return _filled(Path(folder), _described(Path(folder)))


def load_task(folder: str | Path) -> Any:
    """Return the model with its tokenizer: a decoder as a `causal_lm` task, an encoder as a `masked_lm` task or as the task of its head.

    The ids are attnkit's: pad, bos, eos, unk and, for an encoder, `<mask>`, then the model's own. `save` writes a task, even one that was
    trained further, with the ids of the published model; see `attnkit.convert.vocabulary.Vocabulary` and
    `attnkit.convert.masked.MaskedVocabulary`.

    Raises:
        ConfigurationError: As for `load`; or there is no tokenizer.json, it asks for something that `bpe` and `wordpiece` do not support,
            or there is no end token or no mask.
    """
    path = Path(folder)
    described = _described(path)
    return _causal_lm(path, described) if described.spec["stack"] == "decoder" else _encoder(path, described)


def _causal_lm(path: Path, described: _Described) -> Any:
    size, bos, eos = described.spec["vocab_size"], described.bos, described.eos
    if eos is None:
        raise ConfigurationError(
            f"{path / 'config.json'} has no eos_token_id below {size}, its vocab_size, but attnkit ends every text with this token: add it "
            f"to the file. {without_tokenizer(path)}"
        )
    if bos is not None and bos >= size:
        raise ConfigurationError(
            f"{path / 'config.json'}: bos_token_id {bos} is not below {size}, its vocab_size: correct it, or remove it if texts begin with "
            f"the token that ends them. {without_tokenizer(path)}"
        )
    weights = _filled(path, described).state_dict()  # first, as this rejects sizes that do not match the weights
    vocabulary = read_vocabulary(path, size, eos if bos is None else bos, eos, described.pad)
    head = {**described.spec.get("head", {"name": "linear"}), "excluded": vocabulary.excluded}
    most = described.spec["position"].get("max_length", 64)
    task = _task("causal_lm", {**described.spec, "head": head}, tokenizer=vocabulary.tokenizer, max_length=min(64, most))
    own = {name: vocabulary.ours(weights[name]) for name in (TABLE, HEAD) if name in weights}
    _load(task.model, weights | own)
    return task


def _encoder(path: Path, described: _Described) -> Any:
    weights, head = _filled(path, described, with_head=True).state_dict(), described.head  # as above
    vocabulary = read_masked_vocabulary(path, described.spec["vocab_size"], fills=head is None)
    options: dict[str, Any] = {"separators": vocabulary.separators} if head == "QuestionAnswering" else {}
    if head in CLASSES:
        options["classes"] = described.classes or unnamed(described.spec["num_classes"])
    task = _task("masked_lm" if head is None else TASKS[head], described.spec, tokenizer=vocabulary.tokenizer, **options)
    own = {TABLE: vocabulary.embedding(weights[TABLE])}
    if head is None:
        own |= {HEAD: vocabulary.embedding(weights[HEAD])} if HEAD in weights else {}
        own |= {name: vocabulary.bias(weights[name]) for name in (BIAS, OWN_BIAS) if name in weights}
    _load(task.model, weights | own)
    return task


def _task(name: str, spec: dict[str, Any], **options: Any) -> Any:
    """Return a task with this model on the meta device, without weights."""
    parts = ("embedding", "tie", "head", *(("pooling", "pooler") if name == "classification" else ()))
    others = ("stack", "vocab_size", "pad_id", "num_classes", "pooling", "pooler")
    stack = {key: value for key, value in spec.items() if key not in (*parts, *others)}
    task: Any = tasks.build({
        "name": name, "stack": {"name": spec["stack"], **stack}, **{part: spec[part] for part in parts if part in spec}, **options,
    })  # fmt: skip
    with torch.device("meta"):
        task.configure_model()
    return task


def _described(folder: Path) -> _Described:
    """Return the model that config.json describes."""
    config = read_config(folder)
    source, kind = str(folder / "config.json"), config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        hint = nearest(kind, FAMILIES) if isinstance(kind, str) else ""
        raise ConfigurationError(f"{source}: attnkit cannot import model_type {kind!r}.{hint} It can import {', '.join(FAMILIES)}.")
    family = FAMILIES[kind]
    fields = Fields(config, source)
    if family.part:
        fields.ignore(*family.others)
        fields = fields.within(family.part)
    fields.require(pruned_heads={}, tie_encoder_decoder=False, cross_attention_hidden_size=None)  # in files of earlier versions
    bos, eos = (_first(fields.take(name), f"{source}: {name}") for name in ("bos_token_id", "eos_token_id"))
    named, classes = fields.take("architectures"), None
    head = next((kind for kind in family.labelled if named == [class_of(family, kind)]), None)
    if head is not None:
        count, classes = labels(fields, head)
        family = labelled(family, head, count)
    spec = family.spec(fields)
    pad = fields.take("pad_token_id")  # -1 in Llama 1
    fields.finish()
    eos, pad = (token if type(token) is int and 0 <= token < spec["vocab_size"] else None for token in (eos, pad))
    return _Described(family, spec, bos, eos, pad, head, classes)


def _first(token: Any, name: str) -> int | None:
    """Return the first of several tokens; the others just stay in the vocabulary."""
    found = token[0] if isinstance(token, list) and token else token
    if found is not None and (type(found) is not int or found < 0):
        raise ConfigurationError(f"{name} must be a token id, a list of ids, or null, but is {token!r}")
    return found


def _filled(folder: Path, described: _Described, *, with_head: bool = False) -> DecoderModel | EncoderModel | ClassifierModel:
    """Return the model with its weights; with `with_head`, an encoder whose file has no head gets a new one."""
    family, spec, eos = described.family, described.spec, described.eos
    theirs = with_prefix(read_weights(folder), family)
    try:
        with no_larger_than(size_of(theirs)), torch.device("meta"):  # no initial weights, which would only be replaced
            model: Any = compose(**spec, eos_id=eos)
        own, rows = dict(model.named_parameters()), family.renames(spec)
        body = [row for row in rows if not row.ours[0].startswith("head.")]
        lacks_head = spec["stack"] == "encoder" and not theirs.keys() & {name for row in rows if row not in body for name in row.theirs}
        if lacks_head:
            rows, own = body, {name: parameter for name, parameter in own.items() if not name.startswith("head.")}
        ours = _ours(family, spec, rows, theirs, own)
        dtype = dtype_of(ours)
        if lacks_head:
            ours |= _new_head(folder, described, is_wanted=with_head)
        _load(model, {name: _unshared(weight.to(dtype)) for name, weight in ours.items()}, strict=False)
    except CheckpointError as error:
        raise ConfigurationError(f"{folder} cannot be imported: {error}") from error
    except RuntimeError as error:
        raise ConfigurationError(f"{folder} cannot be imported: the weights do not fit config.json: {misfit(error)}") from error
    return cast(DecoderModel | EncoderModel | ClassifierModel, model)


def _load(model: nn.Module, weights: Mapping[str, Tensor], *, strict: bool = True) -> None:
    """Load weights into a model on the meta device; its buffers that no file has, which are empty, get their device and dtype."""
    model.load_state_dict(weights, strict=strict, assign=True)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                setattr(module, name, next(iter(weights.values())).new_empty(buffer.shape))


def _new_head(folder: Path, described: _Described, *, is_wanted: bool) -> dict[str, Tensor]:
    """Return the weights of a new head, which are always the same, or raise if none is wanted."""
    if not is_wanted or described.head is not None:
        raise CheckpointError("it has no head" + ("; `attnkit import`, or load_task, gives it a new one" if described.head is None else ""))
    warnings.warn(
        f"{folder} has no head for masked tokens, so the model gets a new, untrained one: train it, or start another task from the "
        "encoder with init_from", stacklevel=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = compose(**described.spec, eos_id=described.eos)
    return {name: weight for name, weight in model.state_dict().items() if name.startswith("head.")}


def _unshared(weight: Tensor) -> Tensor:
    """Return a weight in row-major order that does not share storage with other parts of a fused weight."""
    weight = weight.contiguous()
    return weight if weight.untyped_storage().nbytes() == weight.nbytes else weight.clone()


def _ours(
    family: Family, spec: dict[str, Any], rows: Sequence[Rename], theirs: dict[str, Tensor], own: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return attnkit's weights; all published weights must be used, and all of attnkit's must be found."""
    left = dict(theirs)
    read = {name for row in rows for name in row.theirs}
    for copy, name in family.copies.items():
        if copy in read:
            left = {other: weight for other, weight in left.items() if other in read or other != name}
        elif copy in left and name in left and not left.pop(copy).equal(left[name]):
            raise CheckpointError(f"{copy} differs from {name}, but they are the same weight in attnkit")
    if spec.get("tie") == "output" and (head := left.pop("lm_head.weight", None)) is not None:
        table = next(row.theirs[0] for row in rows if row.ours == (TABLE,))
        if table in left and not head.equal(left[table]):
            raise CheckpointError(f"lm_head.weight differs from {table}, although config.json ties them")
    found: dict[str, Tensor] = {}
    for row in expand(rows, own):
        if absent := [name for name in row.theirs if name not in left]:
            raise CheckpointError(f"the weight {absent[0]} is missing")
        found |= zip(row.ours, _mapped(row, [left.pop(name) for name in row.theirs]), strict=True)
    if left:
        raise CheckpointError(f"the weight {min(left)} has no place in the model")
    if missing := own.keys() - found.keys():
        raise CheckpointError(f"the table of renames lacks {min(missing)}")
    return found


def _mapped(row: Rename, theirs: list[Tensor]) -> list[Tensor]:
    """Return attnkit's tensors of a rename, or raise if the published ones have an unsuitable dtype or shape."""
    for name, weight in zip(row.theirs, theirs, strict=True):
        if weight.dtype not in REAL:
            raise CheckpointError(
                f"{name} holds {weight.dtype}, but attnkit does not read quantized weights: convert them with transformers first"
            )
    try:
        return row.to_ours(theirs)
    except (RuntimeError, IndexError) as error:
        raise CheckpointError(f"{row.theirs[0]} is {list(theirs[0].shape)}, which does not fit config.json ({error})") from error
