"""The end of a run that is not healthy, shared by the callbacks that monitor runs."""


class UnhealthyError(RuntimeError):
    """The training cannot usefully continue: the message says what was found first, where, and what to do."""
