"""Writes hostile checkpoints. Each function makes one from a good one, and says what it tries; code that runs creates the canary file."""

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from attnkit.checkpoint.shards import write_sharded

COMMAND = 'touch "$ATTNKIT_CANARY"'
Attack = Callable[[dict[str, Any], Path], None]
FILES: dict[str, Attack] = {}
FOLDERS: dict[str, Attack] = {}
EXPORTED: dict[str, Attack] = {}
STATES: dict[str, Attack] = {}
"""Checkpoints of a good model, which a training cannot continue from."""
RECIPES: dict[str, Attack] = {}
"""Checkpoints that are good but for what they ask of a trainer: `attnkit fit` may use them, and leaves out what is harmful."""

EVIL_MODULE = f"import os\nfrom lightning.pytorch import Callback\nos.system('{COMMAND}')\nclass Evil(Callback):\n    pass\n"


def attack(into: dict[str, Attack]) -> Callable[[Attack], Attack]:
    def note(function: Attack) -> Attack:
        into[function.__name__] = function
        return function

    return note


class Evil:
    def __reduce__(self) -> Any:
        return os.system, (COMMAND,)


def archive(path: Path, data: bytes, *, compress: bool = False, entries: dict[str, bytes] | None = None) -> None:
    """Write an archive of torch with this pickle."""
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in {"data.pkl": data, "byteorder": b"little", "version": b"3\n", **(entries or {})}.items():
            file.writestr(f"archive/{name}", content)


def changed(good: dict[str, Any], path: Path, **parts: Any) -> None:
    torch.save({**good, **parts}, path)


def with_trainer(good: dict[str, Any], path: Path, *, name: str | None = None, data: Any = None, **trainer: Any) -> None:
    state = good["callbacks"]["attnkit_recipe"]
    state = state | {"trainer": state["trainer"] | trainer, "name": name or state["name"], "data": data or state["data"]}
    changed(good, path, callbacks=good["callbacks"] | {"attnkit_recipe": state})


def with_stack(good: dict[str, Any], path: Path, **arguments: Any) -> None:
    parameters = good["hyper_parameters"]
    changed(good, path, hyper_parameters=parameters | {"stack": parameters["stack"] | arguments})


def dotted() -> bytes:
    """A pickle of protocol 4 that reaches `os.system` from an allowed module by a name with a dot."""
    module, name = b"torch.distributed.checkpoint.filesystem", b"os.system"
    strings = b"".join(b"\x8c" + bytes([len(s)]) + s for s in (module, name))
    return b"\x80\x04" + strings + b"\x93\x8c" + bytes([len(COMMAND)]) + COMMAND.encode() + b"\x85R."


@attack(FILES)
def calls_a_function(good: dict[str, Any], path: Path) -> None:
    """Has a pickle that calls `os.system`."""
    changed(good, path, epoch=Evil())


@attack(FILES)
def is_a_plain_pickle(good: dict[str, Any], path: Path) -> None:
    """Is no zip file, but a pickle."""
    path.write_bytes(pickle.dumps(Evil()))


@attack(FILES)
def is_in_the_old_format(good: dict[str, Any], path: Path) -> None:
    """Is written as torch 1.5 did."""
    torch.save({**good, "epoch": Evil()}, path, _use_new_zipfile_serialization=False)


@attack(FILES)
def has_a_dotted_name(good: dict[str, Any], path: Path) -> None:
    """Resolves `os.system` through a module of torch."""
    archive(path, dotted())


@attack(FILES)
def is_a_script_of_torch(good: dict[str, Any], path: Path) -> None:
    """Is a TorchScript archive, which holds code."""
    archive(path, pickle.dumps({}, protocol=2), entries={"constants.pkl": pickle.dumps((), protocol=2)})


@attack(FILES)
def allocates_bytes(good: dict[str, Any], path: Path) -> None:
    """Calls `bytearray` with 10^12, which torch allows."""
    archive(path, b"\x80\x02cbuiltins\nbytearray\n\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x85R.")


@attack(FILES)
def allocates_a_tensor(good: dict[str, Any], path: Path) -> None:
    """Calls `torch.Tensor` with 10^12."""
    archive(path, b"\x80\x02ctorch\nTensor\n\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x85R.")


@attack(FILES)
def expands_a_tensor(good: dict[str, Any], path: Path) -> None:
    """Has weights of 10^12 elements, of which one is stored: their stride is 0."""
    changed(good, path, state_dict={name: torch.zeros(1).expand(10**6, 10**6) for name in good["state_dict"]})


@attack(FILES)
def has_a_tensor_without_numbers(good: dict[str, Any], path: Path) -> None:
    """Has a weight on the meta device, of 10^12 elements."""
    changed(good, path, state_dict={name: torch.empty(10**6, 10**6, device="meta") for name in good["state_dict"]})


@attack(FILES)
def has_a_sparse_tensor(good: dict[str, Any], path: Path) -> None:
    """Has a sparse weight of 10^12 elements."""
    sparse = torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (10**6, 10**6), check_invariants=True)
    changed(good, path, state_dict=dict.fromkeys(good["state_dict"], sparse))


@attack(FILES)
def claims_a_large_storage(good: dict[str, Any], path: Path) -> None:
    """Says that a storage of 4 bytes has 2^30 elements."""
    stream = io.BytesIO()
    torch.save({"state_dict": torch.zeros(77)}, stream)
    with zipfile.ZipFile(stream) as file:
        data = file.read("archive/data.pkl").replace(b"KM", b"J" + struct.pack("<i", 2**30))
    archive(path, data, entries={"data/0": b"0000"})


@attack(FILES)
def is_a_zip_bomb(good: dict[str, Any], path: Path) -> None:
    """Has a compressed pickle of 100 MB."""
    archive(path, bytes(100 * 10**6), compress=True)


@attack(FILES)
def has_a_bomb_of_a_storage(good: dict[str, Any], path: Path) -> None:
    """Has a compressed storage of 100 MB."""
    archive(path, pickle.dumps({}, protocol=2), compress=True, entries={"data/0": bytes(100 * 10**6)})


@attack(FILES)
def has_two_pickles(good: dict[str, Any], path: Path) -> None:
    """Has two entries of one name, so that two readers can see two pickles."""
    import warnings

    archive(path, pickle.dumps({}, protocol=2))
    with zipfile.ZipFile(path, "a") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.writestr("archive/data.pkl", pickle.dumps(Evil(), protocol=2))


@attack(FILES)
def claims_a_large_directory(good: dict[str, Any], path: Path) -> None:
    """Says that the directory of the zip file has 2 GB."""
    archive(path, pickle.dumps({}, protocol=2))
    content = bytearray(path.read_bytes())
    content[-10:-6] = struct.pack("<I", 2**31)
    path.write_bytes(content)


@attack(FILES)
def has_a_large_directory(good: dict[str, Any], path: Path) -> None:
    """Has a directory of 250,000 entries, which point to nothing."""
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    directory = entry * 250_000
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 65535, 65535, len(directory), 0, 0)
    path.write_bytes(b"PK" + directory + bytes(20) + end)


@attack(FILES)
def nests_a_key(good: dict[str, Any], path: Path) -> None:
    """Has a key of a million tuples in each other: to hash it overflows the stack."""
    archive(path, b"\x80\x02})" + b"\x85" * 900_000 + b"K\x01s.")


@attack(FILES)
def nests_lists(good: dict[str, Any], path: Path) -> None:
    """Has 100,000 lists in each other."""
    archive(path, b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")


@attack(FILES)
def contains_itself(good: dict[str, Any], path: Path) -> None:
    """Has arguments that are a part of themselves."""
    endless: dict[str, Any] = dict(good["hyper_parameters"])
    endless["stack"] = endless
    changed(good, path, hyper_parameters=endless)


@attack(FILES)
def has_many_operations(good: dict[str, Any], path: Path) -> None:
    """Has a pickle of 20 million empty lists."""
    archive(path, b"\x80\x02](" + b"]" * 20_000_000 + b"e.")


@attack(FILES)
def repeats_its_parts(good: dict[str, Any], path: Path) -> None:
    """Has 2^60 values in 60 lists, each of which has the next one twice."""
    laughs: list[Any] = []
    for _ in range(60):
        laughs = [laughs, laughs]
    changed(good, path, hyper_parameters=good["hyper_parameters"] | {"max_length": laughs})


@attack(FILES)
def has_many_layers(good: dict[str, Any], path: Path) -> None:
    """Describes a model of 10^9 layers."""
    with_stack(good, path, num_layers=10**9)


@attack(FILES)
def has_wide_layers(good: dict[str, Any], path: Path) -> None:
    """Describes a model of width 10^6."""
    with_stack(good, path, d_model=10**6)


@attack(FILES)
def has_a_huge_number(good: dict[str, Any], path: Path) -> None:
    """Describes a model of width 2^2000."""
    with_stack(good, path, d_model=2**2000)


@attack(FILES)
def has_a_lone_surrogate(good: dict[str, Any], path: Path) -> None:
    """Has a word in its vocabulary that is not Unicode."""
    parameters = good["hyper_parameters"]
    changed(good, path, hyper_parameters=parameters | {"src_tokenizer": {"name": "character", "symbols": ["\ud800"]}})


@attack(FILES)
def has_a_broken_tokenizer(good: dict[str, Any], path: Path) -> None:
    """Has a tokenizer in JSON that is nested 100,000 deep."""
    parameters = good["hyper_parameters"]
    changed(good, path, hyper_parameters=parameters | {"src_tokenizer": {"name": "bpe", "model": "[" * 100_000}})


@attack(FILES)
def imports_a_component(good: dict[str, Any], path: Path) -> None:
    """Names a component by the path of a module."""
    with_stack(good, path, attention={"class_path": "evil.Evil", "init_args": {}})


@attack(FILES)
def names_a_function_as_task(good: dict[str, Any], path: Path) -> None:
    """Names `os.system` as its task."""
    changed(good, path, attnkit=good["attnkit"] | {"task": "os.system"})


@attack(FILES)
def has_lists_for_mappings(good: dict[str, Any], path: Path) -> None:
    """Has a list where its weights should be."""
    changed(good, path, state_dict=[1, 2])


@attack(FILES)
def has_a_header_of_other_types(good: dict[str, Any], path: Path) -> None:
    """Has texts and lists where a format and packages should be."""
    changed(good, path, attnkit={"format": "1", "version": 1, "task": ["seq2seq"], "packages": []})


@attack(FILES)
def deletes_files(good: dict[str, Any], path: Path) -> None:
    """Notes a foreign file as an old checkpoint, which is deleted when a better one comes."""
    state = {"dirpath": "/tmp/run", "best_k_models": {"/tmp/run/../../etc/passwd": torch.tensor(9.0)}}
    changed(good, path, callbacks=good["callbacks"] | {"ModelCheckpoint{}": state})


@attack(FILES)
def is_a_pipe(good: dict[str, Any], path: Path) -> None:
    """Is a pipe into which nobody writes."""
    os.mkfifo(path)


@attack(FILES)
def is_endless(good: dict[str, Any], path: Path) -> None:
    """Is a link to /dev/zero."""
    path.symlink_to("/dev/zero")


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


@attack(FOLDERS)
def has_a_dotted_name_in_its_index(good: dict[str, Any], path: Path) -> None:
    """Has an index that resolves `os.system` through torch.distributed.checkpoint."""
    sharded(good, path)
    (path / "index.json").unlink()
    (path / ".metadata").write_bytes(dotted())


@attack(FOLDERS)
def calls_a_function_in_its_index(good: dict[str, Any], path: Path) -> None:
    """Has an index that calls `os.system`."""
    sharded(good, path)
    (path / "index.json").unlink()
    (path / ".metadata").write_bytes(pickle.dumps(Evil()))


@attack(FOLDERS)
def has_a_large_memo_in_its_index(good: dict[str, Any], path: Path) -> None:
    """Has an index that lets pickle make an array of 2^32 elements."""
    sharded(good, path)
    (path / "index.json").unlink()
    (path / ".metadata").write_bytes(b"\x80\x04]r\xfe\xff\xff\x7f.")


@attack(FOLDERS)
def has_two_indices(good: dict[str, Any], path: Path) -> None:
    """Has a good index, and for other readers one that calls `os.system`."""
    sharded(good, path)
    (path / ".metadata").write_bytes(pickle.dumps(Evil()))


@attack(FOLDERS)
def calls_a_function_in_a_part(good: dict[str, Any], path: Path) -> None:
    """Has a value beside its tensors that calls `os.system`."""
    sharded({**good, "state_dict": {**good["state_dict"], "evil": Evil()}}, path)


@attack(FOLDERS)
def calls_a_function_in_its_rest(good: dict[str, Any], path: Path) -> None:
    """Has a `meta.pt` that calls `os.system`."""
    sharded(good, path, epoch=Evil())


@attack(FOLDERS)
def reads_another_folder(good: dict[str, Any], path: Path) -> None:
    """Has its tensors in a file of another folder."""
    index = sharded(good, path)
    shutil.copy(path / "__0_0.distcp", path.with_name("stolen.distcp"))
    first_piece(index)["file"] = "../stolen.distcp"
    reindex(path, index)


@attack(FOLDERS)
def reads_an_absolute_path(good: dict[str, Any], path: Path) -> None:
    """Has its tensors in /etc/passwd."""
    index = sharded(good, path)
    first_piece(index)["file"] = "/etc/passwd"
    reindex(path, index)


@attack(FOLDERS)
def reads_a_linked_file(good: dict[str, Any], path: Path) -> None:
    """Has a link as its part."""
    sharded(good, path)
    (path / "__0_0.distcp").rename(path.with_name("linked.distcp"))
    (path / "__0_0.distcp").symlink_to(path.with_name("linked.distcp"))


@attack(FOLDERS)
def claims_large_tensors(good: dict[str, Any], path: Path) -> None:
    """Says that a tensor has 10^12 elements."""
    index = sharded(good, path)
    entry = next(iter(index["entries"].values()))
    entry["shape"] = entry["pieces"][0]["shape"] = [10**12]
    entry["pieces"][0]["begin"] = [0]
    reindex(path, index)


@attack(FOLDERS)
def claims_pieces_that_are_not_there(good: dict[str, Any], path: Path) -> None:
    """Says that a tensor has 10^12 elements, of which few are in its pieces."""
    index = sharded(good, path)
    next(iter(index["entries"].values()))["shape"] = [10**12]
    reindex(path, index)


@attack(FOLDERS)
def has_negative_sizes(good: dict[str, Any], path: Path) -> None:
    """Has a piece that starts before its file."""
    index = sharded(good, path)
    first_piece(index)["start"] = -5
    reindex(path, index)


@attack(FOLDERS)
def has_pieces_that_overlap(good: dict[str, Any], path: Path) -> None:
    """Has all tensors at one place in its file."""
    index = sharded(good, path)
    for entry in index["entries"].values():
        entry["pieces"][0] |= {"start": 0, "length": 1000}
    reindex(path, index)


@attack(FOLDERS)
def nests_its_index(good: dict[str, Any], path: Path) -> None:
    """Has an index that is nested a million deep."""
    sharded(good, path)
    (path / "index.json").write_text("[" * 900_000 + "]" * 900_000)


@attack(FOLDERS)
def has_an_index_of_many_lists(good: dict[str, Any], path: Path) -> None:
    """Has an index of 15 million empty lists."""
    sharded(good, path)
    (path / "index.json").write_text("[" + "[]," * 10_000_000 + "[]]")


@attack(FOLDERS)
def has_an_index_of_numbers(good: dict[str, Any], path: Path) -> None:
    """Has numbers where entries should be, one of them with 10,000 digits."""
    sharded(good, path)
    (path / "index.json").write_text('{"format": 1, "entries": ' + "9" * 10_000 + "}")


@attack(FOLDERS)
def calls_a_function_for_a_tensor(good: dict[str, Any], path: Path) -> None:
    """Has a pickle that calls `os.system` in the place of a tensor."""
    index = sharded(good, path)
    stream = io.BytesIO()
    torch.save(Evil(), stream)
    part = path / "__0_0.distcp"
    first_piece(index).update(start=part.stat().st_size, length=10_000)
    part.write_bytes(part.read_bytes() + stream.getvalue().ljust(10_000, b"\0"))
    reindex(path, index)


@attack(FOLDERS)
def describes_many_layers_beside_its_shards(good: dict[str, Any], path: Path) -> None:
    """Describes a model of 10^9 layers, whose weights are not read before the model is built."""
    parameters = good["hyper_parameters"]
    sharded(good, path, hyper_parameters=parameters | {"stack": parameters["stack"] | {"num_layers": 10**9}})


@attack(STATES)
def has_a_number_for_its_loops(good: dict[str, Any], path: Path) -> None:
    """Has a number where the state of the loops should be."""
    changed(good, path, loops=3)


@attack(STATES)
def has_loops_without_counters(good: dict[str, Any], path: Path) -> None:
    """Has a state of the loops that lacks its counters."""
    loops = good["loops"]
    changed(good, path, loops=loops | {"fit_loop": loops["fit_loop"] | {"epoch_progress": {"total": {}}}})


@attack(STATES)
def has_numbers_for_optimizers(good: dict[str, Any], path: Path) -> None:
    """Has numbers where states of optimizers should be."""
    changed(good, path, optimizer_states=[3])


@attack(STATES)
def has_averages_of_other_shapes(good: dict[str, Any], path: Path) -> None:
    """Has averages of the optimizer in other shapes than the parameters."""
    [states] = good["optimizer_states"]
    wrong = {index: {name: torch.zeros(3, 1, 4) if v.ndim else v for name, v in of.items()} for index, of in states["state"].items()}
    changed(good, path, optimizer_states=[states | {"state": wrong}])


@attack(STATES)
def has_texts_for_schedules(good: dict[str, Any], path: Path) -> None:
    """Has a text where states of schedules should be."""
    changed(good, path, lr_schedulers=["a"])


@attack(STATES)
def has_lists_for_random_states(good: dict[str, Any], path: Path) -> None:
    """Has a list where the states of the random generators should be."""
    changed(good, path, random_states=[[1, 2]])


@attack(STATES)
def has_no_position_in_its_data(good: dict[str, Any], path: Path) -> None:
    """Has a text where the position in the data should be, and says that an epoch is under way."""
    loops = good["loops"]
    fit_loop = dict(loops["fit_loop"])
    progress = fit_loop["epoch_loop.batch_progress"]
    counts = {"ready": 1, "started": 1, "processed": 1, "completed": 1}
    fit_loop["epoch_loop.batch_progress"] = progress | {"current": counts, "total": counts, "is_last_batch": False}
    zero = dict.fromkeys(counts, 0)
    fit_loop["epoch_progress"] = {"total": zero | {"ready": 1, "started": 1}, "current": zero | {"ready": 1, "started": 1}}
    changed(good, path, loops=loops | {"fit_loop": fit_loop}, data_position="checksum")


@attack(STATES)
def has_texts_for_states_of_callbacks(good: dict[str, Any], path: Path) -> None:
    """Has texts where the states of callbacks should be."""
    changed(good, path, callbacks=good["callbacks"] | {"FiniteCheck": "a"})


def exported(good: dict[str, Any], path: Path, **arguments: Any) -> None:
    described = {"attnkit": good["attnkit"], "hyper_parameters": good["hyper_parameters"] | arguments}
    save_file({k: v.clone() for k, v in good["state_dict"].items()}, path, metadata={"attnkit": json.dumps(described)})


def with_header(path: Path, header: bytes) -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header)


@attack(EXPORTED)
def claims_a_large_header(good: dict[str, Any], path: Path) -> None:
    """Says that its header has 2^62 bytes."""
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")


@attack(EXPORTED)
def has_a_large_header(good: dict[str, Any], path: Path) -> None:
    """Has a header of 60 MB."""
    with_header(path, b'{"__metadata__": {"a": "' + b"a" * 60_000_000 + b'"}}')


@attack(EXPORTED)
def nests_its_header(good: dict[str, Any], path: Path) -> None:
    """Has a header that is nested 900,000 deep."""
    with_header(path, b"[" * 900_000)


@attack(EXPORTED)
def has_many_tensors(good: dict[str, Any], path: Path) -> None:
    """Has 300,000 tensors without elements."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    with_header(path, json.dumps({str(i): entry for i in range(300_000)}).encode())


@attack(EXPORTED)
def has_tensors_that_overlap(good: dict[str, Any], path: Path) -> None:
    """Has two tensors of the same bytes."""
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"0000")


@attack(EXPORTED)
def nests_its_description(good: dict[str, Any], path: Path) -> None:
    """Has a description that is nested 100,000 deep."""
    save_file({"a": torch.ones(1)}, path, metadata={"attnkit": "[" * 100_000})


@attack(EXPORTED)
def describes_a_number(good: dict[str, Any], path: Path) -> None:
    """Has a description that is a number of 10,000 digits."""
    save_file({"a": torch.ones(1)}, path, metadata={"attnkit": "1" * 10_000})


@attack(EXPORTED)
def describes_many_layers(good: dict[str, Any], path: Path) -> None:
    """Describes a model of 10^9 layers."""
    exported(good, path, stack=good["hyper_parameters"]["stack"] | {"num_layers": 10**9})


@attack(EXPORTED)
def describes_a_module(good: dict[str, Any], path: Path) -> None:
    """Names a component by the path of a module."""
    exported(good, path, stack={"class_path": "evil.Evil"})


@attack(RECIPES)
def imports_a_callback(good: dict[str, Any], path: Path) -> None:
    """Asks for a callback of a module of its choice."""
    with_trainer(good, path, callbacks=[{"class_path": "evil.Evil", "init_args": {}}])


@attack(RECIPES)
def imports_a_callback_by_its_name(good: dict[str, Any], path: Path) -> None:
    """Asks for one callback, as a word."""
    with_trainer(good, path, callbacks="evil.Evil")


@attack(RECIPES)
def imports_an_argument(good: dict[str, Any], path: Path) -> None:
    """Gives a good callback a function of a module of its choice."""
    average = "lightning.pytorch.callbacks.EMAWeightAveraging"
    with_trainer(good, path, callbacks=[{"class_path": average, "init_args": {"avg_fn": "evil.Evil"}}])


@attack(RECIPES)
def imports_a_strategy(good: dict[str, Any], path: Path) -> None:
    """Asks for a strategy and a logger of a module of its choice."""
    with_trainer(good, path, strategy="evil.Evil", logger={"class_path": "evil.Evil"}, plugins=["evil.Evil"], profiler="evil.Evil")


@attack(RECIPES)
def writes_elsewhere(good: dict[str, Any], path: Path) -> None:
    """Asks for another folder."""
    with_trainer(good, path, default_root_dir=str(path.with_name("elsewhere")))


@attack(RECIPES)
def saves_elsewhere(good: dict[str, Any], path: Path) -> None:
    """Asks for checkpoints in another folder, by a folder and by the name of the file."""
    kind = "lightning.pytorch.callbacks.ModelCheckpoint"
    elsewhere = {"class_path": kind, "init_args": {"dirpath": str(path.with_name("elsewhere"))}}
    upwards = {"class_path": kind, "init_args": {"filename": "../../../../../elsewhere/x"}}
    with_trainer(good, path, callbacks=[elsewhere, upwards])


@attack(RECIPES)
def is_called_upwards(good: dict[str, Any], path: Path) -> None:
    """Is a run whose name is a path out of `runs`."""
    with_trainer(good, path, name="../../elsewhere")


@attack(RECIPES)
def starts_many_processes(good: dict[str, Any], path: Path) -> None:
    """Asks for a million processes."""
    with_trainer(good, path, devices=10**6, strategy="ddp")


@attack(RECIPES)
def imports_data(good: dict[str, Any], path: Path) -> None:
    """Names its data by the path of a module."""
    with_trainer(good, path, data={"class_path": "evil.Evil", "init_args": {}})
