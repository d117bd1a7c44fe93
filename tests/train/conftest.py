"""Shares the command, toy components and small recipes of the command-line tests."""

from collections.abc import Callable
from typing import Any

from attnkit.recipe import read_yaml
from tests.cli.conftest import attnkit, small_recipe, tiny, toys, trained

__all__ = ["attnkit", "small_recipe", "tiny", "toys", "trained"]


def printed_recipe(attnkit: Callable[..., Any], *arguments: object) -> Any:
    """Return the recipe that a command prints."""
    outcome = attnkit(*arguments, "--print_config")
    assert outcome.status == 0, outcome.err
    return read_yaml(outcome.out, where="the printed recipe")
