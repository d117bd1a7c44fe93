"""A recorded step gives what the step itself gives; the recording is replayed as Python on a CPU, and as a CUDA graph on a GPU."""

from itertools import product
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit.decoding import Graphed
from attnkit.decoding.graph import Recording
from attnkit.models.base import GeneratingModel
from tests.models.compositions import build, compositions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
LAYERS: dict[str, dict[str, Any]] = {
    **{name: {"position": name} for name in ("rotary", "sinusoidal", "alibi", "relative", "fire", "cope", "shaw", "none")},
    "learned": {"position": {"name": "learned", "max_length": 64}},
    **{name: {"mixer": name} for name in ("gated_delta", "lstm", "convolution", "latent_attention", "state_space")},
    "grouped": {"num_kv_heads": 2},
    "value_residual": {"mixer": {"name": "multi_head", "value_residual": 0.5}},
    "window": {"window": 5},
    "long window": {"window": 20},
    "hybrid": {"layers": [{"mixer": "retention"}, {"mixer": "multi_head"}]},
}
STACKS = ("encoder_decoder", "recurrent_encoder_decoder")


def decoder(**layers: Any) -> GeneratingModel:
    stack = {"name": "decoder", "d_model": 32, "num_layers": 2, "num_heads": 4, **layers}
    model: GeneratingModel = attnkit.compose(stack=stack, vocab_size=40, eos_id=None).eval().to(DEVICE, torch.float64)
    return model


def translator(stack: str) -> GeneratingModel:
    sizes = {"name": stack, "d_model": 32, "num_layers": 2, **({} if "recurrent" in stack else {"num_heads": 4})}
    model: GeneratingModel = (
        attnkit.compose(stack=sizes, src_vocab_size=40, tgt_vocab_size=40, eos_id=None).eval().to(DEVICE, torch.float64)
    )
    return model


def prompt(is_padded: bool) -> tuple[Tensor, Tensor | None]:
    mask = torch.arange(7, device=DEVICE) >= torch.tensor([[0], [2], [4]], device=DEVICE)
    return torch.randint(3, 17, (3, 7), device=DEVICE), mask if is_padded else None


GENERATING = {name: spec for name, spec in compositions() if "decoder" in spec["stack"]}


@torch.no_grad()
@pytest.mark.parametrize("name", GENERATING)
def test_every_composition_repeats_its_step_in_place(name: str, seed: int) -> None:
    """With and without padding; also the steps of hypotheses, which branch."""
    try:
        model = cast(GeneratingModel, build(GENERATING[name]).eval().to(DEVICE, torch.float64))
    except attnkit.ConfigurationError as error:
        pytest.skip(str(error))
    for is_padded, beams in product((False, True), (1, 2)):
        tokens, state, _ = model.begin(*prompt(is_padded))
        _, state = model.step(tokens, state)
        if beams > 1:
            state = state.branch(torch.arange(3, device=DEVICE)[:, None].expand(3, 2))
        drawn = torch.randint(3, 17, (6, 3 * beams, 1), device=DEVICE)
        recording = Recording(model.step, drawn[0], state, len(drawn))
        assert recording.is_fixed()
        for tokens in drawn:
            if beams > 1:
                parents = torch.randint(0, 2, (3, 2), device=DEVICE) + 2 * torch.arange(3, device=DEVICE)[:, None]
                state = state.branch(parents)
                recording.branch(parents)
            logits, state = model.step(tokens, state)
            torch.testing.assert_close(recording(tokens), logits, rtol=1e-12, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("name", ["window", "long window", "rotary"])
def test_padding_between_a_shared_prefix_and_the_rest_keeps_its_places(name: str, seed: int) -> None:
    model = decoder(**LAYERS[name])
    prefix, rest = torch.randint(3, 40, (1, 40), device=DEVICE).expand(3, -1), torch.randint(3, 40, (3, 7), device=DEVICE)
    mask = torch.arange(47, device=DEVICE) < torch.tensor([[42], [47], [44]], device=DEVICE)
    tokens, state, _ = model._start(torch.cat([prefix, rest], 1), mask)
    logits, state = model.step(tokens, state)
    tokens = logits.argmax(-1)[:, None]
    recording = Recording(model.step, tokens, state, 4)
    for _ in range(4):
        logits, state = model.step(tokens, state)
        torch.testing.assert_close(recording(tokens), logits, rtol=1e-12, atol=1e-12)
        tokens = logits.argmax(-1)[:, None]


@torch.no_grad()
def test_the_state_before_a_recording_stays_as_it_is(seed: int) -> None:
    model = decoder(layers=LAYERS["hybrid"]["layers"])
    logits, state = model.step(*prompt(False))
    token = logits.argmax(-1)[:, None]
    expected, _ = model.step(token, state)
    recording = Recording(model.step, token, state, 3)
    assert recording.is_fixed()
    recording(token), recording(token)
    torch.testing.assert_close(model.step(token, state)[0], expected, rtol=0, atol=0)


@torch.no_grad()
def test_a_state_that_grows_otherwise_is_not_recorded(seed: int) -> None:
    model = decoder(mixer={"name": "convolution", "kernel_size": None})
    logits, state = model.step(*prompt(False))
    assert not Recording(model.step, logits.argmax(-1)[:, None], state, 3).is_fixed()


@torch.no_grad()
def test_without_a_gpu_nothing_is_recorded(seed: int) -> None:
    model = decoder().cpu()
    graphed = Graphed(model.step, 64)
    _, state = graphed(torch.tensor([[5, 6]]), None)
    graphed(torch.tensor([[7]]), state)
    assert graphed.recording is None


@needs_cuda
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("name", [*LAYERS, *STACKS])
def test_a_gpu_replays_what_it_recorded(name: str, is_padded: bool, beam_size: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = translator(name) if name in STACKS else decoder(**LAYERS[name])
    calls = []
    monkeypatch.setattr(model, "step", lambda *given, step=model.step: (calls.append(0), step(*given))[1])
    replayed = model.generate(*(given := prompt(is_padded)), max_length=30, beam_size=beam_size)
    assert len(calls) == 3, "the first step, the warm-up and the recording"
    monkeypatch.setattr(Graphed, "__call__", lambda self, *given: self.step(*given))
    assert torch.equal(replayed, model.generate(*given, max_length=30, beam_size=beam_size))
    assert len(calls) == 33


@needs_cuda
@pytest.mark.parametrize(
    "layers", [{"feed_forward": {"name": "mixture_of_experts", "num_experts": 4}}, {"mixer": {"name": "convolution", "kernel_size": None}}]
)
def test_a_step_that_cannot_be_recorded_is_called_as_it_is(layers: dict[str, Any], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = decoder(**layers), prompt(False)
    written = model.generate(*given, max_length=30)
    monkeypatch.setattr(Graphed, "__call__", lambda self, *given: self.step(*given))
    assert torch.equal(written, model.generate(*given, max_length=30))


@needs_cuda
def test_positions_that_end_too_soon_are_an_error_only_once_they_do(seed: int) -> None:
    model = decoder(position={"name": "learned", "max_length": 30})
    tokens, _ = prompt(False)
    assert model.generate(tokens, max_length=24).shape == (3, 24)
    assert model.generate(tokens, max_length=60, end_tokens=list(range(40))).shape == (3, 1)
    with pytest.raises(attnkit.ConfigurationError, match="does not fit into positions that end at 30"):
        model.generate(tokens, max_length=60)
