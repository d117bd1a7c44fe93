"""The harness notices what it is there to notice."""

import os
import time
from pathlib import Path

import pytest

from tests.hostile.limits import CANARY, survive


def allocate(megabytes: int) -> None:
    bytearray(megabytes * 2**20)


def spin() -> None:
    while True:
        pass


def test_a_call_that_returns_reports_value_and_output() -> None:
    outcome = survive(lambda: print("hello") or 3)
    assert (outcome.error, outcome.value, outcome.output, outcome.signal) == (None, 3, "hello\n", None)
    assert not outcome.ran_code
    assert outcome.written == ()


def test_an_exception_is_reported_with_its_bases() -> None:
    outcome = survive(lambda: int("x"))
    assert outcome.error == "ValueError"
    assert "Exception" in outcome.bases
    assert "invalid literal" in outcome.message


def test_memory_is_measured_and_limited() -> None:
    assert survive(lambda: allocate(102)).megabytes >= 100  # what a fork frees of its parent's memory counts against it
    assert survive(lambda: allocate(2000)).error == "MemoryError"


def test_time_is_measured_and_limited() -> None:
    outcome = survive(spin, seconds=0.1)
    assert outcome.signal == "SIGXCPU"
    assert outcome.seconds > 0.1
    assert survive(lambda: time.sleep(0.2)).seconds < 0.2


def test_a_crash_is_reported() -> None:
    assert survive(os.abort).signal == "SIGABRT"


@pytest.mark.parametrize("code", ["os.system", "open"])
def test_executed_code_and_written_files_are_detected(code: str) -> None:
    def run() -> None:
        if code == "os.system":
            os.system(f'touch "${CANARY}"')
        else:
            Path("left").touch()

    outcome = survive(run)
    assert outcome.ran_code == (code == "os.system")
    assert outcome.written == (() if code == "os.system" else ("left",))
