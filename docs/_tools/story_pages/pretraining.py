"""Pretrain on much text, then fine-tune on little."""

import csv
import re
from statistics import fmean, stdev
from typing import Any

import yaml
from scipy.stats import t

from story_pages.base import FOLDER, SENTENCES, Language, Rows, percent

FIGURE: dict[str, Any] = {"x": "seed", "y": ["gain"]}
CONFIDENCE = 0.95
RESULTS = FOLDER.parent / "results"
STUDIES = FOLDER.parents[1] / "recipes" / "ablations"
OF_STUDY = {  # of each model: the study, and its variants with and without pretraining
    "GPT": ("continued_pretraining", "baseline", "start=nothing and a tokenizer of its own"),
    "GPT, equal tokenizer": ("continued_pretraining", "baseline", "start=nothing"),
    "T5": ("t5_pretraining", "start=pretrained", "baseline"),
}
EXPERIMENTS = {
    "en": {
        "GPT": "GPT against one whose tokenizer was made for the new text",
        "GPT, equal tokenizer": "GPT against one with the same tokenizer",
        "T5": "T5 on prefixed tasks",
        "BERT": "BERT on reviews",
    },
    "ko": {
        "GPT": "새 글로 만든 토크나이저를 쓰는 모델과 견준 GPT",
        "GPT, equal tokenizer": "토크나이저가 같은 모델과 견준 GPT",
        "T5": "접두어가 붙은 과제의 T5",
        "BERT": "영화평의 BERT",
    },
}


def runs_of(study: str) -> dict[tuple[str, int], dict[str, str]]:
    """Return what the runs of a study measured, by variant and seed."""
    with (RESULTS / "ablations" / study / "runs.csv").open(encoding="utf-8") as file:
        return {(run["variant"], int(run["seed"])): run for run in csv.DictReader(file)}


def of_studies() -> Rows:
    """Return the pairs of the studies, whose runs are stored with the documentation."""
    rows: Rows = []
    for model, (name, *variants) in OF_STUDY.items():
        study = yaml.safe_load((STUDIES / f"{name}.yaml").read_text(encoding="utf-8"))
        metric, sign = study["metric"], -1 if study["better"] == "lower" else 1
        runs = runs_of(name)
        for seed in sorted({seed for _, seed in runs}):
            with_it, without = (runs[variant, seed] for variant in variants)
            value, nothing = float(with_it[metric]), float(without[metric])
            more = 100 * (float(with_it["tokens"]) / float(without["tokens"]) - 1)
            kept = {"metric": metric, "pretrained": value, "from nothing": nothing, "more tokens": more}
            rows.append({"model": model, "seed": seed, **kept, "gain": 100 * sign * (value - nothing) / nothing})
    return rows


def of_bert() -> Rows:
    """Return the pairs of the page on movie snippets, which has the gain of each seed and the mean of the models from nothing."""
    page = (RESULTS / "movie_snippets.md").read_text(encoding="utf-8")
    nothing = float(re.findall(r"^\| `classification/bert_scratch` \|.*?\|.*?\| (\S+) ±", page, flags=re.M)[0])
    gains = re.findall(r"^\| test \| \S+ \| (.*?) \|", page, flags=re.M)[0].split(", ")
    return [{"model": "BERT", "seed": i + 1, "metric": "test weighted F1", "gain": 100 * float(g) / nothing} for i, g in enumerate(gains)]


def measure() -> Rows:
    """Return the gain of pretraining, in percent of the metric from nothing, by model and seed, from stored results."""
    return of_bert() + of_studies()


def interval(gains: list[float]) -> tuple[float, float]:
    """Return the ends of the confidence interval of the mean."""
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(gains) - 1)) * stdev(gains) / len(gains) ** 0.5
    return fmean(gains) - half, fmean(gains) + half


def gains_of(rows: Rows) -> dict[str, list[float]]:
    """Return the gains by model."""
    return {model: [row["gain"] for row in rows if row["model"] == model] for model in dict.fromkeys(row["model"] for row in rows)}


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    names = EXPERIMENTS[language.code]
    low = {names[model]: interval(gains)[0] for model, gains in gains_of(rows).items()}
    wins, losses = [name for name in low if low[name] > 0], [name for name in low if low[name] <= 0]
    if language.code == "en":
        when = f"it is {_either(wins)}, not {_either(losses)}"
    else:
        when = f"{', '.join(losses)}가 아니라 {', '.join(wins)}일 때"
    return language.verdict(holds=bool(wins), when=when if losses else "")


def _either(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else "any"


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    table = []
    for model, gains in gains_of(rows).items():
        low, high = interval(gains)
        metric = next(row["metric"] for row in rows if row["model"] == model).replace("_", " ")
        ends = f"{low:+.1f}{' to ' if language.code == 'en' else ' ~ '}{high:+.1f} %"
        table.append({"model": model, "metric": metric, "seeds": len(gains), "gain": f"{fmean(gains):+.1f} %", "95 % interval": ends})
    worked = {
        name: [
            {"model": "GPT", "reads": " ".join(words[:-1]), "predicts": " ".join(words[1:])},
            {"model": "BERT", "reads": " ".join([words[0], "`<mask>`", *words[2:]]), "predicts": words[1]},
            {
                "model": "T5",
                "reads": " ".join([words[0], "`<extra_0>`", *words[2:]]),
                "predicts": f"`<extra_0>` {words[1]} `<extra_1>`",
            },
        ]
        for name, words in SENTENCES.items()
    }
    return {
        "worked": language.worked(worked),
        "table": language.table(table),
        "confidence": percent(CONFIDENCE),
        "more_tokens": f"{next(row['more tokens'] for row in rows if row['model'] == 'GPT'):.0f} %",
    }
