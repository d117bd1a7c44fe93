"""Initialises a new task with weights from the checkpoint of another task."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnkit.checkpoint.description import ARGUMENTS
from attnkit.registry import heads, tokenizers
from attnkit.tokenizer import Tokenizer

if TYPE_CHECKING:
    from attnkit.task.base import Task

_NO_WEIGHTS = ("dropout", "attention_dropout", "backend")  # arguments of a stack that do not affect weights
_PREFIX = "model."
_SHARED = ("stack", "embedding", "embeddings")  # modules that different tasks have in common
_SHAPING = ("tokenizer", "src_tokenizer", "tgt_tokenizer", "classes", "pooling", "head", "multi_token")  # these shape the other modules


def take_weights(task: "Task", checkpoint: Mapping[str, Any], source: str) -> tuple[set[str], str]:
    """Copy modules of a checkpoint into the model of a task: the stack and the embeddings, each if its spec is the same.

    The other modules, such as the head, belong to the task. They are copied if the checkpoint is of the same task and everything that
    shapes them is the same: the tokenizers, the classes and their spec. Returns the paths of the copied modules, such as `embedding` and
    `stack`, and a message about `source` that lists them and says why the others are new.
    """
    old, new = _arguments(checkpoint), dict(task.hparams)
    own = task.state_dict()
    found = {name: weight for name, weight in checkpoint["state_dict"].items() if name in own and own[name].shape == weight.shape}
    is_same_task = checkpoint["attnkit"]["task"] == task.registered_name
    reason_of_task = _first_difference(_SHAPING, old, new) if is_same_task else "it belongs to the task"
    reasons: dict[str, str] = {}
    taken: dict[str, dict[str, Tensor]] = {}
    for module, _ in task.model.named_children():
        names = [name for name in own if name.startswith(f"{_PREFIX}{module}.")]
        reason = _difference(module, old, new) if module in _SHARED else reason_of_task
        if reason is None and (lacking := [name for name in names if name not in found]):
            reason = f"the checkpoint has no {lacking[0].removeprefix(_PREFIX)} of this shape"
        if reason is not None and names:
            reasons[module] = reason
        elif names:
            taken[module] = {name: found[name] for name in names}
    task.load_state_dict(own | {name: weight for weights in taken.values() for name, weight in weights.items()})
    counts = ", ".join(f"{m} ({sum(w.numel() for w in weights.values()):,} parameters)" for m, weights in taken.items())
    lines = [f"Weights of {source} (task {checkpoint['attnkit']['task']}): {f'taken for {counts}' if taken else 'NONE are taken'}."]
    lines += [f"note: {module} is newly initialised: {reason}" for module, reason in reasons.items()]
    paths = {name for m in taken for name in (m, *(f"{m}.{child}" for child, _ in task.model.get_submodule(m).named_children()))}
    return paths, "\n".join(lines)


def words_of(arguments: Mapping[str, Any], embedding: str) -> list[str]:
    """Return the tokens of an embedding's vocabulary in the order of their ids, given the task's arguments and the embedding's path.

    The path is `embedding`, or `embeddings.src`, `embeddings.tgt`, `embeddings.shared`.
    """
    side = {"src": "src_", "tgt": "tgt_", "shared": "tgt_"}.get(embedding.rpartition(".")[2], "")
    tokenizer: Tokenizer = tokenizers.build(arguments[f"{side}tokenizer"])
    return tokenizer.tokens(range(len(tokenizer)))


def _difference(module: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return why a module cannot be taken, or None if it can."""
    if module == "stack":
        return _changes("stack", _affecting_weights(old.get("stack")), _affecting_weights(new["stack"]))
    kinds = [a for a in ("embedding", "src_embedding") if a in new]
    changed = next((found for a in kinds if (found := _changes(a, old.get(a), new[a]))), None)
    vocabularies = [a for a in new if a.endswith("tokenizer")] + ["image_shape", "src_shape"]
    return changed or _first_difference(vocabularies, old, new)


def _arguments(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a checkpoint's task, including head options that are newer than the checkpoint."""
    old = checkpoint[ARGUMENTS]
    return {**old, "head": heads.resolve(old["head"]).plain()} if old.get("head") else dict(old)


def _first_difference(arguments: Sequence[str], old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Return a note on the first argument in which the checkpoint's task differs from the new one, or None."""
    return next((f"the {a} of the checkpoint differ{'' if a == 'classes' else 's'}" for a in arguments if old.get(a) != new.get(a)), None)


def _changes(what: str, old: Any, new: Any) -> str | None:
    if old == new:
        return None
    if not isinstance(old, Mapping) or not isinstance(new, Mapping) or old["name"] != new["name"]:
        names = [spec["name"] if isinstance(spec, Mapping) else spec for spec in (old, new)]
        return f"the checkpoint has {what} {names[0]}, not {names[1]!r}"
    changed = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    return f"its {what} differs in {', '.join(changed)}"


def _affecting_weights(spec: Any) -> Any:
    """Return the part of a stack's spec that affects its weights: without some arguments, and the scaling of rotary positions."""
    if not isinstance(spec, Mapping):
        return spec
    kept = {k: v for k, v in spec.items() if k not in _NO_WEIGHTS}
    if isinstance(position := kept.get("position"), Mapping):
        kept["position"] = {k: v for k, v in position.items() if k != "scaling"}
    return kept
