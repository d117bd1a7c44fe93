"""Assigns runs to GPUs with room for them, judging by the memory that earlier runs of the same variant took. No torch."""

from collections.abc import Callable, Collection, Mapping, Sequence

from attnkit.worker import nvidia_smi

SPARE = 1.25
"""The memory reserved for a run, relative to its peak tensor memory: the allocator reserves more, and seeds differ."""

CONTEXT = 1 << 30  # generous bound on the bytes that CUDA itself takes per process
Memory = Mapping[int, tuple[int, int]]  # (used, total) bytes by GPU number


def measured() -> Memory:
    """Return the memory of all GPUs as reported by `nvidia-smi`; empty if that is missing or fails."""
    try:
        rows = [[int(word) for word in row] for row in nvidia_smi.gpus("index", "memory.used", "memory.total")]
    except ValueError:
        return {}
    return {number: (used << 20, total << 20) for number, used, total in rows}


class Gpus:
    """The GPUs of a study and the memory that its runs are expected to take.

    A run whose peak is unknown gets a GPU to itself. Other runs share a GPU if their expected peaks fit together and the new run fits into
    the memory that is free according to `memory`. Without `nvidia-smi`, no GPU is shared.
    """

    def __init__(self, numbers: Sequence[int], memory: Callable[[], Memory] = measured) -> None:
        self.numbers, self._memory = tuple(dict.fromkeys(numbers)), memory
        self._held: dict[str, tuple[int, int | None]] = {}
        self._shared: set[str] = set()

    def place(self, key: str, peak: float | None) -> int | None:
        """Reserve room for a run with this peak (None if unknown or not to share) and return its GPU; None if all are full."""
        need = None if peak is None else round(peak * SPARE) + CONTEXT
        on = {number: [(k, taken) for k, (at, taken) in self._held.items() if at == number] for number in self.numbers}
        for number in sorted(self.numbers, key=lambda n: len(on[n])):
            if on[number] and not self._fits(number, need, [taken for _, taken in on[number]]):
                continue
            if on[number]:
                self._shared.update([key, *(k for k, _ in on[number])])
            self._held[key] = number, need
            return number
        return None

    def _fits(self, number: int, need: int | None, taken: Collection[int | None]) -> bool:
        if need is None or None in taken or not (memory := self._memory().get(number)):
            return False
        used, total = memory
        reserved = sum(one for one in taken if one is not None)
        return need <= total - max(used, reserved)  # a run that has just begun uses less than it will

    def release(self, key: str) -> bool:
        """Release what a run holds, if anything, and return whether it ever shared its GPU with another run."""
        self._held.pop(key, None)
        shared = key in self._shared
        self._shared.discard(key)
        return shared
