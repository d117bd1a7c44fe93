"""Mixtures of experts in every layer, beside plain attention: Mixtral, Qwen, OLMoE, DBRX, Granite, gpt-oss, MiniMax-M2."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from published.family import Family, Map, Rename, Reshape, Split, rename, transpose
from published.sizes import LLAMA, LLAMA_SIZES, without

D, F, EXPERTS, TOP, HEADS, GROUPS = 16, 12, 4, 2, 4, 2
LAYER = "stack.decoder.layers.{i}"
SIZES = {**LLAMA_SIZES, "intermediate_size": F, "pad_token_id": 0, "experts_implementation": "eager"}  # the others compute in fp32 or less
SPEC = LLAMA


def at(rows: Sequence[Rename], *layers: int | tuple[int, int]) -> tuple[Rename, ...]:
    """Return the rows for these layers only; a pair is the number of our layer and of theirs."""
    pairs = [layer if isinstance(layer, tuple) else (layer, layer) for layer in layers]
    return tuple(
        replace(
            row,
            ours=tuple(name.replace("{i}", str(ours)) for name in row.ours),
            theirs=tuple(name.replace("{i}", str(theirs)) for name in row.theirs),
        )
        for ours, theirs in pairs
        for row in rows
    )


def rows(ours: str, theirs: str, names: dict[str, str]) -> tuple[Rename, ...]:
    """Return a row for each pair of names below two prefixes."""
    return tuple(row for left, right in names.items() for row in rename(f"{ours}.{left}", f"{theirs}.{right}"))


def attention(theirs: str = "model.layers.{i}.self_attn", *, output: str = "o_proj", kind: str = "weight") -> tuple[Rename, ...]:
    """Return the rows of the four projections."""
    names = {f"query.{kind}": f"q_proj.{kind}", f"key.{kind}": f"k_proj.{kind}", f"value.{kind}": f"v_proj.{kind}"}
    return rows(f"{LAYER}.mixer", theirs, names | {"output.weight": f"{output}.weight"})


def norms(
    mixer: str = "model.layers.{i}.input_layernorm", feed_forward: str = "model.layers.{i}.post_attention_layernorm", *maps: Map
) -> tuple[Rename, ...]:
    """Return the rows of the norms before both sublayers."""
    places = (("mixer", mixer), ("feed_forward", feed_forward))
    return tuple(row for kind, name in places for row in rename(f"{LAYER}.{kind}_residual.norm.weight", f"{name}.weight", *maps))


def outside(model: str = "model", norm: str = "norm", head: str | None = "lm_head", embedding: str = "embed_tokens") -> tuple[Rename, ...]:
    """Return the rows of the embedding, the final norm and the head, which None ties to the embedding."""
    return (
        *rename("embedding.weight", f"{model}.{embedding}.weight"),
        *rename("stack.decoder.final_norm.weight", f"{model}.{norm}.weight"),
        *(() if head is None else rename("head.projection.weight", f"{head}.weight")),
    )


def glu(theirs: str, ours: str = f"{LAYER}.feed_forward", names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Any:
    """Return the rows of a gated linear unit."""
    return rows(ours, theirs, {f"{o}.weight": f"{t}.weight" for o, t in zip(("gate", "input", "output"), names, strict=True)})


def experts(
    theirs: str = "model.layers.{i}.mlp", *, router: str = "gate.weight", count: int = EXPERTS, width: int = F, d_model: int = D
) -> tuple[Rename, ...]:
    """Return the rows of the router, and of experts that are stacked, gate above input."""
    place = f"{LAYER}.feed_forward.experts"
    gates = tuple(f"{place}.{e}.{part}.weight" for e in range(count) for part in ("gate", "input"))
    outputs = tuple(f"{place}.{e}.output.weight" for e in range(count))
    fused, down = (count, 2 * width, d_model), (count, d_model, width)
    return (
        *rename(f"{LAYER}.feed_forward.router.weight", f"{theirs}.{router}"),
        *rename(gates, f"{theirs}.experts.gate_up_proj", Reshape((-1, d_model), fused), Split((width,) * 2 * count)),
        *rename(outputs, f"{theirs}.experts.down_proj", Reshape((-1, width), down), Split((d_model,) * count)),
    )


def mixture(**options: Any) -> dict[str, Any]:
    """Return the spec of a mixture of gated linear units."""
    return {"name": "mixture_of_experts", "num_experts": EXPERTS, "top_k": TOP, "expert": {"name": "glu", "ffn_dim": F}, **options}


QUERY_KEY_NORM = rows(f"{LAYER}.mixer", "model.layers.{i}.self_attn", {f"{x}_norm.weight": f"{x[0]}_norm.weight" for x in ("query", "key")})
BIASES = rows(f"{LAYER}.mixer", "model.layers.{i}.self_attn", {f"{x}.bias": f"{x[0]}_proj.bias" for x in ("query", "key", "value")})
PLAIN = (*outside(), *attention(), *norms())
EPS = {"name": "rms_norm", "eps": 1e-5}
SHARED = glu("model.layers.{i}.mlp.shared_experts", f"{LAYER}.feed_forward.shared")
CORRECTION = rename(f"{LAYER}.feed_forward.bias", "model.layers.{i}.mlp.gate.e_score_correction_bias")

DBRX = "transformer.blocks.{i}"
_GPT_OSS = tuple(f"{LAYER}.feed_forward.experts.{e}.{part}" for e in range(EXPERTS) for part in ("gate", "input"))
_GPT_OSS_OUT = tuple(f"{LAYER}.feed_forward.experts.{e}.output" for e in range(EXPERTS))


def _kinds(names: tuple[str, ...], kind: str) -> tuple[str, ...]:
    return tuple(f"{name}.{kind}" for name in names)


GPT_OSS = (
    *PLAIN,
    *BIASES,
    *rename(f"{LAYER}.mixer.output.bias", "model.layers.{i}.self_attn.o_proj.bias"),
    *rename(f"{LAYER}.mixer.attention.normalizer.sink", "model.layers.{i}.self_attn.sinks"),
    *rename(f"{LAYER}.feed_forward.router.*", "model.layers.{i}.mlp.router.*"),
    *rename(
        _kinds(_GPT_OSS, "weight"),
        "model.layers.{i}.mlp.experts.gate_up_proj",
        Reshape((EXPERTS, D, F, 2), (EXPERTS, D, 2 * F)),  # gate and input alternate
        transpose(1, 3),
        Reshape((-1, D), (EXPERTS, 2, F, D)),
        Split((F,) * 2 * EXPERTS),
    ),
    *rename(
        _kinds(_GPT_OSS, "bias"),
        "model.layers.{i}.mlp.experts.gate_up_proj_bias",
        Reshape((EXPERTS, F, 2), (EXPERTS, 2 * F)),
        transpose(1, 2),
        Reshape((-1,), (EXPERTS, 2, F)),
        Split((F,) * 2 * EXPERTS),
    ),
    *rename(
        _kinds(_GPT_OSS_OUT, "weight"),
        "model.layers.{i}.mlp.experts.down_proj",
        transpose(1, 2),
        Reshape((-1, F), (EXPERTS, D, F)),
        Split((D,) * EXPERTS),
    ),
    *rename(
        _kinds(_GPT_OSS_OUT, "bias"), "model.layers.{i}.mlp.experts.down_proj_bias", Reshape((-1,), (EXPERTS, D)), Split((D,) * EXPERTS)
    ),
)

FAMILIES = (
    Family(
        name="Mixtral",
        paper="https://arxiv.org/abs/2401.04088",
        theirs=("MixtralConfig", "MixtralForCausalLM"),
        config={**SIZES, "num_local_experts": EXPERTS, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        spec={**SPEC, "norm": EPS, "position": {"name": "rotary", "base": 1e6}, "feed_forward": mixture()},
        renames=(*PLAIN, *experts()),
    ),
    Family(
        name="Qwen2-MoE",
        paper="https://arxiv.org/abs/2407.10671",
        theirs=("Qwen2MoeConfig", "Qwen2MoeForCausalLM"),
        config={
            **SIZES,
            "num_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "moe_intermediate_size": F,
            "intermediate_size": 20,
            "shared_expert_intermediate_size": 24,
            "mlp_only_layers": [0],
        },
        spec={
            **without(SPEC, "bias"),
            "mixer": {"name": "multi_head", "biases": ["query", "key", "value"]},
            "layers": [{"feed_forward": {"name": "glu", "ffn_dim": 20}}, {}],
            "feed_forward": mixture(normalize=False, shared={"name": "glu", "ffn_dim": 24}, shared_gate=True),
        },
        renames=(
            *PLAIN,
            *BIASES,
            *glu("model.layers.{i}.mlp"),
            *experts(),
            *glu("model.layers.{i}.mlp.shared_expert", f"{LAYER}.feed_forward.shared"),
            *rename(f"{LAYER}.feed_forward.shared_gate.weight", "model.layers.{i}.mlp.shared_expert_gate.weight"),
        ),
    ),
    Family(
        name="Qwen3-MoE",
        paper="https://arxiv.org/abs/2505.09388",
        theirs=("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
        config={
            **SIZES,
            "head_dim": 6,
            "num_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "moe_intermediate_size": F,
            "norm_topk_prob": True,
        },
        spec={**SPEC, "head_dim": 6, "query_key_norm": "rms_norm", "feed_forward": mixture()},
        renames=(*PLAIN, *QUERY_KEY_NORM, *experts()),
    ),
    Family(
        name="OLMoE",
        paper="https://arxiv.org/abs/2409.02060",
        theirs=("OlmoeConfig", "OlmoeForCausalLM"),
        config={**SIZES, "num_experts": EXPERTS, "num_experts_per_tok": TOP},
        spec={
            **SPEC,
            "norm": EPS,
            "query_key_norm": EPS,
            "mixer": {"name": "multi_head", "query_key_norm_over": "all"},
            "feed_forward": mixture(normalize=False),
        },
        renames=(*PLAIN, *QUERY_KEY_NORM, *experts()),
    ),
    Family(
        name="FlexOlmo",
        paper="https://arxiv.org/abs/2507.07024",
        theirs=("FlexOlmoConfig", "FlexOlmoForCausalLM"),
        config={
            **SIZES,
            "num_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        },
        spec={
            **SPEC,
            "position": {"name": "rotary", "base": 5e5},
            "residual": "output_norm",
            "query_key_norm": "rms_norm",
            "mixer": {"name": "multi_head", "query_key_norm_over": "all"},
            "feed_forward": mixture(normalize=False),
        },
        renames=(
            *outside(),
            *attention(),
            *norms("model.layers.{i}.post_attention_layernorm", "model.layers.{i}.post_feedforward_layernorm"),
            *QUERY_KEY_NORM,
            *experts(),
        ),
    ),
    Family(
        name="Hunyuan-A13B",
        paper="https://huggingface.co/tencent/Hunyuan-A13B-Instruct",
        theirs=("HunYuanMoEV1Config", "HunYuanMoEV1ForCausalLM"),
        config={**SIZES, "head_dim": 8, "num_experts": EXPERTS, "moe_topk": TOP},
        spec={
            **SPEC,
            "head_dim": 8,
            "norm": EPS,
            "query_key_norm": EPS,
            "mixer": {"name": "multi_head", "query_key_norm_after_rotation": True},
            "feed_forward": mixture(shared={"name": "glu", "ffn_dim": F}),
        },
        renames=(
            *PLAIN,
            *rows(f"{LAYER}.mixer", "model.layers.{i}.self_attn", {f"{x}_norm.weight": f"{x}_layernorm.weight" for x in ("query", "key")}),
            *experts(router="gate.wg.weight"),
            *glu("model.layers.{i}.mlp.shared_mlp", f"{LAYER}.feed_forward.shared"),
        ),
        note="Its checkpoint scales the rotation as HunYuan dense does.",
    ),
    Family(
        name="MiniMax-M2",
        paper="https://huggingface.co/MiniMaxAI/MiniMax-M2",
        theirs=("MiniMaxM2Config", "MiniMaxM2ForCausalLM"),
        config={
            **SIZES,
            "head_dim": 8,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        },
        spec={
            **SPEC,
            "head_dim": 8,
            "position": {"name": "rotary", "base": 5e6, "fraction": 0.5},
            "query_key_norm": "rms_norm",
            "mixer": {"name": "multi_head", "query_key_norm_over": "all"},
            "feed_forward": mixture(scores="sigmoid", bias_rate=0.001),
        },
        renames=(
            *PLAIN,
            *QUERY_KEY_NORM,
            *experts(),
            *rename(f"{LAYER}.feed_forward.bias", "model.layers.{i}.mlp.e_score_correction_bias"),
        ),
    ),
    Family(
        name="gpt-oss",
        paper="https://arxiv.org/abs/2508.10925",
        theirs=("GptOssConfig", "GptOssForCausalLM"),
        config={
            **SIZES,
            "head_dim": 8,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "sliding_window": 4,
            "swiglu_limit": 0.5,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 16,
            },
        },
        spec={
            **SPEC,
            "head_dim": 8,
            "bias": True,
            "norm": EPS,
            "position": {
                "name": "rotary",
                "base": 150000.0,
                "scaling": {"name": "yarn", "factor": 4.0, "original_length": 16, "truncate": False},
            },
            "mixer": {"name": "multi_head", "normalizer": "softmax_with_sink"},
            "layers": [{"window": 4}, {}],
            "feed_forward": mixture(
                router_bias=True,
                expert={"name": "glu", "ffn_dim": F, "bias": True, "activation": "quick_gelu", "limit": 0.5, "offset": 1.0},
            ),
        },
        renames=GPT_OSS,
        note="The limit is smaller than the published 7, so that it takes effect.",
    ),
    Family(
        name="DBRX",
        paper="https://www.databricks.com/blog/introducing-dbrx-new-state-art-open-llm",
        theirs=("DbrxConfig", "DbrxForCausalLM"),
        config={
            "d_model": D,
            "n_heads": HEADS,
            "n_layers": 2,
            "max_seq_len": 64,
            "vocab_size": 40,
            "pad_token_id": 0,
            "attn_config": {"kv_n_heads": GROUPS, "clip_qkv": 0.5, "rope_theta": 5e5},
            "ffn_config": {"hidden_size": D, "ffn_hidden_size": F, "moe_num_experts": EXPERTS, "moe_top_k": TOP},
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
            "experts_implementation": "eager",
        },
        spec={
            **SPEC,
            "norm": {"name": "layer_norm", "bias": False},
            "position": {"name": "rotary", "base": 5e5},
            "mixer": {"name": "multi_head", "clip": 0.5},
            "feed_forward": mixture(),
        },
        renames=(
            *outside("transformer", "norm_f", "lm_head", "wte"),
            *norms(f"{DBRX}.norm_attn_norm.norm_1", f"{DBRX}.norm_attn_norm.norm_2"),
            *rename(
                tuple(f"{LAYER}.mixer.{x}.weight" for x in ("query", "key", "value")),
                f"{DBRX}.norm_attn_norm.attn.Wqkv.weight",
                Split((D, D // 2, D // 2)),
            ),
            *rename(f"{LAYER}.mixer.output.weight", f"{DBRX}.norm_attn_norm.attn.out_proj.weight"),
            *rename(f"{LAYER}.feed_forward.router.weight", f"{DBRX}.ffn.router.layer.weight"),
            *(
                row
                for ours, theirs in (("gate", "w1"), ("input", "v1"))
                for row in rename(
                    tuple(f"{LAYER}.feed_forward.experts.{e}.{ours}.weight" for e in range(EXPERTS)),
                    f"{DBRX}.ffn.experts.mlp.{theirs}",
                    Split((F,) * EXPERTS),
                )
            ),
            *rename(
                tuple(f"{LAYER}.feed_forward.experts.{e}.output.weight" for e in range(EXPERTS)),
                f"{DBRX}.ffn.experts.mlp.w2",
                Split((F,) * EXPERTS),
                transpose(),
            ),
        ),
        note="The clip is smaller than the published 8, so that it takes effect.",
    ),
    Family(
        name="Phi-3.5-MoE",
        paper="https://arxiv.org/abs/2404.14219",
        missing="a router that leaves out experts far below the best, and weighs each chosen one against the rest (SparseMixer)",
    ),
    Family(
        name="Llama 4",
        paper="https://huggingface.co/meta-llama/Llama-4-Scout-17B-16E",
        missing="experts whose weight scales their input, attention in chunks, and a temperature whose positions count from one",
    ),
    Family(
        name="LongCat-Flash",
        paper="https://arxiv.org/abs/2509.01322",
        missing="two attentions in a layer around one mixture, and experts that compute nothing",
    ),
)
