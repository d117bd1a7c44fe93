# https://arxiv.org/abs/1807.03819, https://arxiv.org/abs/1909.11942
"""Patterns of layers: from a short list of specs to every layer of a stack."""

from collections.abc import Sequence
from itertools import cycle, islice

from attnkit.registry import ConfigurationError, ResolvedSpec, Spec, layer_kinds

_AS_IN_THE_STACK = ResolvedSpec(layer_kinds, "transformer_layer", {"repeat": 1, "share": False})


def pattern(layers: Sequence[Spec] | None, num_layers: int | None) -> tuple[list[int], list[ResolvedSpec]]:
    """Return what stands at each depth, and the spec of each set of parameters.

    Sharing all layers is Dehghani et al. 2018, https://arxiv.org/abs/1807.03819 (Universal Transformers), and Lan et al. 2019,
    https://arxiv.org/abs/1909.11942 (ALBERT).

    Args:
        layers: The pattern (default: one layer that differs in nothing from the stack). An entry stands `repeat` times in it.
        num_layers: Number of layers (default: the pattern once). A longer stack repeats the pattern, and its end may cut it.

    Returns:
        For each layer of the stack the index of its parameters, and the spec of each index. An entry with `share` has one index wherever
        it stands.

    Raises:
        ConfigurationError: `repeat` is not positive, or the stack is too short for every entry to stand in it.

    Example:
        >>> order, specs = pattern([{"mixer": "none", "repeat": 2}, {"share": True}], 7)
        >>> order
        [0, 1, 2, 3, 4, 2, 5]
        >>> len(specs)
        6
    """
    entries = [_AS_IN_THE_STACK] if layers is None else [layer_kinds.resolve(entry, path=f"layers[{i}]") for i, entry in enumerate(layers)]
    for i, entry in enumerate(entries):
        if entry["repeat"] < 1:
            raise ConfigurationError(f"layers[{i}]: repeat must be positive, but is {entry['repeat']}")
    once = [i for i, entry in enumerate(entries) for _ in range(entry["repeat"])]
    depth = len(once) if num_layers is None else num_layers
    if absent := set(range(len(entries))) - set(once[:depth]):
        raise ConfigurationError(
            f"num_layers {depth} ends before layers[{min(absent)}], so that this entry stands nowhere: the pattern has {len(once)} layers"
        )
    order: list[int] = []
    specs: list[ResolvedSpec] = []
    shared: dict[int, int] = {}
    for i in islice(cycle(once), depth):
        if i in shared:
            order.append(shared[i])
            continue
        order.append(len(specs))
        specs.append(entries[i])
        if entries[i]["share"]:
            shared[i] = order[-1]
    return order, specs
