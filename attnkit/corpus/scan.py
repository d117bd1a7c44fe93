"""SCAN: commands in a small language and the actions that they denote."""

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import numpy as np
from typing_extensions import override

from attnkit.corpus.base import Pair, PairCorpus, Part
from attnkit.registry import ConfigurationError, corpora

Split = Literal["simple", "length", "addprim_jump", "addprim_turn_left"]

_PRIMITIVES: Mapping[str, str] = {"addprim_jump": "jump", "addprim_turn_left": "turn left"}


@corpora.register("scan")
class Scan(PairCorpus):
    """All 20,910 commands of SCAN and their actions, generated from its grammar: a test of systematic generalisation.

    | split | training commands | test commands |
    |---|---|---|
    | `simple` | 16,728, at random | 4,182, the others |
    | `length` | 16,990 with at most 22 actions | 3,920 with 24 to 48 |
    | `addprim_jump` | 13,203 without `jump`, and `jump` alone 1,467 times (a tenth of all) | 7,706, the others with `jump` |
    | `addprim_turn_left` | 19,701 without `turn left`, and it alone 2,189 times | 1,208, the others with `turn left` |

    All splits except `simple` are exactly the published ones. The published random split is a file; attnkit's is another fixed draw of the
    same sizes. Validation commands come from the training split (never the repeated command), so they reveal nothing about the test split.
    On the hub, `scan` is a script, which the `datasets` library no longer runs as of version 4.0.

    Paper: Lake and Baroni 2018, https://arxiv.org/abs/1711.00350

    Args:
        split: The split into training and test commands.
        validation_commands: Number of training commands to set aside for validation, drawn at random; 0 for none.
        seed: Seed of the validation commands; the splits do not depend on it.
        longest: Number of actions of the longest training command of the split `length`, as published: 22.

    Raises:
        ConfigurationError: `validation_commands` or `longest` is out of range, or `longest` is set for another split.

    Example:
        >>> scan = Scan(split="length")
        >>> dict(scan.pairs("train"))["jump opposite left and walk thrice"]
        'I_TURN_LEFT I_TURN_LEFT I_JUMP I_WALK I_WALK I_WALK'
        >>> len(scan.pairs("test"))
        3920
    """

    def __init__(self, *, split: Split = "simple", validation_commands: int = 500, seed: int = 0, longest: int = 22) -> None:
        super().__init__()
        if not 0 <= validation_commands <= 10_000:
            raise ConfigurationError(f"validation_commands must be from 0 to 10000, but is {validation_commands}")
        if not 12 <= longest < 48:
            raise ConfigurationError(f"longest must be from 12 to 47, because commands have up to 48 actions, but is {longest}")
        if longest != 22 and split != "length":
            raise ConfigurationError(f"longest is for the split 'length', but the split is {split!r}")
        self.split, self.validation_commands, self.seed, self.longest = split, validation_commands, seed, longest

    @override
    def has(self, part: Part) -> bool:
        return part != "validation" or self.validation_commands > 0

    @override
    def pairs(self, part: Part) -> list[Pair]:
        train, test = self._split
        return test if part == "test" else [pair for pair in train if (pair[0] in self._set_aside) == (part == "validation")]

    @cached_property
    def _split(self) -> tuple[list[Pair], list[Pair]]:
        """The training pairs, including those for validation, and the test pairs."""
        pairs = list(commands().items())
        primitive = _PRIMITIVES.get(self.split)
        if primitive is not None:
            rest = [pair for pair in pairs if f" {primitive} " not in f" {pair[0]} "]
            composed = [pair for pair in pairs if f" {primitive} " in f" {pair[0]} " and pair[0] != primitive]
            return rest + [pair for pair in pairs if pair[0] == primitive] * round(len(rest) / 9), composed
        if self.split == "length":
            short = {command for command, actions in pairs if len(actions.split()) <= self.longest}
            return [pair for pair in pairs if pair[0] in short], [pair for pair in pairs if pair[0] not in short]
        shuffled = [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))]
        return shuffled[:16_728], shuffled[16_728:]

    @cached_property
    def _set_aside(self) -> frozenset[str]:
        """The training commands set aside for validation."""
        candidates = [command for command, _ in self._split[0] if command != _PRIMITIVES.get(self.split)]
        chosen = np.random.default_rng(self.seed).choice(len(candidates), size=self.validation_commands, replace=False)
        return frozenset(candidates[i] for i in chosen)


def commands() -> dict[str, str]:
    """Return the actions of each command of SCAN's grammar (figures 6 and 7 of the paper).

    Example:
        >>> commands()["walk left twice after turn opposite right"]
        'I_TURN_RIGHT I_TURN_RIGHT I_TURN_LEFT I_WALK I_TURN_LEFT I_WALK'
    """
    phrases: dict[str, list[str]] = {}
    for verb in ("walk", "look", "run", "jump", "turn"):
        actions = [] if verb == "turn" else [f"I_{verb.upper()}"]
        if actions:
            phrases[verb] = actions
        for direction in ("left", "right"):
            turn = [f"I_TURN_{direction.upper()}"]
            phrases[f"{verb} {direction}"] = turn + actions
            phrases[f"{verb} opposite {direction}"] = turn * 2 + actions
            phrases[f"{verb} around {direction}"] = (turn + actions) * 4
    twice = {f"{phrase} twice": actions * 2 for phrase, actions in phrases.items()}
    thrice = {f"{phrase} thrice": actions * 3 for phrase, actions in phrases.items()}
    sentences = phrases | twice | thrice
    joined = {f"{x} and {y}": a + b for x, a in sentences.items() for y, b in sentences.items()}
    swapped = {f"{x} after {y}": b + a for x, a in sentences.items() for y, b in sentences.items()}
    return {command: " ".join(actions) for command, actions in (sentences | joined | swapped).items()}
