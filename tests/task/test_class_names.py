"""Tasks and data modules as classes of `attnkit.task` and `attnkit.data`. mypy reads this file too: to it they are classes, not Any."""

import ast
from pathlib import Path
from types import ModuleType
from typing import assert_type

import pytest

import attnkit.data
import attnkit.task
from attnkit.data import TextPairs
from attnkit.registry import Registry, datasets, tasks
from attnkit.task import CausalLM


class Shouting(CausalLM):  # not an error: CausalLM is not Any
    def shout(self, text: str) -> str:
        return self.generate([text])[0].upper()


def test_type_checkers_know_the_classes() -> None:
    assert_type(CausalLM, type[CausalLM])
    assert_type(TextPairs, type[TextPairs])
    assert Shouting.__mro__[1] is tasks.get("causal_lm")


@pytest.mark.parametrize(("package", "registry"), [(attnkit.task, tasks), (attnkit.data, datasets)])
def test_type_checkers_see_every_class_of_the_registry(package: ModuleType, registry: Registry) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    told = {(node.module, alias.asname) for node in branch.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    built_in = [registry.get(name) for name in registry.names() if registry.get(name).__module__.startswith("attnkit.")]
    assert told == {(component.__module__, component.__name__) for component in built_in}
    assert all(getattr(package, component.__name__) is component for component in built_in)
