"""Families with Llama's module names, layer normalisation and biases."""

from published.family import Family, Rename, Split, add, rename
from published.sizes import DECODER, LLAMA_SIZES

from attnkit.convert import starcoder2

SPEC = {**DECODER, "num_kv_heads": 2, "position": "rotary"}
LAYER, THEIRS = "stack.decoder.layers.{i}", "model.layers.{i}"
EMBEDDING = rename("embedding.weight", "model.embed_tokens.weight")
HEAD = rename("head.projection.weight", "lm_head.weight")
MIXER_NORM = rename(f"{LAYER}.mixer_residual.norm.*", f"{THEIRS}.input_layernorm.*")
NORMS = (*MIXER_NORM, *rename(f"{LAYER}.feed_forward_residual.norm.*", f"{THEIRS}.post_attention_layernorm.*"))
FINAL = rename("stack.decoder.final_norm.*", "model.norm.*")


def attention(output: str = "o_proj", kind: str = "*") -> tuple[Rename, ...]:
    """Return the rows of the four projections."""
    names = (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("output", output))
    return tuple(row for ours, theirs in names for row in rename(f"{LAYER}.mixer.{ours}.{kind}", f"{THEIRS}.self_attn.{theirs}.{kind}"))


def feed_forward(kind: str = "*", **names: str) -> tuple[Rename, ...]:
    """Return the rows of a feed-forward network with these names of maps."""
    return tuple(
        row for ours, theirs in names.items() for row in rename(f"{LAYER}.feed_forward.{ours}.{kind}", f"{THEIRS}.mlp.{theirs}.{kind}")
    )


def plus_one(*rows: Rename) -> tuple[Rename, ...]:
    """Return the rows, with norms whose weights are stored minus one."""
    return tuple(Rename(r.ours, r.theirs, (add(1.0),) if r.ours[0].endswith("norm.weight") else ()) for r in rows)


FAMILIES = (
    Family(
        name="Phi-2",
        paper="https://arxiv.org/abs/2309.05463",
        theirs=("PhiConfig", "PhiForCausalLM"),
        config={
            **LLAMA_SIZES,
            "hidden_size": 40,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.4},
        },
        spec={
            **SPEC,
            "d_model": 40,
            "position": {"name": "rotary", "fraction": 0.4},
            "residual": "parallel",
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu_tanh"},
            "head": {"name": "linear", "bias": True},
        },
        renames=(
            *EMBEDDING,
            *attention("dense"),
            *feed_forward(input="fc1", output="fc2"),
            *MIXER_NORM,
            *rename("stack.decoder.final_norm.*", "model.final_layernorm.*"),
            *rename("head.projection.*", "lm_head.*"),
        ),
        note="`fraction` is 0.5 in Phi-1 and Phi-1.5",
    ),
    Family(
        name="StableLM",
        paper="https://arxiv.org/abs/2402.17834",
        theirs=("StableLmConfig", "StableLmForCausalLM"),
        config={**LLAMA_SIZES, "hidden_size": 32, "use_qkv_bias": True},
        spec={
            **SPEC,
            "d_model": 32,
            "position": {"name": "rotary", "fraction": 0.25},
            "feed_forward": {"name": "glu", "ffn_dim": 24},
            "mixer": {"name": "multi_head", "biases": ["query", "key", "value"]},
        },
        renames=(
            *EMBEDDING,
            *attention(kind="weight"),
            *attention(kind="bias")[:3],
            *feed_forward("weight", gate="gate_proj", input="up_proj", output="down_proj"),
            *NORMS,
            *FINAL,
            *HEAD,
        ),
        note="StableLM 2 12B is parallel and normalises each query and key head with its own weights; the latter is missing here",
    ),
    Family(
        name="StarCoder2",
        paper="https://arxiv.org/abs/2402.19173",
        theirs=("Starcoder2Config", "Starcoder2ForCausalLM"),
        config={**LLAMA_SIZES, "sliding_window": 4, "residual_dropout": 0.0, "embedding_dropout": 0.0},
        spec={**SPEC, "window": 4, "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu_tanh"}, "tie": "output"},
        renames=starcoder2.renames({"tie": "output"}),
    ),
    Family(
        name="Nemotron-4",
        paper="https://arxiv.org/abs/2402.16819",
        theirs=("NemotronConfig", "NemotronForCausalLM"),
        config={**LLAMA_SIZES, "head_dim": 4},
        spec={
            **SPEC,
            "bias": False,
            "position": {"name": "rotary", "fraction": 0.5},
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "relu_squared", "bias": False},
        },
        renames=plus_one(
            *EMBEDDING, *attention(kind="weight"), *feed_forward("weight", input="up_proj", output="down_proj"), *NORMS, *FINAL, *HEAD
        ),
    ),
    Family(
        name="Jais 2",
        paper="https://huggingface.co/inceptionai/Jais-2-8B-Chat",
        theirs=("Jais2Config", "Jais2ForCausalLM"),
        config={**LLAMA_SIZES, "head_dim": 4, "layer_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        spec={
            **SPEC,
            "position": {"name": "rotary", "base": 500000.0},
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "relu_squared"},
        },
        renames=(*EMBEDDING, *attention(), *feed_forward(input="up_proj", output="down_proj"), *NORMS, *FINAL, *HEAD),
    ),
    Family(
        name="Persimmon",
        paper="https://www.adept.ai/blog/persimmon-8b",
        theirs=("PersimmonConfig", "PersimmonForCausalLM"),
        config=LLAMA_SIZES,
        spec={
            **SPEC,
            "num_kv_heads": 4,
            "query_key_norm": "layer_norm",
            "position": {"name": "rotary", "fraction": 0.5},
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "relu_squared"},
        },
        renames=(
            *EMBEDDING,
            *rename(
                tuple(f"{LAYER}.mixer.{x}.*" for x in ("query", "key", "value")),
                f"{THEIRS}.self_attn.query_key_value.*",
                Split((4, 4, 4), 4),
            ),
            *rename(f"{LAYER}.mixer.output.*", f"{THEIRS}.self_attn.dense.*"),
            *rename(f"{LAYER}.mixer.query_norm.*", f"{THEIRS}.self_attn.q_layernorm.*"),
            *rename(f"{LAYER}.mixer.key_norm.*", f"{THEIRS}.self_attn.k_layernorm.*"),
            *feed_forward(input="dense_h_to_4h", output="dense_4h_to_h"),
            *NORMS,
            *rename("stack.decoder.final_norm.*", "model.final_layernorm.*"),
            *HEAD,
        ),
    ),
)
