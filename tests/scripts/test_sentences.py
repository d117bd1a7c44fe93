"""Numbers and orders in the sentences of result pages are those of the stored runs, read here without attnkit."""

import csv
import gzip
import json
import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy import stats

RESULTS = Path(__file__).parents[2] / "docs" / "results"
LEVEL = 0.65  # of associative recall: the values are known, but not whose they are


def words(page: str) -> str:
    """Return a page with single spaces, so that a sentence is found across line ends."""
    return " ".join((RESULTS / f"{page}.md").read_text(encoding="utf-8").split())


def table(file: str) -> list[dict[str, str]]:
    with (RESULTS / file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


class Runs:
    """The plan and the results of a study."""

    def __init__(self, study: str) -> None:
        head, *lines = map(json.loads, gzip.decompress((RESULTS / "ablations" / study / "runs.jsonl.gz").read_bytes()).splitlines())
        self.study, self.plan = head["study"], head["plan"]
        self.results: dict[str, dict[int, dict[str, Any]]] = {}
        lines = lines[: len(self.plan["runs"])]  # those of tuning trials may follow
        found = {line["key"]: line["result"] for line in lines if line["status"]["status"] == "ok"}
        for run in self.plan["runs"]:
            for variant in run["variants"]:
                if run["key"] in found:
                    self.results.setdefault(variant, {})[run["seed"]] = found[run["key"]]

    def values(self, variant: str, metric: str | None = None) -> list[float]:
        return [result["metrics"][metric or self.study["metric"]] for result in self.results[variant].values()]

    def mean(self, variant: str, metric: str | None = None) -> float:
        return mean(self.values(variant, metric))

    def tuned(self) -> Iterator[tuple[str, float, list[float]]]:
        """Yield each variant, the value that tuning chose, and all values in order."""
        for variant, tuned in self.plan["tuned"].items():
            (chosen,) = tuned["chosen"].values()
            yield variant, chosen, sorted(value for trial, _ in tuned["means"] for value in trial.values())


@lru_cache
def runs(study: str) -> Runs:
    return Runs(study)


def test_the_rates_at_an_edge_of_a_grid() -> None:
    lowest = {variant for variant, chosen, grid in runs("attention").tuned() if chosen == grid[0]}
    assert lowest == {"attention=dot_product, head_dim=16", "attention=general", "attention=general, head_dim=256"}
    assert "For three of the fifteen combinations, the smallest value is the best: the unscaled" in words("ablations/attention")
    assert not any(chosen == grid[-1] for _, chosen, grid in runs("attention").tuned())
    chosen = [value for _, value, grid in runs("transformer_2017").tuned() if grid[0] < value < grid[-1]]
    assert f".016, the best value for {chosen.count(0.016)} of the {len(chosen)} models" in words("ablations/transformer_2017")
    edges = {variant for variant, value, grid in runs("story").tuned() if value in (grid[0], grid[-1])}
    assert edges == {"optimizer=muon"}, "except for the LSTM with Muon, which uses the largest"


def test_runs_that_recall_and_runs_that_do_not() -> None:
    recall = runs("mixers_recall")
    near = {v: sum(math.isclose(one, LEVEL, abs_tol=0.035) for one in recall.values(v)) for v in recall.results if "distance=16" in v}
    assert near["distance=16"] == near["pattern=state_space, distance=16"] == 2, "as are two runs each of attention and of the state space"
    assert near["pattern=gru, distance=16"] == near["pattern=mlstm, distance=16"] == near["pattern=linear_attention, distance=16"] == 5
    none = {v for v in recall.results if max(recall.values(v)) <= 0.99}
    named = ("gated_delta", "attention", "baseline", "state_space")
    assert not any(name in v for v in none for name in named if "linear" not in v and v != "pattern=state_space"), "the others none"
    walk = runs("rnn_to_transformer")
    order = [v["name"] for v in walk.plan["variants"]]
    assert next(v for v in order if walk.mean(v) > LEVEL + 0.01) == "+ score=scaled dot product", "the first model to exceed the level"
    for variant in order[order.index("+ norm=after each sublayer") :]:
        stay = [one for one in walk.values(variant) if one < LEVEL + 0.005]
        assert len(stay) in (1, 2), "one or two runs of each model stay at .65 or less"
        assert all(one > 0.999 for one in walk.values(variant) if one not in stay), "the others reach 1"


def test_shares_and_sizes() -> None:
    story = runs("story")
    adamw = story.mean("model=transformer") - story.mean("baseline")
    muon = story.mean("model=transformer, optimizer=muon") - story.mean("optimizer=muon")
    assert round(4 * (1 - muon / adamw)) == 3
    assert "By the means, it removes three quarters; how large that share is was not tested." in words("ablations/story")
    sizes = [result["parameters"] / 1e6 for results in runs("mixers_language").results.values() for result in results.values()]
    assert f"models with {min(sizes):.2f} to {max(sizes):.2f} million parameters" in words("ablations/mixers_language")
    within, beyond = runs("position_within").results, runs("position").results
    same = [
        [row["train/loss"] for row in result["curve"]] == [row["train/loss"] for row in beyond[v][seed]["curve"]]
        for v in within
        for seed, result in within[v].items()
        if seed in beyond[v]
    ]
    assert sum(same) > sum(map(len, within.values())) / 2, "most of the trainings repeat those of `position`"


def test_pretraining_pages_agree_with_the_runs() -> None:
    t5, page = runs("t5_pretraining"), words("t5")
    rows = {v: f"{t5.mean(v, 'test/title/rougeL'):.1f} | {t5.mean(v, 'test/module/sequence_error_rate'):.3f}" for v in t5.results}
    assert f"from scratch, five seeds | | {rows['baseline'].replace('0.6', '.6')} |" in page
    assert f"pretrained, five seeds | | {rows['start=pretrained'].replace('0.6', '.6')} |" in page
    gains = [a - b for a, b in zip(t5.values("baseline"), t5.values("start=pretrained"), strict=True)]
    half = stats.t.ppf(0.975, 4) * stdev(gains) / math.sqrt(5)
    assert f"by {mean(gains):.2f} nats per token, 95 % interval {mean(gains) - half:.2f} to {mean(gains) + half:.2f}, five pairs" in page
    gpt = runs("continued_pretraining")
    theirs, own = (gpt.results[v][0] for v in ("baseline", "start=nothing and a tokenizer of its own"))
    more, steps = f"{100 * (theirs['tokens'] / own['tokens'] - 1):.0f} % more pieces", [one["batches"] // 3 for one in (theirs, own)]
    assert f"{more} ({steps[0]} steps per epoch instead of {steps[1]})" in words("language_model")


def test_the_storys_findings_follow_from_its_table() -> None:
    page, rows = words("story"), {row["model"]: row for row in table("story.csv")}
    kinds, cells = (", fixed context", " + dot-product attention"), ("RNN", "GRU", "LSTM")
    fixed, attended = ({cell: float(rows[f"{cell}{kind}"]["wer"]) for cell in cells} for kind in kinds)
    assert all(f"{c} {fixed[c]:.1f} to {attended[c]:.1f}" in page.replace(" % WER", "") for c in cells)
    apart = [w["RNN"] - w["LSTM"] for w in (fixed, attended)] + [w["GRU"] - w["LSTM"] for w in (fixed, attended)]
    without, beside, *others = (f"{one:.0f}" for one in apart)
    assert f"{without} points apart without it and {beside} with it, but GRU and LSTM are {' and '.join(others)}" in page
    columns = [name for name in rows["RNN, fixed context"] if name.startswith("wer_")]
    assert all(float(row[a]) < float(row[b]) for row in rows.values() for a, b in pairwise(columns)), "it climbs"
    gaps = {c: [float(rows[f"{c}, fixed context"][n]) - float(rows[f"{c} + dot-product attention"][n]) for n in columns] for c in fixed}
    assert max(gaps["RNN"]) == gaps["RNN"][columns.index("wer_9_10")], "its gap is the largest at nine to ten letters"
    assert "For GRU and LSTM, the gap grows with length, from five letters on." in page
    assert all(gaps[c][1:] == sorted(gaps[c][1:]) for c in ("GRU", "LSTM"))
    assert f"it gains {gaps['GRU'][-1]:.0f} and {gaps['LSTM'][-1]:.0f} points" in page
    short = columns[: columns.index("wer_7_8") + 1]
    assert [round(max(gaps[c][: len(short)])) for c in ("GRU", "LSTM")] == [3, 6], "at most three points for the GRU and six for the LSTM"
    transformer, muon = (float(rows[f"Transformer, {optimizer}"]["wer"]) for optimizer in ("AdamW", "Muon"))
    assert f"level with the RNN with attention ({transformer:.1f} and {attended['RNN']:.1f} %)" in page
    assert f"level with the GRU with attention ({muon:.1f}; {attended['GRU']:.1f})" in page
    recurrent = {name: float(row["wer"]) for name, row in rows.items() if "fixed" not in name and "Transformer" not in name}
    assert [name for name, wer in recurrent.items() if wer > transformer] == ["RNN + dot-product attention"]


def test_curves_pass_through_the_numbers_in_the_text() -> None:
    errors = {round(float(row["minutes"])): float(row["val/sequence_error_rate"]) for row in table("g2p_transformer_full.csv")}
    early, late = (f"{100 * errors[minutes] + 1e-9:.1f} %" for minutes in (26, 44))
    assert f"was at {early} on the validation sample after 26 minutes and at {late} after 44" in words("g2p")
    images = [float(row["val/accuracy"]) for row in table("fashion_mnist.csv")]
    first, tenth, last = (f"{images[i]:.2f}".removeprefix("0") for i in (0, 9, -1))
    assert f"{first} after one epoch, {tenth} after ten, {last} at the end" in words("fashion_mnist")
    assert max(images) == images[-1], "the best of 32 epochs (the last one)"
    sinusoidal = [row for row in table("scan_length.csv") if row["position"] == "sinusoidal"]
    assert [sum(int(row[n]) for row in sinusoidal) for n in ("right", "commands")] == [1, 3920], "one of the 3,920 longer ones"
