"""`attnkit ablate`: plan, run, inspect and report a study."""

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from attnkit.ablation import Study
from attnkit.ablation.answers import Answers, answer_in, answers_of, is_packed, unpacked
from attnkit.ablation.engine import edges, retry, told_when_full
from attnkit.ablation.estimate import Estimate, Timing, estimate
from attnkit.ablation.plan import Plan, Run, add_seeds, stored_plan, with_added_seeds
from attnkit.ablation.planning import differences
from attnkit.ablation.progress import Progress, clock, shown
from attnkit.ablation.tuning import written
from attnkit.ablation.validity import accept, stale_lines, state_of
from attnkit.recipe import read_yaml
from attnkit.registry import ConfigurationError, nearest
from attnkit.worker.folder import result_of, status_of, write_json
from attnkit.worker.job import RUN, Job
from attnkit.worker.launch import ENGINES, read_engine
from attnkit.worker.provenance import changes, processor

Options = argparse.Namespace
EXTRA = ("jinja2", "matplotlib", "pandas", "scipy")
"""The packages of the extra `ablate`, which statistics and reports need."""


def plan(options: Options) -> int:
    """Print the plan. Only the probe trains a few steps."""
    planned = _plan(options)
    study = planned.study
    times = estimate(planned, probe=options.probe and study.engine["name"] == "local", say=_aside)
    print(f"{study.name}: {len(planned.variants)} variants x {len(study.seeds)} seeds = {len(planned.runs)} runs of {study.recipe}")
    baseline = planned.inspections[planned.variants[0].name].parameters or 0
    for variant in planned.variants:
        inspection = planned.inspections[variant.name]
        size = inspection.parameters
        gap = f" ({size / baseline - 1:+.1%})" if baseline and size and size != baseline else ""
        adjusted = f", {study.match.adjust} = {inspection.adjusted}" if study.match and inspection.adjusted is not None else ""
        flops = f", {inspection.flops:,} FLOPs" if inspection.flops is not None else ""
        parameters = "parameters not known before the runs" if size is None else f"{size:,} parameters"
        print(f"  {variant.name}: {parameters}{gap}{flops}{adjusted}{_time(times.timings.get(variant.name))}")
        for effect in planned.side_effects[variant.name]:
            print(f"      also: {effect}")
    for variant, reason in planned.left_out:
        print(f"  left out: {variant.name}: {reason}")
    for limit in planned.limits:
        print(f"note: {limit}")
    if study.budget:
        print(_budget(planned))
    if planned.trials is not None and study.tune is not None:
        each = f"{len(study.tune.combinations)} values x {study.tune.seeds} seeds for each variant"
        print(f"First, {len(planned.trials.runs)} runs tune {study.tune}: {each}.")
        for name, found in planned.tuned.items():
            print(f"  {name}: {written(found.chosen)}")
        for line in edges(planned):
            print(line)
    for line in _power(planned):
        print(line)
    for line in [*stale_lines(planned), *_times(planned, times, jobs=options.jobs or 1)]:
        print(line)
    return 0


def run(options: Options) -> int:
    """Train the unfinished runs, then print the verdicts."""
    planned = _accepting(options)
    gpus = [int(g) for g in options.gpus.split(",")] if options.gpus else []
    engine = read_engine(read_yaml(options.engine, where="--engine")) if options.engine else None
    from attnkit.ablation.sequential import run_study

    progress = Progress()
    with shown(progress) as say:
        planned = run_study(planned, jobs=options.jobs, fail_fast=options.fail_fast, gpus=gpus, engine=engine, say=say, progress=progress)
    return _report(planned, answers_of(planned))


def status(options: Options) -> int:
    """Print the state of every run."""
    planned = _plan(options)
    for one in planned.all_runs:
        state = state_of(planned, one)
        message = f"  {state['kind']}: {state['message']}" if "message" in state else ""
        print(f"{state['status']:<12} {one.key}  {', '.join(one.variants)}  seed {one.seed}{message}")
    return 0


def logs(options: Options) -> int:
    """Print the output of a run."""
    planned = _plan(options)
    folder = planned.run_folder(_find(planned, options.what).key)
    for name in ("stdout.txt", "stderr.txt"):
        if (folder / name).exists():
            print(f"== {folder / name}\n{(folder / name).read_text(encoding='utf-8', errors='replace')}")
    return 0


def retry_failed(options: Options) -> int:
    """Retry the failed runs."""
    print(f"retrying {retry(_plan(options))} failed runs")
    return run(options)


def seeds(options: Options) -> int:
    """Add seeds to a study that has results."""
    study = add_seeds(Study.from_yaml(options.study), Path(options.folder), options.add, spend=options.spend)
    print(f"{study.name} has {len(study.seeds)} seeds now: {', '.join(map(str, study.seeds))}. attnkit ablate run trains the new ones.")
    print(f"Verdicts stay; what is open is compared again at the level {options.spend:g}, which is added to alpha, {study.alpha:g}.")
    return 0


def report(options: Options) -> int:
    """Write the report from stored results."""
    return _report(*_answered(options))


def compare(options: Options) -> int:
    """Print the comparison of any two variants: one test, outside the declared family."""
    from attnkit.ablation.results import Results, sentence

    planned, answers = _answered(options)
    [judged] = Results(planned, answers).compared([(_variant(planned, options.a), _variant(planned, options.b))])
    print(sentence(judged, planned.study))
    print("This comparison is not part of the study's family, and not corrected for having been chosen afterwards.")
    return 0


def diff(options: Options) -> int:
    """Print the differences between the complete recipes of two variants."""
    planned, _ = _answered(options)
    recipes = [planned.inspections[_variant(planned, name)].recipe or {} for name in (options.a, options.b)]
    for key, values in differences(*recipes).items():
        a, b = ("absent" if v is ... else json.dumps(v) for v in values)
        print(f"{key}: {a} | {b}")
    return 0


def reproduce(options: Options) -> int:
    """Repeat one run from scratch, and compare the result with the stored one, if any."""
    planned, answers = _answered(options)
    one = _find(planned, options.what)
    again = (planned.folder / "reproduced" / one.key).absolute()
    shutil.rmtree(again, ignore_errors=True)
    write_json(again / "job.json", one.job)
    job = Job(folder=again, directory=Path.cwd(), worker=RUN, timeout=planned.study.timeout, threads=planned.study.threads)
    if code := job.carry_out():
        message = status_of(again).get("message", f"exit status {code}")
        raise ConfigurationError(f"the run failed: {message}. See {again / 'stderr.txt'}")
    new, old = result_of(again), answers.runs.get(one.key) or answer_in(planned.run_folder(one.key))
    if not old.result:
        print(*(f"{name}: {value}" for name, value in new["metrics"].items()), sep="\n")
        print(f"There is no result of this run in {planned.folder} to compare with.")
        return 0
    stored = old.result
    for line in changes(old.provenance, here=processor(planned.study.threads)):
        print(f"other than recorded: {line}")
    print(f"batches: {'the same' if new['batch_hash'] == stored.get('batch_hash') else 'different'}")
    for name, value in stored["metrics"].items():
        print(f"{name}: {value} | {new['metrics'].get(name)}{'' if new['metrics'].get(name) == value else '  differs'}")
    return 0 if new["metrics"] == stored["metrics"] else 1


ACTIONS: Mapping[str, tuple[str, Callable[[Options], int], tuple[str, ...]]] = {
    "plan": ("show the plan: variants, sizes, exclusions, the smallest detectable difference", plan, ()),
    "run": ("train the unfinished runs, and report", run, ()),
    "status": ("show the state of every run", status, ()),
    "logs": ("show the output of a run", logs, ("what",)),
    "retry": ("retry the failed runs", retry_failed, ()),
    "seeds": ("add seeds to a study that has results", seeds, ()),
    "report": ("write the report from stored results", report, ()),
    "compare": ("compare any two variants", compare, ("a", "b")),
    "diff": ("show the differences between the complete recipes of two variants", diff, ("a", "b")),
    "reproduce": ("repeat one run and compare the results", reproduce, ("what",)),
}
FROM_PACKED = ("report", "compare", "diff", "reproduce")
"""The actions that need answers only, which a report comes with."""

_MEANINGS = {"what": "the key of a run (or a prefix of it), or VARIANT:SEED", "a": "a variant", "b": "another variant"}


def parser() -> argparse.ArgumentParser:
    """Return the parser of `attnkit ablate`."""
    top = argparse.ArgumentParser(prog="attnkit ablate", description="ablation studies: from one file to verdicts", allow_abbrev=False)
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (summary, action, names) in ACTIONS.items():
        sub = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        packed = ", or the file runs.jsonl.gz of a report" if name in FROM_PACKED else ""
        sub.add_argument("study", help=f"a study file, or the short name of one that comes with attnkit{packed}")
        for argument in names:
            sub.add_argument(argument, metavar=argument.upper(), help=_MEANINGS[argument])
        sub.add_argument("--folder", default="runs/ablations", help="the folder of the results (default: runs/ablations)")
        if name == "seeds":
            sub.add_argument("--add", type=int, required=True, metavar="N", help="the number of seeds to add; finished runs are kept")
            help_spend = "the level at which what is open is compared again; it is added to the study's alpha"
            sub.add_argument("--spend", type=float, required=True, metavar="ALPHA", help=help_spend)
        if name == "plan":
            sub.add_argument("--no-probe", dest="probe", action="store_false", help="do not train a few steps to estimate the time of runs")
        if name in ("plan", "run", "retry"):
            sub.add_argument("--jobs", type=int, metavar="N", help="concurrent runs (default: 1; with slurm and ray as many as fit)")
        if name in ("run", "retry"):
            sub.add_argument("--engine", help=f"{', '.join(ENGINES)}, or with arguments as in '{{name: slurm, partition: gpu}}'")
            sub.add_argument("--gpus", metavar="0,1", help="assign these GPUs to the runs, one each")
            sub.add_argument("--accept-code", metavar="REASON", help="count stale runs, and print the reason in the report")
            sub.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
        sub.set_defaults(carry_out=action)
    return top


def ablate(arguments: list[str]) -> int:
    """Run `attnkit ablate ...`; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        with told_when_full(options.folder):
            return int(options.carry_out(options))
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in EXTRA:
            raise
        raise ConfigurationError(f"attnkit ablate needs the package {error.name!r}: pip install attnkit[ablate]") from error


def _plan(options: Options) -> Plan:
    return Study.from_yaml(options.study).plan(options.folder)


def _accepting(options: Options) -> Plan:
    """Return the plan, after accepting its stale runs if that is asked for."""
    planned = _plan(options)
    if options.accept_code is None:
        return planned
    count = accept(planned.trials, options.accept_code) if planned.trials is not None else 0
    planned = _plan(options) if count else planned  # with what the trials found
    print(f"accepted: {count + accept(planned, options.accept_code)} runs that are stale")
    return planned


def _answered(options: Options) -> tuple[Plan, Answers]:
    """Return the plan stored when the runs were started, whatever the code would plan now, and its answers; or those in a packed file."""
    folder = Path(options.folder)
    if is_packed(options.study):
        return unpacked(Path(options.study), folder)
    study = Study.from_yaml(options.study)
    planned = stored_plan(with_added_seeds(study, folder), folder) or study.plan(folder)
    return planned, answers_of(planned)


def _aside(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _time(timing: Timing | None) -> str:
    """Return the known costs of a variant, to append to its line."""
    if timing is None:
        return ""
    flops = f", {timing.flops_per_token:,} FLOPs/token" if timing.flops_per_token else ""
    return f"{flops}, about {clock(timing.seconds)} a run{f' (as {timing.like})' if timing.like else ''}"


def _times(planned: Plan, times: Estimate, *, jobs: int) -> list[str]:
    """Return the lines about the duration of the whole study."""
    lines = [f"note: {name} could not be timed: {reason}" for name, reason in times.failed.items()]
    todo = [r for r in planned.all_runs if state_of(planned, r)["status"] in ("pending", "interrupted", "damaged", "stale")]
    if not todo or times.mean is None:
        return lines
    known = {name: timing.seconds for name, timing in times.timings.items()}
    seconds = sum(known.get(r.variants[0], times.mean) for r in todo)
    basis = ", ".join(f"{count} from {what}" for what, count in Counter(timing.basis for timing in times.timings.values()).items())
    at_once = f"{jobs} at a time, if they fit on the machine" if jobs > 1 else "one after another (--jobs N: N at a time)"
    return [*lines, f"{len(todo)} runs to do: about {clock(seconds / min(jobs, len(todo)))}, {at_once}. Times by variant: {basis}."]


def _power(planned: Plan) -> list[str]:
    """Return what the seeds can show, and of looks, what they will cost."""
    from attnkit.ablation.contrasts import contrasts
    from attnkit.ablation.design import default_effects
    from attnkit.ablation.looks import forecast, looks
    from attnkit.ablation.statistics import detectable

    study = planned.study
    family = contrasts(planned.variants, study.factors, study.effects or default_effects(study.design, study.factors))
    count = max(1, len(family))
    if study.decide is None:
        smallest = detectable(len(study.seeds), alpha=study.alpha / count)
        return [
            f"With {len(study.seeds)} seeds and {count} contrasts, differences of at least {smallest:.2f} standard deviations (of "
            f"the paired differences) are detected with a power of 0.8."
        ]
    lines = [
        f"Looks at {', '.join(map(str, study.decide.at))} seeds, until each of {count} contrasts is decided. By simulation, a difference of"
    ]
    for f in forecast(looks(study, {}), count):
        each = f"{f.seeds:.1f} seeds, {f.seeds * len(planned.variants):.0f} runs if all are like it"
        lines.append(f"  {f.effect:g} standard deviations is shown with a probability of {f.decided:.2f}, after {each}")
    return lines


def _budget(planned: Plan) -> str:
    budget, recipe = planned.study.budget, planned.inspections[planned.variants[0].name].recipe
    assert budget is not None
    assert recipe is not None
    if budget.on == "steps":
        return f"Each run and its schedule have {budget.limit:,} steps."
    known = {key: value for key, value in (recipe.get("trainer") or {}).items() if key in ("max_epochs", "max_steps") and value}
    length = ", ".join(f"{key} {value}" for key, value in known.items()) or "Lightning's default"
    return (
        f"Each run ends at the first step at which it has used {budget.limit:,} {budget.on}. The number of steps is not known in advance: "
        f"the schedule has the length of the trainer section ({length}), and a run that needs more steps fails."
    )


def _report(planned: Plan, answers: Answers) -> int:
    from attnkit.ablation.report import write_report
    from attnkit.ablation.results import Results

    results = Results(planned, answers)
    print("\n".join(results.sentences()))
    print(f"Report: {write_report(results)}")
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
