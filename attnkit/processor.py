"""The properties of this machine's processor that determine the choice of kernels."""

import platform
import re
from pathlib import Path


def _described() -> str:
    try:
        with Path("/proc/cpuinfo").open() as processors:
            return processors.read(4096)
    except OSError:  # not Linux
        return platform.processor()


def _is_intel(described: str) -> bool:
    return "GenuineIntel" in described


def _is_zen_4(described: str) -> bool:
    """Return whether it is AMD's fourth generation: like the third, of family 25, but with AVX-512."""
    is_family_25 = re.search(r"AuthenticAMD\ncpu family\s*: 25\n", described) is not None
    return is_family_25 and re.search(r"^flags\b.* avx512f ", described, re.MULTILINE) is not None


_DESCRIBED = _described()

IS_INTEL = _is_intel(_DESCRIBED)
"""MKL, which computes torch's fp32 matrix products and fused bf16 attention, uses AVX-512 only on Intel's processors."""

IS_ZEN_4 = _is_zen_4(_DESCRIBED)
"""Only known on Linux."""
