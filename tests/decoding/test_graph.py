"""A recorded step gives what the step itself gives; a CPU replays its calls of torch's functions, a GPU a CUDA graph."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from threading import Thread
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn.utils.parametrize import register_parametrization

import attnkit
from attnkit.decoding import Graphed, Options, graph
from attnkit.decoding.graph import CPU_CALLS, CPU_ROOM, Recording
from attnkit.models.base import GeneratingModel
from attnkit.state import State
from tests.models.compositions import build, compositions, one_layer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
needs_cpu = pytest.mark.skipif(DEVICE == "cuda", reason="a GPU records otherwise")
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


UNLISTED = ("mixture_of_experts", "softmax_off_by_one", "softmax_with_sink")
"""What reads numbers from tensors to decide what to compute."""
GENERATING = {name: spec for name, spec in compositions() if "decoder" in spec["stack"]}


@torch.no_grad()
@pytest.mark.parametrize("name", GENERATING)
def test_every_composition_replays_its_step_in_place(name: str, seed: int) -> None:
    """With and without padding; also the steps of hypotheses, which branch."""
    dtype, error = (torch.float32, 1e-5) if name.endswith("additive_triton") else (torch.float64, 1e-12)  # its kernels compute in fp32
    try:
        model = cast(GeneratingModel, build(GENERATING[name], **one_layer(name)).eval().to(DEVICE, dtype))
    except attnkit.ConfigurationError as refusal:
        pytest.skip(str(refusal))
    for is_padded, beams in product((False, True), (1, 2)):
        tokens, state, _ = model.begin(*prompt(is_padded))
        _, state = model.step(tokens, state)
        if beams > 1:
            state = state.branch(torch.arange(3, device=DEVICE)[:, None].expand(3, 2))
        drawn = torch.randint(3, 17, (6, 3 * beams, 1), device=DEVICE)
        recording = Recording(model.step, drawn[0], state, 3 if DEVICE == "cpu" else 6)
        recording.peek()
        if DEVICE == "cpu":
            with pytest.raises(RuntimeError) if name.endswith(UNLISTED) else nullcontext():
                recording.list_calls()
            assert (recording.replay is None) == name.endswith(UNLISTED)
        for tokens in drawn:
            if beams > 1:
                parents = torch.randint(0, 2, (3, 2), device=DEVICE) + 2 * torch.arange(3, device=DEVICE)[:, None]
                state = state.branch(parents)
                recording.branch(parents)
            recording = recording if recording.room else recording.extended(3)
            logits, state = model.step(tokens, state)
            torch.testing.assert_close(recording(tokens), logits, rtol=error, atol=error)


@torch.no_grad()
@pytest.mark.parametrize("name", ["window", "long window", "rotary"])
def test_padding_between_a_shared_prefix_and_the_rest_keeps_positions(name: str, seed: int) -> None:
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
def test_recording_does_not_change_the_initial_state(seed: int) -> None:
    model = decoder(layers=LAYERS["hybrid"]["layers"])
    logits, state = model.step(*prompt(False))
    token = logits.argmax(-1)[:, None]
    expected, _ = model.step(token, state)
    recording = Recording(model.step, token, state, 3)
    recording.peek()
    recording(token), recording(token)
    torch.testing.assert_close(model.step(token, state)[0], expected, rtol=0, atol=0)


@torch.no_grad()
def test_a_state_that_grows_differently_is_not_recorded(seed: int) -> None:
    model = decoder(mixer={"name": "convolution", "kernel_size": None})
    logits, state = model.step(*prompt(False))
    with pytest.raises(RuntimeError, match="changes its form"):
        Recording(model.step, logits.argmax(-1)[:, None], state, 3).peek()


@dataclass(frozen=True)
class LastTwo(State):
    current: Tensor
    previous: Tensor


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_state_may_move_its_tensors(is_listed: bool) -> None:
    def step(tokens: Tensor, state: LastTwo) -> tuple[Tensor, LastTwo]:
        return torch.cat([tokens, *(x.expand(2, 1) for x in (state.current, state.previous))], 1), LastTwo(tokens + 0, state.current)

    state = LastTwo(torch.ones(2, 1), torch.zeros(2, 1))
    recording = Recording(step, state.current, state, 3)
    if is_listed:
        recording.list_calls()
    for number in (2.0, 3.0, 4.0):
        logits, state = step(torch.full((2, 1), number), state)
        torch.testing.assert_close(recording(torch.full((2, 1), number)), logits, rtol=0, atol=0)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[[GeneratingModel], list[int]]:
    """Return a function that returns a list with an item for each call of a model's step so far."""

    def watch(model: GeneratingModel) -> list[int]:
        calls: list[int] = []
        plain = type(model).step

        def step(self: GeneratingModel, tokens: Tensor, state: Any) -> Any:
            calls.append(0)
            return plain(self, tokens, state)

        monkeypatch.setattr(type(model), "step", step)
        return calls

    return watch


@contextmanager
def unrecorded() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graphed, "__call__", lambda self, *given: self.step(*given))
        yield


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("name", [*LAYERS, *STACKS])
def test_generate_replays_what_it_recorded(name: str, is_padded: bool, beam_size: int, seed: int, count: Callable[..., list[int]]) -> None:
    model = translator(name) if name in STACKS else decoder(**LAYERS[name])
    calls, given, length = count(model), prompt(is_padded), 30 if DEVICE == "cuda" else 57
    replayed = model.generate(*given, max_length=length, beam_size=beam_size)
    # the first step, the warm-up and the recording; or the first steps, the recording and the check that another one is the same
    assert len(calls) == (3 if DEVICE == "cuda" else CPU_CALLS + 1)
    with unrecorded():
        assert torch.equal(replayed, model.generate(*given, max_length=length, beam_size=beam_size))


@needs_cpu
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_cpu_checks_once_and_allocates_room_in_pieces(beam_size: int, seed: int, count: Callable[..., list[int]]) -> None:
    model = translator("encoder_decoder")
    calls = count(model)
    for length, expected in ((46, 46), (47, CPU_CALLS + 1), (64, CPU_CALLS), (CPU_CALLS - 1 + 2 * CPU_ROOM, CPU_CALLS + 1)):
        given = torch.randint(3, 40, (2, length // 8))
        calls.clear()
        replayed = model.generate(given, max_length=length, beam_size=beam_size)
        assert len(calls) == expected, length
        with unrecorded():
            assert torch.equal(replayed, model.generate(given, max_length=length, beam_size=beam_size))


@needs_cpu
def test_many_rows_are_not_recorded(seed: int, count: Callable[..., list[int]]) -> None:
    model = decoder()
    calls = count(model)
    for rows, expected in ((32, CPU_CALLS + 1), (33, 47)):
        calls.clear()
        model.generate(torch.randint(3, 40, (rows, 2)), max_length=47)
        assert len(calls) == expected


@needs_cpu
def test_windows_are_not_recorded_for_many_tokens(seed: int, count: Callable[..., list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording keeps all tokens: with 16 rows of 400 tokens it was slower than steps that keep a window."""
    monkeypatch.setattr(graph, "CPU_WINDOW", 3 * (2 + 59))  # 3 rows of a prompt and of 59 read tokens
    for length, layers, expected in (
        (60, {"window": 5}, CPU_CALLS + 1), (61, {"window": 5}, 61), (61, {"window": 61}, 61), (61, {"window": 62}, CPU_CALLS + 1),
        (61, {}, CPU_CALLS + 1), (61, LAYERS["hybrid"], CPU_CALLS + 1),
    ):  # fmt: skip
        model = decoder(**layers)
        calls = count(model)
        model.generate(torch.randint(3, 40, (3, 2)), max_length=length)
        assert len(calls) == expected


@needs_cpu
@pytest.mark.parametrize("name", ["rotary", "window", "hybrid"])
def test_finished_rows_are_dropped_from_a_recording(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given, kept = decoder(**LAYERS[name]), torch.randint(3, 40, (16, 5)), []
    monkeypatch.setattr(Recording, "select", lambda self, rows, select=Recording.select: (kept.append(len(rows)), select(self, rows))[1])
    options: Options = {"max_length": 200, "temperature": 1.0, "end_tokens": [7], "seed": 3}
    replayed = model.generate(given, **options)
    assert kept, "some rows end while others go on"
    with unrecorded():
        assert torch.equal(replayed, model.generate(given, **options))


@needs_cpu
@pytest.mark.parametrize("change", ["in place", "data", "parameter", "module", "adapter", "load", "assign", "type", "train"])
def test_a_changed_model_is_recorded_again(change: str, seed: int) -> None:
    """Also large weights, which are packed."""
    model, given = decoder(d_model=512).float(), torch.randint(3, 40, (1, 5))
    other = decoder(d_model=512).float()
    before = model.generate(given, max_length=64)
    layer = model.stack.decoder.layers[0].feed_forward
    with torch.no_grad():
        if change == "in place":
            layer.input.weight.neg_()
        elif change == "data":
            layer.input.weight.data.neg_()
        elif change == "parameter":
            layer.input.weight = torch.nn.Parameter(-layer.input.weight)
        elif change == "module":
            model.stack.decoder.layers[0].feed_forward = other.stack.decoder.layers[0].feed_forward
        elif change == "adapter":
            register_parametrization(layer.input, "weight", Negative())
        elif change in ("load", "assign"):
            model.load_state_dict(other.state_dict(), assign=change == "assign")
        elif change == "type":
            model.double()
    if change == "train":
        model.train()
        model(given).logsumexp(-1).sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    replayed = model.generate(given, max_length=64)
    with unrecorded():
        assert torch.equal(replayed, model.generate(given, max_length=64))
    assert torch.equal(replayed, before) == (change == "type")


class Negative(torch.nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return -weight


@needs_cpu
def test_a_module_that_counts_its_calls_matches_the_unrecorded_step(seed: int) -> None:
    """Neither skipped calls nor additional ones, as for checks."""
    given = torch.randint(3, 40, (2, 5))
    replayed, expected = decoder(), decoder()
    expected.load_state_dict(replayed.state_dict())
    for model in (replayed, expected):
        model.stack.decoder.layers[0].feed_forward = Counting(model.stack.decoder.layers[0].feed_forward)
    options: Options = {"max_length": 90, "temperature": 1.0, "seed": 3}
    for _ in range(2):
        tokens = replayed.generate(given, **options)
        with unrecorded():
            assert torch.equal(tokens, expected.generate(given, **options))


class Counting(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        self.calls += 1
        return cast(Tensor, self.inner(x, real)) * (1 + self.calls // 8)


@needs_cpu
def test_other_threads_may_compile_while_a_step_is_recorded(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, results = torch.compile(lambda x: x.exp() + 1, backend="eager"), list[Tensor]()

    def compile_anew() -> None:
        results.append(compiled(torch.zeros([1] * (1 + len(results)))))  # compiled again for another number of dimensions

    def peek(self: Recording, peek: Callable[[Recording], Any] = Recording.peek) -> Any:
        thread = Thread(target=compile_anew)
        thread.start()
        thread.join()
        return peek(self)

    compile_anew()
    monkeypatch.setattr(Recording, "peek", peek)
    decoder().generate(torch.randint(3, 40, (1, 5)), max_length=50)
    assert [x.ndim for x in results] == [1, 2, 3]


def test_a_model_with_hooks_is_not_recorded(seed: int, count: Callable[..., list[int]]) -> None:
    model, given = decoder(), torch.randint(3, 40, (1, 5), device=DEVICE)
    calls = count(model)
    with attnkit.record_attention(model) as maps:
        model.generate(given, max_length=60)
    assert len(calls) == 60
    assert {weights.shape[-1] for weights in maps.values()} == {64}


@needs_cpu
def test_under_autocast_nothing_is_recorded(seed: int) -> None:
    model, given = decoder().float(), torch.randint(3, 40, (1, 5))
    with torch.autocast("cpu", torch.bfloat16):
        replayed = model.generate(given, max_length=60)
        with unrecorded():
            assert torch.equal(replayed, model.generate(given, max_length=60))


@needs_cpu
def test_a_recording_is_freed_immediately(seed: int) -> None:
    model = decoder()
    tokens, state = torch.randint(3, 40, (1, 5)), None
    graphed = Graphed(model.step, 80)
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            for _ in range(CPU_CALLS + 3):
                logits, state = graphed(tokens, state)
                tokens = logits.argmax(-1)[:, None]
        assert isinstance(state, Recording)
        assert state.replay is not None
        held = weakref.ref(state.state.layers[0].keys.storage)
        del state, logits
        assert held() is None
        model = weakref.ref(model)
        del graphed
        assert model() is None
    finally:
        gc.enable()


@needs_cuda
@pytest.mark.parametrize(
    "layers", [{"feed_forward": {"name": "mixture_of_experts", "num_experts": 4}}, {"mixer": {"name": "convolution", "kernel_size": None}}]
)
def test_an_unrecordable_step_is_called_directly(layers: dict[str, Any], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = decoder(**layers), prompt(False)
    written = model.generate(*given, max_length=30)
    monkeypatch.setattr(Graphed, "__call__", lambda self, *given: self.step(*given))
    assert torch.equal(written, model.generate(*given, max_length=30))


@needs_cpu
@torch.no_grad()
def test_a_cpu_recording_raises_at_the_end_of_positions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "CPU_ROOM", 32)
    model, tokens = decoder(position={"name": "learned", "max_length": 60}), torch.randint(3, 40, (1, 7))
    graphed, replayed, state = Graphed(model.step, 99), None, None
    for _ in range(1 + 53):
        logits, state = model.step(tokens, state)
        scored, replayed = graphed(tokens, replayed)
        torch.testing.assert_close(scored, logits, rtol=1e-12, atol=1e-12)
        tokens = torch.randint(3, 40, (1, 1))
    assert isinstance(replayed, Recording)
    with pytest.raises(attnkit.ConfigurationError, match="does not fit into positions that end at 60"):
        graphed(tokens, replayed)


@needs_cpu
@torch.no_grad()
def test_padded_rows_continue_when_only_their_columns_exceed_the_positions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "CPU_ROOM", 32)
    model, tokens = decoder(position={"name": "learned", "max_length": 100}), torch.randint(3, 40, (1, 30))
    mask = torch.arange(30)[None] >= 25
    expected = model.generate(tokens[mask][None], max_length=90)
    assert torch.equal(model.generate(tokens, mask=mask, max_length=90), expected)


@needs_cuda
def test_running_out_of_positions_raises_only_when_reached(seed: int) -> None:
    model = decoder(position={"name": "learned", "max_length": 30})
    tokens, _ = prompt(False)
    assert model.generate(tokens, max_length=24).shape == (3, 24)
    assert model.generate(tokens, max_length=60, end_tokens=list(range(40))).shape == (3, 1)
    with pytest.raises(attnkit.ConfigurationError, match="does not fit into positions that end at 30"):
        model.generate(tokens, max_length=60)
