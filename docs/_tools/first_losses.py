"""Compare the first steps of every recipe in two checkouts: `python docs/_tools/first_losses.py BEFORE AFTER [RECIPE ...] [--data FOLDER]`.

Every recipe, and the recipe of every study with the changes that the study makes to it, is trained for ten steps by `attnkit fit` in each
checkout, in fp32 on one thread, with tokenizers trained anew. A row of the printed Markdown table says what is equal: the logged losses
(otherwise their largest difference), and the SHA-256 of the parameters at initialisation, of the batches in their order, and of the
parameters after the last step.
"""

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

RECORD = "first_losses.json"
RUN = """
import sys, attnkit
from attnkit.cli.main import main
assert attnkit.__file__.startswith(sys.argv[1]), f"{attnkit.__file__} is not from this checkout"
sys.exit(main(sys.argv[2:]))
"""
STEPS = 10
FLAGS = [
    f"--trainer.max_steps={STEPS}",
    "--trainer.log_every_n_steps=1",
    "--trainer.limit_val_batches=0",
    "--trainer.precision=32-true",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--trainer.callbacks+=first_losses.Record",
]
SMALL = ["--model.stack.num_layers=1", "--data.batch_tokens=2048"]
OWN_FLAGS = {"language_model/gpt_125m": SMALL, "language_model/gpt_350m": SMALL}


class Record(Callback):
    """Writes the hashes of the parameters and of the batches to a file. Runs inside `attnkit fit`, in either checkout."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hash the parameters at initialisation."""
        self.initial = digest(pl_module.state_dict())
        self.batches: list[str] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Hash a batch."""
        self.batches.append(digest(batch))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file."""
        record = {"initial": self.initial, "batches": self.batches, "final": digest(pl_module.state_dict())}
        Path(RECORD).write_text(json.dumps(record))


def digest(values: dict[str, Any]) -> str:
    """Return the SHA-256 of names, types, shapes and bits."""
    total = hashlib.sha256()
    for name, value in sorted(values.items()):
        total.update(name.encode())
        if isinstance(value, torch.Tensor):
            total.update(f"{value.dtype}{tuple(value.shape)}".encode())
            total.update(value.detach().cpu().contiguous().numpy().tobytes())
        else:
            total.update(repr(value).encode())
    return total.hexdigest()


def base_of(checkout: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Return the file of a recipe, or of a study's recipe, and the study's changes to it."""
    path = checkout / "recipes" / f"{name}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return ((path.parent / content["recipe"]).resolve(), content.get("set", {})) if "recipe" in content else (path, {})


def pretraining_of(checkout: Path, name: str) -> str | None:
    """Return the recipe that must run first because a recipe or study starts from its checkpoint, or None."""
    path, _ = base_of(checkout, name)
    checkpoint = yaml.safe_load(path.read_text(encoding="utf-8"))["model"].get("init_from")
    return None if checkpoint is None else "/".join(Path(checkpoint).parts[1:3])  # runs/NAME/version_0/...


def in_order(checkout: Path, names: Iterable[str]) -> list[str]:
    """Return recipes in an order in which those that provide checkpoints come before those that start from them."""
    found: dict[str, int] = {}  # number of recipes that must run before

    def depth(name: str) -> int:
        if name not in found:
            before = pretraining_of(checkout, name)
            found[name] = 0 if before is None else depth(before) + 1
        return found[name]

    for name in names:
        depth(name)
    return sorted(found, key=lambda name: (found[name], name))


def first_steps(checkout: Path, name: str, folder: Path, *, keeps: bool) -> dict[str, Any]:
    """Train a recipe, or the base of a study, in a checkout, and save a checkpoint if it `keeps` one; return its losses and hashes."""
    path, changes = base_of(checkout, name)
    words = {key: value if isinstance(value, str) else json.dumps(value) for key, value in changes.items()}
    flags = [*(f"--{key}={word}" for key, word in words.items()), *FLAGS, *OWN_FLAGS.get(name, [])]
    if not keeps:
        flags.append("--trainer.enable_checkpointing=false")
    if (before := pretraining_of(checkout, name)) is not None:  # without validation there is no best checkpoint
        flags.append(f"--model.init_from=runs/{before}/version_0/checkpoints/last.ckpt")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{checkout}{os.pathsep}{Path(__file__).parent}",
        "ATTNKIT_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-c", RUN, str(checkout), "fit", "--config", str(path), *flags]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{name} in {checkout}: status {done.returncode}\n{done.stdout[-3000:]}")
    record = folder / RECORD
    found: dict[str, Any] = json.loads(record.read_text())
    record.unlink()
    metrics = max(folder.rglob("metrics.csv"), key=lambda table: table.stat().st_mtime_ns)
    with metrics.open(newline="", encoding="utf-8") as file:
        found["losses"] = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    if not len(found["losses"]) == len(found["batches"]) == STEPS:
        raise SystemExit(f"{name} in {checkout}: {len(found['losses'])} losses, {len(found['batches'])} batches")
    return found


def compare(name: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return a row of the table."""
    difference = max(abs(a - b) for a, b in zip(before["losses"], after["losses"], strict=True))
    verdicts = ["equal" if before[key] == after[key] else "**different**" for key in ("initial", "batches", "final")]
    losses = "equal" if before["losses"] == after["losses"] else f"**{difference:.2g}**"
    return f"| {name} | {verdicts[0]} | {verdicts[1]} | {losses} | {after['losses'][-1]!r} | {verdicts[2]} |"


def main() -> None:
    """Print a row for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another checkout")
    parser.add_argument(
        "recipes", nargs="*", help="such as g2p/transformer; recipes whose checkpoints they start from also run (default: all)"
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of fetched sources (default: data)")
    chosen = parser.parse_args()
    checkouts = [chosen.before.resolve(), chosen.after.resolve()]
    known = [{str(p.relative_to(c / "recipes").with_suffix("")) for p in (c / "recipes").rglob("*.yaml")} for c in checkouts]
    for name in sorted(known[0] ^ known[1]):
        print(f"only one checkout has {name}", file=sys.stderr)
    names = in_order(checkouts[1], chosen.recipes or known[0] & known[1])
    kept = {pretraining_of(checkouts[1], name) for name in names}
    print("| recipe | parameters at initialisation | batches | losses | tenth loss | parameters after 10 steps |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary, side) for side in ("before", "after")]
        for folder in folders:
            folder.mkdir()
            (folder / "data").symlink_to(chosen.data.resolve())
        for name in names:
            steps = (first_steps(c, name, f, keeps=name in kept) for c, f in zip(checkouts, folders, strict=True))
            print(compare(name, *steps), flush=True)


if __name__ == "__main__":
    main()
