"""Llama and the families with its names."""

from typing import Any

from published.family import Family, Rename
from published.sizes import LLAMA, LLAMA_SIZES

from attnkit.convert import phi3
from attnkit.convert.llama import BIASES, BODY, HEAD, QUERY_KEY_NORM, rows

SPEC = {**LLAMA, "feed_forward": {"name": "glu", "ffn_dim": 24}}
TIED = {"tie": "output"}


def default(base: float, **more: float | str) -> dict[str, float | str]:
    """Return the parameters of a rotation under their names."""
    return {"rope_type": "default", "rope_theta": base} | more


QUERY_KEY_LAYERNORM = rows("mixer.", "self_attn.", {f"{x}_norm.weight": f"{x}_layernorm.weight" for x in ("query", "key")})
LOCAL = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 4}
LLAMA3_SCALING = {"name": "llama3", "factor": 8.0, "original_length": 32, "low_turns": 1.0, "high_turns": 4.0}
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
        "Phi-3",
        "https://arxiv.org/abs/2404.14219",
        "Phi3",
        {"sliding_window": 4},
        {"window": 4, "norm": rms(1e-5)},
        phi3.renames(SPEC),
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
