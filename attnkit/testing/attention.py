"""Rules for attention, its normalizers and its backends: masks, precision, grouped heads, recorded weights."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor, nn

from attnkit.attention import Attention
from attnkit.attention.backend import Refused
from attnkit.masks import Mask
from attnkit.registry import Registry, Spec, attentions, normalizers
from attnkit.testing.attention_inputs import BATCH, LENGTH, LONG, Inputs, inputs, masks, symbolic_masks
from attnkit.testing.comparison import assert_close, assert_exact_gradients, assert_finite
from attnkit.testing.component import HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, build
from attnkit.testing.sequence import recorded

HALF_UNIT = 2.0**-8  # relative spacing of bfloat16
LARGE = 300.0  # an inner product of four such channels is 360,000, over five times fp16's maximum


def make(registry: Registry, spec: Spec, *, dtype: torch.dtype = torch.float64, **other: Any) -> Attention:
    """Build the attention (for a normalizer, one that uses it) with chunks of four queries."""
    attention: Attention = build(attentions, "scaled_dot_product" if registry is normalizers else spec, **other)
    if registry is normalizers:
        attention.configure(normalizer=spec)
    attention.to(dtype)
    attention.chunk_elements = 4 * BATCH * NUM_HEADS * LENGTH * attention.pair_width
    return attention


def gradients(output: Tensor, case: Inputs, attention: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of a fixed linear function of `output` with respect to inputs, bias and parameters, by name."""
    leaves = {"query": case.query, "key": case.key, "value": case.value, **dict(attention.named_parameters())}
    if case.attn_bias is not None:
        leaves["attn_bias"] = case.attn_bias
    probe = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    found = torch.autograd.grad((output * probe).sum(), list(leaves.values()), allow_unused=True)
    unused = [name for name, gradient in zip(leaves, found, strict=True) if gradient is None]
    assert not unused, f"{', '.join(unused)} has no gradient"
    return dict(zip(leaves, found, strict=True))


def _each(attention: Attention) -> Iterator[tuple[str, str, Mask | Tensor | None]]:
    for backend in attention.backends:
        for name, mask in masks().items():
            yield backend, name, mask


def gives_zeros_for_a_fully_masked_row(registry: Registry, spec: Spec) -> None:
    """A fully masked row gives zeros and finite gradients on every backend and in every precision; its weights are zero too."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        attention = make(registry, spec, dtype=dtype)
        for backend, name, mask in _each(attention):
            if not isinstance(mask, Tensor):
                continue
            case = inputs(mask, dtype=dtype, bias=name == "full")
            output = case.attend(attention, backend=backend)
            dead = ~mask.broadcast_to(BATCH, NUM_HEADS, LENGTH, LENGTH).any(-1)
            where = f"backend {backend}, mask {name}, {dtype}"
            assert (output[dead] == 0).all(), f"a row without keys is not zero: {where}"
            assert_finite({"output": output, **gradients(output, case, attention)}, where)
            weights = attention.weights(case.query, case.key, mask=mask, attn_bias=case.attn_bias)
            assert (weights >= 0).all(), f"a weight is negative: {where}"
            assert (weights[dead] == 0).all(), f"a row without keys has weights: {where}"
            sums = weights.sum(-1)[~dead]
            if attention.rows_sum_to_one:
                assert_close(sums, torch.ones_like(sums), 4 * HALF_UNIT if dtype == torch.bfloat16 else 1e-5, f"sum of weights, {where}")


def masks_keys_whose_bias_is_minus_infinity(registry: Registry, spec: Spec) -> None:
    """A bias of -inf acts as a mask on every backend, in every precision, at short and long lengths; it combines with a mask."""
    tolerances = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2.0**-7, torch.bfloat16: 16 * HALF_UNIT}
    cases = [(dtype, LENGTH) for dtype in tolerances] + [(torch.float16, LONG), (torch.bfloat16, LONG)]
    for dtype, length in cases:
        attention = make(registry, spec, dtype=dtype)
        if length == LONG:
            attention.chunk_elements *= LONG
        allowed, mask = torch.rand(BATCH, NUM_HEADS, length, length) < 0.6, torch.rand(BATCH, 1, length, length) < 0.6
        allowed[0, :, 0] = False  # one row has no key because of the bias, another because of bias and mask together
        allowed[:, 1, 1], mask[:, 0, 1] = torch.arange(length) == 0, torch.arange(length) > 0
        vector = torch.arange(length) > 1
        for name, allowed_keys, other in (("matrix", allowed, None), ("matrix and mask", allowed, mask), ("vector and mask", vector, mask)):
            bias = torch.randn(allowed_keys.shape).to(dtype)
            case = inputs(other, dtype=dtype, length=length)
            case = replace(case, attn_bias=bias.masked_fill(~allowed_keys, float("-inf")).requires_grad_())
            exact = replace(case, mask=allowed_keys if other is None else allowed_keys & other, attn_bias=bias)
            kept = torch.as_tensor(exact.mask).broadcast_to(BATCH, NUM_HEADS, length, length)
            dead, expected = ~kept.any(-1), exact.attend(attention)
            for backend in ("auto", *attention.backends):
                output = case.attend(attention, backend=backend)
                where = f"backend {backend}, {name}, {length} keys, {dtype}"
                assert (output[dead] == 0).all(), f"a row whose bias is -inf throughout is not zero: {where}"
                assert_close(output, expected, tolerances[dtype], f"output, {where}")
                assert_finite(gradients(output, case, attention), where)
            weights = attention.weights(case.query, case.key, mask=other, attn_bias=case.attn_bias)
            assert_close(weights, attention.weights(case.query, case.key, mask=exact.mask, attn_bias=bias), 1e-6, f"weights, {name}")
            logits = attention.logits(case.query, case.key, mask=other, attn_bias=case.attn_bias)
            assert not logits.isnan().any(), f"logits are NaN: {name}, {dtype}"
            assert ((logits == float("-inf")) == (~kept & ~dead[..., None])).all(), f"logits of other keys are -inf: {name}, {dtype}"


def ignores_masked_keys(registry: Registry, spec: Spec) -> None:
    """Changes of masked keys and values leave the output bitwise identical, and these get no gradient."""
    for dtype in (torch.float64, torch.bfloat16):
        attention = make(registry, spec, dtype=dtype)
        keep = torch.rand(BATCH, 1, 1, LENGTH) < 0.6
        for backend in attention.backends:
            case = inputs(keep, dtype=dtype)
            hidden = ~keep[:, 0, 0, :, None].expand(BATCH, LENGTH, HEAD_DIM)[:, None].expand(-1, NUM_KV_HEADS, -1, -1)
            key, value = (torch.randn_like(t).mul_(10).where(hidden, t).detach() for t in (case.key, case.value))
            changed = Inputs(case.query, key, value, keep)
            output = case.attend(attention, backend=backend)
            alive = keep.any(-1, keepdim=True)
            where = f"backend {backend}, {dtype}"
            assert torch.equal(output, changed.attend(attention, backend=backend)), f"masked keys change the output: {where}"
            found = gradients(output, case, attention)
            for name in ("key", "value"):
                assert (found[name][hidden & alive] == 0).all(), f"a masked {name} has a gradient: {where}"


def agrees_with_the_reference_on_every_backend(registry: Registry, spec: Spec) -> None:
    """Values and gradients agree: to 1e-10 in float64, and to within rounding in fp32 and bfloat16."""
    for backend in make(registry, spec).backends:
        agrees_with_the_reference(registry, spec, backend)


def agrees_with_the_reference(registry: Registry, spec: Spec, backend: str) -> int:
    """Compare a backend with the reference over masks, biases and dtypes; return the number of calls that it computed, not refused."""
    # a weighted mean of values after a softmax of rounded inputs has a few rounding errors, a gradient's sums have more
    computed = 0
    given: dict[torch.dtype, float] = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 16 * HALF_UNIT}
    cases: list[tuple[torch.dtype, Mapping[str, Mask | Tensor | None]]] = [(dtype, masks()) for dtype in given]
    for dtype, restrictions in [*cases, (torch.float64, symbolic_masks())]:
        attention, tolerance = make(registry, spec, dtype=dtype), given[dtype]
        oracle = copy.deepcopy(attention).double()
        for name, mask in restrictions.items():
            for bias in (False, True):
                case = inputs(mask, dtype=dtype, bias=bias)
                drawn = {name: x for name, x in vars(case).items() if name != "mask" and x is not None}
                exact = replace(case, **{name: x.detach().double().requires_grad_() for name, x in drawn.items()})
                try:
                    output = case.attend(attention, backend=backend)
                except Refused:  # it cannot compute this; `auto` would choose another backend
                    continue
                computed += 1
                expected = exact.attend(oracle)
                where = f"backend {backend}, mask {name}, bias {bias}, {dtype}"
                assert output.dtype == dtype, f"the output is {output.dtype}: {where}"
                assert_close(output, expected, tolerance, f"output, {where}")
                wanted = gradients(expected, exact, oracle)
                for leaf, gradient in gradients(output, case, attention).items():
                    assert_close(gradient, wanted[leaf], tolerance, f"gradient of {leaf}, {where}")
    return computed


def agrees_with_the_reference_on_every_score(registry: Registry, spec: Spec) -> None:
    """Values and gradients agree for each registered attention whose score the backend supports; there must be at least one.

    Skipped by `unittest.SkipTest` if the backend cannot compute on this machine's CPU.
    """
    name, _ = registry.split(spec)
    if (reason := registry.build(spec).refuses_device(torch.device("cpu"))) is not None:
        raise SkipTest(reason)
    computed = 0
    for score in attentions.names():
        built: Attention = make(attentions, score)
        if name in built.backends:
            computed += agrees_with_the_reference(attentions, score, name)
    assert computed, f"backend {name} refused every call on this machine, so nothing was tested"


def has_exact_gradients(registry: Registry, spec: Spec) -> None:
    """Gradients of inputs, bias and parameters match finite differences, in float64."""
    attention, case = make(registry, spec), inputs(masks()["full"], bias=True)
    assert case.attn_bias is not None

    def attend(call: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor) -> Tensor:
        return call((query, key, value), {"mask": case.mask, "attn_bias": attn_bias, "backend": "reference"})

    assert_exact_gradients(attention, attend, case.query, case.key, case.value, case.attn_bias)


def does_not_overflow_in_half_precision(registry: Registry, spec: Spec) -> None:
    """Logits beyond 65,504 give finite outputs and gradients, in autocast and in pure half precision."""
    for dtype in (torch.float16, torch.bfloat16):
        for is_autocast in (True, False):
            attention = make(registry, spec, dtype=torch.float32 if is_autocast else dtype)
            for backend in attention.backends:
                for name in ("none", "causal", "full"):
                    case = inputs(masks()[name], dtype=dtype, size=LARGE)
                    with torch.autocast("cpu", dtype=dtype, enabled=is_autocast):
                        output = case.attend(attention, backend=backend)
                    where = f"backend {backend}, mask {name}, {dtype}, autocast {is_autocast}"
                    # a sixteenth, because the gradient of parameters that multiply such queries and keys may itself exceed fp16
                    assert_finite({"output": output, **gradients(output / 16, case, attention)}, where)


def repeats_grouped_heads(registry: Registry, spec: Spec) -> None:
    """Grouped-query attention equals multi-head attention with keys, values and their parameters repeated."""
    for kv_heads in (1, NUM_KV_HEADS):
        grouped, full = make(registry, spec, num_kv_heads=kv_heads), make(registry, spec, num_kv_heads=NUM_HEADS)
        groups = NUM_HEADS // kv_heads
        state = full.state_dict()
        for name, parameter in grouped.state_dict().items():
            differs = [axis for axis, size in enumerate(state[name].shape) if parameter.shape[axis] != size]
            state[name] = parameter.repeat_interleave(groups, differs[0]) if differs else parameter
        full.load_state_dict(state)
        for backend in grouped.backends:
            case = inputs(masks()["full"])
            case = Inputs(case.query, case.key[:, :kv_heads], case.value[:, :kv_heads], case.mask)
            repeated = Inputs(case.query, case.key.repeat_interleave(groups, 1), case.value.repeat_interleave(groups, 1), case.mask)
            expected = repeated.attend(full)
            assert_close(case.attend(grouped, backend=backend), expected, 1e-10, f"{kv_heads} kv heads, {backend}")


def records_weights_without_side_effects(registry: Registry, spec: Spec) -> None:
    """The recorded weights reproduce the output, and recording changes neither the outputs nor the random numbers of dropout."""
    attention = make(registry, spec)
    for backend, name, mask in _each(attention):
        case = inputs(mask, bias=name == "full")
        where = f", backend {backend}, mask {name}"
        output, maps = recorded(attention, partial(case.attend, attention, backend=backend), where)
        (weights,) = maps.values()
        product = weights @ case.value.repeat_interleave(NUM_HEADS // NUM_KV_HEADS, 1)
        assert_close(product, output, 1e-10, f"recorded weights times values{where}")
        recorded(attention, partial(case.attend, attention, backend=backend, dropout=0.5), where)


def drops_weights_only_in_training(registry: Registry, spec: Spec) -> None:
    """Dropout changes the output in training mode, but not in evaluation mode."""
    attention = make(registry, spec)
    case = inputs()
    for backend in attention.backends:
        expected = case.attend(attention.eval(), backend=backend, dropout=0.5)
        assert torch.equal(expected, case.attend(attention, backend=backend)), f"dropout in evaluation mode, backend {backend}"
        dropped = case.attend(attention.train(), backend=backend, dropout=0.5)
        assert not torch.equal(expected, dropped), f"no dropout in training mode, backend {backend}"


def compiles_without_graph_breaks(registry: Registry, spec: Spec) -> None:
    """`torch.compile(fullgraph=True)` gives the same values and gradients, on every backend."""
    attention = make(registry, spec)
    for backend in attention.backends:
        torch._dynamo.reset()
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
        case = inputs(masks()["full"])
        expected, output = case.attend(attention, backend=backend), case.attend(compiled, backend=backend)
        assert_close(output, expected, 1e-10, f"compiled output, backend {backend}")
        wanted = gradients(expected, case, attention)
        for leaf, gradient in gradients(output, case, attention).items():
            assert_close(gradient, wanted[leaf], 1e-10, f"compiled gradient of {leaf}, backend {backend}")


RULES = (
    gives_zeros_for_a_fully_masked_row,
    masks_keys_whose_bias_is_minus_infinity,
    ignores_masked_keys,
    agrees_with_the_reference_on_every_backend,
    has_exact_gradients,
    does_not_overflow_in_half_precision,
    repeats_grouped_heads,
    records_weights_without_side_effects,
    drops_weights_only_in_training,
    compiles_without_graph_breaks,
)

BACKEND_RULES = (agrees_with_the_reference_on_every_score,)
