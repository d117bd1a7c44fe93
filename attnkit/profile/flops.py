# https://arxiv.org/abs/2204.02311
"""The FLOPs of a task's forward pass, as a polynomial in the lengths of its rows."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnkit.layers import Transformer
from attnkit.mixer import Mixer
from attnkit.mixer.recurrence.chunks import CHUNK, WHOLE
from attnkit.models.base import generating
from attnkit.models.classifier import ClassifierModel
from attnkit.models.decoder import DecoderModel
from attnkit.models.encoder_decoder import EncoderDecoderModel
from attnkit.position import Position
from attnkit.registry import ConfigurationError
from attnkit.task.base import Task
from attnkit.task.causal_lm import CausalLM
from attnkit.task.masked_lm import MaskedLM
from attnkit.task.word_vectors import WordVectors
from attnkit.tokenizer import Tokenizer

Exponents = tuple[int, int]

TERMS: tuple[Exponents, ...] = ((0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (1, 1))
"""Exponents of the input length and the target length: a pass has costs per row, per token and per pair of tokens."""

BACKWARD = 2  # a backward pass costs as much as two forward passes: each matrix product has a gradient for both factors


def forward_flops(task: Task) -> dict[Exponents, int]:
    r"""Return the coefficients of the FLOPs of a row with S input tokens and T target tokens (T = 0 without a target).

    Equation:
        $$F(S, T) = c_{00} + c_{10} S + c_{01} T + c_{20} S^2 + c_{02} T^2 + c_{11} S T$$

    Matrix products are counted, with two operations per multiply-add. In causal self-attention each token is paired with itself and the
    earlier ones, giving $S (S + 1) / 2$ pairs rather than $S^2$, because fused kernels skip the others (Chowdhery et al. 2022, who define
    model FLOPs utilisation, count them all). Pairs masked by a sliding window or a document boundary are counted, although the backend
    `blockwise` skips blocks outside a window. Operators that state their FLOPs by `torch.utils.flop_counter.register_flop_formula`, such as
    attnkit's scans, count as stated. Padding and recomputation are not counted, and neither are norms, softmax, tanh and other element-wise
    operations, which `attnkit.profile.elementwise` counts. Linear recurrences are counted as in long rows, which fill their chunks of 32
    tokens. Nothing is computed: torch counts the FLOPs of a few passes on fake tensors, and their shapes determine the polynomial.

    Paper: Chowdhery et al. 2022, appendix B, https://arxiv.org/abs/2204.02311

    Returns:
        Coefficients by exponents of S and T, zeros omitted. Images add no terms in S, since they have no length.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("character").train(["ab"]).spec
        >>> stack = {"name": "decoder", "d_model": 8, "num_layers": 2, "num_heads": 2, "feed_forward": {"name": "mlp", "ffn_dim": 16}}
        >>> forward_flops(attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": tokenizer}))
        {(1, 0): 2176, (2, 0): 32}

        Each token is multiplied by the 512 weights of each layer and the 8 x 6 of the head, and each pair costs 2 x 2 x 8 per layer:
        2 (2 x 512 + 48) S + 64 S (S + 1) / 2.
    """
    with traced(task) as model:
        return _formula(task, model)


@contextmanager
def fake_tensors(dtype: torch.dtype) -> Iterator[FakeTensorMode]:
    """Make tensors fake, with shapes and without values, and of this dtype by default; random generators stay as they are."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, torch.random.fork_rng(devices=[]):
            yield fake
    finally:
        torch.set_default_dtype(default)


@contextmanager
def traced(task: Task) -> Iterator[nn.Module]:
    """Yield a task's model, whose operations can be counted."""
    with fake_tensors(torch.double):
        model = task.build_model()
        with generating(model), as_written(model):
            yield model


@contextmanager
def as_written(model: nn.Module) -> Iterator[None]:
    """Have attention, and modules with an attribute `as_written`, compute their equations, so that FLOPs do not depend on the device.

    LSTMs are computed without the kernels of oneDNN and cuDNN, which torch does not count.
    """
    parts: list[Any] = [part for part in model.modules() if hasattr(part, "as_written")]
    before = [part.as_written for part in parts]
    onednn: Any = torch.backends.mkldnn  # its `flags` would set more, and warn
    was_enabled = onednn.enabled
    try:
        for part in parts:
            part.as_written = True
        onednn.enabled = False
        with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        onednn.enabled = was_enabled
        for part, value in zip(parts, before, strict=True):
            part.as_written = value


def model_inputs(model: nn.Module, s: int, t: int) -> tuple[Tensor, ...]:
    """Return the inputs of a model for a row with `s` input tokens and `t` target tokens; an image has its fixed size."""
    if isinstance(model, EncoderDecoderModel):
        shape: Any = model.spec.get("src_shape")
        if model.source_embedding.reads == "image":
            return torch.empty(1, *shape), _tokens(t)
        stacked = model.source_embedding.stacking
        return _tokens(s) if shape is None else torch.empty(1, -(-s // stacked) * stacked, *shape), _tokens(t)
    if isinstance(model, ClassifierModel) and model.embedding.reads == "image":
        return (torch.empty(1, *model.spec["image_shape"]),)
    return (_tokens(s),)


def trained_outputs(model: nn.Module) -> dict[str, bool]:
    """Return the options with which a forward pass computes all outputs that training needs, including those of further tokens."""
    return {"further": True} if isinstance(model, DecoderModel) and model.multi_token is not None else {}


def _formula(task: Task, model: nn.Module) -> dict[Exponents, int]:
    if isinstance(model, ClassifierModel) and model.embedding.reads == "image":
        return {(0, 0): _count(model, *model_inputs(model, 0, 0))}
    if isinstance(task, WordVectors):
        return {(1, 0): 2 * task.config.d_model * task.predictions}
    a, b, c = _lengths(model)
    if isinstance(model, EncoderDecoderModel):
        embedding, terms = model.source_embedding, TERMS
        if embedding.reads == "image":
            points = [(0, a), (0, b), (0, c)]
            terms = tuple(t for t in TERMS if t[0] == 0)
        else:
            points = [(embedding.stacking * s, t) for s, t in ((a, a), (b, a), (a, b), (c, a), (a, c), (b, b))]
            _lift_limits(model)
        return _causal(_solved(points, terms, [_count(model, *model_inputs(model, s, t)) for s, t in points]), (0, 1))
    _lift_limits(model)
    lengths = [(a, 0), (b, 0), (c, 0)]
    terms = tuple(t for t in TERMS if t[1] == 0)
    flops = _solved(lengths, terms, [_count(model, *model_inputs(model, s, 0), **trained_outputs(model)) for s, _ in lengths])
    if any(isinstance(part, Transformer) and part.causal for part in model.modules()):
        flops = _causal(flops, (1, 0))
    if isinstance(task, MaskedLM):  # its head reads only the chosen tokens
        parts: Any = model
        x = torch.empty(1, 1, parts.stack.d_model)
        head = _count(parts.head, x)
        flops[1, 0] -= round((1 - task.config.mask_probability) * head)
    return flops


def _lengths(model: nn.Module) -> tuple[int, int, int]:
    """Return three lengths at whose multiples the FLOPs are one polynomial.

    A mixer may take a separate path for a single token (`latent_attention` does). Recurrences with a state of constant size compute
    whole chunks, and rows of up to `WHOLE` tokens at once.
    """
    unit = WHOLE + CHUNK
    is_chunked = any(isinstance(part, Mixer) and part.growth == "constant" for part in model.modules())
    return (unit, 2 * unit, 3 * unit) if is_chunked else (2, 3, 4)


def _lift_limits(model: nn.Module) -> None:
    """Remove the limits of positions: the counted rows may be longer than those of the data, and fake tables are never read."""
    for part in model.modules():
        if isinstance(part, Position) and part.max_length is not None:
            part.max_length = 2**31


def _causal(flops: Mapping[Exponents, int], token: Exponents) -> dict[Exponents, int]:
    """Replace the square of a length by the number of pairs of each token with itself and earlier ones."""
    square = (2 * token[0], 2 * token[1])
    half = flops.get(square, 0) // 2  # even, as each product counts twice
    return {**flops, token: flops.get(token, 0) + half, square: half} if half else dict(flops)


def batch_flops(formula: Mapping[Exponents, int], task: Task, batch: Mapping[str, Any]) -> int:
    """Return the FLOPs of a forward pass on the non-padding tokens of a batch (see `row_lengths`), by the formula of `forward_flops`.

    The filler rows of an empty share of a batch do not count.
    """
    s, t = row_lengths(task, batch)
    present = present_rows(batch, s).bool()
    return evaluate(formula, s[present], t[present])


def evaluate(formula: Mapping[Exponents, int], s: Tensor, t: Tensor) -> int:
    """Return the FLOPs of a forward pass on rows of lengths S and T, [B] int64.

    Example:
        >>> evaluate({(1, 0): 2, (1, 1): 10}, torch.tensor([3, 1]), torch.tensor([1, 2]))  # 2 (3 + 1) + 10 (3 x 1 + 1 x 2)
        58
    """
    return sum(c * int((s**a * t**b).sum()) for (a, b), c in formula.items())


def row_lengths(task: Task, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the number of non-padding tokens that a task's model reads from the input and target of each row: S and T, [B] int64.

    A frame of sound counts as a token, and so does an image.
    """
    if "src" in batch and "tgt" in batch:
        written = _real(batch["tgt"]) - 1
        if batch["src"].is_floating_point():
            return (batch["src_mask"].sum(1) if "src_mask" in batch else torch.ones_like(written)), written
        return _real(batch["src"]), written
    if "tokens" in batch:
        counts = _real(batch["tokens"])
        shifts = isinstance(task, CausalLM) and "targets" not in batch  # the last token is only a target
        return (counts - 1 if shifts else counts), torch.zeros_like(counts)
    if "image" in batch:
        ones = torch.ones(len(batch["image"]), dtype=torch.long, device=batch["image"].device)
        return ones, torch.zeros_like(ones)
    raise ConfigurationError(f"a batch must have src and tgt, tokens, or image, but this one has {', '.join(batch)}")


def present_rows(batch: Mapping[str, Any], lengths: Tensor) -> Tensor:
    """Return 1 for each row of a batch, of some lengths [B], and 0 for the filler rows of an empty share of a batch: [B]."""
    return batch["example"] >= 0 if "example" in batch else torch.ones_like(lengths)


def _real(tokens: Tensor) -> Tensor:
    return (tokens != Tokenizer.pad_id).sum(1)


def _tokens(length: int) -> Tensor:
    return torch.empty(1, length, dtype=torch.long)


def _count(module: nn.Module, *inputs: Tensor, **options: bool) -> int:
    with FlopCounterMode(display=False) as counter:
        module(*inputs, **options)
    return int(counter.get_total_flops())


def _solved(points: list[Exponents], terms: tuple[Exponents, ...], values: list[int]) -> dict[Exponents, int]:
    """Return the polynomial through all points, by exact Gaussian elimination."""
    rows = [[Fraction(s**a * t**b) for a, b in terms] + [Fraction(value)] for (s, t), value in zip(points, values, strict=True)]
    for i in range(len(rows)):
        pivot = next(j for j in range(i, len(rows)) if rows[j][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(len(rows)):
            if j != i:
                rows[j] = [x - rows[j][i] * y for x, y in zip(rows[j], rows[i], strict=True)]
    return {term: int(row[-1]) for term, row in zip(terms, rows, strict=True) if row[-1]}
