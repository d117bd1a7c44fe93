# https://arxiv.org/abs/2204.02311
"""The floating-point operations of a task's forward pass, as a formula of the lengths of its rows."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnkit.layers import Transformer
from attnkit.models.base import generating
from attnkit.models.classifier import ClassifierModel
from attnkit.models.encoder_decoder import EncoderDecoderModel
from attnkit.registry import ConfigurationError
from attnkit.task.base import Task
from attnkit.task.causal_lm import CausalLM
from attnkit.task.masked_lm import MaskedLM
from attnkit.tokenizer import Tokenizer

Exponents = tuple[int, int]

TERMS: tuple[Exponents, ...] = ((0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (1, 1))
"""Of the input's length and the target's: a pass has parts for each row, each token and each pair of tokens."""

BACKWARD = 2
"""A backward pass costs two forward ones: a product of matrices has a gradient for each of both."""


def forward_flops(task: Task) -> dict[Exponents, int]:
    r"""Return the coefficients of the FLOPs of a row with S input tokens and T target tokens (T = 0 without a target).

    Equation:
        $$F(S, T) = c_{00} + c_{10} S + c_{01} T + c_{20} S^2 + c_{02} T^2 + c_{11} S T$$

    Counted are the products of matrices, two operations for each multiplication and addition. In causal self-attention a token is
    paired with itself and the earlier ones, $S (S + 1) / 2$ pairs rather than $S^2$: fused kernels skip the others (Chowdhery et al. 2022,
    who define model FLOPs utilisation, count them). Pairs masked by a sliding window or by the bounds of documents are counted, since no
    backend skips them. Padding, recomputation, norms, softmax and tanh are not.
    Nothing is computed: torch counts in a few passes of a copy without memory, whose shapes determine the formula.

    Paper: Chowdhery et al. 2022, appendix B, https://arxiv.org/abs/2204.02311

    Args:
        task: The task.

    Returns:
        By exponents of S and T; only those that are not zero. Images have one constant, since they have no length.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("character").train(["ab"]).spec
        >>> stack = {"name": "decoder", "d_model": 8, "num_layers": 2, "num_heads": 2, "feed_forward": {"name": "mlp", "ffn_dim": 16}}
        >>> forward_flops(attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": tokenizer}))
        {(1, 0): 2176, (2, 0): 32}

        The map of 512 weights of each layer and the head's 8 x 6 are applied to each token, and each pair costs 2 x 2 x 8 in each layer:
        2 (2 x 512 + 48) S + 64 S (S + 1) / 2.
    """
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.double)  # of float32, oneDNN's fused LSTM would not be counted
    try:
        with FakeTensorMode(), torch.random.fork_rng(devices=[]):
            return _formula(task, task.build_model())
    finally:
        torch.set_default_dtype(dtype)


def _formula(task: Task, model: nn.Module) -> dict[Exponents, int]:
    if isinstance(model, ClassifierModel) and model.embedding.reads == "image":
        return {(0, 0): _count(model, torch.empty(1, *model.spec["image_shape"]))}
    if isinstance(model, EncoderDecoderModel):
        points = [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2)]
        return _causal(_solved(points, TERMS, [_count(model, _tokens(s), _tokens(t)) for s, t in points]), (0, 1))
    lengths = [(1, 0), (2, 0), (3, 0)]
    terms = tuple(t for t in TERMS if t[1] == 0)
    flops = _solved(lengths, terms, [_count(model, _tokens(s)) for s, _ in lengths])
    if any(isinstance(part, Transformer) and part.causal for part in model.modules()):
        flops = _causal(flops, (1, 0))
    if isinstance(task, MaskedLM):  # its head reads the chosen tokens only
        parts: Any = model
        x = torch.empty(1, 1, parts.stack.d_model)
        head = _count(parts.head, x) + (0 if parts.transform is None else _count(parts.transform, x))
        flops[1, 0] -= round((1 - task.mask_probability) * head)
    return flops


def _causal(flops: Mapping[Exponents, int], token: Exponents) -> dict[Exponents, int]:
    """Return a formula in which the square of a length stands for the pairs of each token with itself and those before it."""
    square = (2 * token[0], 2 * token[1])
    half = flops.get(square, 0) // 2  # even, as each product counts twice
    return {**flops, token: flops.get(token, 0) + half, square: half} if half else dict(flops)


def batch_flops(formula: Mapping[Exponents, int], task: Task, batch: Mapping[str, Any]) -> int:
    """Return the FLOPs of a forward pass through the real tokens of a batch.

    Args:
        formula: What `forward_flops` returns.
        task: The task.
        batch: See `row_lengths`.
    """
    s, t = row_lengths(task, batch)
    return sum(c * int((s**a * t**b).sum()) for (a, b), c in formula.items())


def row_lengths(task: Task, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the real tokens of each row of a batch that a task's model reads, of its input and of its target: S and T [B], int64.

    Images count as one token each.

    Raises:
        ConfigurationError: The batch has none of `src` and `tgt`, `tokens`, `image`.
    """
    if "src" in batch and "tgt" in batch:
        return _real(batch["src"]), _real(batch["tgt"]) - 1
    if "tokens" in batch:
        counts = _real(batch["tokens"])
        shifts = isinstance(task, CausalLM) and "targets" not in batch  # the last one is a target only
        return (counts - 1 if shifts else counts), torch.zeros_like(counts)
    if "image" in batch:
        ones = torch.ones(len(batch["image"]), dtype=torch.long, device=batch["image"].device)
        return ones, torch.zeros_like(ones)
    raise ConfigurationError(f"a batch with src and tgt, tokens or image is needed, but this one has {', '.join(batch)}")


def _real(tokens: Tensor) -> Tensor:
    return (tokens != Tokenizer.pad_id).sum(1)


def _tokens(length: int) -> Tensor:
    return torch.empty(1, length, dtype=torch.long)


def _count(module: nn.Module, *inputs: Tensor) -> int:
    with generating(module), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return int(counter.get_total_flops())


def _solved(points: list[Exponents], terms: tuple[Exponents, ...], values: list[int]) -> dict[Exponents, int]:
    """Return the polynomial through all points, exactly, by elimination."""
    rows = [[Fraction(s**a * t**b) for a, b in terms] + [Fraction(value)] for (s, t), value in zip(points, values, strict=True)]
    for i in range(len(rows)):
        pivot = next(j for j in range(i, len(rows)) if rows[j][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(len(rows)):
            if j != i:
                rows[j] = [x - rows[j][i] * y for x, y in zip(rows[j], rows[i], strict=True)]
    return {term: int(row[-1]) for term, row in zip(terms, rows, strict=True) if row[-1]}
