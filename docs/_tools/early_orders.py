"""How well an early validation predicts the verdicts of the studies that come with attnkit: `python docs/_tools/early_orders.py`.

For each difference between two variants that a study shows, the validation metric, averaged over the seeds, is compared near a fifth of the
training, near half of it and at its end. The table gives the number of differences whose sign is that of the verdict, of those with a
validation there.
"""

from statistics import mean

from verdicts import OUT, results  # in this folder

SHARES = (0.2, 0.5, 1.0)
NEAR = 0.2  # the largest distance from a share, so that a study with one validation, at its end, says nothing about earlier ones


def agreements(study: str) -> list[tuple[int, int]]:
    """Return, for each of `SHARES`, how many shown differences have the verdict's sign, and for how many the sign is known."""
    found, counts = results(study), [[0, 0] for _ in SHARES]
    metric = found.study.metric.replace("test/", "val/")
    for c in found.comparisons:
        weights = found.contrasts[c.variant].weights
        curves = {v: [r.get("curve", []) for run in found.runs if v in run.variants for r in [found.result[run.key]]] for v in weights}
        if c.verdict not in ("better", "worse") or c.mean is None:
            continue
        for i, share in enumerate(SHARES):
            values = {v: [_at(curve, metric, share) for curve in of] for v, of in curves.items()}
            if all(of and None not in of for of in values.values()):
                difference = sum(w * mean(one for one in values[v] if one is not None) for v, w in weights.items())
                counts[i][0] += (difference > 0) == (c.mean > 0)
                counts[i][1] += 1
    return [(same, known) for same, known in counts]


def _at(curve: list[dict[str, float]], metric: str, share: float) -> float | None:
    """Return the metric of the validation nearest to a share of the training, or None if it was not measured near it."""
    if not curve:
        return None
    end = curve[-1]["step"]
    nearest = min(curve, key=lambda point: abs(point["step"] - share * end))
    return nearest.get(metric) if abs(nearest["step"] / end - share) < NEAR else None


def main() -> None:
    """Print a table with a row for each study, and their sum."""
    print("| study | " + " | ".join(f"at {share:g}" for share in SHARES) + " |\n|---|---|---|---|")
    counts = {path.stem: agreements(path.stem) for path in sorted(OUT.glob("*.md"))}
    counts = {name: found for name, found in counts.items() if found[-1][1]}
    counts["all"] = [
        (sum(found[i][0] for found in counts.values()), sum(found[i][1] for found in counts.values())) for i in range(len(SHARES))
    ]
    for name, found in counts.items():
        print(f"| {name} | " + " | ".join(f"{same} of {known}" for same, known in found) + " |")


if __name__ == "__main__":
    main()
