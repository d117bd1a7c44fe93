"""Strategies of Lightning's Trainer, and what they do to a model. Importing this registers `fsdp2` and its kin."""

from attnkit.strategy.fsdp2 import FSDP2, register
from attnkit.strategy.preparation import (
    ActivationCheckpointing,
    check_preparation,
    gathered,
    parallelize,
    prepare,
)
from attnkit.strategy.shards import is_sharded_checkpoint, read_rest, read_sharded, require_whole
from attnkit.strategy.sharing import data_share

register()

__all__ = [
    "FSDP2",
    "ActivationCheckpointing",
    "check_preparation",
    "data_share",
    "gathered",
    "is_sharded_checkpoint",
    "parallelize",
    "prepare",
    "read_rest",
    "read_sharded",
    "require_whole",
]
