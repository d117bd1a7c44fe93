"""The error that ends an unhealthy run, shared by the callbacks that monitor runs."""


class UnhealthyError(RuntimeError):
    """Training cannot usefully continue: the message says what was found first, where, and what to do."""
