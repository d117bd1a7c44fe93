"""Statements of the pages about their results, besides the verdict: each must be true of the rows behind its page.

A remark holds the words in both templates, and whether the stored results bear them out. `claims.py write` fails where they do not, and a
test looks for the words in the templates.
"""

import csv
import re
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from story_pages import context, convolution, exposure, gradient, positions, pretraining, recall, scale, sequential, step
from story_pages.base import FOLDER, Rows, at

MUCH = 2  # the factor of "much" and "hardly" below
SMALL = 10  # percent
LEARNED = 0.5  # of the texts right, below which a model "does not learn" a task


class Remark(NamedTuple):
    """A remark in both languages, and whether it is true."""

    english: str
    korean: str
    holds: bool


def remarks(name: str, rows: Rows) -> list[Remark]:
    """Return the remarks of a page."""
    return REMARKS[name](rows) if name in REMARKS else []


def of_gradient(rows: Rows) -> list[Remark]:
    """The recurrences alone, and beside attention."""
    kept, large = (gradient.left(rows, y) for y in gradient.FIGURE["y"])
    with_attention, alone = "RNN + attention", ("RNN", "GRU", "LSTM")
    return [
        Remark("by this measure its gradient vanishes", "이 기준으로 보면 기울기가 사라집니다", kept["GRU"] < gradient.VANISHED),
        Remark(
            "Attention in addition to a recurrence avoids the first, not the second",
            "기울기가 사라지는 것은 피할 수 있지만 폭발하는 것은 피할 수 없습니다",
            kept[with_attention] > gradient.VANISHED and large[with_attention] > gradient.EXPLODED,
        ),
        Remark("with weights $factor times as large it grows", "가중치를 $factor배로 키우면", min(large[m] for m in alone) > 1),
    ]


def of_recall(rows: Rows) -> list[Remark]:
    """The RNN beyond the trained distances, and early in training."""
    far, last = recall.TRAINED, recall.DISTANCES[-1]
    late = {d: at(rows, "RNN", "distance", d, f"after_{recall.STEPS}") for d in recall.DISTANCES}
    early = at(rows, "RNN", "distance", 1, f"after_{recall.SHORT}")
    return [
        Remark(f"At distance {last}, four times the longest in training", f"네 배인 거리 {last}", last == 4 * far),
        Remark("The RNN hardly falls further", "더는 거의 나빠지지 않으므로", late[far] - late[last] < (late[1] - late[far]) / MUCH),
        Remark(
            "The number of steps matters as much as the distance",
            "학습 단계 수도 거리만큼 중요합니다",
            early < late[far],
        ),
    ]


def of_context(rows: Rows) -> list[Remark]:
    """Copying by the cells, and the results on real words that the page cites."""
    short = context.LENGTHS[0]
    with (FOLDER.parent / "results" / "story.csv").open(encoding="utf-8") as file:
        wrong = {row["model"]: float(row["wer"]) for row in csv.DictReader(file)}
    fixed = {cell: wrong[f"{cell}, fixed context"] for cell in context.CELLS}
    gains = [fixed[cell] - wrong[f"{cell} + dot-product attention"] for cell in context.CELLS]
    transformer = wrong["Transformer, AdamW"]
    best, worst = context.extremes(rows)
    return [
        Remark(
            "the RNN does not even learn to copy short texts",
            "짧은 열을 베끼는 법도 배우지 못하므로",
            at(rows, "RNN", "length", short, "exact_match") < LEARNED,
        ),
        Remark("every cell makes fewer mistakes with attention", "셀마다 어텐션을 붙이면 덜 틀리지만", min(gains) > 0),
        Remark("but the gap is smaller", "차이는 더 작습니다", max(gains) < 100 * (worst - best)),
        Remark(
            "makes more of them than GRU and LSTM without attention",
            "어텐션이 없는 GRU나 LSTM보다 더 많이 틀립니다",
            transformer > max(fixed["GRU"], fixed["LSTM"]),
        ),
        Remark("not what fits", "모자란 것은 담을 자리가 아니라", context.LENGTHS[-1] * 3 < 32 * context.WIDTH),
    ]


def of_exposure(rows: Rows) -> list[Remark]:
    """How both errors develop."""
    own, true = ({m: [r[y] for r in rows if r["model"] == m] for m in ("GRU", "Transformer")} for y in ("free_running", "teacher_forced"))
    gap = exposure.gaps(rows)
    return [
        Remark(
            "At position 0 both errors are the same",
            "위치 0에서는 아직 쓴 것이 없으므로",
            own["GRU"][0] == true["GRU"][0],
        ),
        Remark("rises from position 2 to the end", "위치 2부터 끝까지 늘어납니다", all(a < b for a, b in pairwise(own["GRU"][2:]))),
        Remark("it does not rise after position 3", "위치 3 이후로 더 늘지 않고", max(own["Transformer"][4:]) <= own["Transformer"][3]),
        Remark(
            "the gap widens because the error on the true prefix falls",
            "정답을 읽을 때의 오류가 줄어서",
            gap["Transformer"][-1] > gap["Transformer"][3] and all(a > b for a, b in pairwise(true["Transformer"][3:])),
        ),
    ]


def of_step(rows: Rows) -> list[Remark]:
    """Where the GRU looks."""
    beside = [row["on_the_mirror"] + row["beside_it"] for row in rows if row["model"] == "GRU + attention"]
    return [Remark("and next to it in $gru_beside", "$gru_beside에서 그 옆자리를", sum(beside) / len(beside) > step.LIMIT)]


def of_convolution(rows: Rows) -> list[Remark]:
    """Dependencies beyond the receptive field."""
    reached = [row["reached"] for row in rows if row["model"] == "convolution of 3" and row["distance"] in convolution.FAR]
    return [Remark("since no information from there reaches it", "정보가 닿지 않으므로", not any(reached))]


def of_sequential(rows: Rows) -> list[Remark]:
    """The order of the times."""
    time = sequential.times(rows)
    by_kernel = time["LSTM"] < min(time["RNN"], time["GRU"])
    return [Remark("So the order in milliseconds depends on the kernel", "따라서 밀리초로 본 순서는 커널에 달려 있습니다", by_kernel)]


def of_scale(rows: Rows) -> list[Remark]:
    """The level of the scaled variance."""
    found = [row["variance"] for row in rows if row["model"] == "scaled_dot_product"]
    level = max(found) / min(found) < scale.LEVEL
    return [Remark("it stays level, though below 1", "거의 일정하지만 1보다는 작습니다", level and max(found) < 1)]


def of_positions(rows: Rows) -> list[Remark]:
    """Order in decoders: what they notice and learn."""
    right = {name: [r["exact_match"] for r in rows if r["model"] == f"decoder, {name}"] for name in ("none", "sinusoidal")}
    noticed = min(r["loss_of_shuffling"] for r in rows if r["model"] == "decoder, none")
    learned = max(sum(found) / len(found) for found in right.values())
    return [
        Remark("so it notices the order without any encoding", "인코딩이 없어도 순서를 알아차립니다", noticed > positions.NOTICED),
        Remark("in so few steps neither decoder learns the task", "어느 쪽도 과제를 배우지 못하므로", learned < LEARNED),
    ]


def of_layers(rows: Rows) -> list[Remark]:
    """The direction of the cosine."""
    cosines = [row["cosine"] for row in rows]
    return [Remark("falls from $first_cosine to", "임베딩에서 $first_cosine, 마지막 층에서", cosines[-1] < cosines[0])]


def of_cost(rows: Rows) -> list[Remark]:
    """The state of decoding."""
    state = {row["length"]: row["state_mb"] for row in rows if row["model"] == "LSTM"}
    lengths = {128, 1024, 2048}
    return [
        Remark("and not at all with an LSTM", "LSTM에서는 그대로입니다", state[128] == state[2048]),
        Remark("from 1,024 to 2,048 tokens", "1,024토큰에서 2,048토큰으로", lengths <= set(state)),
    ]


def of_pretraining(rows: Rows) -> list[Remark]:
    """Origins of the gains, and the plain baselines of the pages that it cites."""
    gains = pretraining.gains_of(rows)
    intervals = {model: pretraining.interval(found) for model, found in gains.items()}
    own, equal = (fmean(gains[model]) for model in ("GPT", "GPT, equal tokenizer"))
    words = pretraining.RESULTS / "movie_snippets.md", pretraining.RESULTS / "t5.md"
    snippets, t5 = (page.read_text(encoding="utf-8") for page in words)
    bayes = max(map(float, re.findall(r"^\| naive Bayes.*?\|.*?\|.*?\| (\S+) \|", snippets, flags=re.M)))
    bert = float(re.findall(r"^\| `classification/bert_finetuned`.*?\|.*?\|.*?\| \**(\S+) ±", snippets, flags=re.M)[0])
    modules = float(re.findall(r"^\| naive Bayes over words \|.*\| \**(\S+?)\** \|$", t5, flags=re.M)[0])
    runs = pretraining.runs_of("t5_pretraining")
    wrong = fmean(float(run["test/module/sequence_error_rate"]) for (variant, _), run in runs.items() if variant == "start=pretrained")
    seeds = sorted({seed for _, seed in runs})
    title, module = (
        pretraining.interval([float(runs["baseline", seed][c]) - float(runs["start=pretrained", seed][c]) for seed in seeds])
        for c in ("test/title/loss", "test/module/loss")
    )
    return [
        Remark("The gains are small", "이득은 작고", max(map(fmean, gains.values())) < SMALL),
        Remark(
            "With equal tokenizers the weights help", "토크나이저가 같으면 가중치가 도움이 되지만", intervals["GPT, equal tokenizer"][0] > 0
        ),
        Remark("the tokenizer costs more than they gain", "잃는 것이 그보다 큽니다", own < 0 < equal),
        Remark("is not behind BERT here", "BERT에 뒤지지 않고", bayes >= bert),
        Remark(
            "much better than T5 at telling the part",
            "T5보다 훨씬 잘 맞힙니다",
            modules * 1.5 < wrong,
        ),
        Remark(
            "T5's gain is in the titles, and none is shown for these parts",
            "T5의 이득은 제목에 있고, 그 부분을 맞히는 데서는 이득이 확인되지 않았습니다",
            module[0] <= 0 < title[0],
        ),
    ]


REMARKS: dict[str, Callable[[Rows], list[Remark]]] = {
    "gradient": of_gradient,
    "recall": of_recall,
    "context": of_context,
    "exposure": of_exposure,
    "step": of_step,
    "convolution": of_convolution,
    "sequential": of_sequential,
    "scale": of_scale,
    "positions": of_positions,
    "layers": of_layers,
    "cost": of_cost,
    "pretraining": of_pretraining,
}
