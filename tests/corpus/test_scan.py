from collections import Counter
from typing import Any

import numpy as np
import pytest

from attnkit import ConfigurationError
from attnkit.corpus.scan import Scan, Split, commands

SIZES: dict[Split, tuple[int, int]] = {  # published: training examples, test examples
    "simple": (16_728, 4_182),
    "length": (16_990, 3_920),
    "addprim_jump": (14_670, 7_706),
    "addprim_turn_left": (21_890, 1_208),
}


def run(command: str) -> list[str]:
    """Carry out a command as the paper's interpretation function does, clause by clause."""
    if " after " in command:
        later, sooner = command.split(" after ")
        return run(sooner) + run(later)
    if " and " in command:
        first, second = command.split(" and ")
        return run(first) + run(second)
    words = command.split()
    times = {"twice": 2, "thrice": 3}.get(words[-1], 1)
    if times > 1:
        return run(" ".join(words[:-1])) * times
    do = [] if words[0] == "turn" else [f"I_{words[0].upper()}"]
    if len(words) == 1:
        return do
    turn = [f"I_TURN_{words[-1].upper()}"]
    return {"around": (turn + do) * 4, "opposite": turn * 2 + do}.get(words[1], turn + do)


@pytest.mark.parametrize(
    ("command", "actions"),  # figure 1 of the paper
    [
        ("jump", "JUMP"),
        ("jump left", "LTURN JUMP"),
        ("jump around right", "RTURN JUMP RTURN JUMP RTURN JUMP RTURN JUMP"),
        ("turn left twice", "LTURN LTURN"),
        ("jump thrice", "JUMP JUMP JUMP"),
        ("jump opposite left and walk thrice", "LTURN LTURN JUMP WALK WALK WALK"),
        ("jump opposite left after walk around left", "LTURN WALK LTURN WALK LTURN WALK LTURN WALK LTURN LTURN JUMP"),
    ],
)
def test_examples_from_the_paper_have_the_published_actions(command: str, actions: str) -> None:
    spelled = actions.replace("LTURN", "TURN_LEFT").replace("RTURN", "TURN_RIGHT")
    assert commands()[command] == " ".join(f"I_{action}" for action in spelled.split())


def test_the_grammar_has_the_published_size() -> None:
    everything = commands()
    assert len(everything) == 20_910
    assert max(len(command.split()) for command in everything) == 9
    assert len({word for command in everything for word in command.split()}) == 13
    assert len({action for actions in everything.values() for action in actions.split()}) == 6
    lengths = Counter(len(actions.split()) for actions in everything.values())
    assert (min(lengths), max(lengths)) == (1, 48)
    assert 23 not in lengths


def test_interpreting_commands_clause_by_clause_gives_the_same_actions() -> None:
    assert all(run(command) == actions.split() for command, actions in commands().items())


@pytest.mark.parametrize("split", SIZES)
def test_splits_have_published_sizes_and_validation_comes_from_training(split: Split) -> None:
    data = Scan(split=split, validation_commands=300)
    training, test = SIZES[split]
    validation = data.references("validation")
    assert len(data.pairs("train")) == training - 300
    assert len(validation) == 300
    assert len(data.references("test")) == test
    trained = {command for command, _ in data.pairs("train")}
    assert not trained & validation.keys()
    assert not (trained | validation.keys()) & data.references("test").keys()


def test_the_length_split_tests_24_or_more_actions() -> None:
    data = Scan(split="length")
    known = [*(actions for _, actions in data.pairs("train")), *(a for [a] in data.references("validation").values())]
    assert max(len(actions.split()) for actions in known) == 22
    assert min(len(actions.split()) for [actions] in data.references("test").values()) == 24


def test_the_longest_training_command_is_configurable() -> None:
    data = Scan(split="length", longest=16)
    known = [*(actions for _, actions in data.pairs("train")), *(a for [a] in data.references("validation").values())]
    assert max(len(actions.split()) for actions in known) == 16
    assert min(len(actions.split()) for [actions] in data.references("test").values()) == 17


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"split": "length", "longest": 48}, "longest must be from 12 to 47"),
        ({"longest": 16}, "longest is for the split 'length', but the split is 'simple'"),
    ],
)
def test_an_invalid_longest_is_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Scan(**given)


@pytest.mark.parametrize(("split", "primitive", "copies"), [("addprim_jump", "jump", 1_467), ("addprim_turn_left", "turn left", 2_189)])
def test_the_new_primitive_is_trained_in_isolation_as_a_tenth_of_examples(split: Split, primitive: str, copies: int) -> None:
    data = Scan(split=split)
    with_it = [command for command, _ in data.pairs("train") if f" {primitive} " in f" {command} "]
    assert with_it == [primitive] * copies
    assert all(primitive in command for command in data.references("test"))
    assert primitive not in data.references("validation") | data.references("test")


def test_the_split_is_fixed_and_the_seed_draws_validation_commands(rng: np.random.Generator) -> None:
    seed = int(rng.integers(1, 2**31))
    first, again, other = Scan(), Scan(), Scan(seed=seed)
    assert first.pairs("train") == again.pairs("train")
    assert first.references("test") == other.references("test")
    assert first.references("validation").keys() != other.references("validation").keys()


def test_without_validation_commands_all_are_used_for_training() -> None:
    data = Scan(validation_commands=0)
    assert len(data.pairs("train")) == 16_728
    assert not data.has("validation")


def test_an_invalid_number_of_validation_commands_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="validation_commands must be from 0 to 10000, but is -1"):
        Scan(validation_commands=-1)
