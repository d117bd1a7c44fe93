import importlib
import json
import pickle
import resource
import sys
import types
import zipfile

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import attnkit
from attnkit import own_code
from attnkit.checkpoint import AtomicCheckpointIO, CheckpointError, export, load_checkpoint, load_exported, pickles
from attnkit.checkpoint.description import require_readable
from attnkit.registry import ConfigurationError
from attnkit.task import Task
from attnkit.task.seq2seq import Seq2Seq

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


@pytest.fixture
def batches(words, make_batch):
    return [make_batch(words(8)) for _ in range(3)]


@pytest.fixture
def saved(batches, make_task, fit, tmp_path):
    """A trained task, and its checkpoint."""
    task = make_task()
    trainer = fit(task, batches)
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    return task.eval(), tmp_path / "first.ckpt"


def same_outputs(a, b, batch):
    return torch.equal(a.eval()(batch["src"], batch["tgt"]), b.eval()(batch["src"], batch["tgt"])) and (
        a.generate(batch["source"]) == b.generate(batch["source"])
    )


def test_a_task_is_rebuilt_from_its_checkpoint_alone(saved, batches):
    task, path = saved
    for loaded in (Task.load(path), Seq2Seq.load(str(path)), Seq2Seq.load_from_checkpoint(path, weights_only=True)):
        assert type(loaded) is Seq2Seq
        assert dict(loaded.hparams) == dict(task.hparams)
        assert loaded.training
        assert same_outputs(task, loaded, batches[0])


def test_a_checkpoint_older_than_normalization_encodes_as_before(saved, batches, tmp_path):
    task, path = saved
    checkpoint = load_checkpoint(path)
    for side in ("src_tokenizer", "tgt_tokenizer"):
        assert checkpoint["hyper_parameters"][side].pop("normalization") == "NFC"
    torch.save(checkpoint, tmp_path / "old.ckpt")
    old = Task.load(tmp_path / "old.ckpt")
    assert (task.src_tokenizer.normalization, old.src_tokenizer.normalization) == ("NFC", "none")
    assert same_outputs(task, old, batches[0])


def test_a_checkpoint_records_its_format_version_and_task(saved):
    written = load_checkpoint(saved[1])["attnkit"]
    assert written == {"format": 1, "version": attnkit.__version__, "task": "seq2seq", "packages": {}, "replaced": {}, "code": {}}


def test_a_checkpoint_of_a_reloaded_task_loads(saved, batches, fit, tmp_path):
    second = Task.load(saved[1])
    fit(second, batches).save_checkpoint(tmp_path / "second.ckpt")
    third = Task.load(tmp_path / "second.ckpt")
    assert same_outputs(second, third, batches[0])
    assert not same_outputs(saved[0], third, batches[0])


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_resumed_run_equals_an_uninterrupted_one(batches, make_task, fit, tmp_path):
    arguments = {"optimizer": {"name": "adamw", "lr": 0.01}, "schedule": {"name": "cosine", "warmup_steps": 2}}
    whole = make_task(**arguments)
    halves = ModelCheckpoint(tmp_path, filename="half-{epoch}", save_top_k=-1)
    fit(whole, batches, max_epochs=2, callbacks=[halves], enable_checkpointing=True)
    resumed = make_task(**arguments)
    fit(resumed, batches, max_epochs=2, ckpt_path=tmp_path / "half-epoch=0.ckpt")
    assert all(torch.equal(v, resumed.state_dict()[k]) for k, v in whole.state_dict().items())


def test_a_resumed_run_uses_its_own_optimizer_settings(saved, batches, make_task, fit):
    task = make_task(optimizer={"name": "adam", "lr": 0.5, "betas": [0.8, 0.9]})
    trainer = fit(task, batches, max_epochs=2, ckpt_path=saved[1])
    group = trainer.optimizers[0].param_groups[0]
    assert (group["lr"], list(group["betas"])) == (0.5, [0.8, 0.9])
    assert trainer.optimizers[0].state_dict()["state"][0]["step"] == 6  # the state is the checkpoint's


@pytest.mark.parametrize("compiled_first", [True, False])
def test_compiled_and_plain_weights_are_interchangeable(saved, batches, make_task, fit, tmp_path, compiled_first):
    def compiled(task):
        task.configure_model()
        task.model.stack = torch.compile(task.model.stack, backend="eager")
        task.model = torch.compile(task.model, backend="eager")
        return task

    assert any("_orig_mod" in n for n, _ in compiled(make_task()).named_parameters())
    weights = load_checkpoint(saved[1])["state_dict"]
    task = make_task() if not compiled_first else compiled(make_task())
    task.configure_model()
    task.load_state_dict(weights)
    assert set(task.state_dict()) == set(weights)
    assert all(torch.equal(v, weights[k]) for k, v in task.state_dict().items())
    other = compiled(make_task()) if not compiled_first else make_task()
    other.configure_model()
    other.load_state_dict({k.replace("model.", "model._orig_mod.", 1): v for k, v in weights.items()})  # written by others
    assert all(torch.equal(v, weights[k]) for k, v in other.state_dict().items())


@pytest.mark.parametrize("tie", ["none", "output", "all"])
def test_an_exported_file_gives_equal_outputs(batches, make_task, fit, tmp_path, tie):
    task = make_task(tie=tie)
    fit(task, batches, precision="64-true").save_checkpoint(tmp_path / "a.ckpt")
    export(tmp_path / "a.ckpt", tmp_path / "new" / "a.safetensors")
    loaded = Seq2Seq.load(tmp_path / "new" / "a.safetensors")
    assert loaded.dtype == torch.float64
    assert same_outputs(task, loaded, batches[1])
    assert dict(loaded.hparams) == dict(task.hparams)
    assert [f.name for f in (tmp_path / "new").iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o600])
def test_an_export_inherits_the_file_mode_of_its_checkpoint(mode, saved, tmp_path):
    saved[1].chmod(mode)
    export(saved[1], tmp_path / "a.safetensors")
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == mode


def refused(read, path):
    with pytest.raises(CheckpointError) as caught:
        read(path)
    assert isinstance(caught.value, ConfigurationError)
    return str(caught.value)


def test_a_missing_checkpoint_is_refused(saved, tmp_path):
    for read in (load_checkpoint, Task.load, load_exported):
        assert refused(read, tmp_path / "frist.ckpt") == f"no checkpoint at {tmp_path}/frist.ckpt. Did you mean 'first.ckpt'?"
        assert "is a folder" in refused(read, tmp_path)
    assert "no checkpoint at" in refused(load_checkpoint, tmp_path / "no" / "folder.ckpt")


def test_a_truncated_checkpoint_is_refused(saved, rng, tmp_path):
    whole = saved[1].read_bytes()
    export(saved[1], tmp_path / "whole.safetensors")
    exported = (tmp_path / "whole.safetensors").read_bytes()
    for part in (0.5, 0.999, rng.random(), 0):
        saved[1].write_bytes(whole[: int(part * len(whole))])
        assert "is truncated" in refused(load_checkpoint, saved[1])
        (tmp_path / "part.safetensors").write_bytes(exported[: int(part * len(exported))])
        assert "is truncated" in refused(load_exported, tmp_path / "part.safetensors")


def test_a_damaged_checkpoint_is_refused(saved, tmp_path):
    with zipfile.ZipFile(tmp_path / "odd.ckpt", "w") as file:
        file.writestr("a.txt", "hello")
    assert "is damaged, or not a checkpoint" in refused(load_checkpoint, tmp_path / "odd.ckpt")


class Foreign:
    """Something that only a trusting reader would load."""


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "foreign.ckpt"
    for content in (pickle.dumps({"model": 1}), b"hello", b"\x00" * 100):
        path.write_bytes(content)
        assert "is not an attnkit checkpoint" in refused(load_checkpoint, path)
    torch.save({"model": Foreign()}, path)
    assert "holds more than plain data and tensors, and was not loaded" in refused(load_checkpoint, path)
    for content in ({"weight": torch.ones(2)}, [1, 2], {"attnkit": 3}, {"attnkit": {"version": 1}}):
        torch.save(content, path)
        assert "is not an attnkit checkpoint, but a file of another project" in refused(load_checkpoint, path)
    save_file({"weight": torch.ones(2)}, path)
    assert "`attnkit export` did not write it" in refused(load_exported, path)
    path.write_bytes(b"hello")
    assert "not a safetensors file" in refused(load_exported, path)


def test_a_lightning_checkpoint_of_another_project_is_refused(tmp_path, make_task, fit, batches):
    class Other(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

    trainer = Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
    trainer.strategy.connect(Other())
    trainer.save_checkpoint(tmp_path / "other.ckpt")
    assert "but a Lightning checkpoint of another project" in refused(load_checkpoint, tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match="another project"):
        fit(make_task(), batches, ckpt_path=tmp_path / "other.ckpt")


@pytest.fixture
def edited(saved):
    """Writes a checkpoint with some of its content changed."""

    def edit(change):
        checkpoint = torch.load(saved[1], weights_only=True)
        change(checkpoint)
        torch.save(checkpoint, saved[1])
        return saved[1]

    return edit


def test_a_newer_format_is_refused(edited):
    path = edited(lambda c: c["attnkit"].update(format=2, version="9.9"))
    assert "written by attnkit 9.9 in format 2" in (message := refused(load_checkpoint, path))
    assert "pip install --upgrade attnkit" in message


def test_a_missing_component_is_named_with_its_package(edited):
    path = edited(lambda c: c["hyper_parameters"]["stack"].update(attention={"name": "gaussian", "width": 3}))
    assert refused(load_checkpoint, path).endswith(
        "needs the attention 'gaussian', which is not installed here; import the module that registers it first "
        "(on the command line: --imports MODULE)"
    )
    path = edited(lambda c: c["attnkit"].update(packages={"attentions.gaussian": "kernels==1.2"}))
    assert refused(Task.load, path).endswith("needs the attention 'gaussian', which is not installed here: pip install kernels==1.2")
    path = edited(lambda c: c["attnkit"].update(task="telepathy"))
    assert "needs the task 'telepathy'" in refused(Task.load, path)


def test_a_checkpoint_imports_modules_only_if_trusted(make_task, batches, fit, tmp_path, monkeypatch):
    code = """import pathlib
pathlib.Path(__file__).with_name("ran").touch()
from attnkit.norm.rms_norm import RMSNorm
class Mine(RMSNorm):
    pass
"""
    (tmp_path / "norm_of_a_stranger.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    stack = {"name": "encoder_decoder", "d_model": 16, "num_layers": 1, "num_heads": 2, "norm": "norm_of_a_stranger.Mine"}
    task = make_task(stack=stack)
    path = tmp_path / "mine.ckpt"
    fit(task, batches).save_checkpoint(path)
    assert same_outputs(task, Task.load(path), batches[0])  # the module is imported
    export(path, tmp_path / "mine.safetensors")

    monkeypatch.delitem(sys.modules, "norm_of_a_stranger")
    (tmp_path / "ran").unlink()
    for load, source in ((load_checkpoint, path), (Task.load, path), (load_exported, tmp_path / "mine.safetensors")):
        with pytest.raises(CheckpointError, match="may not import modules: if you trust it, `import norm_of_a_stranger` first"):
            load(source)
    assert not (tmp_path / "ran").exists()
    load_checkpoint(path, trust=True)
    assert (tmp_path / "ran").exists()
    assert same_outputs(task, Task.load(path), batches[0])
    monkeypatch.delitem(sys.modules, "norm_of_a_stranger")


def test_a_checkpoint_records_the_package_of_a_plugin(make_task, batches, fit, tmp_path, monkeypatch):
    norms = attnkit.norms
    plugin = types.ModuleType("sacrebleu.plugin")  # as if this installed package had it
    monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    copy = type("Copy", (norms.get("layer_norm"),), {"__module__": plugin.__name__})
    monkeypatch.setattr(norms, "_classes", {**norms._classes, "copy": copy})
    task = make_task()
    task = make_task(stack={**task.hparams["stack"], "norm": "copy"})
    fit(task, batches).save_checkpoint(tmp_path / "plugin.ckpt")
    packages = load_checkpoint(tmp_path / "plugin.ckpt")["attnkit"]["packages"]
    assert list(packages) == ["norms.copy"]
    assert packages["norms.copy"].startswith("sacrebleu==")


def test_the_name_of_a_built_in_component_means_what_it_meant_in_training(saved, make_task, batches, fit, tmp_path, monkeypatch):
    norms, own, exported = attnkit.norms, tmp_path / "own.ckpt", tmp_path / "own.safetensors"
    built_in = norms.get("layer_norm")
    halved = type("Halved", (built_in,), {"__module__": "my_norms", "forward": lambda self, x: built_in.forward(self, x) / 2})
    with monkeypatch.context() as patch:
        patch.setattr(norms, "_classes", dict(norms._classes))
        patch.setattr(norms, "_overridden", set())
        norms.register("layer_norm", override=True)(halved)
        task = make_task()
        fit(task, batches).save_checkpoint(own)
        assert same_outputs(task, Task.load(own), batches[0])
        export(own, exported)
        assert refused(Task.load, saved[1]).endswith("needs the built-in norm 'layer_norm', which my_norms.Halved replaces in this process")
    for load, path in ((load_checkpoint, own), (Task.load, own), (load_exported, exported)):
        assert refused(load, path).endswith(
            "needs the class 'my_norms.Halved' in place of the built-in norm 'layer_norm'; import the module that registers it first "
            "(on the command line: --imports MODULE)"
        )
    checkpoint = torch.load(own, weights_only=True)
    del checkpoint["attnkit"]["replaced"]  # as in earlier versions, which did not record it
    torch.save(checkpoint, own)
    Task.load(own)


def test_loading_warns_of_code_that_has_changed_since(make_task, batches, fit, tmp_path, monkeypatch):
    monkeypatch.setattr(own_code, "_BEGAN", sys.maxsize)  # as if this process began after the code was written
    monkeypatch.syspath_prepend(tmp_path)
    attnkit.norms.classes()  # imported by now, so that none is missing when the copy is dropped
    monkeypatch.setattr(attnkit.norms, "_classes", dict(attnkit.norms._classes))
    path, source = tmp_path / "own.ckpt", tmp_path / "own_norms.py"
    for factor in (1, 2):
        source.write_text(f"from attnkit import norms\nclass Own(norms.get('layer_norm')):\n    factor = {factor}\n")
        sys.modules.pop("own_norms", None)
        attnkit.norms.register("own", override=True)(importlib.import_module("own_norms").Own)
        if factor == 1:
            task = make_task()
            task = make_task(stack={**task.hparams["stack"], "norm": "own"})
            fit(task, batches).save_checkpoint(path)
            checkpoint = load_checkpoint(path)  # a warning would be an error
    checkpoint["attnkit"]["packages"] = {"norms.own": "torch==0.1"}
    with monkeypatch.context() as other:
        other.setattr(rank_zero_only, "rank", 1)
        require_readable(checkpoint, path)  # one process warns for all
    checkpoint["attnkit"]["packages"] |= {"norms.too": "torch==0.1"}  # or this one has done so
    torch.save(checkpoint, path)
    with pytest.warns(UserWarning, match=r"may compute something else: the norm 'own', torch [\w.+]+ \(then '0\.1'\)$"):
        Task.load(path)


def test_anything_but_text_in_the_description_of_code_is_ignored(saved):
    """Deeply nested lists in place of a version ended in a RecursionError."""
    nested = []
    for _ in range(10_000):
        nested = [nested]
    checkpoint = load_checkpoint(saved[1])
    checkpoint["attnkit"] |= {"packages": {"norms.own": nested, 3: "torch==0.1"}, "code": {"norms.rms_norm": nested}}
    require_readable(checkpoint, "it")


def test_mismatched_arguments_and_weights_are_rejected(edited, make_task, batches, fit):
    path = edited(lambda c: c["state_dict"].pop(next(iter(c["state_dict"]))))
    assert "do not fit the model that it describes" in refused(Task.load, path)
    path = edited(lambda c: c["hyper_parameters"]["stack"].update(d_modle=3))
    message = refused(Task.load, path)
    assert f"written by attnkit {attnkit.__version__}, cannot be rebuilt" in message
    assert "Did you mean 'd_model'" in message


@pytest.mark.parametrize("kind", ["int8", "bool", "float8_e4m3fn", "complex64"])
def test_weights_of_another_dtype_are_rejected(kind, saved, edited, make_task, batches, fit, tmp_path):
    name = "model.stack.encoder.layers.0.mixer.query.weight"
    said = f"{name} is {kind} in the checkpoint, but float32 in the model"
    export(saved[1], tmp_path / "a.safetensors")
    weights = load_file(tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        save_file(weights | {name: weights[name].to(getattr(torch, kind))}, tmp_path / "b.safetensors", metadata=file.metadata())
    assert said in refused(load_exported, tmp_path / "b.safetensors")
    path = edited(lambda c: c["state_dict"].update({name: c["state_dict"][name].to(getattr(torch, kind))}))
    assert said in refused(Task.load, path)
    with pytest.raises(RuntimeError, match=f"dtype mismatch for {name}: torch.{kind} from checkpoint"):
        fit(make_task(), batches, ckpt_path=path)
    with pytest.raises(RuntimeError, match=f"dtype mismatch for {name}: torch.{kind} from checkpoint"):
        fit(make_task(init_from=str(path)), batches)


def test_mixed_precision_weights_load_without_loss(saved, edited):
    first = next(iter(saved[0].state_dict()))
    task = Task.load(edited(lambda c: c["state_dict"].update({first: c["state_dict"][first].bfloat16()})))
    assert task.dtype == torch.float32
    assert all(torch.equal(w, saved[0].state_dict()[name]) for name, w in task.state_dict().items() if name != first)


def test_a_checkpoint_of_another_task_is_refused(saved, monkeypatch):
    class Other(Task):
        build_model = objective = lambda self, *_: None

    assert "holds the task 'seq2seq': use Seq2Seq.load, not Other.load" in refused(Other.load, saved[1])


def test_a_failed_write_leaves_the_old_file(saved, tmp_path, monkeypatch):
    old = saved[1].read_bytes()

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        AtomicCheckpointIO().save_checkpoint({}, saved[1])
    assert saved[1].read_bytes() == old
    assert [p.name for p in tmp_path.glob(".*")] == []


def test_a_full_disk_is_one_clear_error(saved, tmp_path):
    old = saved[1].read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(old) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write the checkpoint \(File too large\); earlier checkpoints are intact"):
            AtomicCheckpointIO().save_checkpoint(torch.load(saved[1], weights_only=True), saved[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert saved[1].read_bytes() == old
    assert [p.name for p in tmp_path.glob(".*")] == []


def test_lightning_writes_through_the_atomic_plugin(batches, make_task, fit, tmp_path):
    task = make_task()
    trainer = fit(task, batches, plugins=[AtomicCheckpointIO()], callbacks=[ModelCheckpoint(tmp_path)], enable_checkpointing=True)
    path = trainer.checkpoint_callback.best_model_path
    assert same_outputs(task, Task.load(path), batches[0])
    assert list(tmp_path.glob(".*.tmp")) == []


@pytest.mark.parametrize("name", ["a.onnx", "a.pt", "a.gguf", "a.ckpt", "a"])
def test_an_export_requires_the_safetensors_suffix(name, saved, tmp_path):
    with pytest.raises(ConfigurationError, match=r"safetensors only; choose a file name that ends in \.safetensors"):
        export(saved[1], tmp_path / name)
    assert not (tmp_path / name).exists()


def test_safetensors_alone_reads_an_exported_file(saved, tmp_path):
    export(saved[1], tmp_path / "a.safetensors")
    weights = load_checkpoint(saved[1])["state_dict"]
    assert all(torch.equal(v, weights[k]) for k, v in load_file(tmp_path / "a.safetensors").items())
    header = (tmp_path / "a.safetensors").read_bytes()[8:].split(b"}}}", 1)[0]
    assert b"character" in header  # the tokenizers are inside
    assert json.dumps("seq2seq").encode() in header.replace(b"\\", b"")


def test_a_checkpoint_that_could_not_be_loaded_is_not_written(saved, tmp_path, monkeypatch):
    checkpoint = load_checkpoint(saved[1])
    checkpoint["hyper_parameters"]["words"] = [f"word {i}" for i in range(6000)]
    monkeypatch.setattr(pickles, "MAX_OPERATIONS", 10_000)
    with pytest.raises(CheckpointError, match="could not be loaded again: its pickle has more than 10,000 operations"):
        AtomicCheckpointIO().save_checkpoint(checkpoint, tmp_path / "large.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["first.ckpt"]


@pytest.mark.parametrize("mixer", [name for name in attnkit.mixers.names() if name != "none"])
def test_every_mixer_survives_a_training_step_a_checkpoint_and_an_export(mixer, fit, tmp_path):
    torch.manual_seed(0)
    is_causal = "causal" in attnkit.mixers.get(mixer).directions
    kind, position = ("decoder", "none") if is_causal else ("encoder", "sinusoidal")
    stack = {"name": kind, "d_model": 32, "num_layers": 1, "num_heads": 2, "mixer": mixer, "position": position}
    tokenizer = attnkit.tokenizers.build({"name": "character", "extra_tokens": ["<mask>"]}).train(["abcd"]).spec
    task = attnkit.tasks.build({"name": "causal_lm" if is_causal else "masked_lm", "stack": stack, "tokenizer": tokenizer})
    batch = {"tokens": torch.randint(5, 9, (2, 7)), "example": torch.arange(2)}
    fit(task, [batch]).save_checkpoint(tmp_path / "a.ckpt")
    export(tmp_path / "a.ckpt", tmp_path / "a.safetensors")
    expected = task.eval()(batch["tokens"])
    for loaded in (Task.load(tmp_path / "a.ckpt"), load_exported(tmp_path / "a.safetensors")):
        assert torch.equal(loaded.eval()(batch["tokens"]), expected)
    if is_causal:
        assert loaded.generate(["ab"], max_length=6) == task.generate(["ab"], max_length=6)
