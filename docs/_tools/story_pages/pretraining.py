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
OF_MODEL = {"GPT": "continued_pretraining", "T5": "t5_pretraining"}  # the study of each
EXPERIMENTS = {
    "en": {"GPT": "GPT on another kind of text", "T5": "T5 on prefixed tasks", "BERT": "BERT on reviews"},
    "ko": {"GPT": "다른 종류의 글을 읽는 GPT", "T5": "접두어가 붙은 과제의 T5", "BERT": "영화평의 BERT"},
}


def of_studies() -> Rows:
    """Return the pairs of the studies, whose runs are stored with the documentation."""
    rows: Rows = []
    for model, name in OF_MODEL.items():
        study = yaml.safe_load((STUDIES / f"{name}.yaml").read_text(encoding="utf-8"))
        runs = RESULTS / "ablations" / name / "runs.csv"
        found: dict[str, dict[bool, float]] = {}
        with runs.open(encoding="utf-8") as file:
            for run in csv.DictReader(file):
                pretrained = not re.fullmatch(r"'?(baseline|all - init_from)", run["variant"])
                found.setdefault(run["seed"], {})[pretrained] = float(run[study["metric"]])
        sign = -1 if study["better"] == "lower" else 1
        for seed, pair in found.items():
            gain = 100 * sign * (pair[True] - pair[False]) / pair[False]
            kept = {"metric": study["metric"], "pretrained": pair[True], "from nothing": pair[False], "gain": gain}
            rows.append({"model": model, "seed": int(seed), **kept})
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
        when = f"it is {' or '.join(wins)}, not {' or '.join(losses)}"
    else:
        when = f"{', '.join(losses)}가 아니라 {', '.join(wins)}일 때"
    return language.verdict(holds=bool(wins), when=when if losses else "")


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
    }
