"""A class path means that class, wherever a name may stand."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

import attnkit
from attnkit.cli.arguments import read_arguments
from attnkit.registry import ConfigurationError, importing

ADDITIVE = """
from torch import Tensor
from attnkit.attention import Attention

class MyOwn(Attention):
    # minus the sum of absolute differences

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None, width: float = 1.0) -> None:
        super().__init__(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.width = width

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return -(query[..., :, None, :] - key[..., None, :, :]).abs().sum(-1) / self.width

class Outer:
    class Inner(MyOwn):
        pass

class Named(MyOwn):
    def __init__(self, *, head_dim: int, name: str = "x") -> None:
        super().__init__(head_dim=head_dim)

class NotOne:
    pass
"""
PATH = "my_pkg.additive.MyOwn"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of a user, which can be imported; forgotten afterwards."""
    folder = tmp_path / "my_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "additive.py").write_text(ADDITIVE)
    (folder / "broken.py").write_text("x = 1\nraise RuntimeError('boom')\n")
    (folder / "hungry.py").write_text("import no_such_package_at_all\n")
    (folder / "lazy.py").write_text("def __getattr__(name):\n    import my_pkg.additive\n    return my_pkg.additive.MyOwn\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "my_pkg"]:
        del sys.modules[name]


@pytest.mark.parametrize("spec", [{"class_path": PATH, "init_args": {"width": 2.0}}, {"name": PATH, "width": 2.0}])
def test_a_class_path_is_imported_and_built_with_the_parents_arguments(spec: dict[str, object]) -> None:
    attention = attnkit.attentions.build(spec, head_dim=4, num_heads=6, num_kv_heads=3)
    assert type(attention) is sys.modules["my_pkg.additive"].MyOwn
    assert (attention.width, attention.head_dim, attention.num_kv_heads) == (2.0, 4, 3)
    assert attnkit.attentions.resolve(spec) == {"name": PATH, "width": 2.0}


def test_a_path_is_accepted_wherever_a_name_is() -> None:
    assert attnkit.attentions.resolve(PATH) == {"name": PATH, "width": 1.0}
    sizes = {"stack": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    model = attnkit.compose(**sizes, attention={"class_path": PATH}, position="alibi")
    assert model.spec["attention"] == {"name": PATH, "width": 1.0}
    assert type(attnkit.compose(**model.spec).stack.encoder.layers[0].mixer.attention).__name__ == "MyOwn"
    model(torch.tensor([[4, 5]])).sum().backward()
    with pytest.raises(ConfigurationError, match=r"position 'rotary' does not work with attention 'my_pkg.additive.MyOwn'"):
        attnkit.compose(**sizes, attention=PATH, position="rotary")
    assert type(attnkit.attentions.build("my_pkg.additive.Outer.Inner", head_dim=2)).__qualname__ == "Outer.Inner"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("my_pkg.additive.MyOvn", "my_pkg.additive has no class 'MyOvn', which .* Did you mean 'MyOwn'"),
        ("my_pkg.addditive.MyOwn", "my_pkg has no module or class 'addditive', which 'my_pkg.addditive.MyOwn' names"),
        (
            "no_such_pkg.MyOwn",
            "there is no module 'no_such_pkg' for the class path 'no_such_pkg.MyOwn': is it installed, or is its folder in",
        ),
        (
            "my_pkg.additive.NotOne",
            "'my_pkg.additive.NotOne' cannot be used as attention: the class must inherit from attnkit.attention.Attention",
        ),
        ("my_pkg.additive.Tensor", "cannot be used as attention"),
        ("my_pkg.additive", "my_pkg has no class 'additive'"),
        ("attnkit.attention", "is not a class but a module"),
        ("my_pkg.additive.Attention", "cannot be built: it does not define score"),
        ("my_pkg.additive.Named", "has an argument called 'name'"),
        ("my_pkg.broken.MyOwn", r"'my_pkg.broken' .* cannot be imported: RuntimeError: boom \(.*broken.py:2\)"),
        ("my_pkg.hungry.MyOwn", "'my_pkg.hungry' .* cannot be imported: ModuleNotFoundError: No module named 'no_such_package_at_all'"),
        ({"name": PATH, "widht": 2.0}, f"attention '{PATH}' has no argument 'widht'. Did you mean 'width'"),
        ({"name": PATH, "width": "wide"}, f"attention '{PATH}': width must be float, but is 'wide'"),
        ({"name": PATH, "head_dim": 2}, "receives 'head_dim' from its parent"),
        ("os.system", "is not a class but a builtin_function_or_method"),
        ("os.name.upper", "is not a class"),
        ("../evil.py", "is not a class path"),
        ("attnkit.attention.additive.Nothing", "attnkit.attention.additive has no class 'Nothing'"),
        ("attnkit.norm.rms_norm.RMSNorm", "cannot be used as attention"),
    ],
)
def test_a_wrong_path_is_refused_like_a_wrong_name(spec: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        attnkit.attentions.resolve(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("registry", "path", "name"),
    [
        ("attentions", "attnkit.attention.additive.Additive", "additive"),
        ("attentions", "attnkit.attention.additive", "additive"),
        ("optimizers", "torch.optim.AdamW", "adamw"),
        ("optimizers", "torch.optim.sgd.SGD", "sgd"),
        ("optimizers", "attnkit.optimizer.muon.Muon", "muon"),
        ("optimizers", "torch.optim.Muon", "torch.optim.Muon"),  # another than ours
        ("tasks", "attnkit.task.seq2seq.Seq2Seq", "seq2seq"),
        ("datasets", "attnkit.data.text_pairs.TextPairs", "text_pairs"),
        ("corpora", "attnkit.corpus.scan.Scan", "scan"),
        ("schedules", "attnkit.schedule.cosine.Cosine", "cosine"),
    ],
)
def test_the_path_of_a_registered_class_becomes_its_name(registry: str, path: str, name: str) -> None:
    assert getattr(attnkit, registry).split({"class_path": path, "init_args": {"k": 1}}) == (name, {"k": 1})
    assert getattr(attnkit, registry).get(path) is getattr(attnkit, registry).get(name)


@pytest.mark.parametrize("registry", attnkit.registry.FAMILIES, ids=lambda r: r.attribute)
def test_every_built_in_class_inherits_from_the_base_of_its_family(registry: attnkit.registry.Registry) -> None:
    for name in registry.built_in():
        cls = registry.get(name)
        assert registry.get(f"{cls.__module__}.{cls.__qualname__}") is cls


def test_a_path_still_means_its_own_class_after_an_override(monkeypatch: pytest.MonkeyPatch) -> None:
    own, replacement = attnkit.norms.get("rms_norm"), attnkit.norms.get("layer_norm")
    monkeypatch.setitem(attnkit.norms._classes, "rms_norm", replacement)
    assert attnkit.norms.split("attnkit.norm.rms_norm.RMSNorm") == ("attnkit.norm.rms_norm.RMSNorm", {})
    assert attnkit.norms.get("attnkit.norm.rms_norm.RMSNorm") is own


def test_names_from_another_family_or_in_another_case_get_a_hint() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown attention 'rotary'. 'rotary' is a position. Names"):
        attnkit.attentions.get("rotary")
    with pytest.raises(ConfigurationError, match=r"unknown norm 'additive'. 'additive' is an attention."):
        attnkit.norms.get("additive")
    with pytest.raises(ConfigurationError, match=r"unknown optimizer 'AdamW'. Did you mean 'adamw'\?"):
        attnkit.optimizers.get("AdamW")


def test_an_untrusted_spec_imports_no_module() -> None:
    with importing(False):
        for path in (PATH, "my_pkg.lazy.MyOwn", "my_pkg.MyOwn"):
            with pytest.raises(
                ConfigurationError, match=rf"{path}' is a class of a module that is not imported.*`import {path[:-6]}` first"
            ):
                attnkit.stacks.resolve(
                    {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "attention": {"class_path": path}}
                )
        assert not [name for name in sys.modules if name.startswith("my_pkg")]
        assert attnkit.attentions.get("attnkit.attention.general.General") is attnkit.attentions.get("general")
    additive, _ = (import_module(f"my_pkg.{name}") for name in ("additive", "lazy"))
    del sys.modules["my_pkg.additive"]
    with importing(False):
        with pytest.raises(ConfigurationError, match=r"my_pkg.lazy has no class 'MyOwn'"):
            attnkit.attentions.get("my_pkg.lazy.MyOwn")  # its __getattr__ would import
        assert "my_pkg.additive" not in sys.modules
        sys.modules["my_pkg.additive"] = additive
        assert attnkit.attentions.get(PATH) is additive.MyOwn
    assert attnkit.attentions.get("my_pkg.lazy.MyOwn") is additive.MyOwn


def test_the_command_line_accepts_paths_like_names() -> None:
    flags = ["--model.class_path", "attnkit.task.seq2seq.Seq2Seq", "--model.stack", "{name: encoder_decoder, d_model: 8}"]
    assert read_arguments([*flags, "--model.stack.attention.class_path", PATH]).flags["model"] == {
        "name": "seq2seq",
        "stack": {"name": "encoder_decoder", "d_model": 8, "attention": {"name": PATH}},
    }
    completed = attnkit.attentions.resolve(read_arguments(["--model", PATH, "--model.width", "2"]).flags["model"])
    assert completed == {"name": PATH, "width": 2}
    assert type(completed.name) is str
    canonical = attnkit.norms.resolve(read_arguments(["--model", "attnkit.norm.rms_norm.RMSNorm"]).flags["model"])
    assert canonical == {"name": "rms_norm", "eps": 1e-6, "learned": True}
