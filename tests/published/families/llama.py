"""Llama and the families with its names."""

from math import exp
from typing import Any

from published.family import Constant, Family, Permute, Rename, Scale, Stack, rename
from published.sizes import LLAMA, LLAMA_SIZES

from attnkit.convert import gemma, phi3
from attnkit.convert.gemma import minus_one
from attnkit.convert.llama import ATTENTION, BIASES, BODY, GLU, HEAD, LAYER, NORMS, OUTPUT_NORMS, OUTSIDE, QUERY_KEY_NORM, rows

SPEC = {**LLAMA, "feed_forward": {"name": "glu", "ffn_dim": 24}}
TIED = {"tie": "output"}
MLP = tuple(
    row
    for ours, theirs in (("input", "up"), ("output", "down"))
    for row in rename(f"{LAYER}.feed_forward.{ours}.weight", f"model.layers.{{i}}.mlp.{theirs}_proj.weight")
)
GATE_UP = phi3.gates(24)


def default(base: float, **more: float | str) -> dict[str, float | str]:
    """Return the parameters of a rotation in their words."""
    return {"rope_type": "default", "rope_theta": base} | more


def halves(heads: int) -> tuple[int, ...]:
    """Return the order of rows in which the two halves of each head of width 4 are exchanged."""
    return tuple(4 * head + channel for head in range(heads) for channel in (2, 3, 0, 1))


EMBEDDING = OUTSIDE[0]
QUERY_KEY_LAYERNORM = rows("mixer.", "self_attn.", {f"{x}_norm.weight": f"{x}_layernorm.weight" for x in ("query", "key")})
LOCAL = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 4}
LLAMA3_SCALING = {"name": "llama3", "factor": 8.0, "original_length": 32, "low_turns": 1.0, "high_turns": 4.0}
GEGLU = {"name": "glu", "ffn_dim": 24, "activation": "gelu_tanh"}
RELU_SQUARED = {"name": "mlp", "ffn_dim": 24, "activation": "relu_squared", "bias": False}
INTERLEAVED = {"name": "rotary", "interleaved": True}


def rms(eps: float) -> dict[str, float | str]:
    """Return the spec of an RMS norm."""
    return {"name": "rms_norm", "eps": eps}


def family(name: str, paper: str, classes: str, config: dict, spec: dict, renames: tuple[Rename, ...], **rest: Any) -> Family:
    """Return a family that differs from Llama in these entries; None removes one."""
    own = {key: value for key, value in {**SPEC, **spec}.items() if value is not None}
    prefix = classes.removesuffix("Text")
    return Family(
        name=name,
        paper=paper,
        theirs=(f"{classes}Config", f"{prefix}ForCausalLM"),
        config={**LLAMA_SIZES, **config},
        spec=own,
        renames=renames,
        **rest,
    )


FAMILIES = (
    family("Llama 2", "https://arxiv.org/abs/2307.09288", "Llama", {}, {}, (*BODY, *HEAD)),
    family(
        "Llama 3.1",
        "https://arxiv.org/abs/2407.21783",
        "Llama",
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}},
        {"position": {"name": "rotary", "base": 500000.0, "scaling": LLAMA3_SCALING}},
        (*BODY, *HEAD),
    ),
    family(
        "Code World Model",
        "https://arxiv.org/abs/2510.02387",
        "Cwm",
        {"head_dim": 4, **LOCAL, "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6, **LLAMA3}},
        {
            "position": {"name": "rotary", "base": 1e6, "scaling": LLAMA3_SCALING},
            "norm": rms(1e-5),
            "layers": [{"window": 4}, {}],
        },
        (*BODY, *HEAD),
    ),
    family("Mistral", "https://arxiv.org/abs/2310.06825", "Mistral", {"sliding_window": 4}, {"window": 4}, (*BODY, *HEAD)),
    family(
        "Ministral",
        "https://huggingface.co/mistralai/Ministral-8B-Instruct-2410",
        "Ministral",
        {"head_dim": 4, **LOCAL},
        {"layers": [{"window": 4}, {}]},
        (*BODY, *HEAD),
    ),
    family(
        "Qwen2",
        "https://arxiv.org/abs/2407.10671",
        "Qwen2",
        {"tie_word_embeddings": True},
        {"bias": None, "mixer": {"name": "multi_head", "biases": ["query", "key", "value"]}, **TIED},
        (*BODY, *BIASES),
    ),
    family(
        "Qwen3",
        "https://arxiv.org/abs/2505.09388",
        "Qwen3",
        {"head_dim": 8},
        {"head_dim": 8, "query_key_norm": "rms_norm"},
        (*BODY, *QUERY_KEY_NORM, *HEAD),
    ),
    family(
        "Seed-OSS",
        "https://github.com/ByteDance-Seed/seed-oss",
        "SeedOss",
        {"head_dim": 8, "attention_dropout": 0.0, "residual_dropout": 0.0},
        {"head_dim": 8, "bias": None, "mixer": {"name": "multi_head", "biases": ["query", "key", "value"]}},
        (*BODY, *BIASES, *HEAD),
    ),
    family(
        "Gemma",
        "https://arxiv.org/abs/2403.08295",
        "Gemma",
        {"head_dim": 8, "num_key_value_heads": 1},
        {"head_dim": 8, "num_kv_heads": 1, "feed_forward": GEGLU, "embedding": "token", **TIED},
        minus_one(*BODY),
    ),
    family(
        "Gemma 2",
        "https://arxiv.org/abs/2408.00118",
        "Gemma2",
        {"head_dim": 8, "query_pre_attn_scalar": 24, **LOCAL},
        {
            "head_dim": 8,
            "feed_forward": GEGLU,
            "embedding": "token",
            "residual": "sandwich_norm",
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "scale": 24**-0.5, "softcap": 50.0},
            "head": {"name": "linear", "softcap": 30.0},
            "layers": [{"window": 4}, {}],
            **TIED,
        },
        gemma.renames(TIED),
        note="`scale` is `query_pre_attn_scalar`^-0.5.",
    ),
    family(
        "VaultGemma",
        "https://arxiv.org/abs/2510.15001",
        "VaultGemma",
        {"head_dim": 8, "query_pre_attn_scalar": 24, **LOCAL},
        {
            "head_dim": 8,
            "feed_forward": GEGLU,
            "embedding": "token",
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "scale": 24**-0.5, "softcap": 50.0},
            "head": {"name": "linear", "softcap": 30.0},
            "layers": [{"window": 4}, {}],
            **TIED,
        },
        minus_one(
            *OUTSIDE,
            *ATTENTION,
            *GLU,
            *(Rename(r.ours, tuple(n.replace("post_attention", "pre_feedforward") for n in r.theirs)) for r in NORMS),
        ),
        note="`scale` is `query_pre_attn_scalar`^-0.5.",
    ),
    family(
        "Gemma 3",
        "https://arxiv.org/abs/2503.19786",
        "Gemma3Text",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 24,
            **LOCAL,
            "rope_parameters": {
                "sliding_attention": default(1e4),
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
        },
        {
            "head_dim": 8,
            "feed_forward": GEGLU,
            "embedding": "token",
            "residual": "sandwich_norm",
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "scale": 24**-0.5},
            "query_key_norm": "rms_norm",
            "layers": [{"window": 4}, {"position": {"name": "rotary", "base": 1e6, "scaling": {"name": "linear", "factor": 8.0}}}],
            **TIED,
        },
        gemma.renames({**TIED, "query_key_norm": "rms_norm"}),
        note="`scale` is `query_pre_attn_scalar`^-0.5.",
    ),
    family(
        "Phi-3",
        "https://arxiv.org/abs/2404.14219",
        "Phi3",
        {"sliding_window": 4},
        {"window": 4, "norm": rms(1e-5)},
        phi3.renames(SPEC),
    ),
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
        "SmolLM3",
        "https://huggingface.co/blog/smollm3",
        "SmolLM3",
        {"no_rope_layers": [1, 0]},
        {"position": {"name": "rotary", "base": 2e6}, "layers": [{}, {"position": "none"}], **TIED},
        BODY,
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
        "Helium",
        "https://huggingface.co/kyutai/helium-1-preview-2b",
        "Helium",
        {"head_dim": 4, "rope_parameters": default(1e5)},
        {"position": {**INTERLEAVED, "base": 1e5}, "norm": rms(1e-8)},
        (*BODY, *HEAD),
    ),
    family(
        "ERNIE 4.5",
        "https://ernie.baidu.com/blog/publication/ERNIE_Technical_Report.pdf",
        "Ernie4_5",
        {"head_dim": 8},
        {"head_dim": 8, "position": {**INTERLEAVED, "base": 500000.0}, "norm": rms(1e-5), **TIED},
        BODY,
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
    family(
        "HunYuan dense",
        "https://huggingface.co/tencent/Hunyuan-7B-Instruct",
        "HunYuanDenseV1",
        {"head_dim": 8, "tie_word_embeddings": True, "rope_parameters": default(1e4, rope_type="dynamic", factor=1.0, alpha=1e3)},
        {
            "head_dim": 8,
            "position": {"name": "rotary", "scaling": {"name": "ntk", "factor": 1000.0}},
            "norm": rms(1e-5),
            "query_key_norm": rms(1e-5),
            "mixer": {"name": "multi_head", "query_key_norm_after_rotation": True},
            **TIED,
        },
        (*BODY, *QUERY_KEY_LAYERNORM),
    ),
    family(
        "Ministral 3",
        "https://huggingface.co/mistralai/Ministral-3-8B-Base-2512",
        "Ministral3",
        {"head_dim": 8, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
        {
            "head_dim": 8,
            "position": {
                "name": "rotary",
                "base": 1e6,
                "scaling": {"name": "yarn", "factor": 16.0, "original_length": 4, "attention_factor": 1.0},
            },
            "norm": rms(1e-5),
            "mixer": {"name": "multi_head", "scale_growth": 0.1, "scale_growth_length": 4},
        },
        (*BODY, *HEAD),
    ),
)
