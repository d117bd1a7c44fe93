"""The encoder-decoders that `attnkit bench` times with ours have its sizes and dropout, and the hand-written one its outputs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit import compose
from attnkit.profile import ceilings
from attnkit.profile.pair_peers import PAIR_PEERS
from attnkit.profile.peers import peer
from attnkit.registry import ConfigurationError

PACKAGES = {"transformers": "transformers", "x-transformers": "x_transformers"}
D_MODEL, LENGTH, ENCODER, DECODER = 16, 8, 2, 3


@pytest.fixture(params=PAIR_PEERS)
def name(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(PACKAGES.get(request.param, "torch"))
    return str(request.param)


def pair(**options: Any) -> Any:
    return compose(
        **{
            "stack": "encoder_decoder", "d_model": D_MODEL, "num_layers": ENCODER, "num_decoder_layers": DECODER, "num_heads": 2,
            "src_vocab_size": 20, "tgt_vocab_size": 30, "position": {"name": "learned", "max_length": LENGTH}, "tie": "output",
            "feed_forward": {"name": "mlp", "ffn_dim": 24}, "embedding": {"name": "token", "scale": False}, "eos_id": None, **options,
        }
    )  # fmt: skip


def tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(3, 20, (2, 7)), torch.randint(3, 30, (2, 6))


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("residual", ["pre_norm", "post_norm"])
def test_a_peer_has_as_many_parameters_and_a_causal_decoder(name: str, residual: str, seed: int) -> None:
    ours = pair(residual=residual)
    model = peer(name, ours.spec, max_length=LENGTH).eval()
    src, tgt = tokens()
    logits = model(src, tgt)
    assert logits.shape == (2, 6, 30)
    torch.testing.assert_close(model(src, tgt.index_fill(1, torch.tensor([4, 5]), 3))[:, :4], logits[:, :4])
    assert not torch.allclose(model(src.index_fill(1, torch.tensor([6]), 3), tgt)[:, 0], logits[:, 0])
    final_norms = 2 * 2 * D_MODEL
    expected = count(ours) + {("torch", "post_norm"): final_norms, ("transformers", "pre_norm"): -final_norms}.get((name, residual), 0)
    if name == "x-transformers":
        attentions, norms = ENCODER + 2 * DECODER, 2 * ENCODER + 3 * DECODER + 2 * (residual == "pre_norm")
        expected -= D_MODEL * (4 * attentions + norms)  # their biases
    assert count(model) == expected


def test_a_peer_trains_all_its_parameters(name: str, seed: int) -> None:
    model = peer(name, pair().spec, max_length=LENGTH)
    src, tgt = tokens()
    F.cross_entropy(model(src, tgt).flatten(0, 1), tgt.flatten()).backward()
    frozen = {key for key, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()}
    assert frozen == (
        {f"model.model.{part}.embed_positions.weight" for part in ("encoder", "decoder")} if name == "transformers" else set()
    )


def test_tied_tables_are_shared_as_in_the_first_model(name: str, seed: int) -> None:
    spec = pair(src_vocab_size=30).spec
    assert count(peer(name, spec, max_length=LENGTH)) - count(peer(name, {**spec, "tie": "all"}, max_length=LENGTH)) == 30 * D_MODEL


def test_a_peer_applies_dropout_in_the_same_places_as_our_model(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = pair(dropout=1.0)
    called: list[int] = []

    def dropped(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if p and training:
            called.append(x.shape[1])
        return torch.dropout(x, p, training)

    for module in (module for module in ours.modules() if getattr(module, "p", 0)):
        module.register_forward_hook(lambda _module, args, _output: called.append(args[0].shape[1]))
    monkeypatch.setattr(F, "dropout", dropped)
    attention = F.scaled_dot_product_attention
    rates: set[float] = set()

    def attended(*arguments: Any, dropout_p: float = 0.0, **options: Any) -> Tensor:
        rates.add(arguments[4] if len(arguments) > 4 else dropout_p)
        return attention(*arguments, dropout_p=dropout_p, **options) if len(arguments) < 5 else attention(*arguments, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attended)
    src, tgt = tokens()
    for model in (ours, peer(name, ours.spec, max_length=LENGTH)):
        called.clear()
        model.train()(src, tgt)
        assert sorted(called) == (1 + 3 * DECODER) * [6] + (1 + 2 * ENCODER) * [7]
    assert rates == {0.0}


OURS = {
    "up": ["feed_forward.input"], "down": ["feed_forward.output"], "ffn_norm": ["feed_forward_residual.norm"],
    "input": ["mixer.query", "mixer.key", "mixer.value"], "output": ["mixer.output"], "norm": ["mixer_residual.norm"],
    "query": ["cross_mixer.query"], "key_value": ["cross_mixer.key", "cross_mixer.value"], "cross_output": ["cross_mixer.output"],
    "cross_norm": ["cross_mixer_residual.norm"], "encoder_norm": ["stack.encoder.final_norm"], "decoder_norm": ["stack.decoder.final_norm"],
    "src": ["embeddings.src"], "tgt": ["embeddings.tgt"], "src_positions": ["stack.encoder.position"],
    "tgt_positions": ["stack.decoder.position"],
}  # fmt: skip
"""The modules of our model whose weights are those of a module of the hand-written peer."""


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_hand_written_peer_computes_what_our_model_does(activation: str, seed: int) -> None:
    ours = pair(feed_forward={"name": "mlp", "ffn_dim": 24, "activation": activation}).double()
    model: Any = peer("torch", ours.spec, max_length=LENGTH).double()
    own = ours.state_dict()
    copied: dict[str, Tensor] = {}
    for key in model.state_dict():
        *place, part, kind = key.split(".")
        prefix = "".join(f"stack.{stack}.layers.{layer}." for stack, layer in zip(place[::2], place[1::2], strict=True))
        copied[key] = torch.cat([own[f"{prefix}{module}.{kind}"] for module in OURS[part]])
    model.load_state_dict(copied)
    src, tgt = tokens()
    torch.testing.assert_close(model(src, tgt), ours(src, tgt))


@pytest.mark.parametrize("name", PACKAGES)
def test_a_peer_writes_the_likeliest_tokens(name: str, seed: int) -> None:
    pytest.importorskip(PACKAGES[name])
    model: Any = peer(name, pair().spec, max_length=LENGTH).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()  # so that the tokens differ
        src, written = tokens()[0], torch.ones(2, 1, dtype=torch.long)
        for _ in range(6):
            written = torch.cat([written, model(src, written)[:, -1:].argmax(-1)], 1)
        assert torch.equal(model.generate(src, max_length=6, min_length=6), written[:, 1:])


def test_peers_of_a_pair_are_timed(attnkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(ceilings, "LONG", 0.0)
    spec = "{stack: encoder_decoder, d_model: 16, num_layers: 1, num_heads: 2, tie: output}"
    files = [tmp_path / file for file in ("rows.json", "plot.svg")]
    sizes = ["--lengths", 4, "--batch", 2, "--rounds", 1, "--vocab", 20, "--work", "forward", "prefill"]
    outcome = attnkit("bench", spec, *sizes, "--peers", "torch", "transformers", "--json", files[0], "--svg", files[1])
    assert outcome.status == 0, outcome.err
    rows = json.loads(files[0].read_text())["rows"]
    names = [(row["work"], row["name"]) for row in rows]
    assert names == [*(("forward", name) for name in (spec, "torch", "transformers")), ("prefill", spec), ("prefill", "transformers")]
    used = {row["name"]: row["utilisation"] * row["milliseconds"] for row in rows if row["work"] == "forward"}
    assert used["torch"] == pytest.approx(used[spec])  # the same matrix products
    assert files[1].read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tie": "none"}, "--peers tie the output to the target embedding, but the first model's tie is 'none'"),
        ({"tie": "inputs"}, "the first model's tie is 'inputs'"),
        ({"feed_forward": {"name": "glu"}}, "--peers have the feed-forward network 'mlp', but the first model's is 'glu'"),
        ({"feed_forward": {"name": "mlp", "activation": "silu"}}, "--peers compute relu or gelu, but the first model silu"),
        ({"encoder": {"name": "recurrent_encoder"}}, "an encoder of tokens with the decoder's options"),
        ({"src_vocab_size": None}, "an encoder of tokens with the decoder's options"),
        ({"num_layers": None}, "--peers need num_layers, which the first model lacks"),
        ({"stack": "decoder", "num_heads": None}, "--peers need num_heads, which the first model lacks"),
    ],
)
def test_a_model_without_a_counterpart_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        peer("torch", {**pair().spec, **changes}, max_length=LENGTH)


def test_litgpt_has_no_encoder_decoder() -> None:
    with pytest.raises(ConfigurationError, match="'litgpt' is no encoder-decoder; choose among: torch, "):
        peer("litgpt", pair().spec, max_length=LENGTH)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_named_with_its_install_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    with pytest.raises(ConfigurationError, match=f"the peer '{name}' needs the package {name}: pip install 'attnkit"):
        peer(name, pair().spec, max_length=LENGTH)
