"""Llama and the families with its names."""

from published.family import Family, rename

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 64,
}
SPEC = {
    "stack": "decoder",
    "d_model": 16,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "vocab_size": 40,
    "bias": False,
    "position": "rotary",
    "norm": "rms_norm",
    "feed_forward": {"name": "glu", "ffn_dim": 24},
    "embedding": {"name": "token", "scale": False},
}
LAYER = "stack.decoder.layers.{i}"
OUTSIDE = (
    *rename("embedding.weight", "model.embed_tokens.weight"),
    *rename("stack.decoder.final_norm.weight", "model.norm.weight"),
)
HEAD = rename("head.projection.weight", "lm_head.weight")
ATTENTION = tuple(
    row
    for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o"))
    for row in rename(f"{LAYER}.mixer.{ours}.weight", f"model.layers.{{i}}.self_attn.{theirs}_proj.weight")
)
QUERY_KEY_NORM = tuple(
    row for x in ("query", "key") for row in rename(f"{LAYER}.mixer.{x}_norm.weight", f"model.layers.{{i}}.self_attn.{x[0]}_norm.weight")
)
GLU = tuple(
    row
    for ours, theirs in (("gate", "gate"), ("input", "up"), ("output", "down"))
    for row in rename(f"{LAYER}.feed_forward.{ours}.weight", f"model.layers.{{i}}.mlp.{theirs}_proj.weight")
)
NORMS = (
    *rename(f"{LAYER}.mixer_residual.norm.weight", "model.layers.{i}.input_layernorm.weight"),
    *rename(f"{LAYER}.feed_forward_residual.norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
)
BODY = (*OUTSIDE, *ATTENTION, *GLU, *NORMS)

FAMILIES = (
    Family(
        name="Llama 2",
        paper="https://arxiv.org/abs/2307.09288",
        theirs=("LlamaConfig", "LlamaForCausalLM"),
        config=SIZES,
        spec=SPEC,
        renames=(*BODY, *HEAD),
    ),
    Family(
        name="Qwen3",
        paper="https://arxiv.org/abs/2505.09388",
        theirs=("Qwen3Config", "Qwen3ForCausalLM"),
        config={**SIZES, "head_dim": 8},
        spec={**SPEC, "head_dim": 8, "query_key_norm": "rms_norm"},
        renames=(*BODY, *QUERY_KEY_NORM, *HEAD),
    ),
)
