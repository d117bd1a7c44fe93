"""Decoders with Llama's module names but other norms, feed-forward networks or factors."""

from math import exp

from published.families.llama import INTERLEAVED, LLAMA3, LLAMA3_SCALING, LOCAL, TIED, default, family, rms
from published.family import Constant, Permute, Rename, Scale, Stack, rename

from attnkit.convert import phi3
from attnkit.convert.llama import ATTENTION, BIASES, BODY, GLU, HEAD, LAYER, NORMS, OUTPUT_NORMS, OUTSIDE, QUERY_KEY_NORM, rows

MLP = tuple(
    row
    for ours, theirs in (("input", "up"), ("output", "down"))
    for row in rename(f"{LAYER}.feed_forward.{ours}.weight", f"model.layers.{{i}}.mlp.{theirs}_proj.weight")
)
GATE_UP = phi3.gates(24)
EMBEDDING = OUTSIDE[0]
RELU_SQUARED = {"name": "mlp", "ffn_dim": 24, "activation": "relu_squared", "bias": False}


def halves(heads: int) -> tuple[int, ...]:
    """Return the order of rows that swaps the two halves of each head of width 4."""
    return tuple(4 * head + channel for head in range(heads) for channel in (2, 3, 0, 1))


FAMILIES = (
    family(
        "OLMo 2",
        "https://arxiv.org/abs/2501.00656",
        "Olmo2",
        {},
        {
            "norm": rms(1e-5),
            "residual": "output_norm",
            "query_key_norm": rms(1e-5),
            "mixer": {"name": "multi_head", "query_key_norm_over": "all"},
        },
        (*OUTSIDE, *ATTENTION, *GLU, *OUTPUT_NORMS, *QUERY_KEY_NORM, *HEAD),
    ),
    family(
        "OLMo 3",
        "https://arxiv.org/abs/2512.13961",
        "Olmo3",
        {
            **LOCAL,
            "rope_parameters": {
                "sliding_attention": default(5e5),
                "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 32},
            },
        },
        {
            "norm": rms(1e-5),
            "residual": "output_norm",
            "query_key_norm": rms(1e-5),
            "layers": [
                {"window": 4},
                {"position": {"name": "rotary", "base": 500000.0, "scaling": {"name": "yarn", "factor": 8.0, "original_length": 32}}},
            ],
            "mixer": {"name": "multi_head", "query_key_norm_over": "all"},
            "position": {"name": "rotary", "base": 500000.0},
        },
        (*OUTSIDE, *ATTENTION, *GLU, *OUTPUT_NORMS, *QUERY_KEY_NORM, *HEAD),
        note="The published `rope_scaling` holds for layers of full attention only.",
    ),
    family(
        "EXAONE 4",
        "https://arxiv.org/abs/2507.11407",
        "Exaone4",
        LOCAL,
        {
            "norm": rms(1e-5),
            "residual": "output_norm",
            "query_key_norm": rms(1e-5),
            "layers": [{"window": 4}, {"position": "none"}],
        },
        (*OUTSIDE, *ATTENTION, *GLU, *OUTPUT_NORMS, *QUERY_KEY_NORM, *HEAD),
        note="Where `sliding_window` is null (1.2B), all layers rotate.",
    ),
    family(
        "GLM",
        "https://arxiv.org/abs/2406.12793",
        "Glm",
        {"head_dim": 8, "rms_norm_eps": 1e-5},
        {
            "head_dim": 8,
            "norm": rms(1e-5),
            "position": {**INTERLEAVED, "fraction": 0.5},
            "bias": None,
            "mixer": {"name": "multi_head", "biases": ["query", "key", "value"]},
        },
        (*OUTSIDE, *ATTENTION, *BIASES, *GATE_UP, *NORMS, *HEAD),
    ),
    family(
        "GLM-4-0414",
        "https://arxiv.org/abs/2406.12793",
        "Glm4",
        {"head_dim": 8, "rms_norm_eps": 1e-5},
        {
            "head_dim": 8,
            "norm": rms(1e-5),
            "position": {**INTERLEAVED, "fraction": 0.5},
            "residual": "sandwich_norm",
            "bias": None,
            "mixer": {"name": "multi_head", "biases": ["query", "key", "value"]},
        },
        (
            *OUTSIDE,
            *ATTENTION,
            *BIASES,
            *GATE_UP,
            *HEAD,
            *rename(f"{LAYER}.mixer_residual.input_norm.weight", "model.layers.{i}.input_layernorm.weight"),
            *rename(f"{LAYER}.mixer_residual.output_norm.weight", "model.layers.{i}.post_self_attn_layernorm.weight"),
            *rename(f"{LAYER}.feed_forward_residual.input_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
            *rename(f"{LAYER}.feed_forward_residual.output_norm.weight", "model.layers.{i}.post_mlp_layernorm.weight"),
        ),
    ),
    family(
        "Arcee AFM",
        "https://huggingface.co/arcee-ai/AFM-4.5B",
        "Arcee",
        {},
        {"norm": rms(1e-5), "feed_forward": RELU_SQUARED},
        (*OUTSIDE, *ATTENTION, *MLP, *NORMS, *HEAD),
    ),
    family(
        "Cohere Command R",
        "https://docs.cohere.com/docs/command-r",
        "Cohere",
        {"rope_parameters": default(500000.0)},
        {
            "position": {**INTERLEAVED, "base": 500000.0},
            "norm": {"name": "layer_norm", "bias": False},
            "residual": "parallel",
            "head": {"name": "linear", "scale": 0.0625},
            **TIED,
        },
        (*OUTSIDE, *ATTENTION, *GLU, NORMS[0]),
        note="Command R+ also normalises each query and key head with its own weights, which is missing here",
    ),
    family(
        "Cohere Command R7B",
        "https://arxiv.org/abs/2504.00698",
        "Cohere2",
        LOCAL,
        {
            "position": INTERLEAVED,
            "norm": {"name": "layer_norm", "bias": False},
            "residual": "parallel",
            "head": {"name": "linear", "scale": 0.0625},
            "layers": [{"window": 4}, {"position": "none"}],
            **TIED,
        },
        (*OUTSIDE, *ATTENTION, *GLU, NORMS[0]),
    ),
    family(
        "OLMo",
        "https://arxiv.org/abs/2402.00838",
        "Olmo",
        {"clip_qkv": 0.5},
        {"norm": {"name": "layer_norm", "learned": False}, "mixer": {"name": "multi_head", "clip": 0.5}},
        (EMBEDDING, *ATTENTION, *GLU, *HEAD),
    ),
    family(
        "nanochat",
        "https://github.com/karpathy/nanochat",
        "NanoChat",
        {},
        {
            "norm": {"name": "rms_norm", "learned": False},
            "query_key_norm": {"name": "rms_norm", "learned": False},
            "embedding_norm": True,
            "feed_forward": RELU_SQUARED,
            "head": {"name": "linear", "softcap": 15.0},
        },
        (
            EMBEDDING,
            *HEAD,
            *(
                Rename(
                    row.ours,
                    row.theirs,
                    ()
                    if "v_proj" in row.theirs[0] or "o_proj" in row.theirs[0]
                    else (Permute(halves(4 if "q_proj" in row.theirs[0] else 2)),),
                )
                for row in ATTENTION
            ),
            *(Rename(row.ours, tuple(name.replace("up_proj", "fc1").replace("down_proj", "fc2") for name in row.theirs)) for row in MLP),
        ),
        note="it rotates in the other direction, which equals attnkit's rotation with the halves of each query and key head exchanged",
    ),
    family(
        "Granite 3",
        "https://github.com/ibm-granite/granite-3.0-language-models",
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.3,
            "logits_scaling": 8.0,
            "tie_word_embeddings": True,
        },
        {
            "embedding": {"name": "token", "scale": 12.0},
            "residual": {"name": "pre_norm", "scale": 0.22},
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "scale": 0.3},
            "head": {"name": "linear", "scale": 0.125},
            **TIED,
        },
        BODY,
    ),
    family(
        "HyperCLOVA X Think",
        "https://arxiv.org/abs/2506.22403",
        "HyperCLOVAX",
        {"embedding_multiplier": 10.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 0.125},
        {
            "embedding": {"name": "token", "scale": 10.0},
            "residual": "sandwich_norm",
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "scale": 0.3},
            "head": {"name": "linear", "scale": 0.125},
        },
        (
            *OUTSIDE,
            *ATTENTION,
            *GLU,
            *HEAD,
            *rename(f"{LAYER}.mixer_residual.input_norm.weight", "model.layers.{i}.input_layernorm.weight"),
            *rename(f"{LAYER}.mixer_residual.output_norm.weight", "model.layers.{i}.post_norm1.weight", Scale(0.5)),
            *rename(f"{LAYER}.feed_forward_residual.input_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
            *rename(f"{LAYER}.feed_forward_residual.output_norm.weight", "model.layers.{i}.post_norm2.weight", Scale(0.5)),
        ),
        note="the factor of each branch is part of the weights of the norm before it",
    ),
    family(
        "DiffLlama",
        "https://arxiv.org/abs/2410.05258",
        "DiffLlama",
        {},
        {
            "norm": rms(1e-5),
            "layers": [{"mixer": {"name": "multi_head", "differential": 0.8 - 0.6 * exp(-0.3 * layer)}} for layer in range(2)],
        },
        (
            *BODY,
            *HEAD,
            *(
                row
                for x, k in (("query", "q"), ("key", "k"))
                for row in rename(
                    f"{LAYER}.mixer.differential.{x}", tuple(f"model.layers.{{i}}.self_attn.lambda_{k}{n}" for n in (1, 2)), Stack()
                )
            ),
            *rename(f"{LAYER}.mixer.differential.norm.weight", (), Constant(1.0, (8,))),
        ),
        note="`differential` is 0.8 - 0.6 exp(-0.3 n) in layer n, from 0.",
    ),
    family(
        "Apertus",
        "https://arxiv.org/abs/2509.14233",
        "Apertus",
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 12e6, **LLAMA3}},
        {
            "position": {"name": "rotary", "base": 12e6, "scaling": LLAMA3_SCALING},
            "norm": rms(1e-5),
            "query_key_norm": rms(1e-5),
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "xielu", "bias": False},
        },
        (
            *(*OUTSIDE, *ATTENTION, *MLP, *QUERY_KEY_NORM, *HEAD),
            *rows(
                "",
                "",
                {
                    f"{x}_residual.norm.weight": f"{y}_layernorm.weight"
                    for x, y in (("mixer", "attention"), ("feed_forward", "feedforward"))
                },
            ),
            *rows("feed_forward.activation.", "mlp.act_fn.", {"positive": "alpha_p", "negative": "alpha_n"}),
        ),
        unread=("*.act_fn.beta", "*.act_fn.eps"),
    ),
    family(
        "BitNet b1.58 2B",
        "https://arxiv.org/abs/2504.12285",
        "BitNet",
        {"rope_parameters": default(5e5)},
        {
            "position": {"name": "rotary", "base": 5e5},
            "norm": rms(1e-5),
            "feed_forward": {"name": "glu", "ffn_dim": 24, "activation": "relu_squared", "sub_norm": rms(1e-5)},
            "mixer": {"name": "multi_head", "sub_norm": rms(1e-5)},
        },
        (
            *(*BODY, *HEAD),
            *rows("mixer.", "self_attn.", {"sub_norm.weight": "attn_sub_norm.weight"}),
            *rows("feed_forward.", "mlp.", {"sub_norm.weight": "ffn_sub_norm.weight"}),
        ),
        note="Weights in full precision; attnkit has no ternary ones.",
    ),
)
