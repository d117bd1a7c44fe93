"""`attnkit attention`: the attention of a checkpoint, as a page or a figure."""

from collections.abc import Sequence
from pathlib import Path

from attnkit.drawing import AttentionMap, require_matplotlib, write_figure, write_page, write_pages
from attnkit.registry import ConfigurationError, require_at_least
from attnkit.task import Task
from attnkit.task.attending import read_text
from attnkit.train.output import notes, say
from attnkit.wording import counted


def attention(
    *,
    checkpoints: Sequence[str],
    text: str,
    out: str,
    target: str | None,
    kind: str,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    beam_size: int | None,
) -> None:
    """Draw the attention of a model on a text, and print the name of the file; arguments as on the command line."""
    suffix = Path(out).suffix
    if suffix not in (".html", ".png", ".svg"):
        raise ConfigurationError(f"--out must end in .html, .png or .svg, but is {out!r}")
    if suffix != ".html":
        require_matplotlib()
    require_at_least(1, **{"--beam_size": beam_size})
    if len(checkpoints) > 1 and suffix != ".html":
        raise ConfigurationError(f"several checkpoints are shown side by side in a page: --out must end in .html, but is {out!r}")
    drawn: list[tuple[str, list[AttentionMap]]] = []
    for checkpoint in checkpoints:
        task = Task.load(checkpoint)
        with notes():
            reading = read_text(task, text, target, beam_size=beam_size)
        title = text if reading.output is None else f"{text} → {reading.output}"
        drawn.append((title, _choose(reading.labelled(reading.maps()), kind, layers, heads)))
    if len(drawn) > 1:
        write_pages([(f"{checkpoint}: {title}", maps) for checkpoint, (title, maps) in zip(checkpoints, drawn, strict=True)], out)
    elif suffix == ".html":
        write_page(drawn[0][1], out, title=drawn[0][0])
    else:
        for remark in write_figure(drawn[0][1], out, title=drawn[0][0]):
            say(f"note: {remark}")
    for title, _ in drawn:
        print(title)
    maps = [m for _, found in drawn for m in found]
    print(f"Wrote {out}: {counted(sum(len(m.heads) for m in maps), 'map')} ({', '.join(dict.fromkeys(m.name for m in maps))})")


def _choose(maps: list[AttentionMap], kind: str, layers: Sequence[int] | None, heads: Sequence[int] | None) -> list[AttentionMap]:
    kinds = sorted({m.kind for m in maps})
    maps = [m for m in maps if kind in ("all", m.kind)]
    if not maps:
        raise ConfigurationError(f"this model has no {kind}-attention, only {' and '.join(f'{k}-attention' for k in kinds)}")
    if layers is not None:
        _require(layers, {m.layer for m in maps}, "layer")
        maps = [m for m in maps if m.layer in layers]
    if heads is not None:
        _require(heads, {h for m in maps for h in m.heads}, "head")
        maps = [m.of_heads([h for h in m.heads if h in heads]) for m in maps if set(heads) & set(m.heads)]
    return maps


def _require(chosen: Sequence[int], available: set[int], what: str) -> None:
    if wrong := [number for number in chosen if number not in available]:
        listed = ", ".join(map(str, sorted(available)))
        raise ConfigurationError(f"there is no {what} {wrong[0]}; numbers start at 0, and the model has: {listed}")
