"""The arguments of `attnkit ablate`."""

import argparse
from collections.abc import Mapping

from attnkit.cli.suggesting import SuggestingParser
from attnkit.worker.launch import ENGINES

SUMMARIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "plan": ("show the plan: variants, sizes, exclusions, the smallest detectable difference", ()),
    "run": ("train the unfinished runs, and report", ()),
    "status": ("show the state of every run", ()),
    "logs": ("show the output of a run", ("what",)),
    "retry": ("retry the failed runs", ()),
    "seeds": ("add seeds to a study that has results", ()),
    "report": ("write the report from stored results", ()),
    "watch": ("serve a page with the progress of a study that is running, for a browser on this machine", ()),
    "compare": ("compare any two variants", ("a", "b")),
    "diff": ("show the differences between the complete recipes of two variants", ("a", "b")),
    "reproduce": ("repeat one run and compare the results", ("what",)),
}
"""The summary of each action, and its arguments besides the study."""

FROM_PACKED = ("report", "compare", "diff", "reproduce")  # the actions that need only the answers, which a report includes

_MEANINGS = {"what": "the key of a run (or a prefix of it), or VARIANT:SEED", "a": "a variant", "b": "another variant"}


def parser() -> argparse.ArgumentParser:
    """Return the parser of `attnkit ablate`."""
    top = SuggestingParser(prog="attnkit ablate", description="ablation studies: from one file to verdicts", allow_abbrev=False)
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (summary, names) in SUMMARIES.items():
        sub = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        packed = ", or the file runs.jsonl.gz of a report (runs.jsonl.gz:CELL: one of its cells)" if name in FROM_PACKED else ""
        sub.add_argument("study", help=f"a study file, or the short name of one that comes with attnkit{packed}")
        for argument in names:
            sub.add_argument(argument, metavar=argument.upper(), help=_MEANINGS[argument])
        sub.add_argument("--folder", default="runs/ablations", help="the folder of the results (default: runs/ablations)")
        if name == "seeds":
            sub.add_argument("--add", type=int, required=True, metavar="N", help="the number of seeds to add; finished runs are kept")
            help_spend = "the level at which undecided contrasts are compared again, in addition to the study's alpha"
            sub.add_argument("--spend", type=float, required=True, metavar="ALPHA", help=help_spend)
        if name == "report":
            sub.add_argument("--columns", metavar="A,B", help="the columns of report.tex (default: those that fit on a page)")
        if name == "watch":
            sub.add_argument("--port", type=int, default=8642, help="the port (default: 8642); 0: any free port")
        if name == "plan":
            sub.add_argument("--no-probe", dest="probe", action="store_false", help="do not train a few steps to estimate the time of runs")
        if name in ("plan", "run", "retry"):
            jobs = "concurrent runs (default: 1, or one for each GPU; with slurm and ray as many as fit)"
            sub.add_argument("--jobs", type=int, metavar="N", help=jobs)
        if name in ("run", "retry"):
            sub.add_argument("--engine", help=f"{', '.join(ENGINES)}, or with arguments as in '{{name: slurm, partition: gpu}}'")
            sub.add_argument(
                "--gpus",
                metavar="0,1",
                help="give each run one of these GPUs; with more jobs than GPUs, runs share them as far as memory permits",
            )
            sub.add_argument("--accept-code", metavar="REASON", help="count stale runs, and print the reason in the report")
            sub.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    return top
