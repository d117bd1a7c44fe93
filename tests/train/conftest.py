"""The command, toy components and small recipes of the tests of the command line: what is trained is asked for there."""

from tests.cli.conftest import attnkit, tiny, toys, trained

__all__ = ["attnkit", "tiny", "toys", "trained"]
