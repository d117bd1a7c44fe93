"""The statistics of studies, for arrays and mappings from any source; no study is needed.

Example:
    >>> from attnkit.ablation.statistics import compare, interquartile_mean, judge
    >>> [c] = judge([compare("a", {0: 1.0, 1: 1.2, 2: 0.9}, reference="b", reference_runs={0: 1.5, 1: 1.6, 2: 1.5})])
    >>> c.verdict, interquartile_mean([[0.1, 0.4], [0.5, 9.0]])
    ('better', 0.45)
"""

from attnkit.ablation.statistics.aggregate import interquartile_mean, performance_profile, profile_band, stratified_interval
from attnkit.ablation.statistics.comparison import Comparison, Runs, Verdict, compare, contrast
from attnkit.ablation.statistics.exact import divergence_p, sign_flip_p, signed_rank_p
from attnkit.ablation.statistics.power import detectable, power, seeds_needed, seeds_range
from attnkit.ablation.statistics.quantiles import (
    Better,
    badness,
    fewest_seeds,
    quantile_examples_error,
    quantile_interval,
    quantile_p,
    reached,
    with_error,
)
from attnkit.ablation.statistics.ratio import quantile_ratio_interval, ratio_interval, share_of, spread_beside
from attnkit.ablation.statistics.sources import examples_error, examples_parts, joint_half, parts_error, tuning_spread
from attnkit.ablation.statistics.tasks import Effect, mean_of_seeds, mean_of_tasks, mean_over_tasks, seed_slopes, slope
from attnkit.ablation.statistics.verdicts import judge

__all__ = [
    "Better", "Comparison", "Effect", "Runs", "Verdict", "badness", "compare", "contrast", "detectable", "divergence_p", "examples_error",
    "examples_parts", "fewest_seeds", "interquartile_mean", "joint_half", "judge", "mean_of_seeds", "mean_of_tasks", "mean_over_tasks",
    "parts_error", "performance_profile", "profile_band", "power", "quantile_examples_error", "quantile_interval", "quantile_p",
    "quantile_ratio_interval", "ratio_interval", "reached", "seed_slopes", "seeds_needed", "seeds_range", "share_of", "sign_flip_p",
    "signed_rank_p", "slope", "spread_beside", "stratified_interval", "tuning_spread", "with_error",
]  # fmt: skip
