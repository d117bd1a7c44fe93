"""The command, toy components and small recipes of the tests of the command line: what is trained is asked for there."""

from tests.cli.conftest import attnkit, small_recipe, tiny, toys, trained

__all__ = ["attnkit", "small_recipe", "tiny", "toys", "trained"]
