"""The machine time of studies: of their runs and of the trials by which they were tuned."""

from collections.abc import Sequence

from attnkit.ablation.measurements import Measurements
from attnkit.ablation.progress import clock
from attnkit.wording import counted
from attnkit.worker.folder import FINAL


def machine_time(*studies: Measurements) -> str:
    """Return the machine time of the runs that have ended, in words, and that of tuning."""
    text = _time(studies, "run")
    tuned = [one for one in studies if one.study.tune is not None]
    trials = [one.trials for one in tuned if one.trials is not None]
    if trials:
        text += f"; {_time(trials, 'tuning trial')}"
    if len(trials) < len(tuned):
        which = "" if not trials else f" of {counted(len(tuned) - len(trials), 'cell')}"
        text += f", excluding tuning{which}, whose time is not known"
    return text


def _time(studies: Sequence[Measurements], noun: str) -> str:
    ended = [(one, run.key) for one in studies for run in one.runs if one.status[run.key]["status"] in FINAL]
    training = sum(one.cost(key, "seconds") or 0.0 for one, key in ended)
    known = [seconds for one, key in ended if (seconds := one.status[key].get("wall_seconds")) is not None]
    of = "processor time" if {name for one in studies for name in one.clocks()} == {"processor"} else "wall-clock time"
    text = f"{counted(len(ended), noun)}, {clock(training)} of {of} for training, {clock(sum(known))} of wall-clock time in all"
    lost = len(ended) - len(known)
    return text + (f" (without {counted(lost, noun)} whose time was not recorded)" if lost else "")
