"""The pages of docs/story: `python docs/_tools/claims.py measure NAME` runs a claim's probes and stores the numbers as JSON;
`python docs/_tools/claims.py write` makes the pages and figures from what is stored, so that text and numbers cannot differ.
"""

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template
from typing import Any

import torch

import attnkit
from attnkit.drawing import draw_lines
from attnkit.task import Task

FOLDER = Path(__file__).parents[1] / "story"
SEEDS = (0, 1, 2)
SENTENCES = {"English": ["I", "go", "to", "school", "today"], "Korean": ["나는", "오늘", "학교에", "간다"]}
CORPUS = {"name": "copy", "length": 31, "train_rows": 64, "validation_rows": 16, "test_rows": 16}

Rows = list[dict[str, Any]]


def task_of(stack: dict[str, Any], seed: int, **arguments: Any) -> Task:
    """Return a new task around a stack; its words are numbers."""
    tokenizer = attnkit.tokenizers.build("word").train([" ".join(map(str, range(50)))]).spec
    torch.manual_seed(seed)
    if "encoder_decoder" in stack["name"]:
        given = {"name": "seq2seq", "src_tokenizer": tokenizer, "tgt_tokenizer": tokenizer, "metrics": []}
    else:
        given = {"name": "causal_lm", "tokenizer": tokenizer}
    return attnkit.tasks.build({**given, "stack": stack, **arguments})


def measure_gradient() -> Rows:
    """Return the gradient by distance of recurrent encoder-decoders without and with attention, and of the Transformer, untrained."""
    size = {"d_model": 64, "num_layers": 2}
    models: dict[str, dict[str, Any]] = {}
    for cell in ("rnn", "gru", "lstm"):
        recurrent = {"name": "recurrent_encoder_decoder", **size, "cell": cell, "bidirectional": False, "attention": None}
        models[cell.upper()] = recurrent
        models[f"{cell.upper()} + attention"] = {**recurrent, "attention": "dot_product"}
    models["Transformer"] = {"name": "encoder_decoder", **size, "num_heads": 2}
    probe = attnkit.probes.build({"name": "gradient", "length": 100})
    return [
        {"model": label, "seed": seed, **row}
        for label, stack in models.items()
        for seed in SEEDS
        for row in probe(task_of(stack, seed)).rows
    ]


def measure_scale() -> Rows:
    """Return the variance of logits and the sharpness of weights by width, with and without the scale, in untrained decoders."""
    data = attnkit.datasets.build({"name": "prompted_text", "corpus": CORPUS, "tokenizer": "word"})
    rows = []
    for label, attention in (("dot_product", "dot_product"), ("scaled_dot_product", "scaled_dot_product")):
        for width in (16, 64, 256, 1024):
            for seed in SEEDS:
                stack = {"name": "decoder", "d_model": width, "num_layers": 1, "num_heads": 1, "attention": attention}
                torch.manual_seed(seed)
                task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": data.tokenizer_spec})
                found = attnkit.probes.build("saturation")(task, data).rows[0]
                del found["layer"]
                rows.append({"model": label, "seed": seed, **found})
    return rows


def measure_cost() -> Rows:
    """Return time and memory by length of an LSTM and of decoders whose attention keeps the logits, or does not."""
    size = {"d_model": 64, "num_layers": 2}
    models: dict[str, dict[str, Any]] = {
        "LSTM": {"name": "recurrent_decoder", **size, "cell": "lstm"},
        "attention (reference)": {"name": "decoder", **size, "num_heads": 2, "backend": "reference"},
        "attention (sdpa)": {"name": "decoder", **size, "num_heads": 2, "backend": "sdpa"},
    }
    probe = attnkit.probes.build({"name": "cost", "lengths": [128, 256, 512, 1024, 2048], "repeats": 3})
    return [{"model": label, **row} for label, stack in models.items() for row in probe(task_of(stack, 0)).rows]


MEASURE: dict[str, Callable[[], Rows]] = {"gradient": measure_gradient, "scale": measure_scale, "cost": measure_cost}
FIGURES: dict[str, dict[str, Any]] = {
    "gradient": {"x": "distance", "y": ["gradient"], "log": "xy"},
    "scale": {"x": "width", "y": ["variance", "entropy", "largest_weight"], "log": "x"},
    "cost": {"x": "length", "y": ["train_ms", "train_mb", "decode_ms", "state_mb"], "log": "xy"},
}


def means(rows: Rows, x: str) -> Rows:
    """Return the rows averaged over seeds."""
    groups: dict[tuple[Any, Any], Rows] = {}
    for row in rows:
        groups.setdefault((row["model"], row[x]), []).append(row)
    return [
        {name: statistics.fmean(row[name] for row in group) if isinstance(value, float) else value for name, value in group[0].items()}
        for group in groups.values()
    ]


def table(rows: Rows, columns: list[str]) -> str:
    """Return rows as a Markdown table."""
    lines = [columns, ["---"] * len(columns), *([shown(row[column]) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def shown(value: Any) -> str:
    """Return a value with three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def at(rows: Rows, model: str, x: str, value: int, y: str) -> float:
    """Return one number."""
    return float(next(row[y] for row in rows if row["model"] == model and row[x] == value))


def verdict(*, holds: bool, when: str = "") -> str:
    """Return the verdict in words."""
    return (f"**holds when** {when}" if when else "**holds**") if holds else "**does not hold here**"


def values_of_gradient(rows: Rows) -> dict[str, str]:
    """Return the text of the page's variables."""
    kept = {
        model: at(rows, model, "distance", 99, "gradient") / at(rows, model, "distance", 0, "gradient")
        for model in dict.fromkeys(row["model"] for row in rows)
    }
    tables = []
    for language, words in SENTENCES.items():
        h, factor, lines = 0.0, 1.0, []
        for word in words:
            h = math.tanh(0.8 * h + 0.5)
            lines.append((word, h, 0.8 * (1 - h * h)))
        worked: Rows = []
        for word, state, slope in reversed(lines):
            worked.append({"word": word, "h": state, "0.8 (1 - h²)": slope, "product up to here": factor})
            factor *= slope
        tables.append(f"{language}, from the last word back:\n\n{table(worked, list(worked[0]))}")
    recurrent = [kept[cell] for cell in ("RNN", "GRU", "LSTM")]
    with_attention = [kept[f"{cell} + attention"] for cell in ("RNN", "GRU", "LSTM")] + [kept["Transformer"]]
    holds = recurrent[0] < 1e-6 and recurrent[0] < recurrent[2] and min(with_attention) > 1e-3
    return {
        "verdict": verdict(holds=holds),
        "kept": table(
            [{"model": model, "left after 99 tokens": value} for model, value in kept.items()], ["model", "left after 99 tokens"]
        ),
        "worked": "\n\n".join(tables),
        "rnn": shown(kept["RNN"]),
        "lstm": shown(kept["LSTM"]),
        "lstm_attention": shown(kept["LSTM + attention"]),
        "transformer": shown(kept["Transformer"]),
    }


def values_of_scale(rows: Rows) -> dict[str, str]:
    """Return the text of the page's variables."""
    growth = {
        m: at(rows, m, "width", 1024, "variance") / at(rows, m, "width", 16, "variance") for m in ("dot_product", "scaled_dot_product")
    }
    tables = []
    for language, words in SENTENCES.items():
        generator = torch.Generator().manual_seed(7)
        signs = (
            2.0 * torch.randint(2, (len(words) + 1, 16), generator=generator) - 1
        )  # a query, and a key for each word; entries of variance 1
        logits = signs[1:] @ signs[0]
        plain, scaled = logits.softmax(0), (logits / 4).softmax(0)
        worked = [
            {"word": w, "q·k": f"{a:.0f}", "softmax(q·k)": float(p), "q·k / √16": f"{a / 4:.2f}", "softmax(q·k / √16)": float(s)}
            for w, a, p, s in zip(words, logits.tolist(), plain, scaled, strict=True)
        ]
        tables.append(f"{language}:\n\n{table(worked, list(worked[0]))}")
    largest = {m: at(rows, m, "width", 1024, "largest_weight") for m in growth}
    holds = growth["dot_product"] > 30 and growth["scaled_dot_product"] < 2 and largest["dot_product"] > 1.5 * largest["scaled_dot_product"]
    return {
        "verdict": verdict(holds=holds),
        "worked": "\n\n".join(tables),
        "rows": table(rows, ["model", "width", "variance", "entropy", "largest_weight"]),
        "plain": shown(growth["dot_product"]),
        "scaled": shown(growth["scaled_dot_product"]),
        "plain_largest": shown(largest["dot_product"]),
        "scaled_largest": shown(largest["scaled_dot_product"]),
    }


def values_of_cost(rows: Rows) -> dict[str, str]:
    """Return the text of the page's variables."""

    def power(model: str, y: str, low: int = 1024) -> float:
        return math.log2(at(rows, model, "length", 2 * low, y) / at(rows, model, "length", low, y))

    models = list(dict.fromkeys(row["model"] for row in rows))
    powers = [{"model": m} | {y: f"{power(m, y):.2f}" for y in FIGURES["cost"]["y"]} for m in models]
    quadratic = power("attention (reference)", "train_mb") > 1.7 and power("attention (reference)", "train_ms") > 1.5
    tables = []
    for language, words in SENTENCES.items():
        worked = [
            {"word": word, "keys that it reads": i + 1, "sum so far": (i + 1) * (i + 2) // 2, "steps of a recurrence": i + 1}
            for i, word in enumerate(words)
        ]
        tables.append(f"{language}:\n\n{table(worked, list(worked[0]))}")
    return {
        "verdict": verdict(holds=quadratic, when="all logits are kept, and the length is large against the width"),
        "worked": "\n\n".join(tables),
        "rows": table(rows, ["model", "length", *FIGURES["cost"]["y"]]),
        "powers": table(powers, list(powers[0])),
        "memory": f"{power('attention (reference)', 'train_mb'):.2f}",
        "memory_sdpa": f"{power('attention (sdpa)', 'train_mb'):.2f}",
        "time_short": f"{power('attention (sdpa)', 'train_ms', 128):.2f}",
        "time_long": f"{power('attention (sdpa)', 'train_ms'):.2f}",
        "lstm_ratio": f"{at(rows, 'LSTM', 'length', 128, 'train_ms') / at(rows, 'attention (sdpa)', 'length', 128, 'train_ms'):.2f}",
        "lstm_ratio_long": f"{at(rows, 'LSTM', 'length', 2048, 'train_ms') / at(rows, 'attention (sdpa)', 'length', 2048, 'train_ms'):.2f}",
    }


VALUES: dict[str, Callable[[Rows], dict[str, str]]] = {
    "gradient": values_of_gradient,
    "scale": values_of_scale,
    "cost": values_of_cost,
}


def files() -> Iterator[tuple[Path, str]]:
    """Yield the pages and the figures that follow from what is stored."""
    lines = ["| claim | verdict |", "|---|---|"]
    for name, values in VALUES.items():
        stored = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        rows = means(stored["rows"], FIGURES[name]["x"])
        template = (FOLDER / "templates" / f"{name}.md").read_text(encoding="utf-8")
        found = values(rows) | {"command": stored["command"]}
        yield FOLDER / f"{name}.md", Template(template).substitute(found)
        yield FOLDER / f"{name}.svg", draw_lines(rows, lines="model", title=name, **FIGURES[name])
        title = template.splitlines()[0].removeprefix("# ")
        lines.append(f"| [{title}]({name}.md) | {found['verdict']} |")
    index = (FOLDER / "templates" / "index.md").read_text(encoding="utf-8")
    yield FOLDER / "index.md", Template(index).substitute(claims="\n".join(lines))


def measure(name: str) -> None:
    """Run the probes of a claim and store their rows, one in a line."""
    command = f"python docs/_tools/claims.py measure {name}"
    rows = ",\n".join(json.dumps(row) for row in MEASURE[name]())
    (FOLDER / f"{name}.json").write_text(f'{{"command": {json.dumps(command)}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        for claim in sys.argv[2:] or MEASURE:
            measure(claim)
    else:
        for path, text in files():
            path.write_text(text, encoding="utf-8")
