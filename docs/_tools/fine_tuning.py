"""Compare fine-tuning with training from scratch, over several seeds.

    python docs/_tools/fine_tuning.py [--start CHECKPOINT] [FLAG ...]

The checkpoint is a masked language model (default: the recipe's `init_from`). Runs are stored under runs/movie_snippets, and
finished ones are skipped. Prints a Markdown table of means and standard deviations over seeds, and the gain of pretraining with its 95 %
intervals over seeds (Student's t of the paired differences) and over sentences (a bootstrap of the mean over seeds). Other flags are passed
to `attnkit fit`, for instance `--data.corpus.folder data`.
"""

import argparse
import subprocess
from pathlib import Path
from typing import Literal

import torch
from scipy import stats
from torch import Tensor
from torchmetrics.functional.classification import multiclass_f1_score

import attnkit
from attnkit.task import Classification

RECIPES = ("bert_finetuned", "bert_scratch")
DRAWS = 2000
Average = Literal["weighted", "micro", "macro"]


def train(recipe: str, seed: int, folder: Path, flags: list[str]) -> Path:
    """Train unless already done; return the checkpoint with the best validation."""
    done = folder / "done"
    if not done.exists():
        command = ["attnkit", "fit", "--config", f"classification/{recipe}", "--seed_everything", str(seed), "--data.seed", str(seed)]
        command += ["--trainer.default_root_dir", str(folder), *flags]
        print("$", *command, flush=True)
        subprocess.run(command, check=True)
        done.touch()
    return max(folder.rglob("best.ckpt"), key=lambda path: path.stat().st_mtime)


def predictions(checkpoint: Path, texts: list[str]) -> Tensor:
    """Return the predicted class id of each text [N]."""
    task = Classification.load(checkpoint)
    return torch.tensor([task.classes.index(p.label) for p in task.predict_texts(texts)])


def f1(output: Tensor, truth: Tensor, average: Average = "weighted") -> float:
    """Return an F1 over the three classes."""
    return float(multiclass_f1_score(output, truth, num_classes=3, average=average))


def main() -> None:
    """Train whatever is missing, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--start", help="the pretrained checkpoint")
    parser.add_argument("--runs", type=Path, default=Path("runs/movie_snippets"), help="folder of the runs")
    parser.add_argument("--folder", default="data", help="folder of the data")
    options, flags = parser.parse_known_args()
    flags += ["--data.corpus.folder", options.folder]
    seeds = range(1, options.seeds + 1)
    start = {"bert_finetuned": ["--model.init_from", options.start] if options.start else [], "bert_scratch": []}
    best = {(r, s): train(r, s, options.runs / r / f"seed_{s}", flags + start[r]) for r in RECIPES for s in seeds}

    corpus = attnkit.corpora.build({"name": "movie_snippets", "folder": options.folder})
    classes = ("negative", "neutral", "positive")
    found: dict[tuple[str, str], list[Tensor]] = {}
    truth: dict[str, Tensor] = {}
    for part in ("validation", "test"):
        texts, labels = map(list, zip(*corpus.labelled(part), strict=True))
        truth[part] = torch.tensor([classes.index(label) for label in labels])
        for recipe in RECIPES:
            found[recipe, part] = [predictions(best[recipe, s], texts) for s in seeds]

    def cell(recipe: str, part: str, average: Average) -> str:
        values = torch.tensor([f1(output, truth[part], average) for output in found[recipe, part]])
        return f"{values.mean():.3f} ± {values.std():.3f}"

    print("| model | validation weighted F1 | test weighted F1 | test accuracy | test macro F1 |\n|---|---|---|---|---|")
    for recipe in RECIPES:
        columns: tuple[tuple[str, Average], ...] = (("validation", "weighted"), ("test", "weighted"), ("test", "micro"), ("test", "macro"))
        print(f"| `classification/{recipe}` | " + " | ".join(cell(recipe, *column) for column in columns) + " |")
    for part in truth:
        print(f"\n{part}, weighted F1 of bert_finetuned minus that of bert_scratch: {gain(found, truth[part], part)}")


def gain(found: dict[tuple[str, str], list[Tensor]], truth: Tensor, part: str) -> str:
    """Return the gain of pretraining, seed by seed, and the intervals of its mean."""
    pairs = list(zip(found["bert_finetuned", part], found["bert_scratch", part], strict=True))
    gains = torch.tensor([f1(a, truth) - f1(b, truth) for a, b in pairs])
    half = stats.t.ppf(0.975, len(gains) - 1) * float(gains.std()) / len(gains) ** 0.5
    generator, means = torch.Generator().manual_seed(0), []
    for _ in range(DRAWS):
        rows = torch.randint(len(truth), (len(truth),), generator=generator)
        means.append(sum(f1(a[rows], truth[rows]) - f1(b[rows], truth[rows]) for a, b in pairs) / len(pairs))
    low, high = torch.tensor(means).quantile(torch.tensor([0.025, 0.975])).tolist()
    mean = float(gains.mean())
    each = ", ".join(f"{value:+.3f}" for value in gains.tolist())
    return f"{mean:+.3f} ({each}); 95 % over seeds {mean - half:+.3f} to {mean + half:+.3f}, over sentences {low:+.3f} to {high:+.3f}"


if __name__ == "__main__":
    main()
