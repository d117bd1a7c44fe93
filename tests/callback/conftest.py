"""Shares the tiny task of the task tests."""

from tests.task.conftest import fit, make_batch, make_task, one_thread, rng, words

__all__ = ["fit", "make_batch", "make_task", "one_thread", "rng", "words"]
