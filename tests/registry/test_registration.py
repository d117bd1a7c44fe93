"""Registering a class under a name."""

import pytest

import attnkit
from attnkit.registry import ConfigurationError, Registry
from tests.registry.conftest import Own, run


class Other:
    pass


def test_a_registered_class_inherits_documentation_from_its_bases(norms: Registry) -> None:
    class Base:
        """Base.

        Args:
            width: The width of the base,
                on two lines.
            eps: That of the base.
            other: Not an argument of the norm.

        Raises:
            ValueError: The width is wrong.
        """

    @norms.register("documented")
    class Documented(Base):
        """Documented.

        Args:
            eps: Its own.

        Example:
            >>> 1 + 1
            2
        """

        def __init__(self, *, width: int = 1, eps: float = 1.0) -> None: ...

    assert norms.describe("documented").documentation == (
        "Documented.\n\nArgs:\n    width: The width of the base,\n        on two lines.\n    eps: Its own.\n\n"
        "Raises:\n    ValueError: The width is wrong.\n\nExample:\n    >>> 1 + 1\n    2"
    )

    @norms.register("spaced")
    class Spaced(Base):
        """Spaced.

        Args:
            eps: Its own.

            factor: After an empty line.

        Notes: Some.
        """

        def __init__(self, *, width: int = 1, eps: float = 1.0, factor: float = 1.0) -> None: ...

    assert norms.describe("spaced").documentation == (
        "Spaced.\n\nNotes: Some.\n\nArgs:\n    width: The width of the base,\n        on two lines.\n    eps: Its own.\n"
        "    factor: After an empty line.\n\nRaises:\n    ValueError: The width is wrong."
    )


def test_a_registered_class_keeps_its_authors_docstring(norms: Registry) -> None:
    class Base:
        """Base.

        Args:
            eps: That of the base.
        """

    class Own(Base):
        """Own.


        Anything:
          as its author wrote it.
        """

        def __init__(self, *, eps: float = 1.0) -> None: ...

    written = Own.__doc__
    norms.register("own")(Own)
    assert Own.__doc__ == written
    assert "eps: That of the base." in norms.describe("own").documentation


def test_help_for_a_built_in_class_includes_the_arguments_of_its_bases() -> None:
    assert "eps: The norm's epsilon." in (attnkit.mixers.get("retention").__doc__ or "")


def test_a_registered_class_is_available_immediately(norms: Registry) -> None:
    assert norms.register("own")(Own) is Own
    assert "own" in norms
    assert norms.get("own") is Own
    assert norms.build({"name": "own", "eps": 2}, d_model=7).d_model == 7


def test_registering_the_same_class_again_changes_nothing(norms: Registry) -> None:
    norms.register("own")(Own)
    norms.register("own")(Own)
    assert norms.get("own") is Own


def test_a_taken_name_is_refused_and_keeps_its_class(norms: Registry) -> None:
    norms.register("own")(Own)
    with pytest.raises(ConfigurationError, match=r"norm 'own' is already registered by .*Own; choose another name, or pass override=True"):
        norms.register("own")(Other)
    assert norms.get("own") is Own
    norms._classes.pop("rms_norm")  # as at the start, when nothing is imported
    with pytest.raises(ConfigurationError, match="norm 'rms_norm' is built into attnkit"):
        norms.register("rms_norm")(Other)


def test_a_constructor_that_cannot_be_called_with_names_is_refused(norms: Registry) -> None:
    @norms.register("positional")
    class Positional:
        def __init__(self, d_model: int, /, eps: float = 1.0) -> None: ...

    @norms.register("keywords")
    class Keywords(Own):
        def __init__(self, gain: float = 1.0, **kwargs: object) -> None:
            super().__init__(**kwargs)  # type: ignore[arg-type]

    @norms.register("unread")
    class Unread:
        def __init__(self, *, scales: "Sequence[float]" = ()) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigurationError, match=r"Positional takes d_model by position only; remove the / after them"):
        norms.resolve("positional")
    with pytest.raises(ConfigurationError, match=r"norm 'keywords' cannot be built: .*'d_model'. .*; declare those that it passes on"):
        norms.build("keywords", d_model=4)
    with pytest.raises(ConfigurationError, match=r"Unread cannot be read: name 'Sequence' is not defined; import it outside"):
        norms.resolve("unread")


def test_override_replaces_the_class(norms: Registry) -> None:
    norms.register("own")(Own)
    norms.register("own", override=True)(Other)
    assert norms.get("own") is Other
    assert norms.get("rms_norm").__name__ == "RMSNorm"
    norms.register("rms_norm", override=True)(Own)
    assert norms.get("rms_norm") is Own
    assert norms.build("rms_norm", d_model=3).eps == 0.5
    norms.register("rms_norm", override=True)(Other)  # and again
    assert norms.get("rms_norm") is Other


def test_override_holds_when_the_built_in_module_is_imported_later() -> None:
    code = """
import attnkit
@attnkit.norms.register("rms_norm", override=True)
class Mine: pass
import attnkit.norm.rms_norm
assert attnkit.norms.get("rms_norm") is Mine
assert attnkit.norms.names() == ["dynamic_tanh", "layer_norm", "none", "rms_norm"]
print("mine")
"""
    assert run(code) == "mine\n"


@pytest.mark.parametrize("name", ["Own", "my-norm", "1norm", "", "a.b"])
def test_a_name_is_a_lower_case_identifier(norms: Registry, name: str) -> None:
    with pytest.raises(ConfigurationError, match="must be a lower-case Python identifier"):
        norms.register(name)


def test_an_argument_cannot_be_called_name(norms: Registry) -> None:
    class Named:
        def __init__(self, *, name: str) -> None:
            self.name = name

    with pytest.raises(ConfigurationError, match="argument called 'name'"):
        norms.register("named")(Named)
