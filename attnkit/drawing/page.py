"""An interactive attention page: one self-contained HTML file."""

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch

from attnkit.drawing.base import AttentionMap
from attnkit.files import write_text
from attnkit.registry import ConfigurationError

LARGEST = 8_000_000  # maximum number of weights in a page, which then takes 22 MB
STEPS = 65_535  # weights are stored as 16-bit integers
_SIDE_BY_SIDE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Attention</title>
<style>:root { color-scheme: light dark; } body { margin: 0; display: flex; flex-wrap: wrap; }
iframe { flex: 1 1 24rem; min-width: 0; height: 100vh; border: 0; }</style>
"""


def write_page(maps: Sequence[AttentionMap], path: str | Path, *, title: str = "") -> None:
    """Write maps as one HTML file with selectable attention, layer and head; hovering over a cell shows its weight.

    Weights are rounded to 1 / 65,535. Each kind of attention has one colour scale, from 0 to its largest weight.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "map.html")
        >>> write_page([AttentionMap("encoder", "self", 0, torch.ones(2, 1, 1), ["a"], ["a"], "tokens", "tokens")], path)
        >>> path.read_text(encoding="utf-8")[:15]
        '<!doctype html>'
    """
    _check_size(maps)
    write_text(path, _page(maps, title))


def write_pages(models: Sequence[tuple[str, Sequence[AttentionMap]]], path: str | Path) -> None:
    """Write the maps of several models, by title, as one HTML file with pages side by side, or stacked on a narrow screen.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "maps.html")
        >>> a = AttentionMap("encoder", "self", 0, torch.ones(2, 1, 1), ["a"], ["a"], "tokens", "tokens")
        >>> write_pages([("one", [a]), ("two", [a])], path)
        >>> path.read_text(encoding="utf-8").count("<iframe")
        2
    """
    _check_size([m for _, maps in models for m in maps])
    frames = "".join(f'<iframe title="{escape(title)}" srcdoc="{escape(_page(maps, title))}"></iframe>' for title, maps in models)
    write_text(path, _SIDE_BY_SIDE + frames)


def _check_size(maps: Sequence[AttentionMap]) -> None:
    size = sum(m.weights.numel() for m in maps)
    if size > LARGEST:
        raise ConfigurationError(
            f"{size:,} weights are too many for one page (at most {LARGEST:,}): select some with --kind, --layer and --head, or "
            f"shorten the text"
        )


def _page(maps: Sequence[AttentionMap], title: str) -> str:
    data = json.dumps({"title": title, "maps": [_plain(m) for m in maps]}, ensure_ascii=False).replace("<", "\\u003c")
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return template.replace("{{data}}", data)


def _plain(m: AttentionMap) -> dict[str, Any]:
    steps = (m.weights.detach().double().cpu() * STEPS).round().to(torch.int64)
    return {
        "name": m.name,
        "layer": m.layer,
        "heads": list(m.heads),
        "queries": m.shown(m.queries),
        "keys": m.shown(m.keys),
        "rows": m.rows,
        "columns": m.columns,
        "note": m.note,
        "weights": base64.b64encode(steps.numpy().astype("<u2").tobytes()).decode("ascii"),
    }
