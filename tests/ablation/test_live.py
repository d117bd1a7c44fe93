"""The page of a running study, before the last run has ended: what is decided and what continuing costs; and its server."""

import http.client
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from attnkit.ablation.figures import progress
from attnkit.ablation.live import cost_to_go, decisions, live_page, so_far
from attnkit.ablation.plan import Plan
from attnkit.ablation.results import Results
from attnkit.ablation.watch import Server
from attnkit.cli.ablate import ablate
from attnkit.ownership import owned
from attnkit.registry import ConfigurationError
from attnkit.worker.answers import Underway
from attnkit.worker.folder import UNDERWAY, result_of, write_json
from tests.ablation.conftest import study

pytestmark = pytest.mark.usefixtures("guessed")


@pytest.fixture
def plan() -> Iterator[Plan]:
    """A study in which the first run of one variant is in progress, and its other runs have not started."""
    plan = study(seeds=3).plan(Path("runs"))
    plan.lock()
    for run in plan.runs:
        folder = plan.run_folder(run.key)
        if run.variants == ("position=learned",) and run.seed > 0:
            continue
        if run.variants == ("position=learned",):
            write_json(folder / UNDERWAY, asdict(Underway(step=30, steps=100, curve=({"step": 25, "val/loss": 0.4321, "val/nan": None},))))
            (folder / "stderr.txt").write_text("")
            continue
        write_json(folder / "result.json", {"metrics": {"val/loss": run.seed / 10 + 2 * (run.variants == ("position=none",))}})
        write_json(folder / "status.json", {"status": "ok", "wall_seconds": 60.0})
    with owned(plan.run_folder(next(run.key for run in plan.runs if run.variants == ("position=learned",)))):
        yield plan


def test_the_page_shows_progress_decisions_and_cost(plan: Plan) -> None:
    html = live_page(plan)
    assert "6 of 9 runs have ended" in html
    assert "To go: 3 runs, about 3 min" in html
    assert "learned, seed 0" in html
    assert "30 of 100" in html
    assert "val/loss 0.4321" in html
    assert "Learning curve of every run so far" in html
    assert '<li class="worse">position=none is worse than baseline' in html
    assert "position=learned against baseline: 3 of 6 runs of the look at 3 seeds" in html
    assert 'http-equiv="refresh"' in html


def test_a_verdict_waits_for_all_runs_of_its_look(plan: Plan) -> None:
    folder = plan.run_folder(next(run.key for run in plan.runs if run.variants == ("position=none",) and run.seed == 2))
    (folder / "status.json").unlink()
    answers, _ = so_far(plan)
    assert decisions(Results(plan, answers))[0] == [], "two pairs are no look of this study"
    assert cost_to_go(Results(plan, answers)) == ["To go: 4 runs, about 4 min"]


def test_a_contrast_with_a_failed_run_is_open(plan: Plan) -> None:
    folder = plan.run_folder(next(run.key for run in plan.runs if run.variants == ("position=none",) and run.seed == 2))
    write_json(folder / "status.json", {"status": "failed", "kind": "error", "message": "boom"})
    settled, open_ = decisions(Results(plan, so_far(plan)[0]))
    assert settled == []
    assert open_[0] == "position=none against baseline: 5 of 6 runs of the look at 3 seeds, 1 failed"


def test_a_run_that_ends_during_a_read_is_running_or_complete(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = plan.run_folder(next(run.key for run in plan.runs if run.variants == ("position=learned",) and run.seed == 0))

    def ends(run: Path) -> dict[str, Any]:
        found = result_of(run)
        if run == folder and not found:
            write_json(run / "result.json", {"metrics": {"val/loss": 1.0}})
            write_json(run / "status.json", {"status": "ok"})
        return found

    monkeypatch.setattr("attnkit.ablation.answers.result_of", ends)
    assert "6 of 9 runs have ended" in live_page(plan)
    assert "7 of 9 runs have ended" in live_page(plan)


def test_every_variant_with_a_curve_is_in_the_legend() -> None:
    plan = study(design="list", factors=None, variants={"_deep": {"model.a": 1}}).plan(Path("runs"))
    plan.lock()
    for run in plan.runs[:-1]:
        curve = [{"step": 1, "val/loss": None if run.seed == 0 else 2.0}]
        write_json(plan.run_folder(run.key) / "result.json", {"metrics": {"val/loss": 1.0}, "curve": curve})
        write_json(plan.run_folder(run.key) / "status.json", {"status": "ok"})
    figure = progress(Results(plan)).svg
    assert figure is not None
    assert "baseline</text>" in figure
    assert "_deep</text>" in figure


def test_the_page_keeps_refreshing_while_more_runs_follow(plan: Plan) -> None:
    for run in plan.runs:
        write_json(plan.run_folder(run.key) / "result.json", {"metrics": {"val/loss": 1.0}})
        write_json(plan.run_folder(run.key) / "status.json", {"status": "ok"})
    assert 'http-equiv="refresh"' in live_page(plan, more=True), "results follow the trials of tuning"


def test_the_page_becomes_the_report_when_all_runs_have_ended(plan: Plan) -> None:
    for run in plan.runs:
        write_json(plan.run_folder(run.key) / "result.json", {"metrics": {"val/loss": 1.0}})
        write_json(plan.run_folder(run.key) / "status.json", {"status": "ok"})
    html = live_page(plan)
    assert "<h2>Provenance</h2>" in html
    assert "refresh" not in html


def test_planned_looks_show_their_remaining_cost() -> None:
    plan = study(seeds=None, decide={"max_seeds": 6, "looks": [3, 6]}).plan(Path("runs"))
    plan.lock()
    for run in plan.runs[:6]:
        write_json(plan.run_folder(run.key) / "result.json", {"metrics": {"val/loss": 1.0 + run.seed}})
        write_json(plan.run_folder(run.key) / "status.json", {"status": "ok", "wall_seconds": 60.0})
    assert cost_to_go(Results(plan)) == [
        "To go: 3 runs, about 3 min",
        "If nothing more is decided before the last look: 12 runs, about 12 min",
    ]
    assert "alpha" not in live_page(plan).partition("<h2>Decided</h2>")[2], "a look that has not ended has decided nothing"


def test_an_unstarted_study_cannot_be_watched() -> None:
    Path("s.yaml").write_text("recipe: tiny.yaml\nfactors: {model.stack.position: [none]}\n")
    with pytest.raises(ConfigurationError, match=r"runs/s has no results yet: start attnkit ablate run s\.yaml first"):
        ablate(["watch", "s.yaml", "--folder", "runs"])


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of one page, which counts how often the page was made."""
    made: list[int] = []
    with Server({"/": lambda: f"page {made.append(1) or len(made)}"}, 0) as server:  # type: ignore[func-returns-value]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def asked(server: Server, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_the_page_is_rendered_once_for_many_browsers(server: Server) -> None:
    assert [asked(server, "/"), asked(server, "/?x")] == [(200, "page 1")] * 2
    assert asked(server, "/other")[0] == 404
    assert asked(server, "/", Host="elsewhere.example")[0] == 403, "a site cannot read it under a name of its own"


def test_a_damaged_file_is_reported_on_a_refreshing_page(server: Server) -> None:
    def damaged() -> str:
        raise ConfigurationError("<b>plan.json</b> is damaged")

    server._pages = {"/": damaged}
    status, text = asked(server, "/")
    assert status == 503
    assert 'http-equiv="refresh"' in text
    assert "&lt;b&gt;plan.json" in text


def test_an_unexpected_error_is_logged_and_shown_on_a_page(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong() -> str:
        raise ZeroDivisionError("by <zero>")

    server._pages = {"/": wrong}
    status, text = asked(server, "/")
    assert (status, "ZeroDivisionError: by &lt;zero&gt;" in text, 'http-equiv="refresh"' in text) == (500, True, True)
    assert "Traceback" in capsys.readouterr().err
    server._pages = {"/": lambda: "again"}
    assert asked(server, "/") == (200, "again")


def test_decisions_on_interactions_have_their_own_wording() -> None:
    plan = study(seeds=3, factors={"model.a": [1], "model.b": [1]}, design="full_factorial").plan(Path("runs"))
    plan.lock()
    for run in plan.runs:
        value = run.seed / 10 + len(run.variants[0]) ** 2 + 0.001 * run.seed * (run.variants[0] == "a=1")
        write_json(plan.run_folder(run.key) / "result.json", {"metrics": {"val/loss": value}})
        write_json(plan.run_folder(run.key) / "status.json", {"status": "ok"})
    html = live_page(plan, more=True)
    assert "a=1 x b=1, an interaction: val/loss" in html
    assert "better than none" not in html


def test_a_port_in_use_is_reported_with_advice(server: Server) -> None:
    with pytest.raises(ConfigurationError, match=rf"port {server.server_port} is in use: choose another with --port, or --port 0"):
        Server({}, server.server_port)
    with pytest.raises(ConfigurationError, match="port 70000 cannot be opened"):
        Server({}, 70_000)
