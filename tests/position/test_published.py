"""Position encodings against transformers' implementations."""

import numpy as np
import pytest
import torch

import attnkit
from attnkit.mixer import Tokens
from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.position import QueryBias

pytest.importorskip("transformers")


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 7, 8, 12, 20, 24, 32, 40, 112])
def test_alibi_matches_bloom(heads: int) -> None:
    """BLOOM adds slope times key position: the same but for a number per row, which no softmax sees."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    t = torch.arange(11)[None]
    theirs = build_alibi_tensor(torch.ones(1, 11, dtype=torch.long), heads, torch.float32)[:, 0].double()  # [H, K]
    ours = attnkit.positions.build("alibi", num_heads=heads).double().bias(t, t)[0]
    for i in range(11):
        torch.testing.assert_close(ours[:, i, : i + 1], theirs[:, : i + 1] - theirs[:, i : i + 1], rtol=2e-6, atol=0)  # theirs are fp32


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (32, 20), (64, 500)])
def test_relative_buckets_match_t5(bidirectional: bool, buckets: int, max_distance: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    offsets = torch.arange(-3000, 3001)
    theirs = T5Attention._relative_position_bucket(offsets, bidirectional, buckets, max_distance)
    spec = {"name": "relative", "num_buckets": buckets, "max_distance": max_distance}
    assert torch.equal(attnkit.positions.build(spec, num_heads=1, bidirectional=bidirectional).buckets(offsets), theirs)


def test_sinusoidal_with_sines_first_matches_marian() -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(50, 12).create_weight()
    ours = attnkit.positions.build({"name": "sinusoidal", "interleaved": False}, d_model=12).double().embedding(torch.arange(50)[None])[0]
    assert np.array_equal(ours.float().numpy(), theirs.numpy())


def test_sinusoidal_with_another_base_matches_whisper() -> None:
    from transformers.models.whisper.modeling_whisper import sinusoids

    d_model = 12
    spec = {"name": "sinusoidal", "interleaved": False, "base": 10_000.0 ** (6 / 5)}
    ours = attnkit.positions.build(spec, d_model=d_model).double().embedding(torch.arange(50)[None])[0]
    torch.testing.assert_close(ours.float(), sinusoids(50, d_model), rtol=0, atol=1e-5)  # their angles are fp32: 50 radians to 4e-6


def test_sinusoidal_from_another_first_position_matches_m2m_100() -> None:
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(50, 12, padding_idx=1)
    spec = {"name": "sinusoidal", "interleaved": False, "base": 10_000.0 ** (6 / 5), "first": 2}
    ours = attnkit.positions.build(spec, d_model=12).double().embedding(torch.arange(48)[None])[0]
    torch.testing.assert_close(ours.float(), theirs[2:], rtol=0, atol=1e-5)  # their angles are fp32: 50 radians to 4e-6


def test_shaw_matches_the_relative_key_of_wav2vec2_bert(seed: int) -> None:
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertConfig, Wav2Vec2BertSelfAttention

    config = Wav2Vec2BertConfig(
        hidden_size=16,
        num_attention_heads=4,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=3,
        right_max_position_embeddings=3,
        attention_dropout=0.0,
    )
    theirs = Wav2Vec2BertSelfAttention(config).double().eval()
    ours = MultiHeadAttention(d_model=16, num_heads=4, direction="bidirectional").double()
    shaw = attnkit.positions.build({"name": "shaw", "max_distance": 3}, head_dim=4, bidirectional=True).double()
    for name, linear in {"query": "q", "key": "k", "value": "v", "output": "out"}.items():
        getattr(ours, name).load_state_dict(getattr(theirs, f"linear_{linear}").state_dict())
    shaw.weight.data = theirs.distance_embedding.weight.data
    x, t = torch.randn(2, 9, 16).double(), torch.arange(9)[None]
    expected = theirs(x)[0]
    y, _ = ours(x, Tokens(bias=QueryBias(shaw, t, t)))
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    for result in (y, expected):
        result.square().sum().backward()
    torch.testing.assert_close(shaw.weight.grad, theirs.distance_embedding.weight.grad, rtol=0, atol=1e-10)
