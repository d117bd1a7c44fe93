"""Components of other distributions, by entry points."""

import warnings
from collections.abc import Callable

import pytest

from attnkit.registry import ConfigurationError, Registry
from tests.registry.conftest import Own


def test_a_plugin_is_listed_without_being_imported(norms: Registry, plugins: Callable[..., None]) -> None:
    plugins(("norms.fancy", "no_such_module:Fancy", "fancy-norms"), ("stacks.other", "no_such_module:Other", "fancy-norms"))
    assert norms.names() == ["dynamic_tanh", "fancy", "layer_norm", "none", "rms_norm"]


def test_a_plugin_is_loaded_by_its_name(norms: Registry, plugins: Callable[..., None]) -> None:
    plugins(("norms.fancy", "attnkit.norm.rms_norm:RMSNorm", "fancy-norms"))
    assert norms.get("fancy") is norms.get("rms_norm")
    norms.register("own")(Own)
    assert norms.describe("own").summary == "A user's own norm."


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:Fancy", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:Fancy", "AttributeError"),
        ("json:dumps", "ConfigurationError: 'json:dumps' is not a class"),
        ("json:JSONDecoder", "ConfigurationError: 'json:JSONDecoder' cannot be used as norm: the class must inherit from attnkit.norm"),
    ],
)
def test_a_broken_plugin_warns_and_breaks_nothing_else(norms: Registry, plugins: Callable[..., None], value: str, reason: str) -> None:
    plugins(("norms.fancy", value, "fancy-norms"))
    message = rf"norm 'fancy' comes from the plugin 'fancy-norms' \({value}\), which cannot be loaded: {reason}"
    with pytest.warns(UserWarning, match=message), pytest.raises(ConfigurationError, match=message):
        norms.get("fancy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigurationError, match=message):
            norms.get("fancy")
        assert norms.names() == ["dynamic_tanh", "layer_norm", "none", "rms_norm"]
        assert norms.build("rms_norm", d_model=3)
    norms.register("fancy")(Own)  # the name is free
    assert norms.get("fancy") is Own


def test_two_plugins_that_claim_one_name_are_both_named(norms: Registry, plugins: Callable[..., None]) -> None:
    plugins(("norms.fancy", "json:JSONDecoder", "one"), ("norms.fancy", "json:JSONEncoder", "two"))
    with pytest.raises(ConfigurationError, match="norm 'fancy' is claimed by one and two; uninstall one"):
        norms.get("fancy")
    assert norms.build("rms_norm", d_model=3)


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_plugin_that_claims_a_built_in_name_is_named(norms: Registry, plugins: Callable[..., None], is_imported: bool) -> None:
    plugins(("norms.rms_norm", "json:JSONDecoder", "one"))
    if not is_imported:
        norms._classes.pop("rms_norm")
    with pytest.raises(ConfigurationError, match="norm 'rms_norm' is claimed by attnkit and one"):
        norms.get("rms_norm")
    assert norms.build("layer_norm", d_model=3)
    norms.register("rms_norm", override=True)(Own)
    assert norms.get("rms_norm") is Own


def test_an_entry_point_without_a_registry_warns(norms: Registry, plugins: Callable[..., None]) -> None:
    plugins(("norm.fancy", "json:JSONDecoder", "one"))
    with pytest.warns(UserWarning, match=r"'norm.fancy' of the plugin 'one' .*Did you mean 'norms'"):
        assert norms.names() == ["dynamic_tanh", "layer_norm", "none", "rms_norm"]
