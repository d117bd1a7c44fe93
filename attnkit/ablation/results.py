"""The results of a study: the sequence of its looks, and the verdicts on its family of contrasts."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from attnkit.ablation.contrasts import Contrast, declared, family
from attnkit.ablation.looks import chance, looks
from attnkit.ablation.measurements import COSTS, Measurements, lost, mean, numbers
from attnkit.ablation.plan import Run
from attnkit.ablation.question import Look
from attnkit.ablation.spec import OUTCOMES, StudySpec
from attnkit.ablation.statistics import Comparison, contrast, judge, reached
from attnkit.wording import counted
from attnkit.worker.folder import FINAL, FINISHED


@dataclass(frozen=True, kw_only=True)
class Step:
    """The decisions of a look."""

    look: Look
    compared: tuple[Comparison, ...]  # the contrasts that were open before the look
    given_up: tuple[str, ...]  # of these, the ones that the last look is unlikely to decide
    finished: bool  # whether all runs of the compared contrasts are ok or diverged


class Results(Measurements):
    """The results of a plan, finished or not, computed from its measurements; see `Measurements` for the arguments."""

    @property
    def complete(self) -> bool:
        """Whether every run is finished: ok or diverged. A failed run is not, because it can be repeated."""
        return all(self.status[run.key]["status"] in FINISHED for run in self.runs)

    @cached_property
    def runs(self) -> list[Run]:
        """The runs that verdicts need: all or, with `decide`, those of each look's open contrasts, and of the next look if any are open."""
        if self.study.decide is None:
            return list(self.plan.runs)
        seeds = dict.fromkeys((v.name for v in self.plan.variants), 0)
        due = [(step.look, [c.variant for c in step.compared]) for step in self.path]
        following = looks(self.study, self.answers.asked)[len(due) :]
        if following and self.path[-1].finished:
            due.append((following[0], self.open))
        for look, names in due:
            for name in (variant for one in names for variant in self.contrasts[one].weights):
                seeds[name] = max(seeds[name], look.seeds)
        keys = self.plan.key_by_variant
        chosen = {keys[name, seed] for name, count in seeds.items() for seed in self.study.seeds[:count]}
        return [run for run in self.plan.runs if run.key in chosen]

    @cached_property
    def contrasts(self) -> dict[str, Contrast]:
        """The declared contrasts of the study that form its family, by name."""
        return family(self.study, self.plan)

    @cached_property
    def void(self) -> list[Contrast]:
        """The declared contrasts whose sides have the same runs."""
        return [c for c in declared(self.study, self.plan) if c.name not in self.contrasts]

    @cached_property
    def path(self) -> list[Step]:
        """The decisions of each look, up to the one after which nothing is open, or whose runs are not all finished.

        A look compares the open contrasts over all its seeds, at its part of alpha. The verdict on a contrast is that of the last look that
        compared it: more seeds cannot revoke it.
        """
        plan, steps = looks(self.study, self.answers.asked), list[Step]()
        open_ = list(self.contrasts.values())
        for look in plan:
            seeds = self.study.seeds[: look.seeds]
            needed = [self.plan.key_by_variant[name, seed] for c in open_ for name in c.weights for seed in seeds]
            finished = all(self.status[key]["status"] in FINISHED for key in needed)
            if steps and not (open_ and finished):
                break
            judged = self._judged(open_, seeds, family=len(self.contrasts), spent=look.alpha)
            ended = {c.name: len(self._ended(c, seeds)) for c in open_}
            least = 1 - self.study.decide.power if self.study.decide else 0.0
            undecided = [c for c in judged if c.verdict == "inconclusive"]
            due = [c for c in undecided if look is not plan[-1] and ended[c.variant] == len(seeds)]
            given_up = [c.variant for c in due if chance(c, plan[-1], len(self.contrasts)) < least]
            steps.append(Step(look=look, compared=tuple(judged), given_up=tuple(given_up), finished=finished))
            open_ = [self.contrasts[c.variant] for c in undecided if c.variant not in given_up]
            if not finished:
                break
        return steps

    @property
    def open(self) -> list[str]:
        """The contrasts that the last look neither decided nor gave up."""
        return [
            c.variant for step in self.path[-1:] for c in step.compared if c.verdict == "inconclusive" and c.variant not in step.given_up
        ]

    @cached_property
    def family(self) -> list[Comparison]:
        """The declared family, each contrast with the verdict of the last look at it."""
        last = {c.variant: c for step in self.path for c in step.compared}
        given_up = {name for step in self.path for name in step.given_up}
        futile = "; given up, as the last look is unlikely to decide it"
        return [replace(c, reason=c.reason + futile) if c.variant in given_up else c for c in (last[name] for name in self.contrasts)]

    @property
    def comparisons(self) -> list[Comparison]:
        """The differences of the family."""
        return [c for c in self.family if c.kind == "difference"]

    @property
    def interactions(self) -> list[Comparison]:
        """The interactions of the family."""
        return [c for c in self.family if c.kind == "interaction"]

    @property
    def by_variant(self) -> dict[str, Comparison]:
        """The comparison of each variant with its reference, by name. A main effect may have a variant's name but is not included."""
        pairs = {v.name: {v.name: 1.0, v.reference: -1.0} for v in self.plan.variants}
        return {c.variant: c for c in self.comparisons if self.contrasts[c.variant].weights == pairs.get(c.variant)}

    def compared(self, variant: str, reference: str) -> Comparison:
        """Return the comparison of any two variants, as a family of its own, over the seeds with which the study needs both."""
        c = Contrast(name=variant, reference=reference, weights={variant: 1.0, reference: -1.0})
        keys, needed = self.plan.key_by_variant, {run.key for run in self.runs}
        seeds = [seed for seed in self.study.seeds if {keys[name, seed] for name in c.weights} <= needed]
        return self._judged([c], seeds or self.study.seeds)[0]

    def _judged(self, contrasts: Sequence[Contrast], seeds: Sequence[int], **level: Any) -> list[Comparison]:
        """Return the verdicts on contrasts over these seeds, each withheld until all its runs have ended; `level` as in `judge`."""
        found = judge([self._measured(c, seeds) for c in contrasts], better=self.study.better, alpha=self.study.alpha, **level)
        ended = [len(self._ended(c, seeds)) for c in contrasts]
        return [c if n == len(seeds) else _withheld(c, n, len(seeds)) for c, n in zip(found, ended, strict=True)]

    def _measured(self, c: Contrast, seeds: Sequence[int]) -> Comparison:
        """Return the comparison over the seeds whose runs have ended; if none have, over all, so that it says what is missing."""
        keys, study = self.plan.key_by_variant, self.study
        chosen = self._ended(c, seeds) or seeds
        cells = [(weight, {seed: self.value(keys[name, seed]) for seed in chosen}) for name, weight in c.weights.items()]
        baseline = self.plan.variants[0].name
        found = contrast(
            c.name,
            cells,
            reference=c.reference,
            better=study.better,
            min_effect=study.min_effect,
            resolution=self.resolution,
            quantile=study.quantile,
            relative_to=None if c.kind == "difference" else {seed: self.value(keys[baseline, seed]) for seed in chosen},
        )
        return replace(found, kind=c.kind)

    def _ended(self, c: Contrast, seeds: Sequence[int]) -> list[int]:
        keys = self.plan.key_by_variant
        return [seed for seed in seeds if all(self.status[keys[name, seed]]["status"] in FINAL for name in c.weights)]

    def _typical(self, values: Iterable[float | None]) -> float | None:
        """Return the mean of the runs that have a number, or the study's quantile of all runs; None if it is not a number."""
        known = [value for value in values if value is not None]
        if self.study.quantile is not None and known:
            found = reached(known, self.study.quantile, better=self.study.better)
            return None if math.isnan(found) else found
        return mean(numbers(known))

    def summary(self) -> pd.DataFrame:
        """Return the numbers of the main table, a row for each variant."""
        compared, same = self.by_variant, self.plan.same
        rows: list[dict[str, Any]] = []
        for variant in self.plan.variants:
            values = list(self.values(variant.name).values())
            known = numbers(values)
            c = compared.get(variant.name)
            low, high = c.interval if c and c.interval else (None, None)
            role = "the same" if variant.name in same else "reference" if variant.reference is None else "-"
            rows.append(
                {
                    "variant": variant.name,
                    "reference": variant.reference,
                    "mean": mean(known),
                    **({} if self.study.quantile is None else {"quantile": self._typical(values)}),
                    "difference": c.mean if c else None,
                    "interval_low": low,
                    "interval_high": high,
                    **(relative(c) if isinstance(self.study.min_effect, str) else {}),
                    "p": c.p if c else None,
                    "p_adjusted": c.p_adjusted if c else None,
                    "effect": c.effect if c else None,
                    "p_better": c.wins if c else None,
                    "verdict": c.verdict if c else role,
                    "parameters": self.parameters(variant.name),
                    **{name: self.mean_cost(variant.name, name) for name in COSTS},
                    "runs_ok": len(known),
                    "diverged": lost(values),
                    "runs": len(values),
                }
            )
        return pd.DataFrame(rows).astype(object).where(lambda frame: frame.notna(), None)

    def sentences(self) -> list[str]:
        """Return the verdicts in words."""
        same = [
            f"{self.study.side(c.name)} is the same composition as {c.reference}"
            if c.kind == "difference"
            else f"{c.name} has the same runs on both sides"
            for c in self.void
        ]
        keys, first = self.plan.key_by_variant, dict[frozenset[tuple[str, float]], str]()
        twins = {name: twin for name, twin in self.plan.twins.items() if name in self.by_variant}
        for name, c in self.contrasts.items():
            if (twin := first.setdefault(frozenset(c.by_run(keys, self.study.seeds[0]).items()), name)) != name:
                twins[name] = twin
        said = {name: f"; its runs are those of {twin}" for name, twin in twins.items()}
        failed = Counter(self.status[run.key].get("kind") for run in self.runs if self.status[run.key]["status"] == "diverged")
        outcomes = [
            f"{counted(failed[kind], 'run')} failed in training {how}, which counts as divergence, as declared"
            for kind, how in OUTCOMES.items()
            if failed[kind]
        ]
        return [*(f"{sentence(c, self.study)}{said.get(c.variant, '')}" for c in self.comparisons), *same, *outcomes]

    def _repr_html_(self) -> str:
        return str(self.frame().to_html())


def _withheld(c: Comparison, ended: int, seeds: int) -> Comparison:
    """Return a comparison without a verdict: one at a moment that nobody planned would have to be paid for."""
    return replace(c, verdict="inconclusive", reason=f"no verdict yet: {ended} of {counted(seeds, 'seed')} ended")


def relative(c: Comparison | None) -> dict[str, float | None]:
    """Return a difference as a fraction of the reference, with its interval."""
    low, high = c.relative if c and c.relative else (None, None)
    share = c.mean * c.min_share / c.min_effect if c and c.mean is not None and c.min_share and c.min_effect else None
    return {"relative": share, "relative_low": low, "relative_high": high}


def relative_text(row: Mapping[str, Any]) -> str:
    """Return a difference as a percentage of the reference, with its interval.

    Example:
        >>> relative_text({"relative": 0.0123, "relative_low": -0.001, "relative_high": 0.02})
        '+1.23% [-0.1%, 2%]'
        >>> relative_text({"relative": 0.5, "relative_low": None, "relative_high": None}), relative_text({"relative": None})
        ('+50% [-]', '-')
    """
    if row["relative"] is None:
        return "-"
    ends = (row["relative_low"], row["relative_high"])
    known = ", ".join(f"{100 * end:.3g}%" for end in ends if end is not None)
    return f"{100 * row['relative']:+.3g}% [{known or '-'}]"


def word(c: Comparison) -> str:
    """Return the verdict in words; for an interaction, neither sign counts as better."""
    return c.verdict if c.kind == "difference" else INTERACTION.get(c.verdict, c.verdict)


INTERACTION = {
    "better": "an interaction",
    "worse": "an interaction",
    "equivalent": "none that matters",
    "grows": "changes",
    "shrinks": "changes",
}
"""Verdicts in words for interactions, including those over tasks and sizes."""


def sentence(c: Comparison, study: StudySpec) -> str:
    """Return a verdict in words.

    Example:
        >>> from attnkit.ablation.design import Variant
        >>> from attnkit.ablation.statistics import judge, compare
        >>> [c] = judge([compare("a", {0: 1.0, 1: 1.2, 2: 0.9}, reference="b", reference_runs={0: 1.5, 1: 1.6, 2: 1.5})])
        >>> sentence(c, StudySpec(name="s", recipe="r", design="list", variants=(Variant(name="a"),)))
        'a is better than b: val/loss -0.5 (95% interval -0.748 to -0.252, adjusted p 0.013, 3 pairs)'
    """
    p = f"adjusted p {p_text(c.p_adjusted)}, " if c.p_adjusted is not None else ""
    interval = f"{100 * (1 - study.alpha):g}% interval {c.interval[0]:.3g} to {c.interval[1]:.3g}, " if c.interval else ""
    whole = "reference" if c.kind == "difference" else "baseline"
    interval += f"{relative_text(relative(c))} of the {whole}, " if c.relative is not None and c.mean is not None else ""
    number = f"{study.quantity} {c.mean:+.3g} " if c.mean is not None else ""
    words = {"better": "is better than", "worse": "is worse than", "equivalent": "is equivalent to", "inconclusive": "cannot be told from"}
    said = f" {words[c.verdict]} {c.reference}" if c.kind == "difference" else f", {word(c)}"
    text = f"{study.side(c.variant)}{said}: {number}({interval}{p}{c.pairs} pairs)"
    return text if c.verdict in ("better", "worse") and not any(c.diverged) else f"{text}; {c.reason}"


def p_text(p: float | None) -> str:
    """Return a p-value as text.

    Example:
        >>> p_text(0.01234), p_text(1e-6), p_text(None)
        ('0.012', '< 0.001', '')
    """
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
