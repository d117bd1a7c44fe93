"""`attnkit draw`: pictures of positions, masks, scores, and a step of decoding."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnkit import masks
from attnkit.drawing.heatmaps import Panel, write_panels
from attnkit.models.base import generating
from attnkit.recording import record_attention
from attnkit.registry import ConfigurationError, attentions, positions, require_at_least
from attnkit.task import Task
from attnkit.task.attending import place, read_text, token_labels
from attnkit.train.output import say
from attnkit.wording import counted

LARGEST = 4096
"""The most positions in a picture, whose matrices of pairs then take a fraction of a gigabyte."""


def draw(kind: str, *, out: str, **options: Any) -> None:
    """Draw a picture of a kind, `position`, `mask`, `score` or `step`, and print the name of its file."""
    if Path(out).suffix not in (".html", ".png", ".svg"):
        raise ConfigurationError(f"--out must end in .svg, .html or .png, but is {out!r}")
    pictures: dict[str, Callable[..., None]] = {"position": draw_position, "mask": draw_mask, "score": draw_score, "step": draw_step}
    pictures[kind](**options, out=out)
    print(f"Wrote {out}")


def _write(panels: Sequence[Panel], out: str, *, title: str) -> None:
    for remark in write_panels(panels, out, title=title):
        say(f"note: {remark}")


def _require_drawable(length: int) -> None:
    require_at_least(1, **{"--length": length})
    if length > LARGEST:
        raise ConfigurationError(f"a picture has at most {LARGEST:,} positions, but --length is {length:,}")


def draw_position(name: str, *, out: str, length: int = 64, d_model: int = 64, num_heads: int = 4, seed: int = 0) -> None:
    """Draw what a position encoding adds to the embeddings, rotates by, or adds to the logits; raise if that depends on a text."""
    _require_drawable(length)
    require_at_least(1, **{"--num_heads": num_heads})
    require_at_least(num_heads, **{"--d_model": d_model})  # a channel for each head
    given = {"d_model": d_model, "head_dim": d_model // num_heads, "num_heads": num_heads, "bidirectional": True}
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # some positions have random weights
            position: Any = positions.build(name, **given)
    except ConfigurationError:
        raise
    except ValueError as error:  # such as an odd number of channels to rotate in pairs
        raise ConfigurationError(f"{error} (--d_model {d_model}, --num_heads {num_heads})") from error
    t = torch.arange(length)[None]
    panels = []
    with torch.no_grad():
        if (table := position.embedding(t)) is not None:
            panels.append(Panel("added to the embeddings", table[0], "position", "channel"))
            near = torch.nn.functional.normalize(table[0], dim=-1)
            panels.append(Panel("cosine of two positions", near @ near.T, "position", "position"))
        if (rotation := position.rotation(t)) is not None:
            panels.append(Panel("rotation: cosine of the angle", rotation.cos[0, 0], "position", "pair of channels"))
        if (bias := position.bias(t, t)) is not None:
            panels += [Panel(f"added to the logits, head {h}", b, "query", "key") for h, b in enumerate(bias[0])]
    if not panels:
        raise ConfigurationError(f"the position {name!r} has nothing to draw without queries and keys of a text")
    _write(panels, out, title=name)


def draw_mask(
    *, out: str, length: int = 12, causal: bool = False, window: int | None = None, documents: Sequence[int] = (), prefix: int = 0
) -> None:
    """Draw which keys each query may attend to; `documents` are the lengths of the row's documents, and replace `length`."""
    length = sum(documents) if documents else length
    require_at_least(1, **{"--documents": min(documents, default=1), "--window": window})
    _require_drawable(length)
    if not 0 <= prefix <= length:
        raise ConfigurationError(f"--prefix must be from 0 to the length, {length}, but is {prefix}")
    t = torch.arange(length)[None]
    allowed = masks.causal(t, t) if causal else torch.ones(1, 1, length, length, dtype=torch.bool)
    allowed = allowed | (t < prefix)
    parts = [name for name, used in (("causal", causal), (f"window {window}", window), (f"prefix {prefix}", prefix)) if used]
    if window is not None:
        allowed = allowed & masks.sliding_window(t, t, window)
    if documents:
        number = torch.repeat_interleave(torch.arange(len(documents)), torch.tensor(documents))[None]
        allowed = allowed & masks.document(number, number)
        parts.append(f"documents {'+'.join(map(str, documents))}")
    title = ", ".join(parts) or "no restriction"
    _write([Panel("may attend", allowed[0, 0].float(), "query", "key")], out, title=title)


def draw_score(name: str, *, out: str, seed: int = 0, query: tuple[float, float] = (1.0, 0.5)) -> None:
    """Draw the logits of a score over two-dimensional keys, for one query (the arrow)."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)  # some scores have random weights
        score: Any = attentions.build(name, head_dim=2, num_heads=1)
        side = torch.linspace(-2.0, 2.0, 81)
        keys = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1).reshape(1, 1, -1, 2)
        logits = score.logits(torch.tensor(query).reshape(1, 1, 1, 2), keys)[0, 0, 0].reshape(81, 81)
    panel = Panel("logit of each key", logits, "key, channel 1", "key, channel 0", extent=(-2, 2, -2, 2), point=query)
    _write([panel], out, title=f"{name}, query {query}")


def draw_step(checkpoint: str, text: str, *, out: str, **options: Any) -> None:
    """Draw one step of decoding of a checkpoint, a file of `attnkit fit` or of `attnkit export`: see `panels_of_step`."""
    panels, title = panels_of_step(Task.load(checkpoint), text, **options)
    _write(panels, out, title=title)


def panels_of_step(
    task: Task, text: str, *, target: str | None = None, step: int = -1, layer: int = -1, head: int = 0, candidates: int = 8
) -> tuple[list[Panel], str]:
    """Return one step of decoding as panels: the scores of the keys, their coefficients, the resulting context, the next tokens.

    Also returns a title. Arguments as on the command line. Raises if the model does not generate or has no attention.
    """
    require_at_least(0, **{"--head": head})
    require_at_least(1, **{"--candidates": candidates})
    reading = read_text(task, text, target)
    kind = "self" if reading.target is None else "cross"
    outputs: dict[str, list[Tensor]] = {}
    with ExitStack() as hooks, record_attention(task.model, logits=True) as logits:
        for path, module in task.model.named_modules():
            outputs[path] = []
            hooks.enter_context(
                module.register_forward_hook(lambda _, __, y, calls=outputs[path]: calls.append(y[0] if isinstance(y, tuple) else y))
            )
        weights = reading.maps()
    paths = [path for path in weights if place(path)[1] == kind]
    tokenizer: Any = reading.tokenizer if reading.target is None else reading.target_tokenizer
    read = reading.inputs if reading.target is None else reading.target[:, :-1]
    steps = read.shape[1]
    if not paths or not -len(paths) <= layer < len(paths) or not -steps <= step < steps:
        raise ConfigurationError(
            f"this model has {counted(len(paths), 'layer')} of {kind}-attention, and this text takes {counted(steps, 'step')}"
        )
    path, step = paths[layer], step % steps
    if head >= weights[path].shape[1]:
        raise ConfigurationError(f"there is no head {head}; the layer has {weights[path].shape[1]}")
    keys = reading.inputs[0]
    attended = weights[path][0, head, step] > 0
    with generating(task):
        arguments = (reading.inputs,) if reading.target is None else (reading.inputs, read)
        following = task(*arguments)[0, step].softmax(-1)  # [V]
        probabilities, chosen = following.topk(min(candidates, len(following)))
    assert reading.tokenizer is not None  # it was read from a text
    key_labels = token_labels(reading.tokenizer, keys.tolist())
    labels = [label for label, is_attended in zip(key_labels, attended.tolist(), strict=True) if is_attended]
    panels = [
        Panel("scores", logits[path][0, head, step][attended], "key", "logit", rows=labels),
        Panel("coefficients", weights[path][0, head, step][attended], "key", "weight", rows=labels),
    ]
    inner = next((calls for p in (f"{path}.attention.attention", f"{path}.attention", path) if (calls := outputs.get(p))), None)
    if inner is not None and inner[-1].ndim == 4:
        context = torch.cat(inner, 2)[0, head, step - steps]  # [D]; a recurrent decoder may attend in one call per step
        panels.append(Panel("context", context, "channel", "weighted sum of the values"))
    written = token_labels(tokenizer, read[0, : step + 1].tolist())
    panels.append(Panel("candidates", probabilities, "next token", "probability", rows=token_labels(tokenizer, chosen.tolist())))
    return panels, f"{text} | after {' '.join(written[-6:])} | {path}, head {head}"
