"""Draw metrics of a run over time: `python docs/_tools/learning_curve.py RUN OUT [METRIC ...]` writes OUT.csv and OUT.svg.

The metrics are logged names on a common scale, such as `val/accuracy` (default: the error rates of pronunciation).
"""

import csv
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run, out = Path(sys.argv[1]), Path(sys.argv[2])
metrics = sys.argv[3:] or ["val/sequence_error_rate", "val/token_error_rate"]
events = EventAccumulator(str(run))
events.Reload()
start = events.FirstEventTimestamp()
series = [events.Scalars(name) for name in metrics]
rows = [(p[0].step, (p[0].wall_time - start) / 60, *(point.value for point in p)) for p in zip(*series, strict=True)]  # per validation

with out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("step", "minutes", *metrics))
    writer.writerows((step, *(f"{v:.4f}" for v in values)) for step, *values in rows)

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
styles = (("o-", "#0072B2"), ("s--", "#D55E00"), ("^:", "#009E73"))
for i, (name, (line, colour)) in enumerate(zip(metrics, styles, strict=False)):
    axes.plot([row[1] for row in rows], [row[2 + i] for row in rows], line, color=colour, label=name)
axes.set(xlabel="minutes of training")
axes.grid(alpha=0.3)
axes.legend(frameon=False)
plt.rcParams["svg.hashsalt"] = "attnkit"  # makes the file reproducible
figure.savefig(out.with_suffix(".svg"), metadata={"Date": None})
