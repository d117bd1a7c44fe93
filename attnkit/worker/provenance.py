"""The code, data, packages and processor that a result depends on besides its recipe, and which of them have changed. No torch."""

import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from attnkit.files import files_at
from attnkit.own_code import source_of
from attnkit.processor import DESCRIBED
from attnkit.wording import counted
from attnkit.worker import nvidia_smi
from attnkit.worker.sources import THEN, digest, digest_of_names

LIMITS = (
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"),
    *("MKL_NUM_THREADS", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""Environment variables that make libraries use different instructions, which round differently."""

INSTRUCTIONS = re.compile(r"(sse4_2|avx|fma|f16c|amx|asimd|sve|sme\d*$|bf16|i8mm)")
"""The prefixes of the processor flags that the choice of kernels depends on."""

MANY = 8
"""The number of differing modules, files or packages above which a report counts them instead of naming each."""
NOT_RECORDED = "its provenance was not recorded"
GONE = "is gone"


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The processor of a run."""

    model: str  # its name, family, model and stepping
    instructions: tuple[str, ...]  # its instruction sets
    limits: Mapping[str, str]  # the environment variables of `LIMITS` that are set
    threads: int  # CPU threads of the run
    capability: str = ""  # the instruction set that torch uses; empty if unknown
    device: str = ""  # the name of the GPU; empty if the run was on the CPU

    def __str__(self) -> str:
        limits = "".join(f", {name}={value}" for name, value in self.limits.items())
        capability = f", {self.capability}" if self.capability else ""
        threads = counted(self.threads, "thread")
        return f"{f'{self.device}, ' if self.device else ''}{self.model}{capability}, {threads}{limits}"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The code, data, packages and processor of a run."""

    code: Mapping[str, str]  # hashes of the sources of attnkit, plugins and code that is not installed, by module
    data: Mapping[str, str]  # hashes of the files read, by path, relative to the study's working directory if inside it
    packages: Mapping[str, str]  # the versions of the installed packages that were imported, and Python's
    processor: Processor
    system: str = ""  # the operating system, for information: results do not depend on it
    before: tuple["Provenance", ...] = field(default=())  # earlier parts of the run, if made differently

    def __str__(self) -> str:
        named = ", ".join(f"{name} {self.packages[name]}" for name in ("python", "torch", "lightning") if name in self.packages)
        return "; ".join(filter(None, [str(self.processor), named, self.system]))


def processor(threads: int) -> Processor:
    """Return the processor of this machine, without its GPU."""
    text = DESCRIBED.partition("\n\n")[0]  # the first core

    def value(key: str) -> str:
        found = re.search(rf"^{key}\s*: (.*)$", text, re.MULTILINE)
        return found[1].strip() if found else ""

    lines = {"family": "cpu family", "model": "model", "stepping": "stepping"}
    numbers = [f"{key} {value(line)}" for key, line in lines.items() if value(line)]
    name = value("model name") or platform.processor() or platform.machine()
    flags = (value("flags") or value("Features")).split()
    return Processor(
        model=f"{name} ({', '.join(numbers)})" if numbers else name,
        instructions=tuple(sorted(flag for flag in flags if INSTRUCTIONS.match(flag))),
        limits={name: os.environ[name] for name in LIMITS if name in os.environ},
        threads=threads,
    )


@cache
def _gpus() -> frozenset[str]:
    """Return the names of this machine's NVIDIA GPUs, from the driver's files or, in containers that lack these, from `nvidia-smi`."""
    files = Path("/proc/driver/nvidia/gpus").glob("*/information")
    found = [re.search(r"^Model:(.*)$", file.read_text(encoding="utf-8"), re.MULTILINE) for file in files]
    names = [model[1].strip() for model in found if model]
    return frozenset(names or [name for (name,) in nvidia_smi.gpus("name")])


def changes(made: Provenance | None, *, current: Processor | None) -> list[str]:
    """Return sentences on changes, since a run was made, in anything that it depends on; empty if there are none.

    `made` is None if the provenance is unknown; `current` is None if a run started now would not be on this machine.
    """
    if made is None:
        return [NOT_RECORDED]
    found = [*_changed(made.code, lambda name: _now(source_of(name))), *_changed(made.data, _data_now)]
    found += [f"{name} {old} -> {new}" for name, old in made.packages.items() if (new := _version(name)) != old]
    if current is not None:
        found += _other_processor(made.processor, current)
    return found + [line for earlier in made.before for line in changes(earlier, current=current) if line not in found]


def _changed(recorded: Mapping[str, str], now: Callable[[str], str]) -> Iterator[str]:
    for name, old in recorded.items():
        if THEN in old:
            yield f"{name} was changed during the run"
        elif (new := now(name)) != old:
            yield f"{name} is gone" if new == GONE else f"{name} has changed ({old[:6]} -> {new[:6]})"


def _now(file: Path | None) -> str:
    try:
        return GONE if file is None else digest(file)
    except OSError:
        return GONE


def _data_now(path: str) -> str:
    """Return the hash of a file, or of the names of the files in a folder or matched by a pattern."""
    if os.path.isfile(path) or not (found := files_at(path)):
        return _now(Path(path))
    return digest_of_names(found)


def _version(package: str) -> str:
    try:
        return platform.python_version() if package == "python" else version(package)
    except PackageNotFoundError:
        return "not installed"


def _other_processor(made: Processor, current: Processor) -> Iterator[str]:
    if made.device:
        if not any(made.device.startswith(name) for name in _gpus()):  # torch appends the kind of partition (MIG)
            yield f"made on {made.device}, which this machine lacks"
    elif made.model != current.model:
        yield f"made on another processor: {made.model} -> {current.model}"
    elif made.instructions != current.instructions:
        yield f"the processor has other instruction sets: {' '.join(sorted({*made.instructions} ^ {*current.instructions}))}"
    if made.threads != current.threads:
        yield f"threads {made.threads} -> {current.threads}"
    for name in sorted({*made.limits, *current.limits}):
        if (old := made.limits.get(name)) != (new := current.limits.get(name)):
            yield f"{name} {old or 'unset'} -> {new or 'unset'}"


def mixtures(made: Iterable[Provenance | None]) -> list[str]:
    """Return sentences on how the runs of a report differ besides their recipes; empty if all were made alike.

    Variants import different modules and read different files; only those that several runs share are compared. If many differ, a sentence
    counts them and names a few.
    """
    known = list(made)
    parts = [p for one in known if one is not None for p in (one, *one.before)]
    lines = [f"no recorded provenance of {unknown} run{'s' * (unknown != 1)}"] if (unknown := known.count(None)) else []
    kinds = {"modules": [p.code for p in parts], "files": [p.data for p in parts], "packages": [p.packages for p in parts]}
    for kind, recorded in kinds.items():
        found = {name: Counter(one[name] for one in recorded if name in one) for name in sorted(set().union(*recorded))}
        mixed = {name: counts.most_common() for name, counts in found.items() if len(counts) > 1}
        if len(mixed) > MANY:
            lines.append(f"{len(mixed)} {kind} in several versions, among them {', '.join([*mixed][:3])}; the record of each run has all")
        else:
            lines += [f"{name}: {', '.join(f'{n} with {value}' for value, n in counts)}" for name, counts in mixed.items()]
    processors = Counter(str(p.processor) for p in parts)
    detailed = {(p.processor.model, p.processor.instructions, p.processor.device) for p in parts}
    if len(processors) > 1:
        lines.append("; ".join(f"{count} on {name}" for name, count in processors.most_common()))
    elif len(detailed) > 1:
        lines.append(f"processors with {len(detailed)} different instruction sets")
    return lines
