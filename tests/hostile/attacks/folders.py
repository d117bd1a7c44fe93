"""Sharded checkpoints."""

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from attnkit.checkpoint.shards import write_sharded
from tests.hostile.attacks.base import Attacks, Evil, dotted

FOLDERS = Attacks()


def sharded(good: dict[str, Any], path: Path, **rest: Any) -> dict[str, Any]:
    """Write a good sharded checkpoint, and return its index."""
    parts = {key: value for key, value in good.items() if key not in ("state_dict", "optimizer_states")}
    write_sharded({"state_dict": good["state_dict"]}, parts | rest, path)
    index: dict[str, Any] = json.loads((path / "index.json").read_text())
    return index


def reindex(path: Path, index: Any) -> None:
    (path / "index.json").write_text(json.dumps(index))


def first_piece(index: dict[str, Any]) -> dict[str, Any]:
    entry = next(iter(index["entries"].values()))
    piece: dict[str, Any] = entry["pieces"][0]
    return piece


@FOLDERS
def has_a_dotted_name_in_its_index(good: dict[str, Any], path: Path) -> None:
    """Has an index that resolves `os.system` through torch.distributed.checkpoint."""
    sharded(good, path)
    (path / "index.json").unlink()
    (path / ".metadata").write_bytes(dotted())


@FOLDERS
def calls_a_function_in_its_index(good: dict[str, Any], path: Path) -> None:
    """Has an index that calls `os.system`."""
    sharded(good, path)
    (path / "index.json").unlink()
    (path / ".metadata").write_bytes(pickle.dumps(Evil()))


@FOLDERS
def has_a_large_memo_in_its_index(good: dict[str, Any], path: Path) -> None:
    """Has an index that lets pickle make an array of 2^32 elements."""
    sharded(good, path)
    (path / "index.json").unlink()
    (path / ".metadata").write_bytes(b"\x80\x04]r\xfe\xff\xff\x7f.")


@FOLDERS
def has_two_indices(good: dict[str, Any], path: Path) -> None:
    """Has a good index, and for other readers one that calls `os.system`."""
    sharded(good, path)
    (path / ".metadata").write_bytes(pickle.dumps(Evil()))


@FOLDERS
def calls_a_function_in_a_part(good: dict[str, Any], path: Path) -> None:
    """Has a value beside its tensors that calls `os.system`."""
    sharded({**good, "state_dict": {**good["state_dict"], "evil": Evil()}}, path)


@FOLDERS
def calls_a_function_in_its_rest(good: dict[str, Any], path: Path) -> None:
    """Has a `meta.pt` that calls `os.system`."""
    sharded(good, path, epoch=Evil())


@FOLDERS
def reads_another_folder(good: dict[str, Any], path: Path) -> None:
    """Has its tensors in a file of another folder."""
    index = sharded(good, path)
    shutil.copy(path / "__0_0.distcp", path.with_name("stolen.distcp"))
    first_piece(index)["file"] = "../stolen.distcp"
    reindex(path, index)


@FOLDERS
def reads_an_absolute_path(good: dict[str, Any], path: Path) -> None:
    """Has its tensors in /etc/passwd."""
    index = sharded(good, path)
    first_piece(index)["file"] = "/etc/passwd"
    reindex(path, index)


@FOLDERS
def reads_a_linked_file(good: dict[str, Any], path: Path) -> None:
    """Has a link as its part."""
    sharded(good, path)
    (path / "__0_0.distcp").rename(path.with_name("linked.distcp"))
    (path / "__0_0.distcp").symlink_to(path.with_name("linked.distcp"))


@FOLDERS
def claims_large_tensors(good: dict[str, Any], path: Path) -> None:
    """Says that a tensor has 10^12 elements."""
    index = sharded(good, path)
    entry = next(iter(index["entries"].values()))
    entry["shape"] = entry["pieces"][0]["shape"] = [10**12]
    entry["pieces"][0]["begin"] = [0]
    reindex(path, index)


@FOLDERS
def claims_pieces_that_are_not_there(good: dict[str, Any], path: Path) -> None:
    """Says that a tensor has 10^12 elements, of which few are in its pieces."""
    index = sharded(good, path)
    next(iter(index["entries"].values()))["shape"] = [10**12]
    reindex(path, index)


@FOLDERS
def has_negative_sizes(good: dict[str, Any], path: Path) -> None:
    """Has a piece that starts before its file."""
    index = sharded(good, path)
    first_piece(index)["start"] = -5
    reindex(path, index)


@FOLDERS
def has_pieces_that_overlap(good: dict[str, Any], path: Path) -> None:
    """Has all tensors at one place in its file."""
    index = sharded(good, path)
    for entry in index["entries"].values():
        entry["pieces"][0] |= {"start": 0, "length": 1000}
    reindex(path, index)


@FOLDERS
def nests_its_index(good: dict[str, Any], path: Path) -> None:
    """Has an index that is nested a million deep."""
    sharded(good, path)
    (path / "index.json").write_text("[" * 900_000 + "]" * 900_000)


@FOLDERS
def has_an_index_of_many_lists(good: dict[str, Any], path: Path) -> None:
    """Has an index of 15 million empty lists."""
    sharded(good, path)
    (path / "index.json").write_text("[" + "[]," * 10_000_000 + "[]]")


@FOLDERS
def has_an_index_of_numbers(good: dict[str, Any], path: Path) -> None:
    """Has numbers where entries should be, one of them with 10,000 digits."""
    sharded(good, path)
    (path / "index.json").write_text('{"format": 1, "entries": ' + "9" * 10_000 + "}")


@FOLDERS
def calls_a_function_for_a_tensor(good: dict[str, Any], path: Path) -> None:
    """Has a pickle that calls `os.system` in the place of a tensor."""
    index = sharded(good, path)
    stream = io.BytesIO()
    torch.save(Evil(), stream)
    part = path / "__0_0.distcp"
    first_piece(index).update(start=part.stat().st_size, length=10_000)
    part.write_bytes(part.read_bytes() + stream.getvalue().ljust(10_000, b"\0"))
    reindex(path, index)


@FOLDERS
def describes_many_layers_beside_its_shards(good: dict[str, Any], path: Path) -> None:
    """Describes a model of 10^9 layers, whose weights are not read before the model is built."""
    parameters = good["hyper_parameters"]
    sharded(good, path, hyper_parameters=parameters | {"stack": parameters["stack"] | {"num_layers": 10**9}})
