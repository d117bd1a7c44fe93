from typing import Any

import pytest
import torch
from torch import Tensor

import attnkit

SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 2, "num_heads": 4}
POSITIONS = sorted(attnkit.positions.built_in())


def decoder(**other: Any) -> Any:
    return attnkit.compose(stack="decoder", **SIZES, vocab_size=9, **{"eos_id": None, **other}).double().eval()


def encoder_decoder(**other: Any) -> Any:
    return (
        attnkit.compose(stack="encoder_decoder", **SIZES, src_vocab_size=9, tgt_vocab_size=8, **{"eos_id": None, **other}).double().eval()
    )


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, 8, shape)


@pytest.mark.parametrize("position", POSITIONS)
def test_the_cache_gives_what_whole_passes_give(position: str, seed: int) -> None:
    model, prompt = decoder(position=position, num_kv_heads=2), tokens(2, 4)
    expected = prompt
    for _ in range(5):
        expected = torch.cat([expected, model(expected)[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(prompt, max_length=5), expected[:, 4:])

    model, src = encoder_decoder(position=position, num_kv_heads=1), tokens(2, 4)
    expected = torch.full((2, 1), model.bos_id)
    for _ in range(5):
        expected = torch.cat([expected, model(src, expected)[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(src, max_length=5), expected[:, 1:])


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("position", ["learned", "rotary", "none"])
def test_a_padded_prompt_is_continued_as_alone(beam_size: int, side: str, position: str, seed: int) -> None:
    model = decoder(position=position, eos_id=2)
    prompt = tokens(4, 5)
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 4])[:, None]
    mask = {"left": mask.flip(1), "right": mask, "inside": mask[:, torch.randperm(5)]}[side]
    together = model.generate(prompt, prompt_mask=mask, max_length=6, beam_size=beam_size)
    for row in range(4):
        alone = model.generate(prompt[row, mask[row]][None], max_length=6, beam_size=beam_size)[0]
        width = min(len(alone), together.shape[1])
        assert torch.equal(together[row, :width], alone[:width])
        assert (together[row, width:] == 0).all()


def test_padding_takes_no_places_of_learned_positions(seed: int) -> None:
    model, prompt = decoder(position={"name": "learned", "max_length": 8}), tokens(2, 6)
    expected = model.generate(prompt, max_length=3)
    assert torch.equal(model.generate(prompt, prompt_mask=torch.ones(2, 6, dtype=torch.bool), max_length=3), expected)
    with pytest.raises(ValueError, match="a sequence of 9 tokens does not fit into positions that end at 8"):
        model.generate(prompt, max_length=4)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_padded_source_is_decoded_as_alone(beam_size: int, seed: int) -> None:
    model = encoder_decoder(eos_id=2, position="relative")
    src = tokens(3, 6)
    mask = torch.arange(6) < torch.tensor([6, 2, 4])[:, None]
    together = model.generate(src, src_mask=mask, max_length=7, beam_size=beam_size)
    for row in range(3):
        alone = model.generate(src[row, mask[row]][None], max_length=7, beam_size=beam_size)[0]
        width = min(len(alone), together.shape[1])
        assert torch.equal(together[row, :width], alone[:width])


def test_two_generations_do_not_meddle(seed: int) -> None:
    model, sources = encoder_decoder(), [tokens(2, 5), tokens(3, 4)]
    expected = [model.generate(src, max_length=6) for src in sources]
    states = [model.encode(src) for src in sources]
    last = [torch.full((len(src), 1), model.bos_id) for src in sources]
    new: list[list[Tensor]] = [[], []]
    for _ in range(6):
        for i in (0, 1):  # in turns
            logits, states[i] = model.step(last[i], states[i])
            last[i] = logits.argmax(-1, keepdim=True)
            new[i].append(last[i])
    for i in (0, 1):
        assert torch.equal(torch.cat(new[i], 1), expected[i])


def test_going_back_to_an_older_state_finds_it_as_it_was(seed: int) -> None:
    model, a, b = decoder(), tokens(1, 3), tokens(1, 2)
    _, state = model.step(a, None)
    first, _ = model.step(b, state)
    model.step(tokens(1, 4), state)
    assert torch.equal(model.step(b, state)[0], first)


@pytest.mark.parametrize("wrong", [{"max_length": 0}, {"beam_size": 0}])
def test_numbers_that_are_not_positive_are_refused(wrong: dict[str, int]) -> None:
    for model in (decoder(), encoder_decoder()):
        with pytest.raises(ValueError, match="must be positive"):
            model.generate(tokens(1, 2), **wrong)


def test_wrong_prompts_are_refused() -> None:
    model, prompt = decoder(), tokens(2, 3)
    with pytest.raises(ValueError, match="at least one token; start an empty one with bos_id"):
        model.generate(prompt, prompt_mask=torch.tensor([[True] * 3, [False] * 3]))
    with pytest.raises(ValueError, match="at least one token"):
        model.generate(prompt[:, :0])
    with pytest.raises(TypeError, match="prompt_mask must be a bool tensor"):
        model.generate(prompt, prompt_mask=torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"prompt_mask must have shape \[2, 3\]"):
        model.generate(prompt, prompt_mask=torch.ones(2, 4, dtype=torch.bool))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_generation_has_no_dropout_whatever_the_mode_and_leaves_modes_and_random_numbers_alone(beam_size: int, seed: int) -> None:
    sizes = {"d_model": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.5, "attention_dropout": 0.5, "eos_id": None}
    pair = attnkit.compose(stack="encoder_decoder", src_vocab_size=30, tgt_vocab_size=30, **sizes)
    alone = attnkit.compose(stack="decoder", vocab_size=30, **sizes)
    tokens = torch.randint(3, 30, (2, 6))
    for model in (pair, alone):
        expected = model.eval().generate(tokens, max_length=8, beam_size=beam_size)
        model.train()
        model.head.eval()  # a part that its owner froze
        before = torch.get_rng_state()
        assert torch.equal(model.generate(tokens, max_length=8, beam_size=beam_size), expected)
        assert torch.equal(torch.get_rng_state(), before)
        assert model.training
        assert not model.head.training
        assert torch.is_grad_enabled()
