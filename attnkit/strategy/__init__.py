"""Strategies for Lightning's Trainer, and how they prepare a model. Importing this registers `fsdp2` and its variants."""

from attnkit.strategy.fsdp2 import FSDP2
from attnkit.strategy.preparation import ActivationCheckpointing, check_preparation, gathered, parallelize, prepare
from attnkit.strategy.sharing import data_share

__all__ = ["FSDP2", "ActivationCheckpointing", "check_preparation", "data_share", "gathered", "parallelize", "prepare"]
