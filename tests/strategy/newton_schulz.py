"""Muon in float64: torch's own steps of Newton and Schulz but for their bfloat16, whose rounding would hide a wrong matrix."""

import inspect

from torch.optim import _muon

_SOURCE = inspect.getsource(_muon._zeropower_via_newtonschulz)


def use_float64() -> None:
    """Let `torch.optim.Muon` orthogonalise in float64, in this process."""
    assert _SOURCE.count("grad.bfloat16()") == 1
    exec(_SOURCE.replace("grad.bfloat16()", "grad.double().clone()"), vars(_muon))
