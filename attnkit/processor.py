"""The properties of this machine's processor on which the choice of a kernel depends."""

import platform
from pathlib import Path


def _is_intel() -> bool:
    try:
        with Path("/proc/cpuinfo").open() as processors:
            return "GenuineIntel" in processors.read(4096)
    except OSError:  # not Linux
        return "GenuineIntel" in platform.processor()


IS_INTEL = _is_intel()
"""MKL, with which torch multiplies matrices in fp32 and fused attention in bf16, uses AVX-512 on Intel's processors only."""
