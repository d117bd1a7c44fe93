"""Properties of this machine's processor that determine the choice of kernels."""

import platform
from pathlib import Path


def _cpu_info() -> str:
    try:
        with Path("/proc/cpuinfo").open() as processors:
            return processors.read(4096)
    except OSError:  # not Linux
        return platform.processor()


def _is_intel(cpu_info: str) -> bool:
    return "GenuineIntel" in cpu_info


DESCRIBED = _cpu_info()  # on Linux, the beginning of /proc/cpuinfo

IS_INTEL = _is_intel(DESCRIBED)
"""MKL, torch's library for fp32 matrix products and fused bf16 attention, uses AVX-512 only on Intel processors."""
