"""An encoder-decoder whose encoder is another stack."""

from typing import Any

import pytest
import torch

import attnkit
from attnkit import ConfigurationError

ENCODERS: dict[str, dict[str, Any]] = {
    "recurrent": {"name": "recurrent_encoder", "d_model": 16, "num_layers": 1, "cell": "gru"},
    "transformer": {"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 4, "position": "rotary", "norm": "rms_norm"},
}
SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 2, "num_heads": 2}


@pytest.fixture(params=sorted(ENCODERS))
def model(request: pytest.FixtureRequest, seed: int) -> Any:
    spec = {"stack": "encoder_decoder", **SIZES, "encoder": ENCODERS[request.param], "src_vocab_size": 20, "tgt_vocab_size": 30}
    return attnkit.compose(**spec).double().eval()


@torch.no_grad()
def test_the_decoder_reads_the_encoders_output(model: Any) -> None:
    src, tgt = torch.randint(3, 20, (2, 7)), torch.randint(3, 30, (2, 5))
    alone = attnkit.stacks.build(model.spec["encoder"]).double().eval()
    alone.load_state_dict(model.stack.encoder.state_dict())
    state = model.stack.decoder.start(alone(model.embeddings["src"](src)))
    x, _ = model.stack.decoder(model.embeddings["tgt"](tgt), state=state)
    torch.testing.assert_close(model(src, tgt), model.head(x), rtol=0, atol=1e-12)
    other = src.clone()
    other[:, -1] = 3 + (src[:, -1] - 2) % 17
    assert not torch.allclose(model(other, tgt), model(src, tgt))


@torch.no_grad()
def test_stepwise_decoding_equals_the_full_pass(model: Any) -> None:
    src, tgt = torch.randint(3, 20, (2, 7)), torch.randint(3, 30, (2, 5))
    whole, state = model(src, tgt), model.encode(src)
    for t in range(5):
        step, state = model.step(tgt[:, t : t + 1], state)
        torch.testing.assert_close(step, whole[:, t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_of_the_source_has_no_effect(model: Any, side: str) -> None:
    src, tgt = torch.randint(3, 20, (2, 7)), torch.randint(3, 30, (2, 5))
    padding = torch.randint(3, 20, (2, 3))
    real, fill = torch.ones_like(src, dtype=torch.bool), torch.zeros_like(padding, dtype=torch.bool)
    padded, mask = (torch.cat(pair if side == "right" else pair[::-1], 1) for pair in ((src, padding), (real, fill)))
    torch.testing.assert_close(model(padded, tgt, mask), model(src, tgt), rtol=0, atol=1e-12)
    assert torch.equal(model.generate(padded, mask, max_length=6), model.generate(src, max_length=6))


def test_the_spec_builds_the_same_model_and_every_parameter_learns(model: Any) -> None:
    again = attnkit.compose(**model.spec).double().eval()
    again.load_state_dict(model.state_dict())
    src, tgt = torch.randint(3, 20, (2, 7)), torch.randint(3, 30, (2, 5))
    logits = again(src, tgt)
    assert torch.equal(logits, model(src, tgt))
    logits.square().sum().backward()
    assert all(p.grad is not None for p in again.parameters())


def test_mismatched_encoders_and_duplicate_layer_counts_are_rejected() -> None:
    build = attnkit.stacks.build
    wide = {**ENCODERS["recurrent"], "d_model": 32}
    with pytest.raises(ConfigurationError, match="d_model is 16, but the encoder's is 32"):
        build({"name": "encoder_decoder", **SIZES, "encoder": wide})
    with pytest.raises(ConfigurationError, match="'decoder' is not an encoder stack; choose one of: encoder, recurrent_encoder"):
        build({"name": "encoder_decoder", **SIZES, "encoder": {**SIZES, "name": "decoder"}})
    with pytest.raises(ConfigurationError, match="num_layers and layers are the decoder's"):
        build({"name": "encoder_decoder", **SIZES, "encoder": ENCODERS["recurrent"], "num_decoder_layers": 3})
