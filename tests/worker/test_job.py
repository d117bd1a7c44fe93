"""Questions to workers, and the folders that they are asked in."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from lightning.fabric.plugins.environments import LSFEnvironment, SLURMEnvironment, TorchElasticEnvironment

from attnkit.ownership import OWNER, owned
from attnkit.train.numbering import RANKS
from attnkit.worker import job

KILLED = """
import os, signal
from attnkit.worker import job
job.Job.carry_out = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
job.ask("waiting", {})
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary folders, in which a worker answers nothing."""

    def answer(asked: job.Job, **_: object) -> int:
        assert (asked.folder / "job.json").is_file()
        for name in ("stdout.txt", "stderr.txt"):
            (asked.folder / name).touch()
        return 0

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(job.Job, "carry_out", answer)
    return tmp_path


def test_a_query_leaves_no_folder(temporary: Path) -> None:
    assert job.ask("waiting", {}) == ([], "")
    assert list(temporary.iterdir()) == []


def test_the_next_query_removes_only_folders_of_killed_processes(temporary: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], env=os.environ | {"TMPDIR": str(temporary)}, check=False)
    assert killed.returncode < 0
    assert len(list(temporary.glob("attnkit-*/job.json"))) == 1
    living = temporary / "attnkit-living"
    living.mkdir()
    (temporary / "attnkit-starting" / OWNER).mkdir(parents=True)
    (temporary / "attnkit-other").mkdir()
    with owned(living):
        job.ask("waiting", {})
    assert {folder.name for folder in temporary.iterdir()} == {"attnkit-living", "attnkit-starting", "attnkit-other"}


LAUNCHERS = {
    SLURMEnvironment: {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_NAME": "train"},
    TorchElasticEnvironment: {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "LOCAL_RANK": "1"},
    LSFEnvironment: {"LSB_JOBID": "1", "LSB_DJOB_RANKFILE": "x", "JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_SIZE": "2"},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_job_is_no_rank_of_the_run_around_it(launcher: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LAUNCHERS[launcher].items():
        monkeypatch.setenv(name, value)
    assert launcher.detect()
    (tmp_path / "environment.py").write_text("import json, os; print(json.dumps(dict(os.environ)))", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (folder := tmp_path / "job").mkdir()
    assert job.Job(folder=folder, directory=tmp_path, worker="environment").carry_out() == 0
    environment = json.loads((folder / "stdout.txt").read_text())
    assert not environment.keys() & set(RANKS)
    monkeypatch.setattr(os, "environ", environment)
    assert not launcher.detect()
