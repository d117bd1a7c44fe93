"""Rules for every legal combination of mixer, attention, position and mask, in a two-layer Transformer with grouped heads."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from attnkit.attention import Attention
from attnkit.layers import Transformer, TransformerConfig
from attnkit.mixer.value_residual import mixes_values
from attnkit.registry import ConfigurationError, Spec, attentions, mixers, positions
from attnkit.testing import sequence
from attnkit.testing.comparison import assert_close, assert_finite
from attnkit.testing.component import NUM_HEADS, stack_sizes
from attnkit.testing.sequence import LENGTH, LENGTHS, Inputs, draw, draw_tokens, padding

Options = Mapping[str, Any]  # options of a Transformer, such as its attention and its position


ROUNDINGS = 8
"""Times the effect of rounding all parameters and inputs once. Each layer also rounds about ten results; the error is usually 0.6 times
this effect, and was at most 4.8 times in 40 draws of `retention`, whose normaliser divides by sums near zero."""


@dataclass(frozen=True)
class MaskKind:
    """A combination of masks."""

    causal: bool = False
    window: int | None = None
    is_padded: bool = False


MASKS = {
    "none": MaskKind(),
    "key": MaskKind(is_padded=True),
    "causal": MaskKind(causal=True),
    "sliding_window": MaskKind(window=3),
    "combined": MaskKind(causal=True, window=3, is_padded=True),
}


def is_legal(attention: Spec, position: Spec, mask: str = "causal") -> bool:
    """Return whether the score and the position encoding are declared compatible with each other and with the mask."""
    scores, places = attentions.get(attentions.resolve(attention).name), positions.get(positions.resolve(position).name)
    fits_the_score = getattr(scores, "inner_product", False) or not getattr(places, "needs_inner_product", False)
    return bool(fits_the_score) and (MASKS[mask].causal or not getattr(places, "needs_causal", False))


def make(options: Options, mask: str, **other: Any) -> Transformer:
    """Build the Transformer, in float64 and evaluation mode."""
    kind = MASKS[mask]
    config = TransformerConfig(**{**stack_sizes(options.get("mixer", "multi_head")), "window": kind.window, **options, **other})
    return Transformer(config, causal=kind.causal).double().eval()


def key_masks(mask: str) -> list[Tensor | None]:
    """Return the key masks to try: padding on the right, on the left, and in between; or none."""
    if not MASKS[mask].is_padded:
        return [None]
    right = padding()
    return [right, right.flip(1), right[:, torch.randperm(LENGTH)]]


def is_refused(options: Options, mask: str) -> None:
    """An incompatible pair is refused at configuration time, with a message that gives the names and the reason."""
    try:
        make(options, mask)
    except ConfigurationError as error:
        message = str(error)
    else:
        raise AssertionError("the pair is not refused")
    for registry in (attentions, positions) if MASKS[mask].causal else (positions,):
        assert registry.resolve(options[registry.family]).name in message, f"the message does not name the {registry.family}: {message}"


def does_not_depend_on_the_rest_of_a_batch(options: Options, mask: str) -> None:
    """The output of a row in a batch equals that of the row alone, without its padding."""
    model = make(options, mask)
    for key_mask in key_masks(mask):
        sequence.does_not_depend_on_the_rest_of_a_batch(model, draw(key_mask))


def ignores_masked_tokens(options: Options, mask: str) -> None:
    """Changes of masked tokens leave the output bitwise identical; in a causal model, later tokens do not affect earlier outputs."""
    model = make(options, mask)
    for key_mask in key_masks(mask):
        sequence.ignores_masked_tokens(model, draw(key_mask), causal=MASKS[mask].causal)


def decodes_in_steps(options: Options, mask: str) -> None:
    """Decoding token by token, in chunks, and after reordering and repeating the rows of the state equals the full forward pass."""
    model = make(options, mask)
    for key_mask in key_masks(mask):
        sequence.decodes_in_steps(model, draw(key_mask))


def agrees_on_every_backend(options: Options, mask: str) -> None:
    """Values and gradients of the whole Transformer match those of the reference, and every parameter has a gradient."""
    oracle, x = make(options, mask, backend="reference"), draw_tokens()
    for key_mask in key_masks(mask)[:1]:
        expected, _ = oracle(x, key_mask=key_mask)
        expected.square().mean().backward()
        for backend in next((module.backends for module in oracle.modules() if isinstance(module, Attention)), ("auto",)):
            model = make(options, mask, backend=backend)
            model.load_state_dict(oracle.state_dict())
            y, _ = model(x, key_mask=key_mask)
            assert_close(y, expected, 1e-10, f"output, backend {backend}")
            y.square().mean().backward()
            for (name, wanted), parameter in zip(oracle.named_parameters(), model.parameters(), strict=True):
                assert wanted.grad is not None, f"{name} has no gradient: an unused component owns parameters"
                assert parameter.grad is not None, f"{name} has no gradient, backend {backend}"
                assert_close(parameter.grad, wanted.grad, 1e-10, f"gradient of {name}, backend {backend}")


def records_weights_without_side_effects(options: Options, mask: str) -> None:
    """Recorded weights respect the mask and sum to one; recording does not change the output, even with dropout."""
    model, kind = make(options, mask, attention_dropout=0.3, dropout=0.3).train(), MASKS[mask]
    for case in map(draw, key_masks(mask)):
        _, maps = sequence.recorded(model, partial(case.run, model))
        real = case.real(model)
        t = real.long().cumsum(1) - 1
        distance = t[:, :, None] - t[:, None, :]
        allowed = real[:, None, :] & (distance >= 0 if kind.causal else torch.ones_like(distance, dtype=torch.bool))
        allowed &= distance.abs() < (LENGTH + 1 if kind.window is None else kind.window)
        assert len(maps) == len(model.layers), f"{len(maps)} maps for {len(model.layers)} layers"
        for path, weights in maps.items():
            assert tuple(weights.shape) == (len(LENGTHS), NUM_HEADS, LENGTH, LENGTH), f"{path} has shape {tuple(weights.shape)}"
            assert (weights.masked_select(real[:, None, :, None] & ~allowed[:, None]) == 0).all(), f"{path} attends to masked keys"
            sums = weights.sum(-1).transpose(1, 2)[real]
            if cast(Attention, model.get_submodule(f"{path}.attention")).rows_sum_to_one:
                assert_close(sums, torch.ones_like(sums), 1e-6, f"sum of the weights of {path}")


def is_accurate_in_half_precision(options: Options, mask: str) -> None:
    """Outputs in fp16 and bf16 autocast are as close to those in float64 as rounding allows, and gradients are finite.

    Rounding may change the output by `ROUNDINGS` times as much as parameters and inputs that change by a unit of the type, in the root mean
    square: so a mixer whose output is sensitive to its inputs, such as a delta rule, may be as much less accurate.
    """
    model, x = make(options, mask), draw_tokens()
    given = Inputs(x, key_masks(mask)[-1], x)
    expected, real = given.run(model), given.real(model)
    for dtype in (torch.float16, torch.bfloat16):
        changes = [_changed(model, given, torch.finfo(dtype).eps)[real] - expected[real] for _ in range(4)]
        with torch.autocast("cpu", dtype=dtype):
            y = replace(given, x=x.float()).run(model.float())
        error, allowed = _size(y[real].double() - expected[real]), ROUNDINGS * max(map(_size, changes))
        assert error <= allowed, f"output in {dtype}: off by {error:.3g} (root mean square), where {allowed:.3g} is allowed"
        torch.autograd.backward(y.float().square().mean())
        assert_finite({name: p.grad for name, p in model.named_parameters() if p.grad is not None}, f"gradient in {dtype}")
        model.double()


def _changed(model: Transformer, given: Inputs, unit: float) -> Tensor:
    """Return the output [B, T, D] if each parameter and input changes by up to `unit`, relative to itself."""

    def change(x: Tensor) -> Tensor:
        return x * (1 + unit * (2 * torch.rand_like(x) - 1))

    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(change(parameter))
        return replace(given, x=change(given.x)).run(other)


def _size(x: Tensor) -> float:
    return x.detach().square().mean().sqrt().item()


def compiles_without_graph_breaks(options: Options, mask: str) -> None:
    """`torch.compile(fullgraph=True)` gives the same values."""
    mixer = mixers.resolve(options.get("mixer", "multi_head"))
    depth = {} if mixes_values(mixer) else {"num_layers": 1}  # otherwise, all layers have the same graph
    model, x, key_mask = make(options, mask, **depth), draw_tokens(), key_masks(mask)[0]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(compiled(x, key_mask=key_mask)[0], model(x, key_mask=key_mask)[0], 1e-10, "compiled output")


Rule = Callable[[Options, str], None]

_ANY: tuple[Rule, ...] = (
    does_not_depend_on_the_rest_of_a_batch,
    ignores_masked_tokens,
    agrees_on_every_backend,
    records_weights_without_side_effects,
)

RULES: dict[str, tuple[Rule, ...]] = {
    "none": _ANY,
    "key": _ANY,
    "causal": (*_ANY, decodes_in_steps),
    "sliding_window": _ANY,
    "combined": (*_ANY, decodes_in_steps, is_accurate_in_half_precision, compiles_without_graph_breaks),
}
"""The rules of each kind of mask."""
