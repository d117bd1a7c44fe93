"""Resolved specs: frozen, read once, built without another look."""

import copy
import pickle
import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import attnkit
from attnkit.registry import ConfigurationError, NormSpec, Registry, ResolvedSpec, Word, norms

SIZES = {"d_model": 8, "num_layers": 2, "num_heads": 2}


class Lists:
    """Has a list, a mapping and slots."""

    def __init__(
        self, *, sizes: list[int], words: dict[str, str] | None = None, inner: NormSpec = "rms_norm", many: list[NormSpec] | None = None
    ) -> None:
        self.sizes, self.inner, self.many = sizes, inner, many


@pytest.fixture(autouse=True)
def lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(norms._classes, "lists", Lists)


def stack(**arguments: Any) -> ResolvedSpec:
    return attnkit.stacks.resolve({"name": "encoder", **SIZES, **arguments})


def test_a_resolved_spec_is_a_frozen_mapping_of_name_and_arguments() -> None:
    spec = stack(attention="additive")
    assert spec["name"] == spec.name == "encoder"
    assert isinstance(spec["attention"], ResolvedSpec)
    assert spec["attention"].registry is attnkit.attentions
    assert {**spec}["d_model"] == 8
    with pytest.raises(FrozenInstanceError):
        spec.name = "decoder"  # type: ignore[misc]
    with pytest.raises(TypeError):
        spec["d_model"] = 3  # type: ignore[index]


def test_resolving_again_and_building_do_not_reread_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = stack(attention={"name": "additive", "hidden_dim": 4})
    assert attnkit.stacks.resolve(spec) is spec

    split = Registry.split

    def refuse(self: Registry, spec: Any) -> Any:
        assert spec in ("none", "softmax", *attnkit.backends), f"{spec} was read again"  # these a class names itself
        return split(self, spec)

    monkeypatch.setattr(Registry, "split", refuse)
    built = attnkit.stacks.build(spec)
    assert built.encoder.layers[1].mixer.attention.hidden_dim == 4


def test_a_resolved_spec_of_another_family_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown attention 'rotary'. 'rotary' is a position"):
        attnkit.attentions.resolve(attnkit.positions.resolve("rotary"))


def test_plain_data_of_a_resolved_spec_resolve_to_an_equal_one() -> None:
    spec = stack(norm={"name": "layer_norm", "bias": False})
    assert type(spec.plain()["norm"]) is dict
    assert attnkit.stacks.resolve(spec.plain()) == spec == spec.plain()
    assert spec != stack()
    with pytest.raises(ConfigurationError, match=r"words\.a must be plain data"):
        norms.resolve({"name": "lists", "sizes": [1], "words": {"a": object()}}).plain()


@pytest.mark.parametrize("remake", [copy.deepcopy, lambda spec: pickle.loads(pickle.dumps(spec))])
def test_a_copy_belongs_to_the_same_registry(remake: Any) -> None:
    again = remake(stack())
    assert again == stack()
    assert again.registry is attnkit.stacks
    assert attnkit.stacks.resolve(again) is again


def test_components_cannot_modify_the_spec_they_are_built_from() -> None:
    given = [1, 2]
    spec = norms.resolve({"name": "lists", "sizes": given})
    given.append(3)
    norms.build(spec).sizes.append(4)
    assert spec["sizes"] == [1, 2]
    assert norms.build(spec).inner is spec["inner"]


def test_replace_resolves_only_the_new_values() -> None:
    spec = norms.resolve({"name": "lists", "sizes": [1], "many": ["layer_norm"]})
    other = spec.replace(inner={"name": "rms_norm", "eps": 0.5}, sizes=Word("[2]", [2]))
    assert other["inner"] == {"name": "rms_norm", "eps": 0.5, "learned": True}
    assert other["sizes"] == [2]
    assert other["many"][0] is spec["many"][0]
    assert spec["inner"]["eps"] == 1e-6
    assert list(other) == list(spec)
    with pytest.raises(ConfigurationError, match=r"norm 'lists' has no argument 'size'. Did you mean 'sizes'"):
        spec.replace(size=[])
    with pytest.raises(ConfigurationError, match=r"norm 'rms_norm': eps must be float"):
        spec["inner"].replace(eps="small")


def test_a_mapping_without_a_name_extends_the_default_of_its_slot() -> None:
    assert norms.resolve({"name": "lists", "sizes": [], "inner": {"eps": 0.25}})["inner"] == {
        "name": "rms_norm",
        "eps": 0.25,
        "learned": True,
    }
    with pytest.raises(ConfigurationError, match=r"many\[0\]: norm spec .* has no name"):
        norms.resolve({"name": "lists", "sizes": [], "many": [{"eps": 0.25}]})


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({"softcap": 30.0}, "It is an argument of mixer 'multi_head': mixer: {name: multi_head, softcap: ...}."),
        ({"negative_eigenvalues": True, "mixer": "delta_rule"}, "mixer: {name: delta_rule, negative_eigenvalues: ...}."),
        ({"negative_eigenvalues": True}, "has no argument 'negative_eigenvalues'. Its arguments:"),  # multi_head has none of this name
        ({"nrom": "rms_norm"}, "Did you mean 'norm'?"),
    ],
)
def test_a_misplaced_component_argument_gets_a_hint_to_its_slot(spec: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(hint)):
        attnkit.stacks.resolve({"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, **spec})
