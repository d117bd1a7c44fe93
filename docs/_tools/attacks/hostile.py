"""Hostile files for every loader, from the tests in tests/hostile."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from attacks.ledger import Ledger

TESTS = Path(__file__).parents[3] / "tests/hostile"


def hostile(ledger: Ledger, folder: Path, *, seed: int, tries: int) -> None:
    """Run the tests of hostile files. Each test is one try, so `tries` is ignored."""
    if not TESTS.is_dir():
        raise SystemExit(f"there are no tests of hostile files in {TESTS}")
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "tests/hostile"]
    command += ["--ignore=tests/hostile/test_limits.py"]  # these test the method, not files
    with (folder / "pytest.out").open("w") as out:
        subprocess.run(command, cwd=TESTS.parents[1], stdout=out, stderr=subprocess.STDOUT, check=False)
    if not report.exists():
        raise SystemExit(f"pytest wrote no report: see {folder / 'pytest.out'}")
    ledger.tries.clear()  # a report covers all files
    ledger.add(outcomes(report))


def outcomes(report: Path) -> list[tuple[str, bool, str]]:
    """Return the name, whether it survived, and the message of each test in a JUnit report, except skipped tests."""
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        lost = [*case.iter("failure"), *case.iter("error")]
        if case.find("skipped") is None:
            name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
            found.append((name, not lost, lost[0].get("message", "")[:300] if lost else ""))
    return found


HOSTILE: dict[str, Callable[..., None]] = {"hostile": hostile}
