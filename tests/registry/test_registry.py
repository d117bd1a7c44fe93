"""Names of components, and specs: found, checked and written out."""

import ast
import copy
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import attnkit
from attnkit.registry import FAMILIES, AttentionSpec, ConfigurationError, FeedForwardSpec, NormSpec, Registry, Spec
from attnkit.registry.description import Description
from tests.registry.conftest import Own, run


def test_names_and_compositions_are_known_without_torch() -> None:
    code = "import sys, attnkit; print([list(f) for f in attnkit.registry.FAMILIES]); assert not {'torch', 'lightning'} & set(sys.modules)"
    assert "'additive', 'cosine', 'dot_product', 'general', 'scaled_dot_product'" in run(code)


def test_unknown_attributes_of_the_package_raise() -> None:
    with pytest.raises(AttributeError, match=r"attnkit.*'compse'"):
        attnkit.compse  # noqa: B018
    assert {"compose", "record_attention", "attentions"} <= set(dir(attnkit))


@pytest.mark.parametrize("registry", FAMILIES, ids=lambda f: f.attribute)
def test_every_built_in_name_resolves_and_is_described(registry: Registry) -> None:
    assert registry.built_in()
    assert registry is getattr(attnkit, registry.attribute)
    for name in registry.built_in():
        described = registry.describe(name)
        assert isinstance(registry.get(name), type)
        assert described.file.endswith(".py") or registry is attnkit.optimizers  # torch hides the source of adafactor
        assert name in registry
        assert described.line >= 0


def registered_in(file: Path) -> set[str]:
    """Return the names under which a file registers classes."""
    calls = (d for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef) for d in node.decorator_list)
    return {ast.literal_eval(c.args[0]) for c in calls if isinstance(c, ast.Call) and ast.unparse(c.func).endswith(".register")}


@pytest.mark.parametrize("registry", FAMILIES, ids=lambda f: f.attribute)
def test_the_table_of_built_in_names_matches_the_files(registry: Registry) -> None:
    folder = Path(attnkit.__file__).parent.joinpath(*registry.package.split(".")[1:])
    found = {file.stem: registered_in(file) for file in folder.glob("*.py")}
    assert {stem: names for stem, names in found.items() if names} == {name: {name} for name in registry._built_in}


def test_names_are_known_without_reading_source_files(monkeypatch: pytest.MonkeyPatch) -> None:
    registries = [registry for registry in FAMILIES if registry is not attnkit.optimizers]
    known = {registry.attribute: registry.built_in() for registry in registries}
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "")  # as if every file were written with other quotes
    for registry in registries:
        fresh = copy.copy(registry)
        for cached in [name for name in vars(fresh) if isinstance(getattr(type(fresh), name, None), cached_property)]:
            del fresh.__dict__[cached]
        assert fresh.built_in() == known[registry.attribute] != set()


def test_families_contain_the_names_in_the_design() -> None:
    assert attnkit.attentions.built_in() == {"additive", "cosine", "dot_product", "general", "scaled_dot_product"}
    assert attnkit.positions.built_in() >= {"alibi", "learned", "none", "relative", "rotary", "sinusoidal"}
    assert attnkit.norms.built_in() >= {"layer_norm", "rms_norm"}
    assert attnkit.feed_forwards.built_in() >= {"glu", "mlp"}
    assert attnkit.residuals.built_in() >= {"none", "post_norm", "pre_norm", "rezero", "sandwich_norm"}
    assert attnkit.stacks.built_in() >= {"decoder", "encoder", "encoder_decoder"}


def test_unknown_names_get_a_suggestion_the_list_and_advice(norms: Registry) -> None:
    with pytest.raises(ConfigurationError) as caught:
        norms.get("rmsnorm")
    for part in (
        "unknown norm 'rmsnorm'",
        "Did you mean 'rms_norm'?",
        "layer_norm, none, rms_norm",
        "norms.register('rmsnorm')",
        "entry point",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "rms_norm", "epsilon": 1}, "norm 'rms_norm' has no argument 'epsilon'. Did you mean 'eps'\\? Its arguments: eps"),
        ({"name": "rms_norm", "d_model": 1}, "receives 'd_model' from its parent; remove it"),
        ({"name": "rms_norm", "eps": "small"}, r"eps must be float, but is 'small' \(str\)"),
        ({"name": "rms_norm", "eps": True}, r"eps must be float, but is True \(bool\)"),
        ({"name": "rms_norm", "eps": None}, r"eps must be float, but is None"),
        ({"name": "layer_norm", "bias": 1}, r"bias must be bool, but is 1 \(int\)"),
        ({"eps": 1}, "has no name; add one of: dynamic_tanh, layer_norm, none, rms_norm"),
        ({"name": 3}, "has no name"),
        (["rms_norm"], r"norm must be a name or a mapping with a name, but is \['rms_norm'\] \(list\)"),
        (None, "norm must be a name or a mapping with a name, but is None"),
    ],
)
def test_wrong_specs_are_refused_before_anything_is_built(norms: Registry, spec: Any, message: str) -> None:
    for use in (norms.resolve, lambda s: norms.build(s, d_model=4)):
        with pytest.raises(ConfigurationError, match=message):
            use(spec)


def test_missing_arguments_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"stack 'encoder' needs d_model: add it, as in \{name: encoder"):
        attnkit.stacks.build("encoder")


def test_a_parent_may_pass_only_declared_arguments(norms: Registry) -> None:
    with pytest.raises(TypeError, match=r"passes \['d_model'\] to norm components, not \['num_heads'\]"):
        norms.build("rms_norm", d_model=4, num_heads=2)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "rms_norm", "eps": 0.25},
        {"class_path": "attnkit.norm.rms_norm", "init_args": {"eps": 0.25}},
        {"class_path": "attnkit.norm.rms_norm.RMSNorm", "init_args": {"eps": 0.25}},
        {"class_path": "rms_norm", "init_args": {"eps": 0.25}},
    ],
)
def test_all_forms_of_a_spec_resolve_equally(norms: Registry, spec: Spec) -> None:
    assert norms.resolve(spec) == {"name": "rms_norm", "eps": 0.25, "learned": True}
    assert norms.build(spec, d_model=3).eps == 0.25


def test_a_class_path_needs_no_arguments(norms: Registry) -> None:
    assert norms.resolve({"class_path": "attnkit.norm.rms_norm"}) == {"name": "rms_norm", "eps": 1e-6, "learned": True}


def test_nested_specs_are_checked_and_completed(norms: Registry) -> None:
    attnkit.stacks.resolve({"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "norm": {"name": "rms_norm", "eps": 1}})
    with pytest.raises(ConfigurationError, match="norm 'rms_norm' has no argument 'epz'"):
        attnkit.stacks.resolve({"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "norm": {"name": "rms_norm", "epz": 1}})
    resolved = attnkit.stacks.resolve({"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "norm": "rms_norm"})
    assert resolved["norm"] == {"name": "rms_norm", "eps": 1e-6, "learned": True}
    assert resolved["feed_forward"]["activation"] == "relu"


def test_resolving_does_not_modify_a_spec(norms: Registry) -> None:
    spec = {"class_path": "attnkit.norm.rms_norm", "init_args": {"eps": 0.25}}
    norms.build(spec, d_model=3)
    assert spec == {"class_path": "attnkit.norm.rms_norm", "init_args": {"eps": 0.25}}


def test_optional_slots_may_be_empty(norms: Registry) -> None:
    norms.register("own")(Own)
    assert norms.resolve("own") == {"name": "own", "eps": 0.5, "inner": None}
    with pytest.raises(ConfigurationError, match="unknown norm 'nothing'"):
        norms.resolve({"name": "own", "inner": "nothing"})


class Listing:
    """Specs in lists, tuples and mappings."""

    def __init__(
        self,
        *,
        norms: list[NormSpec] | None = None,
        pair: tuple[NormSpec, AttentionSpec | None] = ("rms_norm", None),
        many: Sequence[NormSpec | None] = (),
        named: dict[str, NormSpec] | None = None,
        inner: NormSpec | None = None,
    ) -> None:
        self.given = norms, pair, many, named


def test_specs_in_lists_tuples_and_mappings_are_resolved(norms: Registry) -> None:
    norms.register("listing")(Listing)
    rms = {"name": "rms_norm", "eps": 1e-6, "learned": True}
    spec = {
        "name": "listing",
        "norms": ["rms_norm", {"class_path": "attnkit.norm.rms_norm", "init_args": {"eps": 0.5}}],
        "many": (None, {"name": "listing", "norms": ["rms_norm"]}),
        "named": {"a": "rms_norm"},
    }
    resolved = norms.resolve(spec)
    assert resolved["norms"] == [rms, rms | {"eps": 0.5}]
    assert resolved["pair"] == [rms, None]  # the default too
    assert resolved["many"][0] is None
    assert resolved["many"][1]["norms"] == [rms]
    assert resolved["named"] == {"a": rms}
    assert norms.resolve(resolved) == resolved
    assert norms.build(resolved).given[0] == resolved["norms"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norms": ["rms_norm", "rmsnorm"]}, r"^norms\[1\]: unknown norm 'rmsnorm'"),
        ({"norms": [{"name": "rms_norm", "epz": 1}]}, r"^norms\[0\]: norm 'rms_norm' has no argument 'epz'. Did you mean 'eps'"),
        ({"norms": [{"name": "rms_norm", "eps": "x"}]}, r"^norms\[0\]: norm 'rms_norm': eps must be float, but is 'x' \(str\)"),
        ({"norms": [None]}, r"^norms\[0\]: norm must be a name or a mapping with a name, but is None"),
        ({"norms": [["rms_norm"]]}, r"^norms\[0\]: norm must be a name or a mapping with a name, but is \['rms_norm'\]"),
        ({"norms": "rms_norm"}, r"^norm 'listing': norms must be list\[norm\] \| None, but is 'rms_norm' \(str\)"),
        ({"pair": ["rms_norm"]}, r"^norm 'listing': pair must be tuple\[norm, attention \| None\], but is \['rms_norm'\] \(list\)"),
        ({"pair": ["rms_norm", "rms_norm"]}, r"^pair\[1\]: unknown attention 'rms_norm'"),
        ({"many": [{"name": "listing", "inner": {"name": "listing", "norms": [3]}}]}, r"^many\[0\].inner.norms\[0\]: norm must be"),
        ({"named": {"a": "x"}}, r"^named.a: unknown norm 'x'"),
    ],
)
def test_wrong_specs_in_lists_are_rejected_with_their_index(norms: Registry, arguments: dict[str, Any], message: str) -> None:
    norms.register("listing")(Listing)
    for use in (norms.resolve, norms.build):
        with pytest.raises(ConfigurationError, match=message):
            use({"name": "listing", **arguments})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"name": "rms_norm", "eps": "1e-5"},
            r"eps must be float, but is '1e-5' \(str\), a string that looks like a number: write 1.0e-05, w",
        ),
        ({"name": "rms_norm", "eps": "0.5"}, r"write 0.5, without quotes"),
        ({"name": "own", "width": "8"}, r"write 8, without quotes"),
        ({"name": "own", "width": "1e3"}, r"width must be int \| None, but is '1e3' \(str\)$"),
    ],
)
def test_a_number_read_as_a_string_is_explained(norms: Registry, spec: dict[str, Any], message: str) -> None:
    class Wide:
        def __init__(self, *, width: int | None = None) -> None: ...

    norms.register("own")(Wide)
    with pytest.raises(ConfigurationError, match=message):
        norms.resolve(spec)


@pytest.mark.parametrize(
    ("registry", "spec", "message"),
    [
        (attnkit.optimizers, {"name": "adamw", "lr": "nan"}, r"^optimizer 'adamw': lr must be float, but is 'nan' \(str\)"),
        (attnkit.optimizers, {"name": "sgd", "lr": math.nan}, r"^optimizer 'sgd': lr must be finite, but is nan"),
        (attnkit.optimizers, {"name": "adam", "betas": [0.9, math.inf]}, r"^optimizer 'adam': betas must be finite, but is \[0.9, inf\]"),
        (attnkit.optimizers, {"name": "adam", "betas": [0.9, "0.9"]}, r"^optimizer 'adam': betas must be tuple\[float, float\], but is"),
        (attnkit.optimizers, {"name": "muon", "adamw_lr": math.inf}, r"^optimizer 'muon': adamw_lr must be finite, but is inf"),
        (attnkit.schedules, {"name": "linear", "final": math.nan}, r"^schedule 'linear': final must be finite, but is nan"),
    ],
)
def test_non_finite_numbers_are_rejected(registry: Registry, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        registry.resolve(spec)


def test_slots_know_their_registry() -> None:
    slots = {a.name: a.registry for a in attnkit.stacks.arguments("encoder_decoder") if a.registry}
    assert slots["cross_attention"] is attnkit.attentions
    assert slots["feed_forward"] is attnkit.feed_forwards
    assert FeedForwardSpec.__metadata__ == (attnkit.feed_forwards,)  # type: ignore[attr-defined]


def test_every_torch_optimizer_is_registered() -> None:
    assert {"adamw", "sgd", "adam", "adafactor", "rmsprop"} <= set(attnkit.optimizers.names())
    assert "optimizer" not in attnkit.optimizers


def test_a_class_without_a_docstring_does_not_inherit_its_bases() -> None:
    class Mine(nn.Linear):
        pass

    found = Description.of(Mine, family="norm", name="mine", arguments=(), given=frozenset())
    assert (found.summary, found.documentation, found.equation, found.paper) == ("", "", None, None)


def test_an_out_of_range_number_is_rejected_with_its_component() -> None:
    layers = {"stack": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    with pytest.raises(ConfigurationError, match=r"^norm 'rms_norm': eps must be at least 0, but is -1\.0$"):
        attnkit.compose(**layers, norm={"name": "rms_norm", "eps": -1.0})
    with pytest.raises(ConfigurationError, match=r"^attention 'additive': hidden_dim must be positive, but is -1$"):
        attnkit.compose(**layers, attention={"name": "additive", "hidden_dim": -1})
