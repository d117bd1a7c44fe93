"""Attacks on training runs and studies, and a table of what survived: `python docs/_tools/reliability.py ATTACK [--tries N]`.

ATTACK is one or more of the attacks in docs/explanation/reliability.md, or `all`. Each try adds a line to OUT/ATTACK.jsonl, so an
interrupted harness resumes. `table` writes the table into the page, and its numbers beside it; `table --check` says whether they match.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from attacks.ledger import TITLES, Ledger, embed, read_tries, summary, table

PAGE = Path(__file__).parents[1] / "explanation/reliability.md"
NUMBERS = PAGE.with_suffix(".json")
TRIES = {
    "kill_single": 25,
    "kill_ddp": 25,
    "kill_fsdp2": 25,
    "kill_saving": 25,
    "kill_driver": 25,
    "kill_workers": 25,
    "kill_both": 25,
    "two_drivers": 25,
    "together": 20,
    "resume_twice": 5,
    "disk_full": 20,
    "hostile": 60,
}


def attack(names: list[str], *, tries: int | None, out: Path, seed: int) -> None:
    """Carry out the tries that are still missing."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process with threads cannot be forked
    from attacks import forks
    from attacks.disk import DISK
    from attacks.hostile import HOSTILE
    from attacks.starts import STARTS
    from attacks.studies import STUDIES
    from attacks.training import KILLS

    if names != ["hostile"]:
        forks.start()
    attacks = KILLS | STUDIES | STARTS | DISK | HOSTILE
    for name in names:
        ledger, wanted = Ledger(out, name), tries or TRIES[name]
        print(f"{name}: seed {seed}, {len(ledger.tries)} of {wanted} tries done", flush=True)
        began, before = time.monotonic(), len(ledger.tries)
        if before < wanted:
            attacks[name](ledger, (out / name).absolute(), seed=seed, tries=wanted)
        took, done = time.monotonic() - began, len(ledger.tries) - before
        survived = sum(one.survived for one in ledger.tries)
        print(f"{name}: {len(ledger.tries)} tries, {survived} survived; {took:.0f} s, {took / max(done, 1):.1f} s per try", flush=True)


def write_table(out: Path) -> None:
    """Write the table and its numbers from the tries in a folder."""
    numbers = summary(one for name in TITLES for one in read_tries(out / f"{name}.jsonl"))
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(embed(PAGE.read_text(encoding="utf-8"), table(numbers)), encoding="utf-8")


def table_fits() -> bool:
    """Return whether the table in the page matches the numbers beside it."""
    page = PAGE.read_text(encoding="utf-8")
    return embed(page, table(json.loads(NUMBERS.read_text(encoding="utf-8")))) == page


def main() -> int:
    """Carry out the command; return the exit status."""
    known = [*TITLES, "all", "table"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="+", choices=known, metavar="ATTACK", help=", ".join(known))
    parser.add_argument("--tries", type=int, help="number of tries of each attack, including earlier ones (default: as in the page)")
    parser.add_argument("--out", type=Path, default=Path("runs/reliability"), help="folder for the tries (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments (%(default)s)")
    parser.add_argument("--check", action="store_true", help="with table: change nothing, and fail if the table is out of date")
    options = parser.parse_args()
    if options.attacks == ["table"]:
        if options.check:
            return 0 if table_fits() else 1
        write_table(options.out)
        return 0
    names = list(TITLES) if "all" in options.attacks else options.attacks
    attack(names, tries=options.tries, out=options.out, seed=options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
