"""Every combination of stack, mixer, normalizer, position and residual: legal ones obey two cheap rules, others are refused in time."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from attnkit.registry import ConfigurationError, mixers, normalizers, positions, residuals, stacks
from attnkit.stack import EncoderStack
from attnkit.testing import sequence
from attnkit.testing.component import D_MODEL

SIZES = {"d_model": D_MODEL, "num_heads": 2, "num_layers": 1, "feed_forward": {"name": "mlp", "ffn_dim": 8}}

PLACES: dict[str, tuple[str, str]] = {
    "encoder": ("encoder", "mixer"),
    "decoder": ("decoder", "mixer"),
    "encoder_decoder, its encoder": ("encoder_decoder", "layers"),
    "encoder_decoder, its decoder": ("encoder_decoder", "decoder_layers"),
    "encoder_decoder, its memory": ("encoder_decoder", "cross_mixer"),
}
"""The places of a mixer: the stack, and the option that sets it. The other mixers of an encoder-decoder are `multi_head`."""


@dataclass(frozen=True)
class Combination:
    """A stack of one layer."""

    place: str  # one of `PLACES`
    mixer: str  # its name
    normalizer: str | None  # that of its attention, or None for a mixer without one
    position: str  # the position encoding of the stack
    residual: str  # the residual kind of the stack

    def __str__(self) -> str:
        normalizer = "" if self.normalizer is None else f" ({self.normalizer})"
        return f"{self.place}: {self.mixer}{normalizer}, {self.position}, {self.residual}"

    @property
    def spec(self) -> dict[str, Any]:
        """The spec of the stack."""
        stack, slot = PLACES[self.place]
        mixer = {"name": self.mixer} | ({} if self.normalizer is None else {"normalizer": self.normalizer})
        value: Any = [{"mixer": mixer}] if "layers" in slot else mixer
        others: dict[str, Any] = {"decoder_layers": [{}]} if slot == "layers" else {}  # otherwise it would have the encoder's
        return {"name": stack, **SIZES, "position": self.position, "residual": self.residual, slot: value, **others}


def combinations() -> Iterator[Combination]:
    """Yield all combinations of registered names, legal or not, in a fixed order."""
    for place, mixer in product(PLACES, sorted(mixers)):
        has_one = any(argument.registry is normalizers for argument in mixers.arguments(mixer))
        for normalizer, position, residual in product(sorted(normalizers) if has_one else [None], sorted(positions), sorted(residuals)):
            yield Combination(place, mixer, normalizer, position, residual)


@dataclass(frozen=True)
class Outcome:
    """The outcomes of all combinations."""

    kept: int  # number of legal combinations, which obey the rules
    refused: Counter[str]  # number of refused combinations, by the first words of the reason
    failures: list[str]  # a message for each combination that breaks a rule


def check_combinations(every: int = 1, *, seed: int = 0) -> Outcome:
    """Build each combination, and check it if it is legal.

    A legal combination must ignore padding, and a decoder's output in two steps must equal that of a full pass. All other combinations must
    be refused with a `ConfigurationError` before any parameter exists.

    Args:
        every: Check only every n-th combination.
        seed: Seed of the parameters and inputs. The caller's random state is not affected.

    Example:
        >>> check_combinations(2000).failures
        []
    """
    kept, refused, failures = 0, Counter[str](), list[str]()
    made = [0]

    def count(*_: Any) -> None:
        made[0] += 1

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for combination in list(combinations())[::every]:
            torch.manual_seed(seed)
            made[0] = 0
            try:
                with register_module_parameter_registration_hook(count):
                    stack = stacks.build(combination.spec).double().eval()
            except ConfigurationError as error:
                refused[_reason(str(error))] += 1
                if made[0]:
                    failures.append(f"{combination}: it was refused only after {made[0]} parameters had been created: {error}")
                continue
            except Exception as error:  # anything else is not a refusal
                failures.append(f"{combination}: {type(error).__name__}: {error}")
                continue
            try:
                _obeys_the_rules(stack)
                kept += 1
            except Exception as error:  # a crash also breaks a rule
                failures.append(f"{combination}: {error}")
    return Outcome(kept, refused, failures)


def _obeys_the_rules(stack: nn.Module) -> None:
    """Padding on the left or of a source has no effect; decoding in two steps equals the full pass."""
    case = sequence.draw(sequence.padding().flip(1))
    sequence.ignores_masked_tokens(stack, case, causal=False)
    if not isinstance(stack, EncoderStack):
        sequence.decodes_in_steps(stack, case, chunks=[[sequence.LENGTH - 2, 2]])


def _reason(message: str) -> str:
    """Return the refusal before its first colon, without names and numbers in parentheses."""
    head = message.partition(":")[0]
    return " ".join(word for word in head.split() if not word.startswith(("'", "(")))
