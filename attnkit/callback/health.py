"""What the callbacks that watch a run's health share: how it ends when it cannot go on."""


class UnhealthyError(RuntimeError):
    """A training that goes on would only spoil more: the message says what was seen first, where, and what to do."""
