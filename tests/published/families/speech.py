"""Models of speech. We have no counterpart of their convolutions over frames, so stacks are compared on embedded frames."""

from typing import Any

from published.family import Family, Rename, rename
from published.sizes import SEQ2SEQ, SEQ2SEQ_SIZES, WIDTHS
from torch import Tensor
from torch.nn.functional import gelu

SIZES = {**SEQ2SEQ_SIZES, "max_target_positions": 20}
FAIRSEQ = {"name": "sinusoidal", "interleaved": False, "base": 10_000.0 ** (8 / 7)}
SPEC: dict[str, Any] = {**SEQ2SEQ, "tie": "output"}
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
NO_KEY_BIAS = {"name": "multi_head", "biases": ["query", "value", "output"]}


ENCODER = {"name": "encoder", **WIDTHS, "feed_forward": SPEC["feed_forward"]}


def table(*, key_bias: bool = True, encoder: str = "stack.encoder") -> tuple[Rename, ...]:
    """Return the renames; `encoder` is ours."""
    rows = list(rename("embeddings.tgt.weight", "model.decoder.embed_tokens.weight"))
    for side, stack, sublayers in (
        ("encoder", encoder, {"mixer": "self_attn"}),
        ("decoder", "stack.decoder", {"mixer": "self_attn", "cross_mixer": "encoder_attn"}),
    ):
        ours, theirs = f"{stack}.layers.{{i}}", f"model.{side}.layers.{{i}}"
        for sublayer, their_sublayer in sublayers.items():
            for our_part, their_part in PROJECTIONS.items():
                kind = "weight" if our_part == "key" and not key_bias else "*"
                rows += rename(f"{ours}.{sublayer}.{our_part}.{kind}", f"{theirs}.{their_sublayer}.{their_part}.{kind}")
            rows += rename(f"{ours}.{sublayer}_residual.norm.*", f"{theirs}.{their_sublayer}_layer_norm.*")
        rows += rename(f"{ours}.feed_forward.input.*", f"{theirs}.fc1.*")
        rows += rename(f"{ours}.feed_forward.output.*", f"{theirs}.fc2.*")
        rows += rename(f"{ours}.feed_forward_residual.norm.*", f"{theirs}.final_layer_norm.*")
        rows += rename(f"{stack}.final_norm.*", f"model.{side}.layer_norm.*")
    return tuple(rows)


def whisper_frames(model: Any, features: Tensor) -> Tensor:
    encoder = model.model.encoder
    embedded: Tensor = gelu(encoder.conv2(gelu(encoder.conv1(features)))).transpose(1, 2)
    return embedded


def speech_to_text_frames(model: Any, features: Tensor) -> Tensor:
    encoder = model.model.encoder
    embedded: Tensor = encoder.embed_scale * encoder.conv(features)
    return embedded


def wav2vec2_frames(model: Any, wave: Tensor) -> Tensor:
    projected = model.feature_projection(model.feature_extractor(wave).transpose(1, 2))
    frames: Tensor = projected[0] if isinstance(projected, tuple) else projected
    embedded: Tensor = frames + model.encoder.pos_conv_embed(frames)
    return embedded


WAVE_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "conv_dim": [8, 8],
    "conv_kernel": [4, 4],
    "conv_stride": [3, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
WAVE = {
    "mixer.query": "attention.q_proj",
    "mixer.key": "attention.k_proj",
    "mixer.value": "attention.v_proj",
    "mixer.output": "attention.out_proj",
    "mixer_residual.norm": "layer_norm",
    "feed_forward.input": "feed_forward.intermediate_dense",
    "feed_forward.output": "feed_forward.output_dense",
    "feed_forward_residual.norm": "final_layer_norm",
}


def wave(name: str, paper: str, classes: str) -> Family:
    """Return a family with wav2vec 2.0's encoder."""
    return Family(
        name=name,
        paper=paper,
        theirs=(f"{classes}Config", f"{classes}Model"),
        config=WAVE_SIZES,
        spec={
            "stack": "encoder",
            "d_model": 16,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 40,
            "position": "none",
            "residual": "post_norm",
            "embedding_norm": True,
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu"},
        },
        renames=(
            *rename("stack.encoder.embedding_norm.*", "encoder.layer_norm.*"),
            *(row for a, b in WAVE.items() for row in rename(f"stack.encoder.layers.{{i}}.{a}.*", f"encoder.layers.{{i}}.{b}.*")),
        ),
        unread=("feature_extractor.*", "feature_projection.*", "encoder.pos_conv_embed.*", "masked_spec_embed"),
        inputs=("input_values", (60,)),
        front=wav2vec2_frames,
        output="last_hidden_state",
        padding=None,
        note="Only the stack, on embedded frames: attnkit has no convolutions over samples, nor over frames as positions.",
    )


FAMILIES = (
    Family(
        name="Whisper",
        paper="https://arxiv.org/abs/2212.04356",
        theirs=("WhisperConfig", "WhisperForConditionalGeneration"),
        config={**SIZES, "num_mel_bins": 6, "max_source_positions": 20, "pad_token_id": 0},
        spec={
            **SPEC,
            "encoder": {**ENCODER, "position": FAIRSEQ, "mixer": NO_KEY_BIAS},
            "position": {"name": "learned", "max_length": 20},
            "embedding": {"name": "token", "scale": False},
            "mixer": NO_KEY_BIAS,
            "cross_mixer": NO_KEY_BIAS,
        },
        renames=(
            *table(key_bias=False, encoder="stack.encoder.encoder"),
            *rename("stack.decoder.position.weight", "model.decoder.embed_positions.weight"),
        ),
        unread=("model.encoder.conv1.*", "model.encoder.conv2.*", "model.encoder.embed_positions.weight"),
        inputs=("input_features", (6, 40)),
        front=whisper_frames,
        padding=None,
        note="On embedded frames: attnkit has no convolutions over spectra.",
    ),
    Family(
        name="Speech2Text",
        paper="https://arxiv.org/abs/2010.05171",
        theirs=("Speech2TextConfig", "Speech2TextForConditionalGeneration"),
        config={**SIZES, "pad_token_id": 1, "max_source_positions": 60, "input_feat_per_channel": 6, "conv_channels": 8},
        spec={
            **SPEC,
            "position": {**FAIRSEQ, "first": 2},
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "relu"},
        },
        renames=table(),
        unread=("model.encoder.conv.*",),
        inputs=("input_features", (30, 6)),
        front=speech_to_text_frames,
        padding=None,
        note="On embedded frames: attnkit has no convolutions over spectra.",
    ),
    wave("wav2vec 2.0", "https://arxiv.org/abs/2006.11477", "Wav2Vec2"),
    wave("HuBERT", "https://arxiv.org/abs/2106.07447", "Hubert"),
)
