"""T5 and its relatives."""

from published.family import Family, Rename, rename

SIZES = {
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 40,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
SPEC = {
    "stack": "encoder_decoder",
    "d_model": 16,
    "head_dim": 6,
    "num_layers": 2,
    "num_heads": 4,
    "src_vocab_size": 40,
    "tgt_vocab_size": 40,
    "attention": "dot_product",
    "bias": False,
    "position": {"name": "relative", "num_buckets": 8, "max_distance": 10},
    "norm": "rms_norm",
    "feed_forward": {"name": "mlp", "ffn_dim": 24, "bias": False},
    "embedding": {"name": "token", "scale": False},
    "tie": "all",
    "head": {"name": "linear", "scale": 0.25},
}
GATED = {"feed_forward": {"name": "glu", "ffn_dim": 24, "activation": "gelu_tanh"}, "tie": "inputs", "head": "linear"}
PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "o"}
MLP = {"input": "wi", "output": "wo"}
GLU = {"gate": "wi_0", "input": "wi_1", "output": "wo"}


def table(feed_forward: dict[str, str], *, biases_by_layer: bool = False) -> tuple[Rename, ...]:
    """Return the renames of everything but the head."""
    rows = list(rename("embeddings.shared.weight", "shared.weight"))
    for side, sublayers in (("encoder", ("mixer", "feed_forward")), ("decoder", ("mixer", "cross_mixer", "feed_forward"))):
        for number, sublayer in enumerate(sublayers):
            ours, theirs = f"stack.{side}.layers.{{i}}.{sublayer}", f"{side}.block.{{i}}.layer.{number}"
            kind = {"mixer": "SelfAttention", "cross_mixer": "EncDecAttention", "feed_forward": "DenseReluDense"}[sublayer]
            parts = feed_forward if sublayer == "feed_forward" else PROJECTIONS
            for our_part, their_part in parts.items():
                rows += rename(f"{ours}.{our_part}.weight", f"{theirs}.{kind}.{their_part}.weight")
            rows += rename(f"{ours}_residual.norm.weight", f"{theirs}.layer_norm.weight")
        rows += rename(f"stack.{side}.final_norm.weight", f"{side}.final_layer_norm.weight")
        rows += rename(f"stack.{side}.position.weight", f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
        if biases_by_layer:
            bias = f"{side}.block.1.layer.0.SelfAttention.relative_attention_bias.weight"
            rows += rename(f"stack.{side}.other_positions.0.weight", bias)
    return tuple(rows)


HEAD = rename("head.projection.weight", "lm_head.weight")
GATED_SIZES = {**SIZES, "feed_forward_proj": "gated-gelu"}
UNTIED = {"tie_word_embeddings": False, "scale_decoder_outputs": False}  # the configuration's constructor overwrites it

FAMILIES = (
    Family(
        name="T5",
        paper="https://arxiv.org/abs/1910.10683",
        theirs=("T5Config", "T5ForConditionalGeneration"),
        config=SIZES,
        spec=SPEC,
        renames=table(MLP),
        padding="right",
        note="The head's `scale` is `d_model`^-0.5.",
    ),
    Family(
        name="T5 1.1",
        paper="https://arxiv.org/abs/2002.05202",
        theirs=("T5Config", "T5ForConditionalGeneration"),
        config=GATED_SIZES,
        spec={**SPEC, **GATED},
        overrides=UNTIED,
        renames=(*table(GLU), *HEAD),
        padding="right",
    ),
    Family(
        name="mT5",
        paper="https://arxiv.org/abs/2010.11934",
        theirs=("MT5Config", "MT5ForConditionalGeneration"),
        config=GATED_SIZES,
        spec={**SPEC, **GATED},
        overrides=UNTIED,
        renames=(*table(GLU), *HEAD),
        padding="right",
    ),
    Family(
        name="ByT5",
        paper="https://arxiv.org/abs/2105.13626",
        theirs=("T5Config", "T5ForConditionalGeneration"),
        config={**GATED_SIZES, "num_layers": 3, "num_decoder_layers": 1},
        spec={**SPEC, **GATED, "num_layers": 3, "num_decoder_layers": 1},
        overrides=UNTIED,
        renames=(*table(GLU), *HEAD),
        padding="right",
        note="The encoder is three times as deep as the decoder.",
    ),
    Family(
        name="UMT5",
        paper="https://arxiv.org/abs/2304.09151",
        theirs=("UMT5Config", "UMT5ForConditionalGeneration"),
        config=GATED_SIZES,
        spec={**SPEC, **GATED, "shared_positions": False},
        overrides=UNTIED,
        renames=(*table(GLU, biases_by_layer=True), *HEAD),
        padding="right",
    ),
)
