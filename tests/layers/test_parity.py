"""Equal outputs with torch's own Transformer after copying weights, in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnkit
from attnkit import masks
from attnkit.layers import Transformer, TransformerLayer
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.multi_head import MultiHeadAttention

B, S, T, D, H, F = 3, 7, 5, 16, 4, 24
SIZES: dict[str, Any] = {"d_model": D, "num_heads": H}
FEED_FORWARD = {"name": "mlp", "ffn_dim": F}


def copy_linear(ours: nn.Linear, torchs: nn.Linear) -> None:
    ours.load_state_dict(torchs.state_dict())


@torch.no_grad()
def copy_attention(ours: MultiHeadAttention, torchs: nn.MultiheadAttention) -> None:
    for part, weight, bias in zip(
        (ours.query, ours.key, ours.value), torchs.in_proj_weight.chunk(3), torchs.in_proj_bias.chunk(3), strict=True
    ):
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    copy_linear(ours.output, torchs.out_proj)


def copy_layer(ours: TransformerLayer, torchs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> None:
    copy_attention(ours.mixer, torchs.self_attn)
    residuals = [ours.mixer_residual, ours.feed_forward_residual]
    if isinstance(torchs, nn.TransformerDecoderLayer):
        assert ours.cross_mixer is not None
        assert ours.cross_mixer_residual is not None
        copy_attention(ours.cross_mixer, torchs.multihead_attn)
        residuals.insert(1, ours.cross_mixer_residual)
    for i, residual in enumerate(residuals, start=1):
        residual.norm.load_state_dict(getattr(torchs, f"norm{i}").state_dict())
    copy_linear(ours.feed_forward.input, torchs.linear1)
    copy_linear(ours.feed_forward.output, torchs.linear2)


def randomise(module: nn.Module) -> None:
    """Biases and norms are not zero and one, so that a wrong copy shows."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def padding(length: int) -> Tensor:
    """torch's polarity: True = ignore. At least one real token in each row, where torch would give NaN."""
    ignore = torch.rand(B, length) < 0.4
    ignore[:, 0] = False
    return ignore


CAUSAL = ~masks.causal(torch.arange(T)[None], torch.arange(T)[None])[0, 0]  # torch's polarity


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa"])
def test_multi_head_attention(backend: str, seed: int) -> None:
    torchs = nn.MultiheadAttention(D, H, batch_first=True).double().eval()
    ours = MultiHeadAttention(**SIZES, backend=backend, direction="cross").double().eval()
    randomise(torchs)
    copy_attention(ours, torchs)
    x, memory = torch.randn(B, T, D).double(), torch.randn(B, S, D).double()
    ignore, forbidden, bias = padding(S), torch.rand(T, S) < 0.3, torch.randn(B, H, T, S).double()
    forbidden[:, 0] = False
    for key_padding_mask in (None, ignore):
        for attn_mask in (None, forbidden):
            expected, weights = torchs(
                x, memory, memory, key_padding_mask=key_padding_mask, attn_mask=attn_mask, average_attn_weights=False
            )
            key = None if key_padding_mask is None else masks.key(masks.from_torch(key_padding_mask))
            allowed = masks.combine(key, None if attn_mask is None else masks.from_torch(attn_mask))
            with attnkit.record_attention(ours) as maps:
                y, _ = ours(x, Tokens(mask=Mask.of(allowed)), ours.remember(memory, Tokens()))
            assert_equal(y, expected)
            assert_equal(maps[""] if "" in maps else next(iter(maps.values())), weights)
    expected, _ = torchs(x, memory, memory, attn_mask=bias.flatten(0, 1))
    assert_equal(ours(x, Tokens(bias=bias), ours.remember(memory, Tokens()))[0], expected)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer(norm_first: bool, activation: str, seed: int) -> None:
    torchs = nn.TransformerEncoderLayer(D, H, F, activation=activation, norm_first=norm_first, batch_first=True).double().eval()
    feed_forward = {**FEED_FORWARD, "activation": activation}
    ours = TransformerLayer(**SIZES, feed_forward=feed_forward, residual="pre_norm" if norm_first else "post_norm").double()
    randomise(torchs)
    copy_layer(ours, torchs)
    x, ignore = torch.randn(B, T, D).double(), padding(T)
    torchs.train()  # its fast path in evaluation mode rounds otherwise; dropout is set to zero instead
    for module in torchs.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    torchs.self_attn.dropout = 0.0
    assert_equal(ours(x, Tokens())[0], torchs(x))
    mask = Mask.of(masks.combine(masks.key(~ignore), ~CAUSAL))
    assert_equal(ours(x, Tokens(mask=mask))[0], torchs(x, src_mask=CAUSAL, src_key_padding_mask=ignore))


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer(norm_first: bool, seed: int) -> None:
    torchs = nn.TransformerDecoderLayer(D, H, F, dropout=0.0, norm_first=norm_first, batch_first=True).double().eval()
    options = {"feed_forward": FEED_FORWARD, "residual": "pre_norm" if norm_first else "post_norm", "cross_mixer": "multi_head"}
    ours = TransformerLayer(**SIZES, **options).double()
    randomise(torchs)
    copy_layer(ours, torchs)
    x, memory, ignore = torch.randn(B, T, D).double(), torch.randn(B, S, D).double(), padding(S)
    expected = torchs(x, memory, tgt_mask=CAUSAL, memory_key_padding_mask=ignore)
    read = Tokens(mask=Mask.of(masks.key(~ignore)))
    y, _ = ours(x, Tokens(mask=Mask(causal=True)), memory=ours.remember(memory, read), memory_tokens=read)
    assert_equal(y, expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa"])
def test_transformer(norm_first: bool, backend: str, seed: int) -> None:
    torchs = nn.Transformer(D, H, 2, 3, F, dropout=0.0, norm_first=norm_first, batch_first=True).double().train()
    ours = attnkit.stacks.build({
        "name": "encoder_decoder", **SIZES, "num_layers": 2, "num_decoder_layers": 3, "feed_forward": FEED_FORWARD, "position": "none",
        "residual": "pre_norm" if norm_first else "post_norm", "final_norm": True, "backend": backend,
    }).double()  # fmt: skip
    randomise(torchs)
    for half, theirs in ((ours.encoder, torchs.encoder), (ours.decoder, torchs.decoder)):
        assert isinstance(half, Transformer)
        assert half.final_norm is not None
        half.final_norm.load_state_dict(theirs.norm.state_dict())
        for layer, other in zip(half.layers, theirs.layers, strict=True):
            copy_layer(layer, other)  # type: ignore[arg-type]
    src, tgt, ignore = torch.randn(B, S, D).double(), torch.randn(B, T, D).double(), padding(S)
    expected = torchs(src, tgt, tgt_mask=CAUSAL, src_key_padding_mask=ignore, memory_key_padding_mask=ignore)
    y, _ = ours.decode(tgt, ours.encode(src, src_mask=masks.from_torch(ignore)))
    assert_equal(y, expected)
    expected.square().sum().backward()
    y.square().sum().backward()
    assert_equal(ours.encoder.layers[0].feed_forward.input.weight.grad, torchs.encoder.layers[0].linear1.weight.grad)
