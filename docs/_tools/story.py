"""The story in numbers: `python docs/_tools/story.py RUNS OUT` trains whatever is missing in RUNS and prints a Markdown table.

Each model of `MODELS` is trained by its recipe (1,200 steps of at most 2,048 positions, the same batches in the same order) and measured
on all test words. Finished models are skipped: delete a folder of RUNS to repeat one. OUT.csv gets all numbers, OUT.svg the error by word
length. The speed is measured at the end, with all models in turn, so that other load on the machine affects all alike.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

import attnkit
from attnkit.recipe import merge, read_recipe
from attnkit.task import Task
from attnkit.task.metrics import edit_distance

ADAMW = {"optimizer": {"name": "adamw", "lr": 2e-3, "weight_decay": 0.01}}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "RNN, fixed context": ("seq2seq_rnn", {}),
    "RNN + dot-product attention": ("seq2seq_rnn", {"stack": {"attention": "dot_product"}}),
    "GRU, fixed context": ("seq2seq_gru", {}),
    "GRU + dot-product attention": ("seq2seq_gru", {"stack": {"attention": "dot_product"}}),
    "GRU, Bahdanau": ("bahdanau", {}),
    "LSTM, fixed context": ("seq2seq_lstm", {}),
    "LSTM + dot-product attention": ("seq2seq_lstm", {"stack": {"attention": "dot_product"}}),
    "LSTM, Luong (dot)": ("luong_dot", {}),
    "LSTM, Luong (general)": ("luong_general", {}),
    "Transformer, AdamW": ("transformer", ADAMW),
    "Transformer, Muon": ("transformer", {}),
}
LENGTHS = ((1, 4), (5, 6), (7, 8), (9, 10), (11, 12), (13, 99))  # letters
ROUNDS = 12


def model_flags(label: str) -> list[str]:
    """Return the command-line arguments for the model of a row."""
    recipe, changes = MODELS[label]
    flags = [f"--model.{key}={json.dumps(value)}" for key, value in changes.items()]
    return ["--config", f"g2p/{recipe}", *flags]


def train(label: str, folder: Path) -> Path:
    """Train the model of a row in `folder`; return its checkpoint. An interrupted run starts again."""
    recipe, _ = MODELS[label]
    command = ["attnkit", "fit", *model_flags(label), f"--trainer.default_root_dir={folder}", "--trainer.enable_progress_bar=false"]
    subprocess.run(command, check=True)
    newest = max((folder / "g2p" / recipe).glob("version_*"), key=lambda path: int(path.name.removeprefix("version_")))
    return newest / "checkpoints" / "best.ckpt"


def measure(checkpoint: Path) -> dict[str, float]:
    """Return the size and the error rates of a checkpoint on all test words."""
    task: Any = Task.load(checkpoint)
    references = attnkit.corpora.build("cmudict").references("test")
    words = list(references)
    outputs = dict(zip(words, task.generate(words), strict=True))
    wrong = {word: outputs[word] not in references[word] for word in words}
    distances = [min((edit_distance(outputs[w].split(), r.split()), -len(r.split())) for r in references[w]) for w in words]
    result = {
        "parameters": sum(p.numel() for p in task.parameters()),
        "wer": 100 * statistics.mean(wrong.values()),
        "per": 100 * sum(d for d, _ in distances) / -sum(length for _, length in distances),
    }
    for least, most in LENGTHS:
        result[f"wer_{least}_{most}"] = 100 * statistics.mean(wrong[w] for w in words if least <= len(w) <= most)
    return result


def result_of(label: str, runs: Path) -> dict[str, float]:
    """Return the numbers of a row, training its model if they are missing."""
    folder = runs / label.lower().replace("+", "and").translate(str.maketrans(" ", "_", ",()"))
    stored = folder / "result.json"
    if not stored.exists():
        result = measure(train(label, folder))
        partial = stored.with_suffix(".part")
        partial.write_text(json.dumps(result), encoding="utf-8")
        os.replace(partial, stored)
    numbers: dict[str, float] = json.loads(stored.read_text(encoding="utf-8"))
    return numbers


def steps_of(label: str, batches: list[Any]) -> Iterator[float]:
    """Yield the durations of training steps in seconds (forward, backward and optimizer, in bf16 autocast)."""
    recipe, changes = MODELS[label]
    model = merge(read_recipe(f"g2p/{recipe}")["model"], changes, dropped=[])
    task = attnkit.tasks.build(model | {side: data_specs()[side] for side in ("src_tokenizer", "tgt_tokenizer")})
    task.configure_model()
    groups = attnkit.task.parameters.parameter_groups(task)
    optimizer = attnkit.optimizers.build(task.optimizer, params=groups)
    for batch in cycle(batches):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16):
            sums = task.objective(batch)
        (sums.loss / sums.targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield time.perf_counter() - start


def data_specs() -> dict[str, Any]:
    """Return the trained tokenizers."""
    return {"src_tokenizer": DATA.src_tokenizer_spec, "tgt_tokenizer": DATA.tgt_tokenizer_spec}


def speeds() -> dict[str, tuple[float, float]]:
    """Return the training speed of each model: target tokens per second, and its ratio to the last model's."""
    batches = list(islice(DATA.train_dataloader(), ROUNDS + 3))
    tokens = [int((batch["tgt"][:, 1:] != 0).sum()) for batch in batches]
    clocks = {label: steps_of(label, batches) for label in MODELS}
    rounds = [{label: next(clock) for label, clock in clocks.items()} for _ in batches]
    last = list(MODELS)[-1]
    return {
        label: (
            statistics.median(n / r[label] for n, r in zip(tokens[3:], rounds[3:], strict=True)),  # the first rounds are warm-up
            statistics.median(r[last] / r[label] for r in rounds[3:]),
        )
        for label in MODELS
    }


def draw(results: dict[str, dict[str, float]], path: Path) -> None:
    """Plot the error by word length: dashed without attention, solid with it, one colour per kind of cell."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    colours = {"RNN": "#009E73", "GRU": "#E69F00", "LSTM": "#0072B2", "Transformer": "#CC79A7"}
    ticks = [f"{least}-{most}" if most < 99 else f"{least}+" for least, most in LENGTHS]
    for label, numbers in results.items():
        if "fixed" in label or "+ dot" in label or label == "Transformer, Muon":
            line, marker = ("--", "s") if "fixed" in label else ("-", "o")
            errors = [numbers[f"wer_{least}_{most}"] for least, most in LENGTHS]
            axes.plot(ticks, errors, color=colours[label.split()[0].rstrip(",")], label=label, linestyle=line, marker=marker)
    axes.set(xlabel="letters in the word", ylabel="test words pronounced incorrectly, %", ylim=(0, 102))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    plt.rcParams["svg.hashsalt"] = "attnkit"  # makes the file reproducible
    figure.savefig(path, metadata={"Date": None})


DATA = attnkit.datasets.build(read_recipe("g2p/transformer")["data"])

if __name__ == "__main__":
    runs, out = Path(sys.argv[1]), Path(sys.argv[2])
    results = {label: result_of(label, runs) for label in MODELS}
    for label, (speed, ratio) in speeds().items():
        results[label] |= {"tokens_per_second": speed, "speed_ratio": ratio}
    with out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("model", *next(iter(results.values()))))
        writer.writerows((label, *(round(value, 3) for value in numbers.values())) for label, numbers in results.items())
    draw(results, out.with_suffix(".svg"))
    columns = " | ".join(f"{least} to {most}" if most < 99 else f"{least}+" for least, most in LENGTHS)
    print(f"| model | parameters | WER, % | PER, % | {columns} letters | target tokens/s | speed |\n|{'---|' * (len(LENGTHS) + 6)}")
    for label, n in results.items():
        lengths = " | ".join(f"{n[f'wer_{least}_{most}']:.0f}" for least, most in LENGTHS)
        rates = f"{n['tokens_per_second']:,.0f} | {n['speed_ratio']:.2f}"
        print(f"| {label} | {n['parameters']:,.0f} | {n['wer']:.1f} | {n['per']:.1f} | {lengths} | {rates} |")
