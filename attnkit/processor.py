"""The properties of this machine's processor on which the choice of a kernel depends."""

import platform
import re
from pathlib import Path


def _described() -> str:
    try:
        with Path("/proc/cpuinfo").open() as processors:
            return processors.read(4096)
    except OSError:  # not Linux
        return platform.processor()


_DESCRIBED = _described()

IS_INTEL = "GenuineIntel" in _DESCRIBED
"""MKL, with which torch multiplies matrices in fp32 and fused attention in bf16, uses AVX-512 on Intel's processors only."""

IS_ZEN_4 = bool(re.search(r"AuthenticAMD\ncpu family\s*: 25\n", _DESCRIBED)) and " avx512f " in _DESCRIBED
"""AMD's fourth generation: of family 25, which the third has too, and with AVX-512, which the third lacks."""
