"""Attention weights from any model and any backend, without changing what the model computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.attention import Attention
from attnkit.layers import ContextDecoder


@contextmanager
def record_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the attention weights of every forward pass inside the `with` block.

    The weights are computed again from the inputs of each attention, in addition to the output: neither outputs, gradients nor the
    random numbers of dropout change. They are those before dropout.

    Args:
        model: Any module that contains attnkit attention.

    Yields:
        A mapping from module path to weights [B, H, Q, K], detached; a later call of the same module replaces the earlier. The calls of a
        recurrent decoder that attends token by token are one: its queries are joined.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="encoder", d_model=16, num_layers=1, num_heads=2, vocab_size=20)
        >>> with attnkit.record_attention(model) as maps:
        ...     _ = model(torch.tensor([[4, 5, 6]]))
        >>> {path: tuple(weights.shape) for path, weights in maps.items()}
        {'stack.encoder.layers.0.self_attention': (1, 2, 3, 3)}
    """
    maps: dict[str, Tensor] = {}
    handles, joined = [], set()
    for path, module in model.named_modules():
        key = path.removesuffix(".attention")
        if isinstance(module, ContextDecoder):
            joined.add(key := f"{path}.attention".removeprefix("."))
            handles.append(module.register_forward_pre_hook(partial(_forget, maps, key)))
        elif isinstance(module, Attention):
            handles.append(module.register_forward_hook(partial(_record, maps, key, key in joined), with_kwargs=True))
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def _forget(maps: dict[str, Tensor], key: str, module: nn.Module, args: tuple[Any, ...]) -> None:
    maps.pop(key, None)


def _record(
    maps: dict[str, Tensor],
    key: str,
    is_joined: bool,
    module: Attention,
    args: tuple[Tensor, ...],
    kwargs: dict[str, Any],
    output: Tensor,
) -> None:
    given = dict(zip(("query", "key", "value"), args, strict=False), **kwargs)
    with torch.no_grad():
        weights = module.weights(**{name: given[name] for name in ("query", "key", "mask", "attn_bias", "projected") if name in given})
        maps[key] = torch.cat([maps[key], weights], -2) if is_joined and key in maps else weights
