"""The small sizes of the tests, under the names of most transformers configurations and under ours."""

from typing import Any

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 40,
    "max_position_embeddings": 64,
}
LLAMA_SIZES: dict[str, Any] = {**SIZES, "intermediate_size": 24, "num_key_value_heads": 2}
SEQ2SEQ_SIZES: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "vocab_size": 40,
    "bos_token_id": 1,
    "decoder_start_token_id": 1,
}

WIDTHS: dict[str, Any] = {"d_model": 16, "num_layers": 2, "num_heads": 4}
DECODER: dict[str, Any] = {"stack": "decoder", **WIDTHS, "vocab_size": 40, "embedding": {"name": "token", "scale": False}}
LLAMA: dict[str, Any] = {**DECODER, "num_kv_heads": 2, "bias": False, "position": "rotary", "norm": "rms_norm"}
SEQ2SEQ: dict[str, Any] = {
    "stack": "encoder_decoder",
    **WIDTHS,
    "src_vocab_size": 40,
    "tgt_vocab_size": 40,
    "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu"},
}


def without(spec: dict[str, Any], *options: str) -> dict[str, Any]:
    """Return a spec or configuration without some entries."""
    return {key: value for key, value in spec.items() if key not in options}
