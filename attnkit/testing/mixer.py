"""Rules for mixers, alone in a two-layer Transformer, and combined with attention."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from attnkit.layers import Transformer, TransformerConfig, TransformerLayer
from attnkit.mixer import Mixer
from attnkit.mixer.base import PositionWay
from attnkit.registry import ConfigurationError, Spec, mixers, stacks
from attnkit.registry.arguments import parameters
from attnkit.state import tensors_in
from attnkit.testing import sequence, transformer
from attnkit.testing.comparison import assert_close
from attnkit.testing.component import D_MODEL, STACK_SIZES, stack_sizes
from attnkit.testing.sequence import LENGTHS, draw, draw_tokens, padding
from attnkit.testing.transformer import MASKS, Options

Rule = Callable[[Spec], None]
OPTIONS: dict[str, Any] = {
    "num_heads": 1, "num_kv_heads": 1, "head_dim": 2, "attention": "additive", "query_key_norm": "rms_norm", "bias": False, "window": 2,
}  # fmt: skip
POSITIONS: dict[PositionWay, str] = {"rotation": "rotary", "bias": "alibi", "query_bias": "shaw"}


def kind(spec: Spec) -> type[Mixer[Any]]:
    """Return the class of a mixer."""
    found: type[Mixer[Any]] = mixers.get(mixers.resolve(spec).name)
    return found


def make(spec: Spec, *, causal: bool = True, **options: Any) -> Transformer:
    """Build a Transformer with this mixer, in float64 and evaluation mode."""
    return Transformer(TransformerConfig(**{**stack_sizes(spec), "mixer": spec, **options}), causal=causal).double().eval()


def refuses_what_it_cannot_do(spec: Spec) -> None:
    """A direction that the mixer does not declare is refused, with a message that names the mixer."""
    for direction in {"causal", "bidirectional", "cross"} - kind(spec).directions:
        try:
            if direction == "cross":
                Transformer(TransformerConfig(**STACK_SIZES), causal=True, cross_mixer=spec)
            else:
                make(spec, causal=direction == "causal")
        except ConfigurationError as error:
            message = str(error)
        else:
            raise AssertionError(f"direction {direction} is not refused")
        assert mixers.resolve(spec).name in message, f"the message does not name the mixer: {message}"


def keeps_documents_apart(spec: Spec) -> None:
    """In a row of packed documents, each document has the same output as alone, without positions; padding may be on either side."""
    directions = sorted(kind(spec).directions & {"causal", "bidirectional"})
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]]).expand(len(LENGTHS), -1)
    for direction in directions:
        model, x = make(spec, causal=direction == "causal", position="none"), draw_tokens()
        whole, _ = model(x, documents=documents)
        for start, stop in ((0, 3), (3, 5), (5, 8)):
            assert_close(whole[:, start:stop], model(x[:, start:stop])[0], 1e-10, f"tokens {start} to {stop}, a separate document")
        real = torch.tensor([[False, True, True, True, True, True, True, False]]).expand(len(LENGTHS), -1)
        padded, _ = model(x, documents=documents, key_mask=real)
        for start, stop in ((1, 3), (3, 5), (5, 7)):
            assert_close(padded[:, start:stop], model(x[:, start:stop])[0], 1e-10, f"tokens {start} to {stop} next to padding")


def has_a_state_that_grows_as_declared(spec: Spec) -> None:
    """The numbers in the state after few and after many tokens agree with `growth`."""
    if "causal" not in kind(spec).directions:
        return
    model = make(spec)
    states = [model(torch.randn(1, n, D_MODEL).double())[1].layers for n in (64, 128)]
    sizes = [sum(tensor.numel() for tensor in tensors_in(state)) for state in states]
    growth = cast(TransformerLayer, model.layers[0]).mixer.growth
    expected = {"none": sizes == [0, 0], "constant": sizes[0] == sizes[1] > 0, "window": sizes[0] == sizes[1] > 0}
    assert expected.get(growth, 0 < sizes[0] < sizes[1]), f"growth is declared as {growth!r}, but the state has {sizes} numbers"


def reads_what_it_declares(spec: Spec) -> None:
    """Each kind of positions and each layer option that the mixer declares changes its parameters or its output."""
    able, x = kind(spec), draw_tokens()
    if not able.directions & {"causal", "bidirectional"}:
        return

    def run(**options: Any) -> tuple[list[torch.Size], Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = make(spec, causal="causal" in able.directions, **{"position": "none", **options})
        return [p.shape for p in model.layers.parameters()], model(x)[0]

    shapes, output = run()
    changes = {name: {name: value} for name, value in OPTIONS.items() if name in parameters(able)}
    changes |= {str(way): {"position": POSITIONS[way]} for way in able.reads_positions}
    for name, changed in changes.items():
        try:
            other, y = run(**changed)
        except (ConfigurationError, ValueError):  # it reads the option, whose value does not fit the spec
            continue
        assert shapes != other or not torch.equal(output, y), f"{name} is declared, but has no effect"


def mixes_with_attention(spec: Spec) -> None:
    """A stack that alternates this mixer and attention decodes the same in steps as in a full pass."""
    if "causal" not in kind(spec).directions:
        return
    options = {"layers": [{"mixer": spec}, {}], "mixer": "multi_head", "position": "rotary"}
    transformer.decodes_in_steps(options, "causal")


def reads_a_memory(spec: Spec) -> None:
    """When the mixer of an encoder-decoder reads the memory, its padding has no effect, and decoding in steps equals the full pass."""
    if "cross" not in kind(spec).directions:
        return
    stack, case = stacks.build({"name": "encoder_decoder", **STACK_SIZES, "cross_mixer": spec}).double().eval(), draw(padding())
    sequence.ignores_masked_tokens(stack, case, causal=True)
    sequence.does_not_depend_on_the_rest_of_a_batch(stack, case)
    sequence.decodes_in_steps(stack, case)


OWN_RULES: tuple[Rule, ...] = (
    refuses_what_it_cannot_do,
    keeps_documents_apart,
    has_a_state_that_grows_as_declared,
    reads_what_it_declares,
    mixes_with_attention,
    reads_a_memory,
)


def rules_for(spec: Spec) -> Iterator[tuple[str, Callable[[Spec], None]]]:
    """Yield the name of each rule, and the rule as a function of the spec."""
    for rule in OWN_RULES:
        yield rule.__name__, rule
    able = kind(spec)
    position = "rotary" if "rotation" in able.reads_positions else "sinusoidal"
    for mask, rules in transformer.RULES.items():
        masking = MASKS[mask]
        direction = "causal" if masking.causal else "bidirectional"
        if direction not in able.directions or (mask == "sliding_window" and not able.reads_masks):
            continue
        for combined in rules:
            records = able.has_weights and (able.reads_masks or masking.window is None)
            if records or combined is not transformer.records_weights_without_side_effects:
                yield f"{combined.__name__}[{mask}]", partial(_run, combined, mask, position)


def _run(rule: Callable[[Options, str], None], mask: str, position: str, spec: Spec) -> None:
    rule({"mixer": spec, "position": position} | ({} if kind(spec).reads_masks else {"window": None}), mask)
