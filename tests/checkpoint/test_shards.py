"""Sharded checkpoints of one process: as attnkit writes them, and as attnkit 0.1 did with torch's own functions."""

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from attnkit.checkpoint.shards import is_sharded_checkpoint, load_into, name_parameters, number_parameters, read_sharded, write_sharded
from attnkit.registry import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

WEIGHTS = {"model.a": torch.arange(6.0).view(2, 3), "model.b": torch.ones(2, dtype=torch.bfloat16)}
OPTIMIZER = {
    "state": {"model.b": {"step": torch.tensor(3.0), "exp_avg": torch.full((2,), 0.5)}},
    "param_groups": [{"lr": 0.1, "betas": (0.9, 0.98), "params": ["model.b"]}, {"lr": 0.2, "matrices": True, "params": ["model.a"]}],
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a sharded checkpoint, with parts changed."""

    def make(*, pickled: bool = False, **parts: Any) -> Path:
        folder, state = tmp_path / "step.ckpt", {"state_dict": WEIGHTS, "optimizer_0": OPTIMIZER} | parts
        rest = {"epoch": 3, "loops": {"fit_loop": {}}}
        if pickled:
            dcp.save(state, checkpoint_id=folder, no_dist=True)
            torch.save(rest, folder / "meta.pt")
        else:
            write_sharded(state, rest, folder)
        return folder

    return make


@pytest.mark.parametrize("pickled", [False, True])
def test_one_process_reads_a_whole_sharded_checkpoint(write: Callable[..., Path], pickled: bool) -> None:
    folder = write(pickled=pickled)
    assert (folder / ".metadata").exists() == pickled
    read = read_sharded(folder)
    assert read["epoch"] == 3
    assert list(read["state_dict"]) == list(WEIGHTS)
    for name, weight in WEIGHTS.items():
        assert read["state_dict"][name].dtype == weight.dtype
        assert torch.equal(read["state_dict"][name], weight)
    [optimizer] = read["optimizer_states"]
    assert [group["params"] for group in optimizer["param_groups"]] == [[0], [1]]
    assert optimizer["param_groups"][0]["betas"] == (0.9, 0.98)
    assert optimizer["param_groups"][1]["matrices"] is True
    assert torch.equal(optimizer["state"][0]["exp_avg"], torch.full((2,), 0.5))


def test_first_edition_weight_names_are_translated(write: Callable[..., Path]) -> None:
    old, new = (f"model.stack.encoder.layers.0.{mixer}.query.weight" for mixer in ("self_attention", "mixer"))
    adam = {"state": {old: {"exp_avg": torch.full((3,), 2.0)}}, "param_groups": [{"lr": 0.1, "params": [old]}]}
    folder = write(pickled=True, state_dict={old: torch.ones(3)}, optimizer_0=adam)
    read = read_sharded(folder)
    assert list(read["state_dict"]) == [new]
    assert read["optimizer_states"][0]["state"][0]["exp_avg"].tolist() == [2.0] * 3
    mine = {"state_dict": {new: torch.zeros(3)}, "optimizer_0": {"param_groups": [{"lr": 0.0, "params": [new]}]}}
    load_into(mine, folder)  # as each process of several does
    assert mine["state_dict"][new].tolist() == [1.0] * 3
    assert mine["optimizer_0"]["param_groups"] == [{"lr": 0.1, "params": [new]}]


def test_naming_and_numbering_parameters_are_inverse() -> None:
    names = [name for group in OPTIMIZER["param_groups"] for name in group["params"]]
    assert name_parameters(number_parameters(OPTIMIZER), names) == OPTIMIZER


@pytest.mark.parametrize("part", ["index.json", "meta.pt", "__0_0.distcp"])
def test_a_missing_part_is_named(write: Callable[..., Path], part: str) -> None:
    folder = write()
    (folder / part).unlink()
    assert is_sharded_checkpoint(folder)
    with pytest.raises(ConfigurationError, match=f"half-written checkpoint: .*{part}.*use an earlier checkpoint"):
        read_sharded(folder)


def test_a_truncated_part_is_named(write: Callable[..., Path]) -> None:
    folder = write()
    part = folder / "__0_0.distcp"
    part.write_bytes(part.read_bytes()[:-10])
    with pytest.raises(ConfigurationError, match=r"half-written checkpoint: __0_0.distcp has [\d,]+ of [\d,]+ bytes"):
        read_sharded(folder)


@pytest.mark.parametrize(("pickled", "name"), [(False, "index.json"), (True, ".metadata")])
def test_a_truncated_index_is_rejected(write: Callable[..., Path], pickled: bool, name: str) -> None:
    index = write(pickled=pickled) / name
    index.write_bytes(index.read_bytes()[:40])
    with pytest.raises(ConfigurationError, match=f"{name} is damaged"):
        read_sharded(index.parent)


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> Any:
        return Path.touch, (self.sprung,)


@pytest.mark.parametrize("where", ["index", "value"])
def test_loading_a_checkpoint_runs_no_code_in_it(write: Callable[..., Path], tmp_path: Path, where: str) -> None:
    trap = Trap(tmp_path / "sprung")
    folder = write(pickled=where == "index", **({"state_dict": WEIGHTS | {"model.c": trap}} if where == "value" else {}))
    if where == "index":
        (folder / ".metadata").write_bytes(pickle.dumps(trap))
    with pytest.raises(ConfigurationError, match="it refers to"):
        read_sharded(folder)
    assert not trap.sprung.exists()


def test_an_index_of_a_newer_format_is_refused(write: Callable[..., Path]) -> None:
    index = write() / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"format": 2}))
    with pytest.raises(ConfigurationError, match="newer format: pip install --upgrade attnkit"):
        read_sharded(index.parent)


def test_an_unrelated_folder_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").touch()
    assert not is_sharded_checkpoint(tmp_path)
    assert not is_sharded_checkpoint(tmp_path / "last.ckpt")


def test_weights_of_another_dtype_are_rejected(write: Callable[..., Path]) -> None:
    folder = write(state_dict=WEIGHTS | {"model.a": WEIGHTS["model.a"].to(torch.int8)})
    with pytest.raises(ConfigurationError, match=r"dtype mismatch for state_dict\.model\.a: torch\.int8 from checkpoint"):
        load_into({"state_dict": {name: torch.zeros_like(weight) for name, weight in WEIGHTS.items()}}, folder)


def with_pieces(folder: Path, pieces: list[tuple[list[int], list[int], Any]]) -> Path:
    """Replace the pieces of the weight a, of shape [2, 3]: the begin and the shape of each in the index, and what is stored."""
    index = json.loads((folder / "index.json").read_text())
    entries, stored = [], b""
    for begin, shape, tensor in pieces:
        torch.save(tensor, file := io.BytesIO())
        entries.append({"begin": begin, "shape": shape, "file": "other.distcp", "start": len(stored), "length": len(file.getvalue())})
        stored += file.getvalue()
    (folder / "other.distcp").write_bytes(stored)
    next(entry for entry in index["entries"].values() if entry["path"] == ["state_dict", "model.a"])["pieces"] = entries
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def assert_refused(folder: Path, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_sharded(folder)
    with pytest.raises(ConfigurationError, match=said):
        load_into({"state_dict": {name: torch.zeros_like(weight) for name, weight in WEIGHTS.items()}}, folder)


def test_a_grid_of_pieces_is_reassembled(write: Callable[..., Path]) -> None:
    spans = [([row, column], [1, size]) for row in (0, 1) for column, size in ((0, 1), (1, 2))]
    cut = [(b, s, WEIGHTS["model.a"][b[0] : b[0] + 1, b[1] : b[1] + s[1]].clone()) for b, s in spans]
    folder = with_pieces(write(), [*cut, ([2, 0], [0, 3], torch.ones(0, 3))])  # the last process has nothing
    assert torch.equal(read_sharded(folder)["state_dict"]["model.a"], WEIGHTS["model.a"])
    state = {"state_dict": {name: torch.zeros_like(weight) for name, weight in WEIGHTS.items()}}
    load_into(state, folder)
    assert torch.equal(state["state_dict"]["model.a"], WEIGHTS["model.a"])


@pytest.mark.parametrize(
    "spans", [[([0, 0], [2, 2]), ([0, 1], [2, 1])], [([0, 0], [1, 3]), ([0, 1], [2, 1]), ([1, 0], [1, 1])]], ids=["two", "three"]
)
def test_overlapping_or_incomplete_pieces_are_rejected(write: Callable[..., Path], spans: list[tuple[list[int], list[int]]]) -> None:
    folder = with_pieces(write(), [(begin, shape, torch.ones(*shape)) for begin, shape in spans])
    assert_refused(folder, "the pieces of state_dict.model.a overlap, or do not cover it")


@pytest.mark.parametrize(
    "stored",
    [torch.ones(1, 3), torch.tensor(5.0), torch.ones(3, 4), torch.ones(2, 3, dtype=torch.int8), torch.ones(2, 3).bfloat16(), [1.0]],
)
def test_a_piece_that_contradicts_its_index_is_rejected(write: Callable[..., Path], stored: Any) -> None:
    folder = with_pieces(write(), [([0, 0], [2, 3], stored if not isinstance(stored, torch.Tensor) else stored.clone())])
    assert_refused(folder, r"a piece of state_dict\.model\.a has a different shape or type from that in its index")
