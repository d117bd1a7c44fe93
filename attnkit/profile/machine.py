"""What a machine can do, as `attnkit bench` measures it or a user states it, and how long a step takes on it."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from attnkit.profile.partition import Traffic
from attnkit.registry import ConfigurationError

PRODUCTS = ("fp32", "bf16", "fp16")
"""The kinds of numbers that matrices are multiplied in."""
EFFICIENCY = 0.4
"""The part of a peak that trainings of Transformers usually reach; good ones on GPUs reach 0.3 to 0.5."""
SPARE = 0.1
"""The part of a device's memory that no plan uses: its context, NCCL's buffers and fragmentation are not estimated."""
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What one device can do; what is not known is None.

    Attributes:
        device: Its name.
        memory: Bytes that it has.
        shares_memory: Whether all processes have this memory together, as on a CPU.
        tflops: The most 10^12 operations a second in products of matrices, by the kind of their numbers (`PRODUCTS`).
        memory_bandwidth: GB (10^9 bytes) a second that it reads and writes.
        bandwidth: GB a second that a process sends to others.
    """

    device: str = "a device"
    memory: float | None = None
    shares_memory: bool = False
    tflops: Mapping[str, float] = field(default_factory=dict)
    memory_bandwidth: float | None = None
    bandwidth: float | None = None

    @classmethod
    def read(cls, path: str) -> "Machine":
        """Read a file of `attnkit bench --json`.

        Raises:
            ConfigurationError: It holds something else.
        """
        try:
            found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path} is no JSON file: {error}; write one with attnkit bench --json {path}") from error
        known = {key: found[key] for key in cls.__dataclass_fields__ if key in found} if isinstance(found, dict) else {}
        rates = [*known["tflops"].values()] if isinstance(known.get("tflops"), dict) else [None]
        rates += [known[key] for key in ("memory", "memory_bandwidth", "bandwidth") if known.get(key) is not None]
        if not all(isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < math.inf for rate in rates):
            raise ConfigurationError(f"{path} does not describe a machine: write it with attnkit bench --json {path}")
        return cls(**{**known, "device": str(known.get("device", cls.device)), "shares_memory": known.get("shares_memory") is True})

    def with_peak(self, text: str, kind: str) -> "Machine":
        """Return a machine with other peaks.

        Args:
            text: A number of TFLOP/s for products of one kind, or several, as in `fp32=67,bf16=989`.
            kind: Of the number alone.

        Raises:
            ConfigurationError: It is neither.

        Example:
            >>> Machine().with_peak("989", "bf16").tflops, Machine(tflops={"fp32": 60.0}).with_peak("fp32=67,bf16=989", "bf16").tflops
            ({'bf16': 989.0}, {'fp32': 67.0, 'bf16': 989.0})
        """
        pairs = [part.split("=", 1) if "=" in part else (kind, part) for part in text.split(",")]
        try:
            peaks = {name.strip(): float(value) for name, value in pairs}
        except ValueError:
            peaks = {}
        if not peaks or any(name not in PRODUCTS or not 0 < value < math.inf for name, value in peaks.items()):
            raise ConfigurationError(
                f"--peak is a number of TFLOP/s, or one for each of {', '.join(PRODUCTS)}, as in bf16=989: not {text!r}"
            )
        return replace(self, tflops={**self.tflops, **peaks})

    def as_json(self) -> str:
        """Return the file that `read` reads."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read_size(text: str) -> int:
    """Return the bytes of a size such as `80GB`, `24GiB` or `512 MB`.

    Raises:
        ConfigurationError: It is none.

    Example:
        >>> read_size("80GB"), read_size("1.5 GiB")
        (80000000000, 1610612736)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or not float(found[1]):
        raise ConfigurationError(f"a size of memory has a unit, as in 80GB (10^9 bytes) or 80GiB (2^30 bytes), but is {text!r}")
    return round(float(found[1]) * unit)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step, by what takes them; None where the machine's rate is not known.

    Attributes:
        products: Of the products of matrices, at a stated part of the peak.
        memory: To read and write all tensors once, which goes on at the same time.
        beside: To send what is sent while layers compute.
        between: To send what is sent while nothing is computed.
    """

    products: float | None
    memory: float | None
    beside: float | None
    between: float | None

    @classmethod
    def of(
        cls, machine: Machine, *, kind: str, operations: float, touched: float, traffic: Traffic, efficiency: float = EFFICIENCY
    ) -> "StepTime":
        """Return the times of a step on a machine.

        Args:
            machine: Its rates.
            kind: Of the numbers in products.
            operations: Of products of matrices.
            touched: Bytes read and written.
            traffic: What is sent.
            efficiency: The part of the peak that products reach.

        Example:
            >>> sent = Traffic(beside={"gradients": 25e9}, between={})
            >>> machine = Machine(tflops={"bf16": 100.0}, bandwidth=50.0)
            >>> time = StepTime.of(machine, kind="bf16", operations=40e12, touched=0, traffic=sent, efficiency=0.5)
            >>> time.products, time.beside, time.shortest, time.longest, time.bound
            (0.8, 0.5, 0.8, 1.3, 'products of matrices')
        """
        peak = machine.tflops.get(kind)
        sent = [sum(part.values()) for part in (traffic.beside, traffic.between)]
        beside, between = (0.0 if not size else None if machine.bandwidth is None else size / machine.bandwidth / 1e9 for size in sent)
        return cls(
            products=None if peak is None else operations / (peak * efficiency * 1e12),
            memory=None if machine.memory_bandwidth is None else touched / machine.memory_bandwidth / 1e9,
            beside=beside,
            between=between,
        )

    @property
    def computation(self) -> float | None:
        """What computing takes: the longer of products and memory, as kernels do both at once."""
        return None if self.products is None else max(self.products, self.memory or 0.0)

    @property
    def shortest(self) -> float | None:
        """With as much communication behind the computation as can be."""
        return None if self.computation is None else max(self.computation, self.beside or 0.0) + (self.between or 0.0)

    @property
    def longest(self) -> float | None:
        """With no communication behind the computation."""
        return None if self.computation is None else self.computation + (self.beside or 0.0) + (self.between or 0.0)

    @property
    def bound(self) -> str | None:
        """What takes longest."""
        if self.computation is None:
            return None
        network = (self.beside or 0.0) + (self.between or 0.0)
        names = {"products of matrices": self.products or 0.0, "reading and writing memory": self.memory or 0.0, "the network": network}
        return max(names, key=lambda name: names[name])
