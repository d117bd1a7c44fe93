"""Attention weights from any model and any backend, without changing what the model computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.attention import Attention
from attnkit.layers import ContextDecoder
from attnkit.models.base import generating
from attnkit.models.decoder import DecoderModel
from attnkit.models.encoder_decoder import EncoderDecoderModel


@contextmanager
def record_attention(model: nn.Module, *, logits: bool = False) -> Iterator[dict[str, Tensor]]:
    """Record the attention weights of every forward pass inside the `with` block.

    The weights are computed again from the inputs of each attention, in addition to the output: neither outputs, gradients nor the
    random numbers of dropout change. They are those before dropout.

    Around `generate` that leaves the last step, with a row for each beam; `attention_maps` gives all steps of what was chosen.

    Args:
        model: Any module that contains attnkit attention.
        logits: Record what the softmax reads, -inf at masked keys, in the place of the weights.

    Yields:
        A mapping from module path to weights (or logits) [B, H, Q, K], detached; a later call of the same module replaces the earlier. The
        calls of a recurrent decoder that attends token by token are one: its queries are joined.

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
            handles.append(module.register_forward_hook(partial(_record, maps, key, key in joined, logits), with_kwargs=True))
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def attention_maps(model: nn.Module, inputs: Tensor, output: Tensor | None = None, *, mask: Tensor | None = None) -> dict[str, Tensor]:
    """Return the weights with which a model reads `inputs`, and with which it made `output` from them.

    The beams of a search change places at each step, and most of them are given up. So nothing is kept during the search: the output
    that was chosen is read once more, whole. A model's step gives what its full pass gives, so these are the weights of that beam.

    Without dropout and gradients. The rows of padding, and those after the end of an output, say nothing.

    Args:
        model: A model of `attnkit.compose`.
        inputs: What the model reads: the source [B, S] of an encoder-decoder, the prompt [B, T] of a decoder, the tokens or images of an
            encoder.
        output: What `model.generate` returned for `inputs` [B, L], or any tokens to be read as such (an encoder-decoder always has one).
        mask: [B, S] or [B, T] bool, True = real token (default: all); as it was given to `generate`.

    Returns:
        From module path to weights [B, H, Q, K]. In the decoder of an encoder-decoder the query t is the step that made `output[:, t]`
        (Q = L); the queries of a decoder are the prompt and the output but its last token (Q = T + L - 1).

    Raises:
        ValueError: An encoder-decoder has no output, or a model that makes none has one.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(
        ...     stack="encoder_decoder", d_model=16, num_layers=1, num_heads=2, src_vocab_size=9, tgt_vocab_size=9, eos_id=None)
        >>> src = torch.tensor([[4, 5, 6]])
        >>> maps = attention_maps(model, src, model.generate(src, max_length=4, beam_size=2))
        >>> maps["stack.decoder.layers.0.cross_attention"].shape
        torch.Size([1, 2, 4, 3])
    """
    if output is None and isinstance(model, EncoderDecoderModel):
        raise ValueError("an encoder-decoder attends from an output: pass the tokens that it generated, or others")
    if output is not None and not isinstance(model, EncoderDecoderModel | DecoderModel):
        raise ValueError(f"{type(model).__name__} makes no output from its inputs: leave it out")
    with generating(model), record_attention(model) as maps:
        if isinstance(model, EncoderDecoderModel) and output is not None:
            start = output.new_full((len(output), 1), model.bos_id)
            model(inputs, torch.cat([start, output[:, :-1]], 1), src_mask=mask)
        elif output is not None:
            made = output[:, :-1]
            model(torch.cat([inputs, made], 1), key_mask=None if mask is None else torch.cat([mask, torch.ones_like(made).bool()], 1))
        else:
            model(inputs, key_mask=mask)
    return maps


def _forget(maps: dict[str, Tensor], key: str, module: nn.Module, args: tuple[Any, ...]) -> None:
    maps.pop(key, None)


def _record(
    maps: dict[str, Tensor],
    key: str,
    is_joined: bool,
    logits: bool,
    module: Attention,
    args: tuple[Tensor, ...],
    kwargs: dict[str, Any],
    output: Tensor,
) -> None:
    given = dict(zip(("query", "key", "value"), args, strict=False), **kwargs)
    with torch.no_grad():
        weights = (module.logits if logits else module.weights)(
            **{name: given[name] for name in ("query", "key", "mask", "attn_bias", "projected") if name in given}
        )
        maps[key] = torch.cat([maps[key], weights], -2) if is_joined and key in maps else weights
