from tests.cli.conftest import attnkit
from tests.task.conftest import make_batch, make_task, one_thread, rng

__all__ = ["attnkit", "make_batch", "make_task", "one_thread", "rng"]
