"""Teacher forcing hides how errors add up."""

from typing import Any

import attnkit
from story_pages.base import SEEDS, SENTENCES, Language, Rows, percent
from story_pages.sounds import STACKS, STEPS, data, trained

FIGURE: dict[str, Any] = {"x": "position", "y": ["teacher_forced", "free_running"]}
POSITIONS = 8
GAP = 0.02  # minimum gap at the last position


def measure() -> Rows:
    """Return the fraction of wrong phonemes by position, on the true prefix and on the model's own output."""
    probe = attnkit.probes.build({"name": "free_running", "batches": 3})
    return [
        {"model": label, "seed": seed, **row}
        for label in STACKS
        for seed in SEEDS
        for row in probe(trained(label, seed), data()).rows[:POSITIONS]
    ]


def gaps(rows: Rows) -> dict[str, list[float]]:
    """Return the gap between both errors by model and position."""
    return {m: [row["free_running"] - row["teacher_forced"] for row in rows if row["model"] == m] for m in STACKS}


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    return language.verdict(holds=all(g[0] == 0 and g[-1] > g[1] and g[-1] > GAP for g in gaps(rows).values()))


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    gap = gaps(rows)
    tables = {
        name: [
            {"step": i + 1, "read in training": " ".join(["`<bos>`", *words[:i]]), "right with 90 % a word": f"{100 * 0.9**i:.0f} %"}
            for i in range(len(words))
        ]
        for name, words in SENTENCES.items()
    }
    columns = ("model", "position", "teacher_forced", "free_running")
    return {
        "worked": language.worked(tables),
        "table": language.table(
            [{c: percent(row[c]) if isinstance(row[c], float) else row[c] for c in columns} for row in rows], list(columns)
        ),
        "gap_gru": f"{100 * gap['GRU'][-1]:.0f}",
        "gap_transformer": f"{100 * gap['Transformer'][-1]:.0f}",
        "second_gru": f"{100 * gap['GRU'][1]:.0f}",
        "second_transformer": f"{100 * gap['Transformer'][1]:.0f}",
        "limit": f"{100 * GAP:.0f}",
        "last": str(POSITIONS - 1),
        "steps": str(STEPS),
    }
