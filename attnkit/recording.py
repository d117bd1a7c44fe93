"""Records the attention weights of any model on any backend, without affecting the model's computation."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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

    The weights are recomputed from the inputs of each attention, so outputs, gradients and the random numbers of dropout do not change.
    They are the weights before dropout.

    Around `generate`, only the last step remains; for a beam search it has one row per beam, or one query per beam where beams share a
    cache. `attention_maps` gives all steps of the chosen output.

    Args:
        model: Any module that contains attnkit attention.
        logits: Whether to record the inputs of the softmax, -inf at masked keys, instead of the weights.

    Yields:
        A mapping from module path to weights (or logits) [B, H, Q, K], detached. Each call of a module replaces the previous one, except in
        a recurrent decoder that attends token by token: the queries of all its calls are joined.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="encoder", d_model=16, num_layers=1, num_heads=2, vocab_size=20)
        >>> with attnkit.record_attention(model) as maps:
        ...     _ = model(torch.tensor([[4, 5, 6]]))
        >>> {path: tuple(weights.shape) for path, weights in maps.items()}
        {'stack.encoder.layers.0.mixer': (1, 2, 3, 3)}
    """
    maps: dict[str, Tensor] = {}
    joined: set[str] = set()
    with ExitStack() as hooks:
        for path, module in model.named_modules():
            key = path.removesuffix(".attention")
            if isinstance(module, ContextDecoder):
                joined.add(key := f"{path}.attention".removeprefix("."))
                hooks.enter_context(module.register_forward_pre_hook(partial(_forget, maps, key)))
            elif isinstance(module, Attention):
                hook = partial(_record, maps, key, key in joined, logits)
                hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        yield maps


def attention_maps(model: nn.Module, inputs: Tensor, output: Tensor | None = None, *, mask: Tensor | None = None) -> dict[str, Tensor]:
    """Return the attention weights of a model for `inputs`, and for the `output` that it generated from them.

    A beam search reorders its beams at each step and discards most of them. So nothing is recorded during the search; instead, one pass
    reads the whole chosen output. Decoding step by step computes the same as a full pass, so these are the weights of that beam.

    Dropout and gradients are off. The rows of padding, and those after the end of an output, are meaningless.

    Args:
        model: A model from `attnkit.compose`.
        inputs: The model's inputs: the source [B, S] of an encoder-decoder, the prompt [B, T] of a decoder, the tokens or images of an
            encoder.
        output: The result of `model.generate` for `inputs`, [B, L], or any other target tokens. Required for an encoder-decoder.
        mask: [B, S] or [B, T] bool, True = real token (default: all), as passed to `generate`.

    Returns:
        A mapping from module path to weights [B, H, Q, K]. In the decoder of an encoder-decoder, query t is the step that generated
        `output[:, t]` (Q = L). The queries of a decoder are the prompt and all tokens of the output except the last (Q = T + L - 1).

    Raises:
        ValueError: `output` is missing for an encoder-decoder, or is passed for a model that generates nothing.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(
        ...     stack="encoder_decoder", d_model=16, num_layers=1, num_heads=2, src_vocab_size=9, tgt_vocab_size=9, eos_id=None)
        >>> src = torch.tensor([[4, 5, 6]])
        >>> maps = attention_maps(model, src, model.generate(src, max_length=4, beam_size=2))
        >>> maps["stack.decoder.layers.0.cross_mixer"].shape
        torch.Size([1, 2, 4, 3])
    """
    if output is None and isinstance(model, EncoderDecoderModel):
        raise ValueError("an encoder-decoder needs an output to attend from: pass the generated tokens, or any others")
    if output is not None and not isinstance(model, EncoderDecoderModel | DecoderModel):
        raise ValueError(f"{type(model).__name__} generates no output from its inputs: do not pass `output`")
    with generating(model), record_attention(model) as maps:
        if isinstance(model, EncoderDecoderModel) and output is not None:
            start = output.new_full((len(output), 1), model.bos_id)
            model(inputs, torch.cat([start, output[:, :-1]], 1), src_mask=mask)
        elif output is not None:
            read = output[:, :-1]
            model(torch.cat([inputs, read], 1), key_mask=None if mask is None else torch.cat([mask, torch.ones_like(read).bool()], 1))
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
    arguments = dict(zip(("query", "key", "value"), args, strict=False), **kwargs)
    with torch.no_grad():
        weights = (module.logits if logits else module.weights)(
            **{name: arguments[name] for name in ("query", "key", "mask", "attn_bias", "projected") if name in arguments}
        )
        weights = weights[..., module.memory_keys :]
        maps[key] = torch.cat([maps[key], weights], -2) if is_joined and key in maps else weights


def relative_entropy(weights: Tensor, keys: Tensor) -> Tensor:
    """Return the entropy of the shares of weight of each query [..., Q], as a fraction of the largest possible for its number of keys.

    Args:
        weights: [..., Q, K].
        keys: The number of keys that each query may attend to, broadcastable to [..., Q].

    Example:
        >>> relative_entropy(torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]]), torch.tensor([4, 4]))
        tensor([1.0000, 0.5000])
    """
    shares = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)  # sigmoid weights do not sum to one
    nats: Tensor = torch.special.entr(shares).sum(-1)
    return nats / keys.clamp(min=2).log()
