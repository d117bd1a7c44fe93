"""Files that are not checkpoints, or describe more than they hold."""

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch

from tests.hostile.attacks.base import Attacks, Evil, archive, changed, dotted, with_stack

FILES = Attacks()


@FILES
def calls_a_function(good: dict[str, Any], path: Path) -> None:
    """Has a pickle that calls `os.system`."""
    changed(good, path, epoch=Evil())


@FILES
def is_a_plain_pickle(good: dict[str, Any], path: Path) -> None:
    """Is a pickle, not a zip file."""
    path.write_bytes(pickle.dumps(Evil()))


@FILES
def is_in_the_old_format(good: dict[str, Any], path: Path) -> None:
    """Is in the format of torch 1.5."""
    torch.save({**good, "epoch": Evil()}, path, _use_new_zipfile_serialization=False)


@FILES
def has_a_dotted_name(good: dict[str, Any], path: Path) -> None:
    """Resolves `os.system` through a module of torch."""
    archive(path, dotted())


@FILES
def is_a_script_of_torch(good: dict[str, Any], path: Path) -> None:
    """Is a TorchScript archive, which holds code."""
    archive(path, pickle.dumps({}, protocol=2), entries={"constants.pkl": pickle.dumps((), protocol=2)})


@FILES
def allocates_bytes(good: dict[str, Any], path: Path) -> None:
    """Calls `bytearray` with 10^12, which torch allows."""
    archive(path, b"\x80\x02cbuiltins\nbytearray\n\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x85R.")


@FILES
def allocates_a_tensor(good: dict[str, Any], path: Path) -> None:
    """Calls `torch.Tensor` with 10^12."""
    archive(path, b"\x80\x02ctorch\nTensor\n\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x85R.")


@FILES
def expands_a_tensor(good: dict[str, Any], path: Path) -> None:
    """Has weights of 10^12 elements, of which one is stored: their stride is 0."""
    changed(good, path, state_dict={name: torch.zeros(1).expand(10**6, 10**6) for name in good["state_dict"]})


@FILES
def has_a_tensor_without_numbers(good: dict[str, Any], path: Path) -> None:
    """Has a weight on the meta device, of 10^12 elements."""
    changed(good, path, state_dict={name: torch.empty(10**6, 10**6, device="meta") for name in good["state_dict"]})


@FILES
def has_a_sparse_tensor(good: dict[str, Any], path: Path) -> None:
    """Has a sparse weight of 10^12 elements."""
    sparse = torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (10**6, 10**6), check_invariants=True)
    changed(good, path, state_dict=dict.fromkeys(good["state_dict"], sparse))


@FILES
def claims_a_large_storage(good: dict[str, Any], path: Path) -> None:
    """Says that a storage of 4 bytes has 2^30 elements."""
    stream = io.BytesIO()
    torch.save({"state_dict": torch.zeros(77)}, stream)
    with zipfile.ZipFile(stream) as file:
        data = file.read("archive/data.pkl").replace(b"KM", b"J" + struct.pack("<i", 2**30))
    archive(path, data, entries={"data/0": b"0000"})


@FILES
def is_a_zip_bomb(good: dict[str, Any], path: Path) -> None:
    """Has a compressed pickle of 100 MB."""
    archive(path, bytes(100 * 10**6), compress=True)


@FILES
def has_a_bomb_of_a_storage(good: dict[str, Any], path: Path) -> None:
    """Has a compressed storage of 100 MB."""
    archive(path, pickle.dumps({}, protocol=2), compress=True, entries={"data/0": bytes(100 * 10**6)})


@FILES
def has_two_pickles(good: dict[str, Any], path: Path) -> None:
    """Has two entries of one name, so that two readers can see two pickles."""
    import warnings

    archive(path, pickle.dumps({}, protocol=2))
    with zipfile.ZipFile(path, "a") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.writestr("archive/data.pkl", pickle.dumps(Evil(), protocol=2))


@FILES
def claims_a_large_directory(good: dict[str, Any], path: Path) -> None:
    """Says that the directory of the zip file has 2 GB."""
    archive(path, pickle.dumps({}, protocol=2))
    content = bytearray(path.read_bytes())
    content[-10:-6] = struct.pack("<I", 2**31)
    path.write_bytes(content)


@FILES
def has_a_large_directory(good: dict[str, Any], path: Path) -> None:
    """Has a directory of 250,000 entries, which point to nothing."""
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    directory = entry * 250_000
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, len(directory), 0, 0)
    path.write_bytes(b"PK" + directory + bytes(20) + end)


@FILES
def nests_a_key(good: dict[str, Any], path: Path) -> None:
    """Has a key of a million nested tuples: hashing it overflows the stack."""
    archive(path, b"\x80\x02})" + b"\x85" * 900_000 + b"K\x01s.")


@FILES
def nests_lists(good: dict[str, Any], path: Path) -> None:
    """Has 100,000 nested lists."""
    archive(path, b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")


@FILES
def contains_itself(good: dict[str, Any], path: Path) -> None:
    """Has arguments that contain themselves."""
    endless: dict[str, Any] = dict(good["hyper_parameters"])
    endless["stack"] = endless
    changed(good, path, hyper_parameters=endless)


@FILES
def has_many_operations(good: dict[str, Any], path: Path) -> None:
    """Has a pickle of 20 million empty lists."""
    archive(path, b"\x80\x02](" + b"]" * 20_000_000 + b"e.")


@FILES
def repeats_its_parts(good: dict[str, Any], path: Path) -> None:
    """Has 2^60 values in 60 lists, each holding the next one twice."""
    laughs: list[Any] = []
    for _ in range(60):
        laughs = [laughs, laughs]
    changed(good, path, hyper_parameters=good["hyper_parameters"] | {"max_length": laughs})


@FILES
def has_many_layers(good: dict[str, Any], path: Path) -> None:
    """Describes a model of 10^9 layers."""
    with_stack(good, path, num_layers=10**9)


@FILES
def has_wide_layers(good: dict[str, Any], path: Path) -> None:
    """Describes a model of width 10^6."""
    with_stack(good, path, d_model=10**6)


@FILES
def has_a_huge_number(good: dict[str, Any], path: Path) -> None:
    """Describes a model of width 2^2000."""
    with_stack(good, path, d_model=2**2000)


@FILES
def has_a_lone_surrogate(good: dict[str, Any], path: Path) -> None:
    """Has a word in its vocabulary that is not Unicode."""
    parameters = good["hyper_parameters"]
    changed(good, path, hyper_parameters=parameters | {"src_tokenizer": {"name": "character", "symbols": ["\ud800"]}})


@FILES
def has_a_broken_tokenizer(good: dict[str, Any], path: Path) -> None:
    """Has a tokenizer in JSON that is nested 100,000 deep."""
    parameters = good["hyper_parameters"]
    changed(good, path, hyper_parameters=parameters | {"src_tokenizer": {"name": "bpe", "model": "[" * 100_000}})


@FILES
def imports_a_component(good: dict[str, Any], path: Path) -> None:
    """Names a component by the path of a module."""
    with_stack(good, path, attention={"class_path": "evil.Evil", "init_args": {}})


@FILES
def names_a_function_as_task(good: dict[str, Any], path: Path) -> None:
    """Names `os.system` as its task."""
    changed(good, path, attnkit=good["attnkit"] | {"task": "os.system"})


@FILES
def has_lists_for_mappings(good: dict[str, Any], path: Path) -> None:
    """Has a list where its weights should be."""
    changed(good, path, state_dict=[1, 2])


@FILES
def has_a_header_of_other_types(good: dict[str, Any], path: Path) -> None:
    """Has texts and lists where a format and packages should be."""
    changed(good, path, attnkit={"format": "1", "version": 1, "task": ["seq2seq"], "packages": []})


@FILES
def deletes_files(good: dict[str, Any], path: Path) -> None:
    """Lists a foreign file as an old checkpoint, which is deleted when a better one is saved."""
    state = {"dirpath": "/tmp/run", "best_k_models": {"/tmp/run/../../etc/passwd": torch.tensor(9.0)}}
    changed(good, path, callbacks=good["callbacks"] | {"ModelCheckpoint{}": state})


@FILES
def is_a_pipe(good: dict[str, Any], path: Path) -> None:
    """Is a pipe into which nobody writes."""
    os.mkfifo(path)


@FILES
def is_endless(good: dict[str, Any], path: Path) -> None:
    """Is a link to /dev/zero."""
    path.symlink_to("/dev/zero")
