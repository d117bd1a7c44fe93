import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import attnkit
from attnkit.models.base import _evaluating, generating
from attnkit.packed import MIN_USES, Packed, packing
from attnkit.registry import ConfigurationError

SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 2, "num_heads": 4}
POSITIONS = sorted(attnkit.positions.built_in())


def decoder(**other: Any) -> Any:
    return attnkit.compose(stack="decoder", vocab_size=9, **{**SIZES, "eos_id": None, **other}).double().eval()


def encoder_decoder(**other: Any) -> Any:
    sizes = {**SIZES, "src_vocab_size": 9, "tgt_vocab_size": 8}
    return attnkit.compose(stack="encoder_decoder", **{**sizes, "eos_id": None, **other}).double().eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(3, 8, shape)


@pytest.mark.parametrize("position", POSITIONS)
def test_cached_decoding_equals_full_passes(position: str, seed: int) -> None:
    model, prompt = decoder(position=position, num_kv_heads=2), tokens(2, 4)
    expected = prompt
    for _ in range(5):
        expected = torch.cat([expected, model(expected)[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(prompt, max_length=5), expected[:, 4:])

    if attnkit.positions.get(position).needs_causal:
        return
    model, src = encoder_decoder(position=position, num_kv_heads=1), tokens(2, 4)
    expected = torch.full((2, 1), model.bos_id)
    for _ in range(5):
        expected = torch.cat([expected, model(src, expected)[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(src, max_length=5), expected[:, 1:])


PIECES = [{"feed_forward": name} for name in sorted(attnkit.feed_forwards.built_in())] + [
    {"mixer": name} for name in sorted(attnkit.mixers.built_in()) if "causal" in attnkit.mixers.get(name).directions
]


@torch.no_grad()
@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: "-".join(next(iter(piece.items()))))
@pytest.mark.parametrize("rows", [1, 3])
def test_packed_steps_equal_full_passes(rows: int, piece: dict[str, Any], seed: int) -> None:
    model, read = decoder(**piece).float(), tokens(rows, 2 * MIN_USES)
    state, steps = None, []
    with packing(packed := Packed(model)):
        for token in read.unbind(1):
            logits, state = model.step(token[:, None], state)
            steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, 1), model(read), rtol=1e-4, atol=1e-4)
    assert any(use.product is not None for use in packed.uses.values()) is torch.backends.mkldnn.is_available()


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("side", ["left", "right", "inside"])
@pytest.mark.parametrize("position", ["learned", "rotary", "none"])
def test_a_padded_prompt_is_continued_like_an_unpadded_one(beam_size: int, side: str, position: str, seed: int) -> None:
    model = decoder(position=position, eos_id=2)
    prompt = tokens(4, 5)
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 4])[:, None]
    mask = {"left": mask.flip(1), "right": mask, "inside": mask[:, torch.randperm(5)]}[side]
    together = model.generate(prompt, mask=mask, max_length=6, beam_size=beam_size)
    for row in range(4):
        alone = model.generate(prompt[row, mask[row]][None], max_length=6, beam_size=beam_size)[0]
        width = min(len(alone), together.shape[1])
        assert torch.equal(together[row, :width], alone[:width])
        assert (together[row, width:] == 0).all()


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("position", ["learned", "xpos"])
def test_padding_does_not_use_up_finite_positions(position: str, beam_size: int, seed: int) -> None:
    model, prompt, beams = decoder(position={"name": position, "max_length": 8}), tokens(2, 6), {"beam_size": beam_size}
    expected = model.generate(prompt, max_length=3, **beams)
    padded = torch.cat([tokens(2, 5), prompt, tokens(2, 1)], 1)
    mask = torch.tensor([[False] * 5 + [True] * 6 + [False]] * 2)
    assert torch.equal(model.generate(padded, mask=mask, max_length=3, **beams), expected)
    mask[1, :8] = False  # a short row goes on beyond the columns
    alone = model.generate(padded[1:, 8:11], max_length=6, **beams)
    assert torch.equal(model.generate(padded[1:], mask=mask[1:], max_length=6, **beams), alone)
    with pytest.raises(ValueError, match="a sequence of 9 tokens does not fit into positions that end at 8"):
        model.generate(padded, mask=mask, max_length=4, **beams)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_padded_source_is_decoded_like_an_unpadded_one(beam_size: int, seed: int) -> None:
    model = encoder_decoder(eos_id=2, position="relative")
    src = tokens(3, 6)
    mask = torch.arange(6) < torch.tensor([6, 2, 4])[:, None]
    together = model.generate(src, mask=mask, max_length=7, beam_size=beam_size)
    for row in range(3):
        alone = model.generate(src[row, mask[row]][None], max_length=7, beam_size=beam_size)[0]
        width = min(len(alone), together.shape[1])
        assert torch.equal(together[row, :width], alone[:width])


def test_interleaved_generations_do_not_interfere(seed: int) -> None:
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


def test_an_older_state_remains_unchanged(seed: int) -> None:
    model, a, b = decoder(), tokens(1, 3), tokens(1, 2)
    _, state = model.step(a, None)
    first, _ = model.step(b, state)
    model.step(tokens(1, 4), state)
    assert torch.equal(model.step(b, state)[0], first)


@pytest.mark.parametrize("wrong", [{"max_length": 0}, {"beam_size": 0}])
def test_non_positive_numbers_are_rejected(wrong: dict[str, int]) -> None:
    for model in (decoder(), encoder_decoder()):
        with pytest.raises(attnkit.ConfigurationError, match="must be at least 1, but is 0"):
            model.generate(tokens(1, 2), **wrong)


def test_wrong_prompts_are_refused() -> None:
    model, prompt = decoder(), tokens(2, 3)
    with pytest.raises(ValueError, match="at least one token; start an empty one with bos_id"):
        model.generate(prompt, mask=torch.tensor([[True] * 3, [False] * 3]))
    with pytest.raises(ValueError, match="at least one token"):
        model.generate(prompt[:, :0])
    with pytest.raises(ValueError, match=r"the prompt must be tokens \[B, T\], but has the shape \[3\]"):
        model.generate(prompt[0])
    with pytest.raises(TypeError, match=r"^mask must be a bool tensor"):
        model.generate(prompt, mask=torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"^mask must have shape \[2, 3\]"):
        model.generate(prompt, mask=torch.ones(2, 4, dtype=torch.bool))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_generation_disables_dropout_and_preserves_modes_and_random_state(beam_size: int, seed: int) -> None:
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


OPTIONS: list[dict[str, Any]] = [
    {},
    {"min_length": 4},
    {"repetition_penalty": 1.5},
    {"end_tokens": [2, 5]},
    {"beam_size": 3, "repetition_penalty": 1.5, "min_length": 2},
    {"beam_size": 3, "end_tokens": [2, 5], "length_penalty": 0.3},
    {"temperature": 1.3},
    {"temperature": 0.8, "top_k": 3, "min_length": 2},
    {"temperature": 1.0, "top_p": 0.8, "repetition_penalty": 1.4, "end_tokens": [2, 6]},
]


def generators() -> list[Any]:
    """Return a model of each shape, with larger weights than at the start, so that probabilities are not all alike."""
    shapes = {"decoder": {"num_heads": 2}, "recurrent_decoder": {}, "encoder_decoder": {"num_heads": 2}, "recurrent_encoder_decoder": {}}
    models = []
    for stack, heads in shapes.items():
        sizes = {"src_vocab_size": 9, "tgt_vocab_size": 9} if "encoder" in stack else {"vocab_size": 9}
        model = attnkit.compose(stack=stack, d_model=16, num_layers=2, **heads, **sizes).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        models.append(model)
    return models


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_batch_generates_like_its_rows_alone(options: dict[str, Any], side: str, seed: int) -> None:
    prompt = tokens(4, 5)
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 4])[:, None]
    mask = mask.flip(1) if side == "left" else mask
    prompt[~mask] = 0
    for model in generators():
        seeds = [{"seed": seed + row} if "temperature" in options else {} for row in range(4)]
        together = model.generate(prompt, mask, max_length=6, **options, **seeds[0])
        for row in range(4):
            alone = model.generate(prompt[row, mask[row]][None], max_length=6, **options, **seeds[row])[0]
            assert torch.equal(together[row, : len(alone)], alone), model.spec["stack"]
            assert (together[row, len(alone) :] == 0).all()


@pytest.mark.parametrize("temperature", [1.0, 1e6])
def test_excluded_outputs_are_never_sampled(temperature: float, seed: int) -> None:
    model, prompt = decoder(head={"name": "linear", "excluded": [0, 3, 7]}), tokens(50, 2)
    given = {"max_length": 8, "temperature": temperature, "seed": seed}
    found = model.generate(prompt, **given)
    assert set(found.unique().tolist()) <= {1, 2, 4, 5, 6, 8}
    assert torch.equal(torch.stack(list(model.stream(prompt, **given)), 1), found)


@pytest.mark.parametrize("options", [{}, {"beam_size": 2}, {"temperature": 1.0}])
def test_repetition_and_a_minimum_length_bring_no_excluded_output(options: dict[str, Any]) -> None:
    model, prompt = decoder(head={"name": "linear", "excluded": [0, 3, 7]}), torch.tensor([[0, 3], [7, 7]])
    found = model.generate(prompt, max_length=8, repetition_penalty=1e-9, **options)
    assert set(found.unique().tolist()) <= {1, 2, 4, 5, 6, 8}
    with pytest.raises(ConfigurationError, match="every token that may be chosen ends a row, so no row can have min_length=1"):
        model.generate(prompt, min_length=1, end_tokens=[1, 2, 4, 5, 6, 8], **options)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_prompt_may_be_int32(beam_size: int, seed: int) -> None:
    model, prompt = decoder(), tokens(4, 5)
    wanted = model.generate(prompt, end_tokens=range(0, 9, 2), repetition_penalty=1.5, beam_size=beam_size)
    found = model.generate(prompt.int(), end_tokens=range(0, 9, 2), repetition_penalty=1.5, beam_size=beam_size)
    assert torch.equal(found, wanted)
    assert found.dtype is torch.long


@pytest.mark.parametrize("options", [o for o in OPTIONS if "beam_size" not in o])
def test_a_stream_yields_the_tokens_of_generate_one_by_one(options: dict[str, Any], seed: int) -> None:
    for model in generators():
        given = {**options, **({"seed": seed} if "temperature" in options else {})}
        prompt = tokens(3, 4)
        steps = list(model.stream(prompt, max_length=6, **given))
        assert all(step.shape == (3,) for step in steps)
        assert torch.equal(torch.stack(steps, 1), model.generate(prompt, max_length=6, **given))


def test_dropout_stays_off_until_the_last_thread_has_generated() -> None:
    model, has_begun, may_end = decoder(dropout=0.5).train(), threading.Event(), threading.Event()
    model.head.eval()

    def generate() -> None:
        with generating(model):
            has_begun.set()
            may_end.wait(10)

    thread = threading.Thread(target=generate)
    thread.start()
    has_begun.wait(10)
    with generating(model):
        may_end.set()
        thread.join()
        assert not any(module.training for module in model.modules())
    assert [module for module in model.modules() if not module.training] == list(model.head.modules())


def test_an_abandoned_block_may_be_closed_while_another_begins() -> None:
    model = decoder(dropout=0.5).train()

    def abandoned() -> Generator[None, None, None]:
        with generating(model):
            yield

    def modules() -> Iterator[nn.Module]:
        yield from model.modules()
        first.close()  # as the garbage collector does

    def begin() -> None:
        next(first)
        with _evaluating(modules()):
            in_training.extend(module for module in model.modules() if module.training)

    first, in_training = abandoned(), list[nn.Module]()
    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert not in_training
    assert all(module.training for module in model.modules())


def test_a_stream_restores_the_callers_grad_and_modes_between_tokens(seed: int) -> None:
    for model in generators():
        model.train()
        streams = [model.stream(tokens(2, 3), max_length=3, end_tokens=[]) for _ in range(2)]
        for _ in range(3):
            for steps in streams:  # in turns
                assert not next(steps).requires_grad
                assert torch.is_grad_enabled()
                assert all(module.training for module in model.modules())
        assert all(next(steps, None) is None for steps in streams)


def test_a_stream_traverses_the_modules_only_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in generators():
        steps = model.stream(tokens(2, 3), max_length=3, end_tokens=[])
        next(steps)
        with monkeypatch.context() as patch:
            patch.setattr(type(model), "modules", None)
            assert len(list(steps)) == 2


@pytest.mark.parametrize("options", [{}, {"length_penalty": 0.0}, {"repetition_penalty": 1.3, "min_length": 2}])
def test_n_best_starts_with_the_beams_best_and_scores_are_log_probabilities(options: dict[str, Any], seed: int) -> None:
    for model in generators():
        prompt = tokens(3, 4)
        found = model.n_best(prompt, beam_size=4, max_length=5, **options)
        assert found.tokens.shape[:2] == found.scores.shape == (3, 4)
        assert torch.equal(found.tokens[:, 0], model.generate(prompt, beam_size=4, max_length=5, **options))
        assert (found.scores.diff(dim=1) <= 0).all()
        for row in range(3):
            assert len({tuple(t) for t in found.tokens[row].tolist()}) == 4
        if "repetition_penalty" in options:
            continue
        for row, rank in ((0, 0), (2, 3)):
            new = found.tokens[row, rank]
            new = new[: int((new == 2).int().argmax()) + 1] if (new == 2).any() else new
            read = torch.cat([torch.tensor([model.bos_id]) if "src_vocab_size" in model.spec else prompt[row], new])[None, :-1]
            logits = model.eval()(prompt[row][None], read) if "src_vocab_size" in model.spec else model.eval()(read)
            total = logits[0, -len(new) :].log_softmax(-1).gather(1, new[:, None]).sum()
            assert found.scores[row, rank].item() == pytest.approx(total.item() / len(new) ** options.get("length_penalty", 1.0), abs=1e-4)


def test_repetition_counts_prompt_tokens_but_not_source_tokens(seed: int) -> None:
    for model in generators():
        prompt, is_pair, new = tokens(1, 4), "src_vocab_size" in model.spec, []
        for _ in range(5):
            read = torch.tensor([[model.bos_id, *new] if is_pair else [*prompt[0].tolist(), *new]])
            scores = (model.eval()(prompt, read) if is_pair else model.eval()(read))[0, -1].tolist()
            for token in {*new} if is_pair else {*prompt[0].tolist(), *new}:
                scores[token] = scores[token] / 3 if scores[token] > 0 else scores[token] * 3
            new.append(max(range(9), key=scores.__getitem__))
        assert model.generate(prompt, max_length=5, end_tokens=[], repetition_penalty=3.0)[0].tolist() == new


def test_finite_positions_raise_when_their_end_is_reached(seed: int) -> None:
    position = {"name": "learned", "max_length": 8}
    alone, pair = decoder(position=position), encoder_decoder(position=position)
    message = "a sequence of 9 tokens does not fit into positions that end at 8"
    for model, fits in ((alone, 3), (pair, 8)):  # the last token is not read again
        for options in ({}, {"beam_size": 2}, {"temperature": 1.0}):
            assert model.generate(tokens(1, 6), max_length=fits, **options).shape == (1, fits)
            with pytest.raises(attnkit.ConfigurationError, match=message):
                model.generate(tokens(1, 6), max_length=fits + 1, **options)
        steps = model.stream(tokens(1, 6), max_length=fits + 1)
        for _ in range(fits):
            next(steps)
        with pytest.raises(attnkit.ConfigurationError, match=message):
            next(steps)


def test_invalid_options_are_rejected_before_any_computation() -> None:
    for model in (decoder(), encoder_decoder()):
        for method in (model.generate, model.n_best, model.stream):
            with pytest.raises(attnkit.ConfigurationError, match="top_p must be above 0"):
                method(tokens(1, 2), temperature=1.0, top_p=2.0)
            with pytest.raises(attnkit.ConfigurationError, match=r"no option 'beamsize'. Did you mean 'beam_size'"):
                method(tokens(1, 2), beamsize=3)
        with pytest.raises(attnkit.ConfigurationError, match="cannot stream"):
            model.stream(tokens(1, 2), beam_size=2)


SHARING: list[dict[str, Any]] = [
    *({"position": position} for position in POSITIONS),
    *({"mixer": mixer} for mixer in ("gru", "latent_attention", "selective_state_space", "gated_delta", "convolution")),
    {"window": 3},
    {"attention": "additive", "num_kv_heads": 1},
]


def read_by(model: Any) -> list[tuple[int, ...]]:
    """Return a list to which the shape of the tokens of each pass will be added."""
    read: list[tuple[int, ...]] = []
    model.embedding.register_forward_hook(lambda module, inputs, output: read.append(tuple(inputs[0].shape)))
    return read


@torch.no_grad()
@pytest.mark.parametrize(
    ("options", "padding"),
    [(options, padding) for i, options in enumerate(SHARING) for padding in ("inside", ("none", "left", "right")[i % 3])],
    ids=str,
)
def test_a_shared_prefix_is_read_once_and_changes_nothing(
    options: dict[str, Any], padding: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompt = decoder(**options), tokens(3, 16)
    mask = None if padding == "none" else torch.arange(16) < torch.tensor([16, 13, 15])[:, None]
    if mask is not None and padding != "right":
        mask = mask.flip(1) if padding == "left" else mask.gather(1, torch.stack([torch.randperm(16) for _ in range(3)]))
    first = tokens(12)
    for row in range(3):
        real = torch.ones(16, dtype=torch.bool) if mask is None else mask[row]
        prompt[row, real.nonzero()[:13, 0]] = torch.cat([first, torch.tensor([3 + row])])
    read, found = read_by(model), []
    for least in (10**6, 1):
        monkeypatch.setattr("attnkit.models.decoder.MIN_SAVED", least)
        read.clear()
        beams = model.n_best(prompt, mask, beam_size=3, max_length=5)
        found.append((beams, model.generate(prompt, mask, max_length=6, repetition_penalty=1.3)))
    assert read[0] == (1, 12)
    (beams, greedy), (shared_beams, shared_greedy) = found
    assert torch.equal(shared_greedy, greedy)
    assert torch.equal(shared_beams.tokens, beams.tokens)
    torch.testing.assert_close(shared_beams.scores, beams.scores)


@torch.no_grad()
@pytest.mark.parametrize(
    ("rows", "length", "shared", "expected"),
    [
        (40, 7, 7, [(1, 6), (40, 1)]),  # equal prompts share all but the last token
        (3, 40, 35, [(1, 35), (3, 4), (3, 1)]),
        (2, 7, 7, [(2, 7)]),  # too little is saved
        (1, 200, 200, [(1, 200)]),
        (3, 200, 100, [(3, 200)]),  # too much follows
        (2, 1200, 1000, [(1, 1000), (2, 199), (2, 1)]),
        (2, 1400, 1100, [(2, 1400)]),
    ],
)
def test_a_prefix_is_shared_only_if_it_saves_time(rows: int, length: int, shared: int, expected: list[tuple[int, int]], seed: int) -> None:
    model, prompt = decoder(), tokens(rows, length)
    prompt[:, :shared] = prompt[:1, :shared]
    if 0 < shared < length:
        prompt[:, shared] = torch.arange(3, 3 + rows) % 8
    read = read_by(model)
    model.generate(prompt, max_length=1)
    assert read == expected


def test_begin_works_with_fake_tensors() -> None:
    """(Costs are estimated so.)"""
    with FakeTensorMode():
        model = attnkit.compose(stack="decoder", **SIZES, vocab_size=9)
        assert model.begin(torch.zeros(40, 30, dtype=torch.long)).state is None


def test_an_empty_batch_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        decoder().generate(torch.zeros(0, 70, dtype=torch.long))


@pytest.mark.parametrize(("compose", "beam_size"), [(decoder, 1), (encoder_decoder, 3)])
def test_a_compiled_step_has_few_graphs_for_all_lengths_and_equal_output(compose: Callable[..., Any], beam_size: int, seed: int) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    model, prompt = compose(num_layers=1), tokens(2, 4)
    expected = model.generate(prompt, max_length=24, beam_size=beam_size)
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("eager")
    model.step = torch.compile(model.step, backend=graphs, dynamic=True, fullgraph=True)
    assert torch.equal(model.generate(prompt, max_length=24, beam_size=beam_size), expected)
    assert 1 <= graphs.frame_count <= 3, "the first step and those with a longer memory may differ"
