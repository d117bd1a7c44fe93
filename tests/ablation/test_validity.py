"""A result is what it claims to be: a finished run counts only if it would be repeated unchanged, or is accepted with a reason."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from attnkit.ablation import Study
from attnkit.ablation.engine import run_plan
from attnkit.ablation.fairness import checklist
from attnkit.ablation.plan import Plan
from attnkit.ablation.report import markdown
from attnkit.ablation.results import Results
from attnkit.ablation.validity import accept, acceptances, edited_lines, stale_lines, state_of
from attnkit.cli.ablate import ablate
from attnkit.installed import PACKAGE
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import PROVENANCE, write_json
from attnkit.worker.provenance import MANY, mixtures, processor
from attnkit.worker.sources import digest
from tests.ablation.conftest import STUDY, made, study

Use = Callable[[str], None]
SAME = "all runs were made with the same code, packages, data and processor"


def make(**changes: object) -> Plan:
    return study(**{"seeds": 2, "factors": {"model.stack.position": ["none"]}} | changes).plan(Path("runs"))


def begun() -> int:
    return len(Path("ran.txt").read_text().split())


def finished() -> Plan:
    """Return the plan of four finished runs; those of the second variant have imported a plugin from a file."""
    run_plan(plan := make(), say=lambda line: None)
    Path("my_plugin.py").write_text("scale = 0.5\n")
    for run in plan.runs:
        code = {"my_plugin": digest("my_plugin.py")} if run.variants != ("baseline",) else {}
        write_json(plan.run_folder(run.key) / PROVENANCE, asdict(made(code=code, data={"words.tsv": digest("words.tsv")})))
    assert stale_lines(plan) == []
    return plan


def test_only_runs_of_an_edited_plugin_are_repeated(worker: Use) -> None:
    plan, said = finished(), list[str]()
    Path("my_plugin.py").write_text("scale = 5.0\n")
    [line] = stale_lines(plan)
    assert line.startswith("stale: 2 runs: my_plugin has changed (")
    assert Counter(state_of(plan, run)["status"] for run in plan.runs) == {"ok": 2, "stale": 2}
    run_plan(make(), say=said.append)
    assert said[:2] == [line, "2 of 4 runs are already finished"]
    assert begun() == 6
    assert len(list(Path("runs/replaced").glob("*/result.json"))) == 2  # earlier measurements are kept
    assert stale_lines(plan) == []


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda: Path("words.tsv").write_text("source\ttarget\na\tb\n"), "stale: 4 runs: words.tsv has changed ("),
        (lambda: Path("words.tsv").unlink(), "stale: 4 runs: words.tsv is gone"),
        (lambda: Path("my_plugin.py").unlink(), "stale: 2 runs: my_plugin is gone"),
    ],
)
def test_runs_of_other_data_are_stale(worker: Use, edit: Callable[[], object], line: str) -> None:
    plan = finished()
    edit()
    assert stale_lines(plan)[0].startswith(line)


def test_a_run_whose_data_change_during_it_is_repeated_once(worker: Use) -> None:
    worker("""
import hashlib
data = {"words.tsv": hashlib.sha256(pathlib.Path("words.tsv").read_bytes()).hexdigest()[:16]}
write("provenance.json", json.loads((folder / "provenance.json").read_text()) | {"data": data})
if open("ran.txt").read().split()[0] == folder.name:
    with open("words.tsv", "a") as file:
        file.write("a\\tb\\n")
""")
    said = list[str]()
    run_plan(plan := make(), say=said.append)
    assert begun() == 5
    assert sum(line.endswith("; running it again") and "words.tsv has changed (" in line for line in said) == 1
    assert len(list(Path("runs/replaced").glob("*/result.json"))) == 1
    [line] = stale_lines(plan)
    assert line.startswith("stale: 4 runs: words.tsv has changed ("), "the repetition changed it again"


def test_runs_of_another_processor_or_package_are_stale(worker: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, here = finished(), processor(1)
    changes = {
        "made on another processor: Z80 -> ": made(processor=replace(here, model="Z80")),
        "the processor has other instruction sets: avx9": made(processor=replace(here, instructions=(*here.instructions, "avx9"))),
        "threads 8 -> 1": made(processor=replace(here, threads=8)),
        "made on NVIDIA H200, which this machine lacks": made(processor=replace(here, device="NVIDIA H200")),
        "ONEDNN_MAX_CPU_ISA AVX2 -> unset": made(processor=replace(here, limits={**here.limits, "ONEDNN_MAX_CPU_ISA": "AVX2"})),
        "jinja2 0.1 -> ": made(packages={"jinja2": "0.1"}),
        "threads 4 -> 1": made(before=(made(processor=replace(here, threads=4)),)),  # a continued run
    }
    for line, provenance in changes.items():
        write_json(plan.run_folder(plan.runs[0].key) / PROVENANCE, asdict(provenance))
        assert stale_lines(plan)[0].startswith(f"stale: 1 run: {line}")
    (plan.run_folder(plan.runs[0].key) / PROVENANCE).unlink()
    assert stale_lines(plan) == ["stale: 1 run: its provenance was not recorded"]
    elsewhere = replace(plan, study=study(seeds=2, engine={"name": "slurm", "cluster": "local"}))
    write_json(plan.run_folder(plan.runs[0].key) / PROVENANCE, asdict(made(processor=replace(here, model="Z80"))))
    assert stale_lines(elsewhere) == []  # the processors of a cluster are not those of this machine


def test_accepted_runs_count_until_another_change_and_the_report_says_why(worker: Use) -> None:
    plan = finished()
    with pytest.raises(ConfigurationError, match="--accept-code needs a reason"):
        accept(plan, " ")
    Path("my_plugin.py").write_text("scale = 0.5  # a comment\n")
    assert accept(plan, "a comment only") == 2
    run_plan(make(), say=lambda line: None)
    assert begun() == 4
    text = markdown(Results(make())).replace("\\", "")
    assert "- [ ] 2 runs accepted although something had changed: a comment only" in text
    assert "2 runs accepted because: a comment only. Changes: my_plugin has changed" in text
    assert accept(plan, "again") == 0
    Path("my_plugin.py").write_text("scale = 5.0\n")
    assert Counter(state_of(plan, run)["status"] for run in plan.runs) == {"ok": 2, "stale": 2}


def test_a_report_says_what_was_edited_since_its_runs(worker: Use) -> None:
    run_plan(plan := make())
    sources = {"elsewhere/tiny.yaml": digest("tiny.yaml")}
    plan = replace(plan, inspections={name: replace(i, sources=sources) for name, i in plan.inspections.items()})
    assert edited_lines(plan, lambda: make(set={"model.deep": 2})) == [], "the recipe is the same"
    with Path("tiny.yaml").open("a") as file:
        file.write("# a comment\n")
    assert edited_lines(plan, make) == []
    [note, about] = edited_lines(plan, lambda: make(set={"model.deep": 2}))
    assert "note: the recipe tiny.yaml is not that of the runs: runs/s has results of another study: set, the complete recipes of" in note
    assert about == "note: this is about the runs as they were made"
    write_json(plan.run_folder(plan.runs[0].key) / PROVENANCE, asdict(made(data={"words.tsv": "0" * 16})))
    assert edited_lines(plan, make)[0].startswith("note: stale: 1 run: words.tsv has changed (000000 -> ")


@pytest.mark.parametrize("action", ["compare", "diff"])
def test_comparisons_too_say_that_runs_are_stale(worker: Use, capsys: pytest.CaptureFixture[str], action: str) -> None:
    finished()
    Path("my_plugin.py").write_text("scale = 5.0\n")
    content = {**STUDY, "name": "s", "seeds": 2, "factors": {"model.stack.position": ["none"]}}
    Path("s.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    assert ablate([action, "s.yaml", "position=none", "baseline", "--folder", "runs"]) == 0
    assert "note: stale: 2 runs: my_plugin has changed" in capsys.readouterr().out


def test_a_study_file_may_accept_stale_runs(worker: Use) -> None:
    plan, said = finished(), list[str]()
    Path("my_plugin.py").write_text("scale = 0.5  # a comment\n")
    run_plan(make(accept_code="it was a comment"), say=said.append)
    assert said[1] == "stale runs accepted: 2 (it was a comment)" or said[0] == "stale runs accepted: 2 (it was a comment)"
    assert begun() == 4
    assert [one.reason for one in acceptances(plan.study_folder)] == ["it was a comment"]


def test_a_refused_command_accepts_nothing(worker: Use) -> None:
    plan = finished()
    Path("my_plugin.py").write_text("scale = 5.0\n")
    content = {**STUDY, "name": "s", "seeds": 2, "factors": {"model.stack.position": ["none"]}, "alpha": 0.1}
    Path("s.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="alpha changed since"):
        ablate(["run", "s.yaml", "--accept-code", "a comment", "--folder", "runs"])
    Path("s.yaml").write_text(yaml.safe_dump({k: v for k, v in content.items() if k != "alpha"}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="engine"):
        ablate(["run", "s.yaml", "--accept-code", "a comment", "--folder", "runs", "--engine", "{name: slrum}"])
    with pytest.raises(ConfigurationError, match="--gpus assigns GPUs of this machine"):
        run_plan(make(accept_code="a comment"), gpus=[0], engine={"name": "slurm", "cluster": "local"})
    assert acceptances(plan.study_folder) == ()


def test_an_interrupted_run_does_not_resume_with_changed_code(worker: Use) -> None:
    plan = finished()
    for run in plan.runs:
        (plan.run_folder(run.key) / "status.json").unlink()
        (plan.run_folder(run.key) / "checkpoints").mkdir()
    Path("my_plugin.py").write_text("scale = 5.0\n")
    run_plan(plan, say=lambda line: None)
    left = {run.variants for run in plan.runs if (plan.run_folder(run.key) / "checkpoints").exists()}
    assert left == {("baseline",)}


def test_a_report_with_mixed_provenance_lists_it_and_leaves_the_box_unticked(worker: Use) -> None:
    plan, here = finished(), processor(1)
    assert (True, SAME) in checklist(Results(plan))
    mixtures = {
        "my_plugin: 1 with ": made(code={"my_plugin": "0" * 16}),
        "words.tsv: 3 with ": made(data={"words.tsv": "0" * 16}),
        f"3 on {here}; 1 on Z80, 1 thread": made(processor=replace(here, model="Z80", limits={})),
        "processors with 2 different instruction sets": made(processor=replace(here, instructions=())),
        "no recorded provenance of 1 run": None,
    }
    file = plan.run_folder(plan.runs[-1].key) / PROVENANCE
    for line, provenance in mixtures.items():
        file.unlink() if provenance is None else write_json(file, asdict(provenance))
        [(holds, text)] = [(holds, text) for holds, text in checklist(Results(plan)) if text.startswith(SAME)]
        assert not holds
        assert f"except {line}" in text


def test_a_report_names_only_a_few_of_many_differing_modules() -> None:
    for count in (MANY, MANY + 1):
        lines = mixtures(made(code={f"m{i}": version for i in range(count)}) for version in "aab")
        few = [f"m{i}: 2 with a, 1 with b" for i in range(count)]
        many = [f"{count} modules in several versions, among them m0, m1, m2; the record of each run has all"]
        assert lines == (few if count == MANY else many)


@pytest.mark.slow
def test_editing_attnkit_itself_repeats_its_runs(folder: Path) -> None:
    """A case that occurred: the scale of scaled_dot_product became head_dim**-5, and finished runs still counted."""
    factors = {"model.stack.attention": ["scaled_dot_product"]}
    Path("s.yaml").write_text(yaml.safe_dump(STUDY | {"seeds": 2, "factors": factors, "set": {"trainer.max_epochs": 1}}))
    run_plan(Study.from_yaml("s.yaml").plan(), say=lambda line: None)
    before = {file: file.read_text() for file in folder.glob("runs/ablations/runs/*/result.json")}
    assert len(before) == 4
    shutil.copytree(PACKAGE, folder / "attnkit", ignore=shutil.ignore_patterns("*.pyc.*"))  # other processes may be writing these
    score = folder / "attnkit/attention/scaled_dot_product.py"
    source = score.read_text()
    assert "**-0.5" in source
    score.write_text(source.replace("**-0.5", "**-5"))
    program = "from attnkit.ablation import Study, engine; engine.run_plan(Study.from_yaml('s.yaml').plan())"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "stale: 2 runs: attnkit.attention.scaled_dot_product has changed (" in done.stdout
    assert sum(file.read_text() != text for file, text in before.items()) == 2
