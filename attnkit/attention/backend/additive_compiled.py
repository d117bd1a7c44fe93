# https://arxiv.org/abs/1409.0473
"""Additive attention with products of exponentials, compiled."""

import os
import shutil
from functools import partial

import torch

from attnkit.attention.backend import blocks
from attnkit.attention.backend.additive_eager import AdditiveEager, pair_channels
from attnkit.attention.backend.additive_tiles import AdditivePairs, CompiledTiles
from attnkit.attention.backend.base import Inputs
from attnkit.attention.base import Attention
from attnkit.registry import backends

MIN_NUMBERS = 2**24
"""Below this many pairs times channels, `auto` does not compile: eager code takes a few milliseconds."""


@backends.register("additive_compiled")
class AdditiveCompiled(AdditiveEager):
    r"""`additive_eager` with tiles that torch compiles into a loop without intermediate tensors, on a CPU with a C++ compiler.

    The first call in a process compiles for several seconds; torch caches the code on disk. One compilation serves all sizes. If it
    fails, a warning says why, and eager code computes the tiles.

    Equation:
        $$\tanh(q + k) = 1 - \frac{2}{1 + e^{2q} e^{2k}}$$

    Paper: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473 (the score)

    Example:
        >>> import attnkit
        >>> "additive_compiled" in attnkit.attentions.build("additive", head_dim=4).backends
        True
    """

    rank = 16
    score = "additive_compiled"

    def __init__(self) -> None:
        compilers = (os.environ["CXX"],) if os.environ.get("CXX") else ("g++", "clang++")
        self.has_compiler = any(map(shutil.which, compilers))

    def refuses_device(self, device: torch.device) -> str | None:
        """Return a reason if there is no compiler for the device."""
        if not self.has_compiler:
            return "no C++ compiler is installed (g++ or clang++, or the one named by CXX)"
        return None if device.type == "cpu" else "its compiled form is for CPUs"

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is enough work."""
        return pair_channels(inputs) >= MIN_NUMBERS


blocks.scores["additive_compiled"] = partial(AdditivePairs, CompiledTiles())
