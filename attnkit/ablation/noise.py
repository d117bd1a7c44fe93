"""Noise in a difference that seeds do not show (from the choice of test examples and from tuning), and intervals that include it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import variance

import numpy as np
from scipy import stats

from attnkit.ablation.measurements import numbers
from attnkit.ablation.results import Results
from attnkit.ablation.statistics import (
    Comparison,
    examples_parts,
    joint_half,
    parts_error,
    quantile_examples_error,
    tuning_spread,
    with_error,
)
from attnkit.ablation.tables import Table, interval_text, or_dash

TOLERANCE = 1e-4  # up to this relative difference, a metric and the quotient of its sums differ only by rounding
OWN = "each seed has its own test examples, so the noise of the seeds includes theirs"
"""The reason if data are generated anew for each seed."""
UNALIGNED = "these runs, of an earlier version, kept test examples in another order for each seed"
"""The reason if groups of examples cannot be matched between seeds."""
Error = tuple[float, float]  # a standard error and its degrees of freedom


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The sources of noise of a contrast, and its interval with all known sources."""

    contrast: str
    seeds: float | None = None  # the standard error of training seeds; None if unknown, or undefined (quantiles)
    examples: float | None = None  # the standard error of test examples; None if unknown
    tuning: float | None = None  # how far repeated tuning would move the difference; None if unknown or untuned
    interval: tuple[float, float] | None = None  # the simultaneous interval with all known sources; None if only seeds are known
    missing: tuple[str, ...] = ()  # the reason for each unknown source
    is_unaligned: bool = False  # whether `examples` is only an upper bound, as examples cannot be matched between seeds


@dataclass(frozen=True, kw_only=True)
class ExamplesNoise:
    """The noise of test examples in the runs of a study, in units of the sd of a run on one set of examples."""

    common: float  # sd of the part shared by the runs of a variant: of the variant's value over test sets
    own: float  # sd of the part specific to each run, which is part of the spread of runs on one set
    together: float  # correlation of the common part between two variants
    groups: int  # the number of groups of examples


def examples_noise(results: Results) -> ExamplesNoise | None:
    """Return the noise of test examples, pooled over the variants of a study; None if unknown."""
    sums = _sums_of(results, {v.name: 1.0 for v in results.plan.variants})
    if isinstance(sums, str) or len(sums[0][2]) < 2:
        return None
    spread, own, left, means = list[float](), list[float](), list[float](), list[np.ndarray]()
    for _, tops, bottom in sums:
        ended = tops[np.isfinite(tops).all(1)]
        if len(ended) < 2:
            return None
        values = ended.sum(1, keepdims=True) / bottom.sum()
        parts = len(bottom) * (ended - values * bottom) / bottom.sum()  # the deviation of each group; the mean is 0
        means.append(parts.mean(0))
        own.append(float(parts.var(0, ddof=1).mean()) / len(bottom))
        left.append(own[-1] / len(ended))  # the part of it left in the means
        spread.append(float(values.var(ddof=1)))
    if not (unit := float(np.mean(spread))):
        return None
    covariances = np.atleast_2d(np.cov(means)) / len(means[0])
    common = float(np.diag(covariances).mean() - np.mean(left))
    others = covariances[~np.eye(len(means), dtype=bool)]
    together = float(others.mean()) / common if common > 0 and len(others) else 0.0
    return ExamplesNoise(
        common=round(math.sqrt(max(common, 0.0) / unit), 2),
        own=round(math.sqrt(min(float(np.mean(own)) / unit, 1.0)), 2),
        together=round(min(max(together, 0.0), 1.0), 2),
        groups=len(means[0]),
    )


def noises(results: Results) -> list[Noise]:
    """Return the sources of noise of each contrast of a study."""
    return [_noise(results, c) for c in results.family]


def _noise(results: Results, c: Comparison) -> Noise:
    if c.quantile is not None:
        return _of_quantile(results, c, c.quantile)
    if c.mean is None or c.sd is None or c.level is None or any(c.diverged) or any(c.failed):
        return Noise(contrast=c.variant, missing=("runs diverged or failed, or too few have ended",))
    weights = results.contrasts[c.variant].weights
    moves, parts = moves_of(results, weights, c.pairs), parts_of(results, weights, results.study.seeds[: c.pairs])
    examples: Sequence[Error] | str = parts if isinstance(parts, str) else [parts_error(parts)]
    is_unaligned = examples == UNALIGNED
    if is_unaligned:
        examples = [_in_every_seed(results, weights, results.study.seeds[: c.pairs])]
    tuning = moves if isinstance(moves, str) else math.hypot(*moves.values())
    known = joined(c.variant, c.mean, (c.sd / math.sqrt(c.pairs), c.pairs - 1), examples, tuning, level=c.level)
    return replace(known, is_unaligned=is_unaligned)


def _of_quantile(results: Results, c: Comparison, share: float) -> Noise:
    if c.mean is None or c.interval is None or c.level is None:
        return Noise(contrast=c.variant, missing=("too few runs have ended, or a quantile is a run that diverged",))
    weights = results.contrasts[c.variant].weights
    moves, sums = moves_of(results, weights, c.pairs), _sums_of(results, weights)
    examples = None if isinstance(sums, str) else quantile_examples_error(sums, share, better=results.study.better)
    tuning = None if isinstance(moves, str) else math.hypot(*moves.values())  # assumes that another choice shifts all runs alike
    errors = [error for error in (examples, tuning) if error is not None]
    return Noise(
        contrast=c.variant,
        examples=examples,
        tuning=tuning,
        interval=with_error(c.mean, c.interval, math.hypot(*errors), level=c.level) if errors else None,
        missing=tuple(why for why in (sums, moves) if isinstance(why, str) and why),
    )


def _sums_of(results: Results, weights: Mapping[str, float]) -> list[tuple[float, np.ndarray, np.ndarray]] | str:
    """Return each variant's weight and its sums over examples (NaN where a run diverged), or why they are unknown."""
    keys, metric = results.plan.key_by_variant, results.study.metric_name
    values = {name: results.values(name) for name in weights}
    ended = [seed for seed in results.study.seeds if all(value[seed] is not None for value in values.values())]
    found: list[tuple[float, np.ndarray]] = []
    below: set[tuple[float, ...]] = set()
    for name, weight in weights.items():
        known = [seed for seed in ended if math.isfinite(values[name][seed] or 0.0)]
        if not known:
            return "no run of a variant has a number"
        if isinstance(parts := parts_of(results, {name: weight}, known), str):
            return parts
        sums = {seed: results.result[keys[name, seed]]["examples"][metric] for seed in known}
        below.update(tuple(bottom) for _, bottom in sums.values())
        found.append((weight, np.array([sums[seed][0] if seed in sums else [math.nan] * len(parts) for seed in ended])))
    if len(below) > 1:
        return "variants have different test examples"
    bottom = np.array(below.pop())
    return [(weight, tops, bottom) for weight, tops in found]


def joined(contrast: str, mean: float, seeds: Error, examples: Sequence[Error] | str, tuning: float | str, *, level: float) -> Noise:
    """Return the sources of noise of an estimate; text in place of a number says why a source is unknown."""
    known = [seeds, *([] if isinstance(examples, str) else examples), *([] if isinstance(tuning, str) else [(tuning, math.inf)])]
    half = joint_half(known, alpha=level)
    return Noise(
        contrast=contrast,
        seeds=seeds[0],
        examples=None if isinstance(examples, str) else math.hypot(*(error for error, _ in examples)),
        tuning=None if isinstance(tuning, str) else tuning,
        interval=(mean - half, mean + half) if len(known) > 1 else None,
        missing=tuple(dict.fromkeys(why for why in (examples, tuning) if isinstance(why, str) and why)),
    )


def parts_of(results: Results, weights: Mapping[str, float], seeds: Sequence[int]) -> np.ndarray | str:
    """Return the contribution of each test example to a weighted sum of variants, averaged over seeds, or why it is unknown."""
    metric, keys = results.study.metric_name, results.plan.key_by_variant
    runs, below = [], set()
    for seed in seeds:
        for name, weight in weights.items():
            result = results.result[keys[name, seed]]
            sums = result.get("examples", {}).get(metric)
            if sums is None:
                return f"{metric} was not kept by example, or is not a mean over examples"
            value, (top, bottom) = result["metrics"][results.study.metric], sums
            if not math.isclose(sum(top) / (sum(bottom) or math.nan), value, rel_tol=TOLERANCE, abs_tol=TOLERANCE**2):
                return f"{metric} is not the mean of what was kept by example"
            runs.append((weight / len(seeds), top, bottom))
            below.add((seed, tuple(bottom), result.get("example_set")))
    if len(below) > len(seeds):
        return "variants have different test examples"
    if len(seeds) > 1 and "data" in results.study.vary and any(examples is None for _, _, examples in below):
        least, *_, most = sorted(sum(bottom) for _, bottom, _ in below)
        return UNALIGNED if math.isclose(least, most, rel_tol=TOLERANCE) else OWN
    if len({examples[1:] for examples in below}) > 1:
        return OWN
    return examples_parts(runs)


def _in_every_seed(results: Results, weights: Mapping[str, float], seeds: Sequence[int]) -> Error:
    """Return the mean over seeds of the standard error due to examples: too large unless all seeds err on the same examples."""
    parts = (parts_of(results, weights, [seed]) for seed in seeds)
    errors = [parts_error(one) for one in parts if not isinstance(one, str)]
    return float(np.mean([error for error, _ in errors])), min(df for _, df in errors)


def moves_of(results: Results, weights: Mapping[str, float], pairs: int) -> Mapping[str, float] | str:
    """Return how far repeated tuning of each variant would move a weighted sum of them, or why that is unknown ("" if none was tuned)."""
    study, tuned = results.study, results.plan.tuned
    if study.tune is None or not tuned:
        return ""
    if (study.tune.metric or study.metric).partition("/")[2] != study.metric_name:
        return "tuning used another metric, in other units"
    moves = {}
    for name, weight in weights.items():
        values = [v for v in results.values(name).values() if v is not None][:pairs]
        ended = [v for v in values if not math.isnan(v)]
        means = [mean for _, mean in tuned[name].means if mean is not None]
        if not means:
            return "every trial of tuning diverged"
        if len(ended) < 2:
            return "too few runs of a variant have a number to tell how noisy its tuning was"
        error = float(stats.tstd(ended)) / math.sqrt(study.tune.seeds)
        lost = 1 - (len(ended) / len(values)) ** study.tune.seeds  # the probability that a trial with as many runs diverges
        moves[name] = abs(weight) * tuning_spread(means, error, higher=study.better == "higher", lost=lost)
    return moves


HEADERS = ("contrast", "seeds", "examples", "tuning", "interval with all of these", "still shown")


def noise_table(results: Results) -> Table:
    """Return a row for each contrast, or no rows if seeds are the only known source of noise."""
    family = results.family
    margins = [c.min_effect if c.verdict == "equivalent" and c.min_share is None else None for c in family]
    return table_of(noises(results), [c.verdict in ("better", "worse") for c in family], margins)


def table_of(found: Sequence[Noise], shown: Sequence[bool], margins: Sequence[float | None]) -> Table:
    """Return a row for each contrast, or no rows if seeds are the only known source of noise.

    Args:
        found: The noise of each contrast.
        shown: Whether each contrast is shown to differ from 0.
        margins: The smallest difference that matters, if the contrast is shown to be smaller, else None.
    """
    rows = []
    for one, decided, margin in zip(found, shown, margins, strict=True):
        low, high = one.interval or (0.0, 0.0)
        holds = low > 0 or high < 0 if margin is None else max(-low, high) < margin
        still = "-" if one.interval is None or not (decided or margin) else "yes" if holds else "no"
        errors = (or_dash(error, "{:.2g}") for error in (one.seeds, one.examples, one.tuning))
        rows.append((decided and holds, (one.contrast, *errors, interval_text(*(one.interval or ())).strip() or "-", still)))
    return Table(HEADERS, rows if any(one.interval for one in found) else [], (0, 5))


def saved_by_pairing(results: Results) -> float | None:
    r"""Return the share of the contrasts' variance that pairing by seed removes; negative if pairing adds variance, None if unknown.

    Equation:
        $$1 - \frac{\sum_c \mathrm{var}(d_c)}{\sum_c \sum_v w_{cv}^2 \mathrm{var}(x_v)}$$
        where w are the weights of the variants v in contrast c, and d are its values by seed, all from the same runs
    """
    paired = apart = 0.0
    for c in results.family:
        weights = results.contrasts[c.variant].weights
        values = [results.values(name) for name in weights]
        rows = (numbers(one.get(seed) for one in values) for seed in results.study.seeds)
        known = [row for row in rows if len(row) == len(weights)][: c.pairs]
        if c.sd is None or len(known) < 2:
            continue
        paired += c.sd**2
        apart += sum(weight**2 * variance(of) for weight, of in zip(weights.values(), zip(*known, strict=True), strict=True))
    return 1 - paired / apart if apart else None


def noise_sentence(results: Results) -> str:
    """Return the part of the methods that says which noise the intervals of a report account for."""
    found = noises(results)
    reasons = list(dict.fromkeys(reason for one in found for reason in one.missing))
    text = "Intervals and verdicts account for training seeds"
    text += ", each with its own test examples" if OWN in reasons else ", given these test examples"
    if results.plan.tuned:
        text += f"{', given' if OWN in reasons else ' and'} these outcomes of tuning"
    text += "."
    if any(one.interval for one in found) and results.study.quantile is not None:
        text += " A table has the standard errors due to test examples, estimated by redrawing the examples, the same ones for all runs"
        if results.plan.tuned:
            text += ", and how far a repeated choice among the trials of tuning would move a difference, where it moves all runs alike"
        text += "; its intervals add these errors to those of seeds, at the same levels (Zou and Donner 2008)."
        return text + (f" Where a source is missing: {'; '.join(reasons)}." if reasons else "")
    if any(one.interval for one in found):
        text += (
            " A table has the standard errors due to other sources: test examples, paired between variants, so that failures on the same "
            "ones cancel (Miller 2024)"
        )
        if any(one.is_unaligned for one in found):
            text += f", and counted as if all seeds erred on the same ones, which is the most they can add: {UNALIGNED}"
        text += ", and how far a repeated choice among the trials of tuning would move a difference" if results.plan.tuned else ""
        text += "; its intervals include all known sources, at the same levels (Banerjee 1960)."
        return text + (f" Unknown sources are shown as -: {'; '.join(reasons)}." if reasons else "")
    return text + (f" No other source is known: {'; '.join(reasons)}." if reasons else "")
