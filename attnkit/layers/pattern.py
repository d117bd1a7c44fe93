# https://arxiv.org/abs/1807.03819, https://arxiv.org/abs/1909.11942
"""Patterns of layers, which expand a short list of specs into all layers of a stack."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnkit.registry import ConfigurationError, ResolvedSpec, Spec, layer_kinds
from attnkit.wording import counted

DEEPEST = 100_000
"""The maximum number of layers in a stack. More are a mistake, or an attack by a checkpoint, which shared layers would reveal late."""

_AS_IN_THE_STACK = ResolvedSpec(layer_kinds, "transformer_layer", {"repeat": 1, "share": False})


@dataclass(frozen=True)
class Pattern:
    """The layers of a stack: a pattern, repeated until there are enough layers; its last repetition may be cut short."""

    entries: Sequence[ResolvedSpec]  # the specs of the pattern
    once: Sequence[int]  # the index of the entry of each layer of the pattern
    depth: int  # number of layers of the stack

    @classmethod
    def of(cls, layers: Sequence[Spec] | None, num_layers: int | None) -> "Pattern":
        """Read a pattern (default: one layer with the stack's own options), repeated until there are `num_layers` (default: once).

        Sharing all layers follows Dehghani et al. 2018, https://arxiv.org/abs/1807.03819 (Universal Transformers), and Lan et al. 2019,
        https://arxiv.org/abs/1909.11942 (ALBERT).

        Example:
            >>> pattern = Pattern.of([{"mixer": "none", "repeat": 2}, {"share": True}], 7)
            >>> [pattern.entry_at(layer) for layer in range(pattern.depth)]
            [0, 0, 1, 0, 0, 1, 0]
        """
        entries = (
            [_AS_IN_THE_STACK] if layers is None else [layer_kinds.resolve(entry, path=f"layers[{i}]") for i, entry in enumerate(layers)]
        )
        for i, entry in enumerate(entries):
            if not 0 < entry["repeat"] <= DEEPEST:
                raise ConfigurationError(f"layers[{i}]: repeat must be positive and at most {DEEPEST:,}, but is {entry['repeat']}")
        once = [i for i, entry in enumerate(entries) for _ in range(entry["repeat"])]
        depth = len(once) if num_layers is None else num_layers
        if depth > DEEPEST:
            raise ConfigurationError(f"a stack has at most {DEEPEST:,} layers, but this one has {depth:,}")
        if absent := set(range(len(entries))) - set(once[:depth]):
            raise ConfigurationError(
                f"num_layers {depth} ends before layers[{min(absent)}], so this entry is never used: "
                f"the pattern has {counted(len(once), 'layer')}"
            )
        return cls(entries, once, depth)

    def entry_at(self, layer: int) -> int:
        """Return the index of the entry that describes a layer."""
        return self.once[layer % len(self.once)]

    def places(self, entry: int) -> int:
        """Return how often an entry occurs in the stack.

        Example:
            >>> Pattern.of([{}, {"repeat": 2}], 5).places(1)
            3
        """
        return sum(self.entry_at(layer) == entry for layer in range(self.depth))
