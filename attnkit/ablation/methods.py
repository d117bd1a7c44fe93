"""The methods paragraph of a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkit.ablation.looks import looks
from attnkit.ablation.noise import noise_sentence, saved_by_pairing
from attnkit.ablation.results import Results
from attnkit.ablation.spec import OUTCOMES, StudySpec
from attnkit.wording import counted


def methods(results: Results) -> str:
    """Return the methods paragraph, as for a paper."""
    study = results.study
    family = len(results.family)
    total = sum(look.alpha for look in looks(study, results.answers.asked))
    text = (
        f"{len(results.plan.variants)} variants of {Path(study.recipe).stem} (design: {study.design}) were each trained with "
        f"{'up to ' if study.decide else ''}{len(study.seeds)} seeds. Initialisation, data order and dropout have separate seeds; "
        f"those of {', '.join(study.vary)} vary between runs, and all variants share them, so runs are paired by seed."
        f"{_budget(results)} The metric is {study.metric} ({study.better} is better), {_measured(results)}. "
        f"{_test(study)} The study has {counted(family, 'contrast')}, as one family: {'' if study.quantile else 'for normal differences, '}"
        f"all intervals together cover their true values with a probability of at least {1 - total:g} (Bonferroni), whatever the "
        f"dependence between them. Each verdict is read from its interval, so then the probability of any false verdict is "
        f"at most {total:g}."
    )
    if total > study.alpha and study.decide is None:
        text += f" Of it, {study.alpha:g} was set before the results, and the rest spent on looks at seeds that were added later."
    if results.interactions or study.design == "full_factorial":
        text += (
            " Main effects and interactions are averaged over the levels of all other factors, seed by seed; where combinations are "
            "missing, over the levels with which all compared variants exist."
        )
    if study.compare:
        pairs = sum(name in results.contrasts for name in study.pairs)
        text += f" The contrasts include {counted(pairs, 'comparison')} of two variants that the study declares in addition to its design."
    if study.decide is not None:
        text += (
            f" Looks at {', '.join(map(str, study.decide.at))} seeds were planned before the first run; their levels "
            f"({study.decide.spending} spending) add up to {study.alpha:g}. Seeds were added only for contrasts that were still open; a "
            f"contrast was given up when its chance of being decided at the last look fell below {1 - study.decide.power:.2g}."
        )
    if study.min_effect is not None:
        text += f" Equivalence: {_equivalence(study)} is within {study.min_effect} of zero on both sides."
    if study.tune is not None and results.plan.tuned:
        tune = study.tune
        grids = [f"{key} among {', '.join(map(str, values))}" for key, values in tune.grid.items()]
        grids += [f"{key} in [{r.low}, {r.high}]{' on a log scale' if r.log else ''}" for key, r in tune.search.items()]
        text += (
            f" Each variant was tuned by {tune.metric or study.metric} over {tune.count} combinations with {tune.seeds} other seeds each, "
            f"{'the same' if len(tune.first) == tune.count else 'equally many'} for every variant: {'; '.join(grids)}."
        )
        if len(tune.first) < tune.count:
            text += (
                f" The first {len(tune.first)} are the same for all; each later one is proposed by Optuna's tree-structured Parzen "
                "estimator from that variant's earlier trials."
            )
    if study.quantile is None:
        text += (
            " Where runs diverged, three tests share the level: an exact test of how often the two diverge, the t test of the pairs with "
            "numbers, unless it points the other way, and with six seeds or more the signed-rank test, in which a diverged run "
            "is worse than any number."
        )
    text += outcomes_sentence(study)
    text += f" {noise_sentence(results)}"
    if (saved := saved_by_pairing(results)) is not None:
        text += f" Pairing by seed {'removes' if saved >= 0 else 'adds'} {abs(saved):.0%} of the variance of unpaired differences."
    text += "" if study.quantile else " Effects are in standard deviations of the differences."
    text += (
        " FLOPs are those of matrix products and scans, forward and backward, for each non-padding token (counted on a batch of the "
        "validation data), times the tokens of the training. Tokens/s and the curves by time count training alone, without validation"
    )
    text += ", in processor time of one thread." if results.clocks() == {"processor"} else ", in wall-clock time."
    text += " Runs shared GPUs, so other runs lengthened their times." if "shared" in results.clocks() else ""
    text += " Memory is the peak of a process, libraries included; on a GPU, the peak of its tensors."
    exact = [f"{c.variant}: {c.p_exact:.4f}" for c in results.family if c.p_exact is not None]
    if exact:
        text += f" Exact sign-flip tests (uncorrected): {'; '.join(exact)}."
    return text


def outcomes_sentence(study: StudySpec) -> str:
    """Return a sentence, after a space, on the failures that count as divergence; empty if none do."""
    if not (kinds := {kind: how for kind, how in OUTCOMES.items() if kind in study.count_as_diverged}):
        return ""
    again = [f"{times} after {kind}" for kind in kinds if (times := study.retries.get(kind, 0))]
    unless = f", unless one of its retries (at most {', '.join(again)}) succeeded" if again else ""
    return f" A run that failed in training {' or '.join(kinds.values())} counts as diverged, as the study declares{unless}."


def _test(study: StudySpec) -> str:
    if study.quantile is None:
        return "Differences are tested by paired t tests."
    return (
        f"Variants are compared by its {study.quantile:g} quantile over seeds: the value that a share of {study.quantile:g} of the runs "
        "reaches. A run that diverged is worse than any number. Differences are tested by sign and binomial tests at every value that "
        "could be the quantile of both, which is valid for any distribution and any dependence between runs of one seed; intervals contain "
        "the shifts that are not excluded."
    )


def _equivalence(study: StudySpec) -> str:
    if not isinstance(study.min_effect, str):
        return "the whole interval"
    how = "at the same level by tests of each difference minus a share of the reference, seed by seed (Fieller 1954),"
    if study.quantile is not None:
        how = "by the same tests, of the logarithms of the values,"
    return (
        f"the whole interval of the difference as a share of the reference's {'mean' if study.quantile is None else 'quantile'}, {how} "
        "which takes neither as known,"
    )


def _measured(results: Results) -> str:
    """Say when the metric was measured; the last validation may precede the last step."""
    if results.study.metric.startswith("test/"):
        return "of the checkpoint that validation chose"
    ends = [one for one in _ends(results) if one.get("curve")]
    batches = [(int(one["curve"][-1].get("batches") or one["batches"]), one["batches"]) for one in ends]
    if results.study.metric.startswith("train/") or all(last == whole for last, whole in batches):
        return "after the last step"
    return f"at the last validation, after {_span([last for last, _ in batches])} of {_span([whole for _, whole in batches])} batches"


def _budget(results: Results) -> str:
    """Return a sentence on the length of the finished runs; empty if it is unknown."""
    ends = _ends(results)
    if not ends:
        return ""
    batches, tokens = (_span([result[name] for result in ends]) for name in ("batches", "tokens"))
    return f" A run saw {batches} batches with {tokens} non-padding tokens."


def _ends(results: Results) -> list[Mapping[str, Any]]:
    """Return the results of finished runs that recorded their number of batches."""
    return [result for key, result in results.result.items() if results.status[key]["status"] == "ok" and "batches" in result]


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
