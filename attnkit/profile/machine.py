"""The performance of a machine, as measured by `attnkit bench` or stated by the user, and the time of a step on it."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from attnkit.profile.partition import Traffic
from attnkit.registry import ConfigurationError

PRODUCTS = ("fp32", "bf16", "fp16")  # number formats of matrix products
EFFICIENCY = 0.4  # fraction of the peak FLOP/s that Transformer training typically reaches; well-tuned runs on GPUs reach 0.3 to 0.5
SPARE = 0.1  # fraction of a device's memory that plans reserve: its context, NCCL's buffers and fragmentation are not estimated
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The performance of one device; None where it is unknown."""

    device: str = "a device"  # its name
    memory: float | None = None  # its memory in bytes
    shares_memory: bool = False  # whether all processes share this memory, as on a CPU
    tflops: Mapping[str, float] = field(default_factory=dict)  # peak TFLOP/s of matrix products, by number format (`PRODUCTS`)
    memory_bandwidth: float | None = None  # GB/s (10^9 bytes per second) that it reads and writes
    bandwidth: float | None = None  # GB/s that a process sends to others

    @classmethod
    def read(cls, path: str) -> "Machine":
        """Read a file that `attnkit bench --json` wrote; raise if it contains something else."""
        try:
            found: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path} is not a JSON file: {error}; create it with attnkit bench --json {path}") from error
        known = {key: found[key] for key in cls.__dataclass_fields__ if key in found} if isinstance(found, dict) else {}
        rates = [*known["tflops"].values()] if isinstance(known.get("tflops"), dict) else [None]
        rates += [known[key] for key in ("memory", "memory_bandwidth", "bandwidth") if known.get(key) is not None]
        if not all(isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < math.inf for rate in rates):
            raise ConfigurationError(f"{path} does not describe a machine; create it with attnkit bench --json {path}")
        return cls(**{**known, "device": str(known.get("device", cls.device)), "shares_memory": known.get("shares_memory") is True})

    def with_peak(self, text: str, kind: str) -> "Machine":
        """Return this machine with other peak TFLOP/s of matrix products: one number, for `kind`, or one per format; or raise.

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
                f"--peak must be a number of TFLOP/s, or one for each of {', '.join(PRODUCTS)}, as in bf16=989, but is {text!r}"
            )
        return replace(self, tflops={**self.tflops, **peaks})

    def as_json(self) -> str:
        """Return the content of a file for `read`."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read_size(text: str) -> int:
    """Return a size such as `80GB`, `24GiB` or `512 MB` in bytes; raise if it has no unit.

    Example:
        >>> read_size("80GB"), read_size("1.5 GiB")
        (80000000000, 1610612736)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or not float(found[1]):
        raise ConfigurationError(f"a memory size needs a unit, as in 80GB (10^9 bytes) or 80GiB (2^30 bytes), but is {text!r}")
    return round(float(found[1]) * unit)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step, by cause; None where the machine's rate is unknown."""

    products: float | None  # matrix products, at a given fraction of the peak
    memory: float | None  # reading and writing all tensors once, which happens at the same time
    overlapped: float | None  # communication that can overlap with computation
    exposed: float | None  # communication during which nothing is computed

    @classmethod
    def of(
        cls, machine: Machine, *, kind: str, operations: float, touched: float, traffic: Traffic, efficiency: float = EFFICIENCY
    ) -> "StepTime":
        """Return the times of a step on a machine, from FLOPs of matrix products (of a `kind`, a number format) and bytes read and written.

        Example:
            >>> sent = Traffic(overlapped={"gradients": 25e9}, exposed={})
            >>> machine = Machine(tflops={"bf16": 100.0}, bandwidth=50.0)
            >>> time = StepTime.of(machine, kind="bf16", operations=40e12, touched=0, traffic=sent, efficiency=0.5)
            >>> time.products, time.overlapped, time.shortest, time.longest, time.bound
            (0.8, 0.5, 0.8, 1.3, 'matrix products')
        """
        peak = machine.tflops.get(kind)
        sent = [sum(part.values()) for part in (traffic.overlapped, traffic.exposed)]
        overlapped, exposed = (0.0 if not size else None if machine.bandwidth is None else size / machine.bandwidth / 1e9 for size in sent)
        return cls(
            products=None if peak is None else operations / (peak * efficiency * 1e12),
            memory=None if machine.memory_bandwidth is None else touched / machine.memory_bandwidth / 1e9,
            overlapped=overlapped,
            exposed=exposed,
        )

    @property
    def computation(self) -> float | None:
        """Seconds of computation: the longer of products and memory, since kernels do both at once."""
        return None if self.products is None else max(self.products, self.memory or 0.0)

    @property
    def shortest(self) -> float | None:
        """Seconds of a step if communication overlaps with computation as much as possible."""
        return None if self.computation is None else max(self.computation, self.overlapped or 0.0) + (self.exposed or 0.0)

    @property
    def longest(self) -> float | None:
        """Seconds of a step if communication does not overlap with computation."""
        return None if self.computation is None else self.computation + (self.overlapped or 0.0) + (self.exposed or 0.0)

    @property
    def bound(self) -> str | None:
        """The cause that takes longest, or None if it is unknown."""
        if self.computation is None:
            return None
        network = (self.overlapped or 0.0) + (self.exposed or 0.0)
        names = {"matrix products": self.products or 0.0, "memory bandwidth": self.memory or 0.0, "the network": network}
        return max(names, key=lambda name: names[name])
