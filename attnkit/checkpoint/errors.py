"""Errors of reading checkpoints."""

from attnkit.registry import ConfigurationError


class CheckpointError(ConfigurationError):
    """A checkpoint that cannot be used; the message says what is wrong with it and what to do."""


class MissingComponentError(CheckpointError):
    """An intact checkpoint whose model needs a component that is not installed."""


class ArchiveError(ConfigurationError):
    """A file that cannot be read as data; the message says why, but not which file."""


class ForeignError(ArchiveError):
    """An intact file that holds more than tensors and plain data."""


class HalfWrittenError(ArchiveError):
    """A part of a sharded checkpoint is missing or cut short."""
