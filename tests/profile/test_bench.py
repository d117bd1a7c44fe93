"""`attnkit bench` times every contestant at every length, and its numbers belong together; the durations depend on the machine."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attnkit import compose
from attnkit.profile import bench, ceilings
from attnkit.profile.contestants import Kind, contestant, kind_of
from attnkit.profile.peers import PEERS, peer
from attnkit.registry import ConfigurationError

SMALL = "{stack: decoder, d_model: 16, num_layers: 1, num_heads: 2, position: learned}"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "LONG", 0.0)
    monkeypatch.setattr(bench, "NEW_TOKENS", 2)
    monkeypatch.setattr(bench, "timed", ticks)


def ticks(call: Callable[[], object], device: torch.device) -> float:
    """Return the duration by a clock that ticks once for each call of a module: durations of a real one depend on the machine."""
    count = 0

    def tick(*_: object) -> None:
        nonlocal count
        count += 1

    hook = nn.modules.module.register_module_forward_pre_hook(tick)
    try:
        call()
    finally:
        hook.remove()
    return float(count)


def test_every_contestant_is_timed_at_every_length(attnkit: Any, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("rows.json", "plot.svg")]
    sizes = ["--lengths", 4, 6, "--batch", 2, "--rounds", 2, "--vocab", 20, "--peers", "torch"]
    outcome = attnkit("bench", SMALL, *sizes, "--json", files[0], "--svg", files[1])
    assert outcome.status == 0, outcome.err
    found = json.loads(files[0].read_text())
    rows = found["rows"]
    assert found["command"] == shlex.join(map(str, ["attnkit", "bench", SMALL, *sizes, "--json", files[0], "--svg", files[1]]))
    assert found["tflops"] > 0
    assert found["vocab"] == 20
    assert "batch 2, vocabulary 20, 2 rounds" in outcome.out
    assert [(row["work"], row["length"], row["name"]) for row in rows] == [
        (work, length, name)
        for work, names in (("step", [SMALL, "torch"]), ("forward", [SMALL, "torch"]), ("prefill", [SMALL]), ("decode", [SMALL]))
        for length in (4, 6)
        for name in names
    ]
    for row in rows:
        tokens = 2 * (2 if row["work"] == "decode" else row["length"])
        assert row["tokens_per_second"] * row["milliseconds"] / 1e3 == pytest.approx(tokens)
        assert row["peak_mib"] > 0
        assert (row["utilisation"] is None) == (row["work"] == "decode")
        assert row["name"] != SMALL or row["relative"] == 1
    ticks_of = {row["work"]: row["milliseconds"] for row in rows if row["length"] == 4 and row["name"] == SMALL}
    assert ticks_of["decode"] == bench.NEW_TOKENS * ticks_of["prefill"]  # the steps after the prompt alone
    assert "tokens/s" in outcome.out
    assert files[1].read_text().startswith("<svg")


def test_a_reading_over_many_calls_is_per_call() -> None:
    layer, readings = nn.Linear(1, 1), list[int]()
    assert bench._reading(lambda: readings.append(len(readings)) or layer(torch.ones(1)), 4, torch.device("cpu")) == 1
    assert len(readings) == 4


def test_decoding_times_within_the_noise_are_rejected(attnkit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "timed", lambda call, device: 1.0)
    outcome = attnkit("bench", SMALL, "--work", "decode", "--lengths", 4, "--batch", 2, "--rounds", 1, "--vocab", 20)
    assert outcome.status == 2
    assert "raise --rounds or --batch" in outcome.err


def test_flops_of_a_prefill_include_one_row_of_logits_and_those_of_an_lstm_its_products() -> None:
    def flops(model: nn.Module, work: bench.Work) -> int | None:
        batch = (kind_of(model) or Kind()).batch(1000, 2, 8)
        return bench._flops(contestant(model, is_compiled=False), work, batch)

    sizes: Any = {"d_model": 16, "num_layers": 1, "num_heads": 2}
    decoder = compose(stack="decoder", vocab_size=1000, **sizes)
    whole = flops(decoder, "forward")
    assert whole is not None
    assert flops(decoder, "prefill") == whole - 2 * 7 * (2 * 16 * 1000)
    pair = compose(stack="encoder_decoder", src_vocab_size=1000, tgt_vocab_size=1000, **sizes)
    maps, feed_forward, scores, head = 2 * 16 * 16, 2 * 2 * 16 * 64, 2 * 2 * 16, 2 * 16 * 1000
    source = 8 * (4 * maps + feed_forward + 8 * scores + 2 * maps)  # with the keys and values of the cross-attention
    target = 4 * maps + scores + 2 * maps + 8 * scores + feed_forward + head
    assert flops(pair, "prefill") == 2 * (source + target)
    recurrent = compose(stack="recurrent_decoder", vocab_size=1000, cell="lstm", d_model=16, num_layers=1)
    assert flops(recurrent, "forward") == 2 * 8 * (4 * 2 * maps + head)


def test_a_timed_step_updates_every_parameter(seed: int) -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 20))
    before = [p.clone() for p in model.parameters()]
    call = bench._call(contestant(model, is_compiled=False), "step", Kind().batch(20, 2, 5), bench.Plan(), torch.device("cpu"))
    assert call is not None
    call()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_an_encoder_decoder_of_a_recipe_is_timed(attnkit: Any) -> None:
    spec = "{stack: encoder_decoder, d_model: 16, num_layers: 1, num_heads: 2}"
    outcome = attnkit("bench", spec, "--work", "decode", "forward", "--lengths", 4, "--batch", 2, "--rounds", 1, "--vocab", 20)
    assert outcome.status == 0, outcome.err
    assert outcome.out.count("\ndecode ") == outcome.out.count("\nforward ") == 1


def test_a_recipes_model_uses_the_defaults_of_its_task(attnkit: Any, tmp_path: Path) -> None:
    stack = {"name": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2}
    task = {"name": "causal_lm", "stack": stack, "multi_token": {"name": "independent", "num_tokens": 2}}
    (tmp_path / "tied.yaml").write_text(json.dumps({"model": task}))
    sizes = ["--lengths", 4, "--batch", 2, "--rounds", 1, "--vocab", 20, "--work", "step", "forward"]
    outcome = attnkit("bench", tmp_path / "tied.yaml", *sizes, "--json", tmp_path / "rows.json")
    assert outcome.status == 0, outcome.err
    step, forward = json.loads((tmp_path / "rows.json").read_text())["rows"]
    model = compose(stack=stack, multi_token=task["multi_token"], tie="output", vocab_size=20)
    assert step["parameters"] == forward["parameters"] == sum(p.numel() for p in model.parameters())
    assert step["milliseconds"] > forward["milliseconds"]  # in calls of modules: only training predicts further tokens


PACKAGES = {"transformers": "transformers", "x-transformers": "x_transformers", "litgpt": "litgpt.model"}
EMBEDDING, MATRICES, BIASES, NORM = 20 * 16, 4 * 16 * 16 + 2 * 16 * 24, 24 + 16, 16
ATTENTION_BIASES, POSITIONS = 4 * 16, 8 * 16
GPT2 = EMBEDDING + POSITIONS + 2 * (MATRICES + BIASES + ATTENTION_BIASES + 4 * NORM) + 2 * NORM
PARAMETERS = {  # x-transformers has norms without biases
    "x-transformers": GPT2 - 2 * (ATTENTION_BIASES + 2 * NORM) - NORM,
    "litgpt": GPT2 - POSITIONS,
}


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_is_causal_and_has_the_requested_sizes(name: str, seed: int) -> None:
    pytest.importorskip(PACKAGES.get(name, "torch"))
    spec = {"stack": "decoder", "d_model": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 20, "feed_forward": {"ffn_dim": 24}}
    model = peer(name, spec, max_length=8).eval()
    tokens = torch.randint(3, 20, (2, 6))
    logits = model(tokens)
    assert logits.shape == (2, 6, 20)
    changed = model(tokens.index_fill(1, torch.tensor([4, 5]), 3))
    torch.testing.assert_close(changed[:, :4], logits[:, :4])
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS.get(name, GPT2)


@pytest.mark.parametrize("name", ["transformers", "x-transformers", "litgpt"])
def test_a_peer_generates_the_likeliest_tokens(name: str, seed: int) -> None:
    pytest.importorskip(PACKAGES[name])
    spec = {"stack": "decoder", "d_model": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 20}
    model: Any = peer(name, spec, max_length=14).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()  # so that the tokens differ
        prompt = tokens = torch.randint(3, 20, (2, 6))
        for _ in range(8):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
        assert torch.equal(model.generate(prompt, max_length=8, min_length=8), tokens[:, 6:])


@pytest.mark.parametrize("name", [name for name in PEERS if name != "litgpt"])
def test_a_peer_applies_dropout_in_the_same_places_as_our_decoder(name: str, seed: int) -> None:
    pytest.importorskip(PACKAGES.get(name, "torch"))
    spec = {"stack": "decoder", "d_model": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 20, "dropout": 1.0}
    tokens = torch.randint(3, 20, (2, 6))
    for model in (peer(name, spec, max_length=8), compose(**spec, eos_id=None)):
        drops = [module for module in model.modules() if getattr(module, "p", 0)]
        called: list[torch.Size] = []
        for drop in drops:
            drop.register_forward_hook(lambda _module, args, _output, called=called: called.append(args[0].shape))
        assert not model.train()(tokens).any()  # the stream is zero, and so is its norm
        assert called == 5 * [torch.Size([2, 6, 16])]


def test_a_peer_without_dropout_is_rejected_against_a_model_with_dropout() -> None:
    pytest.importorskip(PACKAGES["litgpt"])
    spec = {"stack": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 20, "dropout": 0.1}
    with pytest.raises(ConfigurationError, match=r"'litgpt' has no dropout, but the first model's is 0\.1"):
        peer("litgpt", spec, max_length=8)


@pytest.mark.parametrize("name", ["transformers", "x-transformers", "litgpt"])
def test_a_missing_package_is_named_with_its_install_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[name].split(".")[0], None)
    spec = {"stack": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 20}
    with pytest.raises(ConfigurationError, match=f"the peer '{name}' needs the package {name}: pip install"):
        peer(name, spec, max_length=8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SMALL, "--work", "decode", "--compile"], "--compile has no effect on decode: remove it, or time step or forward"),
        ([SMALL, "--processes", "2"], "--processes is for the rates of the machine: name no recipe"),
        (["--lengths", "16"], "--lengths is for models: name a recipe"),
        (["{d_model: 4}"], "names no stack to build"),
        ([SMALL[:-1] + ", vocab_size: 9}"], "has vocab_size, but --vocab 8192 is the vocabulary of all models"),
        ([SMALL, "--rounds", "0"], "must be at least 1"),
        ([SMALL, SMALL], "is given twice"),
        (["{stack: encoder, d_model: 16, num_layers: 1, num_heads: 2}", "--peers", "torch"], "--peers are decoders"),
    ],
)
def test_wrong_arguments_are_rejected_with_a_message(attnkit: Any, arguments: list[str], message: str) -> None:
    outcome = attnkit("bench", *arguments)
    assert outcome.status == 2
    assert message in outcome.err
