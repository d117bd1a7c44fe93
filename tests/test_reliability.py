"""The harness of docs/explanation/reliability.md, without trainings: it sees what is lost, and its table shows the stored numbers."""

import copy
import csv
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "docs/_tools"))

import reliability
from attacks import disk, forks, hostile, starts, studies, training
from attacks.ledger import BEGIN, END, TITLES, Ledger, embed, randomness, read_tries, summary, table
from attacks.runs import compare_checkpoints, compare_runs, differences, traceback_in

ROWS = [{"step": str(i), "train/loss": f"0.{i}", "speed/steps_per_second": "3"} for i in range(4)]


def write_run(folder: Path, rows: list[dict[str, str]]) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{**row, "speed/steps_per_second": "9"} for row in ROWS], None),
        (ROWS[:2] + ROWS[3:], "metrics.csv has 3 rows, expected 4; missing: {'step': '2', 'train/loss': '0.2'}"),
        (ROWS[:3] + ROWS[2:], "metrics.csv has 5 rows, expected 4; row 3 occurs twice: {'step': '2', 'train/loss': '0.2'}"),
        ([*ROWS, {**ROWS[3], "step": "4"}], "metrics.csv has 5 rows, expected 4; row 4 was not expected"),
        ([*ROWS[:3], {**ROWS[3], "train/loss": "0.30000001"}], "metrics.csv: row 3 is {'step': '3', 'train/loss': '0.30000001'}"),
        ([ROWS[1], ROWS[0], *ROWS[2:]], "metrics.csv: row 0 is"),
    ],
)
def test_missing_duplicate_or_changed_rows_are_detected(tmp_path: Path, rows: list[dict[str, str]], message: str | None) -> None:
    expected, run = write_run(tmp_path / "expected", ROWS), write_run(tmp_path / "run", rows)
    found = compare_runs(expected, run)
    assert found == [] if message is None else found[0].startswith(message)


def test_a_missing_run_log_or_checkpoint_counts_as_lost(tmp_path: Path) -> None:
    expected = write_run(tmp_path / "expected", ROWS)
    assert compare_runs(expected, None) == ["there is no run"]
    (tmp_path / "empty").mkdir()
    assert compare_runs(expected, tmp_path / "empty")[0].startswith("metrics.csv has 0 rows, expected 4")
    (expected / "checkpoints/last.ckpt").touch()
    run = write_run(tmp_path / "run", ROWS)
    assert compare_runs(expected, run) == ["last.ckpt is missing"]
    (run / "checkpoints/last.ckpt").touch()
    assert "last.ckpt cannot be read" in compare_runs(expected, run)[0]


CHECKPOINT: dict[str, Any] = {
    "global_step": 7,
    "state_dict": {"weight": torch.tensor([[1.0, -0.0], [float("nan"), 2.0]]), "steps": torch.tensor(3)},
    "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}],
    "callbacks": {"seconds": 5},
}


def change(path: list[Any], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(CHECKPOINT)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (change(["callbacks", "seconds"], 6), None),
        (change(["state_dict", "weight", 0, 1], 0.0), "state_dict.weight differs in 1 of 4 elements"),
        (change(["state_dict", "steps"], torch.tensor(4)), "state_dict.steps differs in 1 of 1 elements"),
        (change(["state_dict", "more"], 1), "state_dict.more is too much"),
        (change(["state_dict"], {}), "state_dict.weight is missing"),
        (change(["global_step"], 8), "global_step is 8, expected 7"),
        (
            change(["optimizer_states", 0, "state", 0, "exp_avg"], torch.ones(3).double()),
            "optimizer_states.0.state.0.exp_avg is torch.float64",
        ),
        (change(["optimizer_states", 0, "param_groups", 0, "lr"], 0.2), "optimizer_states.0.param_groups.0.lr is 0.2, expected 0.1"),
        (change(["optimizer_states"], []), "optimizer_states is [], expected"),
    ],
)
def test_checkpoints_are_compared_bitwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], message: str | None
) -> None:
    files = {"one.ckpt": CHECKPOINT, "other.ckpt": found}
    monkeypatch.setattr("attnkit.checkpoint.load_checkpoint", lambda path: files[path.name])
    for name in files:
        (tmp_path / name).touch()
    problems = compare_checkpoints(tmp_path / "one.ckpt", tmp_path / "other.ckpt")
    assert problems == [] if message is None else problems[0].startswith(f"other.ckpt: {message}")


def test_equal_values_show_no_differences() -> None:
    assert list(differences(CHECKPOINT, copy.deepcopy(CHECKPOINT), "")) == []


def test_a_traceback_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "leg.err"
    assert traceback_in(file) == []
    file.write_text("attnkit: error: Traceback is a word\n")
    assert traceback_in(file) == []
    file.write_text('Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: no\nnote: the end\n')
    assert traceback_in(file) == ["a traceback: ValueError: no"]


def test_a_message_about_a_full_disk_is_required(tmp_path: Path) -> None:
    file = tmp_path / "full.err"
    file.write_text("attnkit: error: runs/x: No space left on device\n")
    assert disk._full(file, 1) == []
    file.write_text("attnkit: error: something\n")
    assert "does not say that the disk is full" in disk._full(file, 1)[0]
    assert disk._full(file, None) == ["it hangs when the disk is full"]


def test_kill_moments_follow_from_the_seed() -> None:
    def drawn(*key: Any) -> list[float]:
        random = randomness(*key)
        return [random.random() for _ in range(3)]

    assert drawn(0, "kill_ddp", 1) == drawn(0, "kill_ddp", 1)
    assert len({tuple(drawn(seed, name, run)) for seed in (0, 1) for name in ("kill_ddp", "kill_both") for run in (0, 1)}) == 8
    code = "import sys; sys.path.append('docs/_tools'); from attacks.ledger import randomness; print(randomness(0, 'kill_ddp', 1).random())"
    other = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert float(other.stdout) == drawn(0, "kill_ddp", 1)[0]  # not of a hash that differs between processes


def test_an_interrupted_harness_keeps_its_tries(tmp_path: Path) -> None:
    Ledger(tmp_path, "kill_both").add([({"run": 0}, True, ""), ({"run": 0}, False, "a row is missing")])
    ledger = Ledger(tmp_path, "kill_both")
    ledger.add([({"run": 1}, True, "")])
    tries = read_tries(tmp_path / "kill_both.jsonl")
    assert [(one.number, one.moment["run"], one.survived, one.detail) for one in tries] == [
        (0, 0, True, ""),
        (1, 0, False, "a row is missing"),
        (2, 1, True, ""),
    ]
    assert summary(tries) == {"kill_both": {"tries": 3, "survived": 2, "lost": 1}}


def test_the_table_lists_every_tried_attack_in_order() -> None:
    numbers = {name: {"tries": 2, "survived": 1, "lost": 1} for name in TITLES}
    lines = table(numbers).splitlines()
    assert len(lines) == 2 + len(TITLES)
    assert [line.split("`")[-2] for line in lines[2:]] == list(TITLES)
    assert all(line.endswith("| 2 | 1 | 1 |") for line in lines[2:])


def test_embedding_replaces_the_text_between_the_markers() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert embed(page, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert embed(embed(page, "new"), "new") == embed(page, "new")
    for wrong in ("no markers", f"{END} {BEGIN}", BEGIN):
        with pytest.raises(ValueError, match="lacks the markers"):
            embed(wrong, "new")


def test_every_attack_is_runnable_and_documented() -> None:
    attacks = training.KILLS | studies.STUDIES | starts.STARTS | disk.DISK | hostile.HOSTILE
    assert set(attacks) == set(TITLES) == set(reliability.TRIES)
    page = reliability.PAGE.read_text(encoding="utf-8")
    assert [name for name in TITLES if f"`{name}`" not in page] == []
    assert sum(n for name, n in reliability.TRIES.items() if name in training.KILLS) == 100
    assert sum(reliability.TRIES[name] for name in studies.STUDIES) == 100


def test_the_pages_table_matches_the_stored_numbers() -> None:
    if reliability.NUMBERS.exists():
        assert reliability.table_fits(), "run: python docs/_tools/reliability.py table"
    else:
        assert "Not measured yet." in reliability.PAGE.read_text(encoding="utf-8")


def test_outcomes_are_read_from_a_pytest_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.hostile.test_data" name="test[a.csv]"/>'
        '<testcase classname="tests.hostile.test_data" name="test[b.csv]"><failure message="ran code">...</failure></testcase>'
        '<testcase classname="tests.hostile.test_data" name="test[c]"><skipped message="no root"/></testcase></testsuite></testsuites>'
    )
    assert hostile.outcomes(report) == [
        ("hostile.test_data::test[a.csv]", True, ""),
        ("hostile.test_data::test[b.csv]", False, "ran code"),
    ]


def write_study(folder: Path, *, loss: float = 0.5, batches: int = 8, seconds: str = "3") -> Path:
    results = folder / "runs/ablations/runs/key"
    results.mkdir(parents=True)
    curve = f'[{{"step": 1, "seconds": {seconds}, "val/loss": {loss}}}]'
    (results / "result.json").write_text(
        f'{{"metrics": {{"val/loss": {loss}}}, "curve": {curve}, "batches": {batches}, "batch_hash": "h", "tokens": 9, "parameters": 3, '
        '"lengths": {}}'
    )
    (folder / "runs/ablations/study").mkdir()
    for name in ("runs.csv", "report.csv"):
        (folder / "runs/ablations/study" / name).write_text(f"variant,mean,seconds\nbaseline,{loss},{seconds}\n")
    return folder


def test_studies_are_compared_except_for_times(tmp_path: Path) -> None:
    calm = write_study(tmp_path / "calm")
    assert studies.compare_studies(calm, write_study(tmp_path / "slow", seconds="4")) == []
    assert studies.compare_studies(calm, write_study(tmp_path / "twice", batches=9)) == ["the results of 1 of 1 runs differ"]
    assert len(studies.compare_studies(calm, write_study(tmp_path / "other", loss=0.25))) == 3
    (tmp_path / "none").mkdir()
    assert len(studies.compare_studies(calm, tmp_path / "none")) == 3


def test_repeated_runs_and_leftover_processes_are_detected(tmp_path: Path) -> None:
    status = tmp_path / "runs/ablations/runs/key/status.json"
    status.parent.mkdir(parents=True)
    status.write_text('{"status": "ok"}')
    finished: dict[str, int] = {}
    assert studies._rewritten(tmp_path, finished) == studies._rewritten(tmp_path, finished) == []
    time.sleep(0.02)  # longer than the clock of any file system ticks
    status.write_text('{"status": "ok"}')
    assert studies._rewritten(tmp_path, finished) == ["the run key was finished, and was repeated"]
    assert studies.left_running(tmp_path) == []
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as process:
        assert studies.left_running(tmp_path, seconds=0) == ["1 processes are left running"]
        process.kill()


def test_only_python_commands_are_forked() -> None:
    assert subprocess.Popen is forks.REAL
    with forks.Popen(["true"]) as process:
        assert process.wait() == 0
        assert process.connection is None
