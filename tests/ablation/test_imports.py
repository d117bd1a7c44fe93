"""Components that a study's own script or module registers: known in its processes by `imports`, and otherwise refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnkit.worker.folder import read_json, status_of

MODULE = """
import attnkit
from attnkit.attention.scaled_dot_product import ScaledDotProduct

@attnkit.attentions.register("mine")
class Mine(ScaledDotProduct):
    WIDTH = 1
"""
SCRIPT = """
import sys
from pathlib import Path
from attnkit import ConfigurationError
from attnkit.ablation import Study
from attnkit.worker.folder import write_json
from attnkit.worker.job import Job
from attnkit.worker.warm import shared

content = {{"recipe": "tiny.yaml", "name": "s", "seeds": 2, "factors": {{"model.stack.attention": ["mine"]}}, "imports": {imports}}}
try:
    plan = Study.from_dict(content, file=Path("s.yaml")).plan("runs")
except ConfigurationError as error:
    sys.exit(str(error))
"""
RUN = """
[run, _] = [run for run in plan.runs if run.variants == ("attention=mine",)]
write_json(Path("run/job.json"), run.job)
Job(folder=Path("run").absolute(), directory=Path.cwd()).carry_out(server=shared())
"""


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text, encoding="utf-8")
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run([sys.executable, "script.py"], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)


@pytest.mark.parametrize("where", ["script", "module"])
def test_a_component_that_only_the_script_knows_is_refused_with_what_to_do(folder: Path, where: str) -> None:
    (folder / "my_attention.py").write_text(MODULE, encoding="utf-8")
    said = script(folder, (MODULE if where == "script" else "import my_attention") + SCRIPT.format(imports=[])).stderr
    assert "unknown attention 'mine': 'mine' is registered in this process, but runs of a study are separate processes" in said
    what = "put the class into a module, and name that" if where == "script" else "name the module 'my_attention'"
    assert f"To make them import it, {what} under imports, as in imports: [my_module]" in said


def test_runs_and_inspections_import_the_modules_of_the_study(folder: Path) -> None:
    (folder / "my_attention.py").write_text(MODULE, encoding="utf-8")
    done = script(folder, SCRIPT.format(imports=["my_attention"]) + RUN)
    assert done.returncode == 0, done.stderr
    assert status_of(folder / "run")["status"] == "ok", (folder / "run/stderr.txt").read_text()
    recipe = read_json(folder / "run/job.json")["recipe"]
    assert (recipe["imports"], recipe["model"]["stack"]["attention"]["name"]) == (["my_attention"], "mine")
    assert "my_attention" in read_json(folder / "run/provenance.json")["code"]
    answers = {file: file.stat().st_mtime_ns for file in (folder / "runs/inspections").iterdir()}
    assert all(str(folder / "my_attention.py") in json.loads(file.read_text())["sources"] for file in answers)
    script(folder, SCRIPT.format(imports=["my_attention"]))
    assert all(file.stat().st_mtime_ns == time for file, time in answers.items()), "nothing had changed"
    (folder / "my_attention.py").write_text(MODULE.replace("= 1", "= 2"), encoding="utf-8")
    script(folder, SCRIPT.format(imports=["my_attention"]))
    assert all(file.stat().st_mtime_ns != time for file, time in answers.items()), "an answer of other code was used"
