"""Draw the error rates of a run over time: `python docs/_tools/learning_curve.py RUN OUT` writes OUT.csv and OUT.svg."""

import csv
import sys
from pathlib import Path

import matplotlib.pyplot as plt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run, out = Path(sys.argv[1]), Path(sys.argv[2])
events = EventAccumulator(str(run))
events.Reload()
start = events.FirstEventTimestamp()
columns = ("val/sequence_error_rate", "val/token_error_rate", "val/loss")
series = [events.Scalars(name) for name in columns]
rows = [
    (points[0].step, (points[0].wall_time - start) / 60, *(p.value for p in points)) for points in zip(*series, strict=True)
]  # one row for each validation

with out.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(("step", "minutes", *columns))
    writer.writerows((step, *(f"{v:.4f}" for v in values)) for step, *values in rows)

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
minutes = [row[1] for row in rows]
axes.plot(minutes, [100 * row[2] for row in rows], "o-", color="#0072B2", label="words wrong (WER)")
axes.plot(minutes, [100 * row[3] for row in rows], "s--", color="#D55E00", label="phonemes wrong (PER)")
axes.set(xlabel="minutes of training", ylabel="% of the validation sample", ylim=(0, None))
axes.grid(alpha=0.3)
axes.legend(frameon=False)
plt.rcParams["svg.hashsalt"] = "attnkit"  # the same run gives the same file
figure.savefig(out.with_suffix(".svg"), metadata={"Date": None})
