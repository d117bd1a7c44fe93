"""`attnkit ablate`: plan, run, inspect and report a study."""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from attnkit.ablation import Study
from attnkit.ablation.answers import Answers, answer_in, answers_of, is_packed, unpacked, whole_in
from attnkit.ablation.cells import cells, check_apart, lock_cells
from attnkit.ablation.design import differences
from attnkit.ablation.engine import explaining_full_disk, retry, run_plan
from attnkit.ablation.estimate import estimate
from attnkit.ablation.plan import Plan, Run, stored_plan
from attnkit.ablation.progress import Progress, shown
from attnkit.ablation.question import add_seeds, with_added_seeds
from attnkit.ablation.spec import is_possible_outcome
from attnkit.ablation.validity import accept, edited_lines, state_of
from attnkit.cli.ablate_options import FROM_PACKED, parser
from attnkit.recipe import read_yaml
from attnkit.registry import ConfigurationError, nearest
from attnkit.worker.folder import result_of, status_of, write_json
from attnkit.worker.job import RUN, Job
from attnkit.worker.launch import read_engine
from attnkit.worker.provenance import changes, processor

Options = argparse.Namespace
EXTRA = ("jinja2", "matplotlib", "pandas", "scipy")  # packages of the extra `ablate`, for statistics and reports


def plan(options: Options) -> None:
    """Print the plan. Trains nothing except a few steps to estimate times."""
    from attnkit.ablation.outline import outline

    planned = _plan(options)
    times = estimate(
        planned, probe=options.probe and planned.study.engine["name"] == "local", say=partial(print, file=sys.stderr, flush=True)
    )
    print("\n".join(outline(planned, times, jobs=options.jobs or 1)))
    try:
        planned.refuse_other()
    except ConfigurationError as error:
        print(f"note: attnkit ablate run refuses it: {error}")


def run(options: Options) -> int:
    """Train the unfinished runs, then print the verdicts."""
    if options.gpus and not re.fullmatch(r"\d+(,\d+)*", options.gpus):
        raise ConfigurationError(f"--gpus takes the numbers of GPUs, as in 0,1; not {options.gpus!r}")
    gpus = [int(g) for g in options.gpus.split(",")] if options.gpus else []
    engine = read_engine(read_yaml(options.engine, where="--engine")) if options.engine else None
    planned = _accepting(options)
    progress = Progress()
    try:
        with shown(progress) as say:
            planned = run_plan(
                planned, jobs=options.jobs, fail_fast=options.fail_fast, gpus=gpus, engine=engine, say=say, progress=progress
            )
    except KeyboardInterrupt:
        print("attnkit: stopped; the same command continues the unfinished runs", file=sys.stderr)
        raise
    return _report(planned, answers_of(planned))


def status(options: Options) -> None:
    """Print the state of every run."""
    planned = _plan(options)
    for planned_run in planned.all_runs:
        state = state_of(planned, planned_run)
        message = f"  {state['kind']}: {state['message']}" if "message" in state else ""
        print(f"{state['status']:<12} {planned_run.key}  {', '.join(planned_run.variants)}  seed {planned_run.seed}{message}")


def logs(options: Options) -> None:
    """Print the output of a run."""
    planned = _plan(options)
    folder = planned.run_folder(_find(planned, options.what).key)
    for name in ("stdout.txt", "stderr.txt"):
        if (folder / name).exists():
            print(f"== {folder / name}\n{(folder / name).read_text(encoding='utf-8', errors='replace')}")


def retry_failed(options: Options) -> int:
    """Retry the failed runs."""
    print(f"retrying {retry(_plan(options))} failed runs")
    return run(options)


def seeds(options: Options) -> None:
    """Add seeds to a study that has results."""
    study = add_seeds(_one_cell(options), Path(options.folder), options.add, spend=options.spend)
    print(f"{study.name} has {len(study.seeds)} seeds now: {', '.join(map(str, study.seeds))}. attnkit ablate run trains the new ones.")
    print(f"Verdicts are kept; undecided contrasts are compared again at the level {options.spend:g}, beyond alpha={study.alpha:g}.")


def report(options: Options) -> int:
    """Write the report from stored results."""
    planned, answers = _answered(options)
    _say_edited(options, planned)
    return _report(planned, answers, columns=options.columns.split(",") if options.columns else ())


def watch(options: Options) -> None:
    """Serve the live page until Ctrl-C."""
    from attnkit.ablation.live import live_page
    from attnkit.ablation.watch import Server

    study = _one_cell(options)
    _watched(options)

    def page() -> str:
        planned = _watched(options)
        return live_page(planned, more=planned.study.name != study.name)  # results come after the tuning trials

    with Server({"/": page}, options.port) as server, suppress(KeyboardInterrupt):
        print(f"{server.url} shows {options.study} as it runs; Ctrl-C ends this page, not the study", flush=True)
        server.serve_forever()


def compare(options: Options) -> None:
    """Print the comparison of any two variants: one test, outside the declared family."""
    from attnkit.ablation.results import Results, sentence

    planned, answers = _answered(options)
    if options.a == options.b:
        raise ConfigurationError(f"both variants are {options.a!r}: name two different ones")
    _say_edited(options, planned)
    results, (a, b) = Results(planned, answers), (_variant(planned, name) for name in (options.a, options.b))
    print(sentence(results.compared(a, b), planned.study))
    if declared := [c.name for c in results.contrasts.values() if c.compares(a, b)]:
        print(f"This is one test by itself; the verdict of the study is that on {declared[0]!r} in its report, as one of its family.")
    else:
        print("This comparison is not in the study's family, and not corrected for having been chosen afterwards.")


def diff(options: Options) -> None:
    """Print the differences between the complete recipes of two variants."""
    planned, _ = _answered(options)
    _say_edited(options, planned)
    recipes = [planned.inspections[_variant(planned, name)].recipe or {} for name in (options.a, options.b)]
    for key, values in differences(*recipes).items():
        a, b = ("absent" if v is ... else json.dumps(v) for v in values)
        print(f"{key}: {a} | {b}")


def reproduce(options: Options) -> int:
    """Repeat one run from scratch, and compare the result with the stored one, if any."""
    planned, answers = _answered(options)
    trials, tried = answers.trials or (planned.trials, None)
    chosen = _find(replace(planned, trials=trials), options.what)
    again = (planned.folder / "reproduced" / chosen.key).absolute()
    shutil.rmtree(again, ignore_errors=True)
    write_json(again / "job.json", chosen.job)
    job = Job(folder=again, directory=Path.cwd(), worker=RUN, timeout=planned.study.timeout, threads=planned.study.threads)
    code, known = job.carry_out(), {**answers.runs, **(tried.runs if tried else {})}
    new, old = result_of(again), known.get(chosen.key) or answer_in(planned.run_folder(chosen.key))
    stored_failure = f"{old.status['kind']}: {old.status['message']}" if old.status["status"] == "failed" else ""
    if code:
        ended = status_of(again)
        message = ended.get("message", f"exit status {code}")
        if stored_failure and is_possible_outcome(ended) and all(ended[key] == old.status.get(key) for key in ("kind", "in_training")):
            print(f"The run failed in training, as the stored one did: {stored_failure} | {message}")
            return 0
        raise ConfigurationError(f"the run failed: {message}. See {again / 'stderr.txt'}")
    if stored_failure:
        print(f"The stored run failed ({stored_failure}), but this one did not.")
        return 1
    if not old.result:
        print(*(f"{name}: {value}" for name, value in new["metrics"].items()), sep="\n")
        print(f"There is no result of this run in {planned.folder} to compare with.")
        return 0
    stored = old.result
    for line in changes(old.provenance, current=processor(planned.study.threads)):
        print(f"differs from the stored run: {line}")
    print(f"batches: {'the same' if new['batch_hash'] == stored.get('batch_hash') else 'different'}")
    for name, value in stored["metrics"].items():
        print(f"{name}: {value} | {new['metrics'].get(name)}{'' if new['metrics'].get(name) == value else '  differs'}")
    return 0 if new["metrics"] == stored["metrics"] else 1


ACTIONS: Mapping[str, Callable[[Options], int | None]] = {
    "plan": plan,
    "run": run,
    "status": status,
    "logs": logs,
    "retry": retry_failed,
    "seeds": seeds,
    "report": report,
    "watch": watch,
    "compare": compare,
    "diff": diff,
    "reproduce": reproduce,
}

EACH = ("plan", "run", "status", "retry", "report")
"""The actions that a study with several tasks or sizes carries out for each cell; the others are about one, `STUDY.yaml:CELL`."""
REPORTED = ("run", "retry", "report")  # the actions that write a report


def ablate(arguments: list[str]) -> int:
    """Run `attnkit ablate ...`; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        with explaining_full_disk(options.folder):
            return _carry_out(options)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in EXTRA:
            raise
        raise ConfigurationError(f"attnkit ablate needs the package {error.name!r}: pip install 'attnkit[ablate]'") from error


def _carry_out(options: Options) -> int:
    """Carry out the action, for each cell if the study has several; then report on all cells together."""
    whole = whole_in(options.study) if is_packed(options.study) else Study.from_yaml(options.study)
    if whole is None or not (whole.tasks or whole.scales) or options.action not in EACH:
        return ACTIONS[options.action](options) or 0
    if isinstance(whole, Study):
        if options.action not in FROM_PACKED:
            check_apart({cell.name: cell.study.plan(options.folder).compositions.values() for cell in whole.cells()})
        lock_cells(whole, Path(options.folder), begins=options.action in ("run", "retry"))
    status = 0
    parts = [(cell, argparse.Namespace(**{**vars(options), "study": f"{options.study}:{cell.name}"})) for cell in cells(whole)]
    for cell, part in parts:
        print(f"== {cell.name}")
        status = max(status, ACTIONS[options.action](part) or 0)
    if options.action in REPORTED:
        from attnkit.ablation.across import Across
        from attnkit.ablation.across_report import write_across
        from attnkit.ablation.results import Results

        results = [(cell, Results(*_answered(part))) for cell, part in parts]
        print(f"Report: {write_across(Across(whole, results), Path(options.folder))}")
    return status


def _one_cell(options: Options) -> Study:
    """Return the study, or the chosen cell of it; raise if a cell must be chosen."""
    study = Study.from_yaml(options.study)
    if study.tasks or study.scales:
        study.plan(options.folder)  # raises an error that names the cells
    return study


def _plan(options: Options) -> Plan:
    return Study.from_yaml(options.study).plan(options.folder)


def _accepting(options: Options) -> Plan:
    """Return the plan, after accepting its stale runs if `--accept-code` is given."""
    planned = _plan(options)
    if options.accept_code is None:
        return planned
    planned.refuse_other()  # a refused command must not accept anything
    count = accept(planned.trials, options.accept_code) if planned.trials is not None else 0
    planned = _plan(options) if count else planned  # with the values that tuning chose
    print(f"accepted: {count + accept(planned, options.accept_code)} stale runs")
    return planned


def _answered(options: Options) -> tuple[Plan, Answers]:
    """Return the stored plan, whatever the code would plan now, and its answers; or those in a packed file."""
    folder = Path(options.folder)
    if is_packed(options.study):
        return unpacked(options.study, folder)
    study = Study.from_yaml(options.study)
    if (planned := stored_plan(with_added_seeds(study, folder), folder)) is None:
        planned = study.plan(folder)
        planned.refuse_other()
    return planned, answers_of(planned)


def _say_edited(options: Options, planned: Plan) -> None:
    """Say what was edited since the runs of a stored plan."""
    for line in () if is_packed(options.study) else edited_lines(planned, lambda: _plan(options)):
        print(line)


def _watched(options: Options) -> Plan:
    """Return the plan of the current runs: that of the trials until tuning is done."""
    folder = Path(options.folder)
    study = Study.from_yaml(options.study)
    if (planned := stored_plan(with_added_seeds(study, folder), folder)) is not None:
        return planned
    planned = study.plan(folder) if study.tune is not None else None
    if planned is None or planned.trials is None or stored_plan(planned.trials.study, folder) is None:
        raise ConfigurationError(f"{folder / study.name} has no results yet: start attnkit ablate run {options.study} first")
    return planned.trials


def _report(planned: Plan, answers: Answers, *, columns: Sequence[str] = ()) -> int:
    from attnkit.ablation.report import UNFINISHED, write_report
    from attnkit.ablation.results import Results
    from attnkit.ablation.tables import PRINTED

    results = Results(planned, answers)
    print("\n".join([*([] if results.complete else [UNFINISHED]), *results.sentences()]))
    print(f"Report: {write_report(results, columns=columns or PRINTED)}")
    return 0 if results.complete else 1


def _variant(planned: Plan, name: str) -> str:
    names = [v.name for v in planned.variants]
    if name not in names:
        raise ConfigurationError(f"no variant {name!r}.{nearest(name, names)} Variants: {'; '.join(names)}.")
    return name


def _find(planned: Plan, what: str) -> Run:
    variant, _, seed = what.rpartition(":")
    found = [r for r in planned.all_runs if r.key.startswith(what) or (variant in r.variants and str(r.seed) == seed)]
    if not found:
        near = nearest(what, [f"{v}:{r.seed}" for r in planned.all_runs for v in r.variants])
        raise ConfigurationError(f"{what!r} is not a run.{near} attnkit ablate status lists them")
    if len(found) > 1:
        raise ConfigurationError(f"{what!r} is a prefix of several keys; attnkit ablate status lists them")
    return found[0]
