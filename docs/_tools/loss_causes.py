"""Show why the first losses of the first edition differ: `python docs/_tools/loss_causes.py FIRST AFTER RECIPE ... [--data FOLDER]`.

FIRST is a checkout of the first edition (commit ddc1e21), and AFTER a later one. Each recipe is trained for ten steps in both, as
`first_losses.py` does, and then again with one cause of differences after another removed:

1. AFTER starts from the parameters of FIRST.
2. It also takes the batches of FIRST, and the tokens that `masked_lm` hides. Both draw their dropout masks from the step, the shape and the
   number of the call, and compute in float64, including the orthogonalisation of `muon`, but with sinusoidal and rotary tables rounded to
   fp32, as FIRST has them.

A row of the printed Markdown table has the number of equal batches, the largest relative difference of a loss in each case, and the largest
relative difference of a tensor's change over the ten steps in the last one. It omits biases of keys: a softmax does not depend on them, so
their gradients are rounding errors, which Adam scales to updates of full size.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from first_losses import FLAGS, OWN_FLAGS, RUN, STEPS, base_of
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

ORDER = "LOSS_CAUSES"  # environment variable that tells a run which files to write and read, and whether to be exact


class Replay(Callback):
    """Replaces what a run draws, and writes what it used and found. Runs inside `attnkit fit`, in either checkout."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace the parameters and the sources of random numbers."""
        order = json.loads(os.environ[ORDER])
        self.write = order["write"]
        self.given: dict[str, Any] = torch.load(order["read"], weights_only=True) if order["read"] else {}
        if self.given:
            pl_module.load_state_dict(_todays_names(self.given["initial"]))
        self.replayed = self.given if order["exact"] else {}
        self.made: dict[str, list[Any]] = {"batches": [], "hidden": [], "losses": []}
        if order["exact"]:
            _draw_dropout_by_call(self)
            _orthogonalise_in_float64()
            _round_tables_to_float32()
        if callable(hide := getattr(pl_module, "hide", None)):
            vars(pl_module)["hide"] = lambda *args, **kwargs: self._hidden(hide(*args, **kwargs))
        self.initial = _copy(pl_module.state_dict())

    def _hidden(self, own: Any) -> Any:
        """Return the tokens to hide: those of the other run, if there is one."""
        given = self.replayed.get("hidden")
        used = type(own)(*given[len(self.made["hidden"])]) if given else own
        self.made["hidden"].append([x.clone() for x in used])
        return used

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Replace the batch, and keep the loss of the step before."""
        self.step, self.calls = batch_idx, Counter[Any]()
        if batch_idx > 0:
            self._keep_loss(trainer)
        if self.replayed:
            batch.update(self.replayed["batches"][batch_idx])
            if "example" in batch:  # names the rows; dropout depends on it, but is drawn otherwise here
                batch["example"] = torch.arange(len(next(iter(self.replayed["batches"][batch_idx].values()))))
        self.made["batches"].append(_copy({key: value for key, value in batch.items() if key != "example"}))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file."""
        self._keep_loss(trainer)
        torch.save({**self.made, "initial": self.initial, "final": _copy(pl_module.state_dict())}, self.write)

    def _keep_loss(self, trainer: Trainer) -> None:
        self.made["losses"].append(float(trainer.logged_metrics["train/loss"]))

    def dropped(self, shape: tuple[int, ...], p: float) -> Tensor:
        """Return which elements a call of dropout zeroes."""
        call = f"{self.step}/{shape}/{self.calls[shape]}"
        self.calls[shape] += 1
        return torch.rand(shape, generator=torch.Generator().manual_seed(zlib.crc32(call.encode()))) < p


def _draw_dropout_by_call(replay: Replay) -> None:
    import attnkit.dropout as module

    def is_dropped(keys: Tensor, p: float, *, rows: Tensor, columns: int, **_: int) -> Tensor:
        return replay.dropped((len(keys), *rows.shape, columns), p)

    def dropout(x: Tensor, p: float) -> Tensor:
        if p == 0.0:
            return x
        threshold = min(round(p * module.LEVELS), module.LEVELS - 1)
        return x.masked_fill(replay.dropped(tuple(x.shape), p), 0.0) * (module.LEVELS / (module.LEVELS - threshold))

    if hasattr(module, "is_dropped"):
        import attnkit.attention.backend.blocks as blocks

        vars(module)["is_dropped"] = vars(blocks)["is_dropped"] = is_dropped
    else:  # the first edition
        import attnkit.attention.base as attention

        vars(module)["dropout"] = vars(attention)["drop"] = dropout


def _orthogonalise_in_float64() -> None:
    import torch.optim._muon as torchs  # has no public name; the first edition used it

    import attnkit.optimizer.muon as todays

    def orthogonalise(x: Tensor, coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315), *_: Any) -> Tensor:
        a, b, c = coefficients
        wide = x.double() if x.shape[-2] <= x.shape[-1] else x.double().mT
        wide = wide / torch.linalg.vector_norm(wide, dim=(-2, -1), keepdim=True).clamp(min=1e-7)
        for _step in range(5):
            gram = wide @ wide.mT
            wide = a * wide + (b * gram + c * gram @ gram) @ wide
        found: Tensor = (wide if x.shape[-2] <= x.shape[-1] else wide.mT).to(x.dtype)
        return found

    vars(todays)["orthogonalise"] = vars(torchs)["_zeropower_via_newtonschulz"] = orthogonalise


def _round_tables_to_float32() -> None:
    from attnkit.position.rotary import Rotary
    from attnkit.position.sinusoidal import Sinusoidal

    embedding, rotation = Sinusoidal.embedding, Rotary.rotation

    def rounded_embedding(self: Sinusoidal, positions: Tensor) -> Tensor:
        return embedding(self, positions).float().double()

    def rounded_rotation(self: Rotary, positions: Tensor) -> Any:
        return type(found := rotation(self, positions))(found.cos.float().double(), found.sin.float().double(), found.interleaved)

    type.__setattr__(Sinusoidal, "embedding", rounded_embedding)
    type.__setattr__(Rotary, "rotation", rounded_rotation)


def _copy(values: dict[str, Any]) -> dict[str, Tensor]:
    return {key: value.detach().clone() for key, value in values.items() if isinstance(value, Tensor)}


def _todays_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    from attnkit.checkpoint.outdated import name_of_today

    return {name_of_today(name): weight for name, weight in weights.items()}


def train(checkout: Path, name: str, folder: Path, *, exact: bool = False, read: Path | None = None) -> Path:
    """Train a recipe in a checkout for ten steps, and return the file with what it used and found."""
    path, changes = base_of(checkout, name)
    words = {key: value if isinstance(value, str) else json.dumps(value) for key, value in changes.items()}
    flags = [*(f"--{key}={word}" for key, word in words.items()), *FLAGS[:-1], *OWN_FLAGS.get(name, [])]
    flags += ["--trainer.callbacks+=loss_causes.Replay", "--trainer.enable_checkpointing=false"]
    if exact:
        flags.append("--trainer.precision=64-true")
    write = folder / f"{len(list(folder.glob('*.pt')))}.pt"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{checkout}{os.pathsep}{Path(__file__).parent}",
        "ATTNKIT_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        ORDER: json.dumps({"write": str(write), "read": str(read) if read else None, "exact": exact}),
    }
    command = [sys.executable, "-c", RUN, str(checkout), "fit", "--config", str(path), *flags]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{name} in {checkout}: status {done.returncode}\n{done.stdout[-3000:]}")
    return write


def of_losses(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Return the largest relative difference of a loss."""
    losses: list[tuple[float, float]] = list(zip(before["losses"], after["losses"], strict=True))
    return max(abs(a - b) / abs(a) for a, b in losses)


def of_updates(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Return the largest relative difference of a tensor's change, biases of keys apart."""
    worst = 0.0
    for name, weight in _todays_names(before["final"]).items():
        if weight.is_floating_point() and not name.endswith("key.bias"):
            first = weight - _todays_names(before["initial"])[name]
            difference = after["final"][name] - after["initial"][name] - first
            worst = max(worst, float(difference.norm() / first.norm().clamp(min=1e-30)))
    return worst


def equal_batches(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Return how many batches have the same tensors, `example` apart."""
    pairs = zip(before["batches"], after["batches"], strict=True)
    return sum(a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a) for a, b in pairs)


def row(name: str, checkouts: tuple[Path, Path], folders: tuple[Path, Path]) -> str:
    """Train a recipe in all ways, and return a row of the table."""
    first = {exact: train(checkouts[0], name, folders[0], exact=exact) for exact in (False, True)}
    pairs = [(first[False], train(checkouts[1], name, folders[1]))]
    pairs += [(path, train(checkouts[1], name, folders[1], exact=exact, read=path)) for exact, path in first.items()]
    loaded = [(torch.load(a, weights_only=True), torch.load(b, weights_only=True)) for a, b in pairs]
    losses = " | ".join(f"{of_losses(*pair):.0e}" for pair in loaded)
    return f"| {name} | {equal_batches(*loaded[0])} of {STEPS} | {losses} | {of_updates(*loaded[-1]):.0e} |"


def main() -> None:
    """Print a row for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="a checkout of the first edition")
    parser.add_argument("after", type=Path, help="a later checkout")
    parser.add_argument("recipes", nargs="+", help="such as g2p/transformer")
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of fetched sources (default: data)")
    chosen = parser.parse_args()
    checkouts = (chosen.first.resolve(), chosen.after.resolve())
    sys.path.insert(0, str(checkouts[1]))  # knows both editions' names of weights
    print("| recipe | equal batches | losses | same parameters | same draws, float64 | its updates |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folders = (Path(temporary, "first"), Path(temporary, "after"))
        for folder in folders:
            folder.mkdir()
            (folder / "data").symlink_to(chosen.data.resolve())
        for name in chosen.recipes:
            print(row(name, checkouts, folders), flush=True)


if __name__ == "__main__":
    main()
