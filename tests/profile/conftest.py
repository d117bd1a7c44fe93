from tests.task.conftest import make_batch, make_task, one_thread, rng

__all__ = ["make_batch", "make_task", "one_thread", "rng"]
