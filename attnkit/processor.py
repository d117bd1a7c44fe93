"""Properties of this machine's processor that determine the choice of kernels."""

import platform
import re
from pathlib import Path


def _cpu_info() -> str:
    try:
        with Path("/proc/cpuinfo").open() as processors:
            return processors.read(4096)
    except OSError:  # not Linux
        return platform.processor()


def _is_intel(cpu_info: str) -> bool:
    return "GenuineIntel" in cpu_info


def _is_zen_4(cpu_info: str) -> bool:
    """Return whether it is an AMD Zen 4: family 25, like Zen 3, but with AVX-512."""
    is_family_25 = re.search(r"AuthenticAMD\ncpu family\s*: 25\n", cpu_info) is not None
    return is_family_25 and re.search(r"^flags\b.* avx512f ", cpu_info, re.MULTILINE) is not None


DESCRIBED = _cpu_info()  # on Linux, the beginning of /proc/cpuinfo

IS_INTEL = _is_intel(DESCRIBED)
"""MKL, torch's library for fp32 matrix products and fused bf16 attention, uses AVX-512 only on Intel processors."""

IS_ZEN_4 = _is_zen_4(DESCRIBED)  # known only on Linux
