"""State-space models and their hybrids: Mamba, Falcon Mamba, Mamba-2, Jamba, Bamba, Granite 4, Falcon-H1, Nemotron-H."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from published.families.mixtral import (
    EPS,
    EXPERTS,
    HEADS,
    LAYER,
    SIZES,
    SPEC,
    D,
    F,
    at,
    attention,
    experts,
    glu,
    mixture,
    norms,
    outside,
    rows,
)
from published.family import Constant, Family, Rename, Reshape, Scale, Split, columns, rename
from torch import Tensor

INNER, STATE, RANK = 2 * D, 6, 3
MIXER = f"{LAYER}.mixer"
OUTSIDE = {"hidden_size": D, "num_hidden_layers": 2, "vocab_size": 40, "pad_token_id": 0}
ALONE: dict[str, Any] = {
    "stack": "decoder",
    "d_model": D,
    "num_layers": 2,
    "vocab_size": 40,
    "position": "none",
    "norm": EPS,
    "feed_forward": "none",
    "embedding": {"name": "token", "scale": False},
}
SELECTIVE: dict[str, Any] = {"name": "selective_state_space", "state_dim": STATE, "step_rank": RANK}


def selective(theirs: str, *, normed: bool = False) -> tuple[Rename, ...]:
    """Return the rows of Mamba's mixer; `normed` has norms of its parameters (Jamba)."""
    names = {"log_rate": "A_log", "skip": "D", "convolution.bias": "conv1d.bias", "select.weight": "x_proj.weight"}
    names |= {"step.weight": "dt_proj.weight", "step.bias": "dt_proj.bias", "output.weight": "out_proj.weight"}
    return (
        *rows(MIXER, theirs, names),
        *rename((f"{MIXER}.input.weight", f"{MIXER}.gate.weight"), f"{theirs}.in_proj.weight", Split((INNER, INNER))),
        *rename(f"{MIXER}.convolution.weight", f"{theirs}.conv1d.weight", columns(4)),
        *(rows(MIXER, theirs, {f"norms.{i}.weight": f"{x}_layernorm.weight" for i, x in enumerate(("dt", "b", "c"))}) if normed else ()),
    )


@dataclass(frozen=True)
class ScaleParts:
    """Parts of these sizes along the first axis are theirs times a number each."""

    sizes: tuple[int, ...]
    numbers: tuple[float, ...]

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([part * n for part, n in zip(x.split(self.sizes), self.numbers, strict=True)]) for x in theirs]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat([part / n for part, n in zip(x.split(self.sizes), self.numbers, strict=True)]) for x in ours]


def state_space(
    theirs: str, *, inner: int = INNER, groups: int = 1, ours: str = MIXER, scales: tuple[float, ...] = (1.0,) * 5, output: float = 1.0
) -> tuple[Rename, ...]:
    """Return the rows of Mamba-2's mixer; theirs may scale what it projects (gate, input, writes, reads and steps) and its output."""
    names = {"log_rate": "A_log", "skip": "D", "step_bias": "dt_bias", "convolution.bias": "conv1d.bias", "norm.weight": "norm.weight"}
    parts = tuple(f"{ours}.{part}.weight" for part in ("gate", "input", "step"))
    sizes = (inner, inner + 2 * groups * STATE, HEADS)
    return (
        *rows(ours, theirs, names),
        *rename(f"{ours}.output.weight", f"{theirs}.out_proj.weight", Scale(output)),
        *rename(
            parts,
            f"{theirs}.in_proj.weight",
            ScaleParts((inner, inner, groups * STATE, groups * STATE, HEADS), scales),
            Split(sizes),
        ),
        *rename(f"{ours}.convolution.weight", f"{theirs}.conv1d.weight", columns(4)),
    )


FIRST, SECOND = "model.layers.{i}.input_layernorm", "model.layers.{i}.pre_ff_layernorm"
HYBRID_NORMS = norms(FIRST, SECOND)
BAMBA: dict[str, Any] = {"mamba_n_heads": HEADS, "mamba_d_state": STATE, "mamba_chunk_size": 4}
MAMBA = (
    *outside("backbone", "norm_f", "lm_head", "embeddings"),
    *rename(f"{LAYER}.mixer_residual.norm.weight", "backbone.layers.{i}.norm.weight"),
)
TIED = tuple(row for row in MAMBA if row.ours != ("head.projection.weight",))
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "logits_scaling": 4.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.125,
}
GRANITE_SPEC: dict[str, Any] = {
    "residual": {"name": "pre_norm", "scale": 0.22},
    "embedding": {"name": "token", "scale": 12.0},
    "head": {"name": "linear", "scale": 0.25},
}
GRANITE_ATTENTION = {"name": "multi_head", "attention": "dot_product", "scale": 0.125}
GRANITE_MIXTURE = experts("model.layers.{i}.block_sparse_moe", router="router.weight")
GRANITE_SHARED = (
    *rename(
        (f"{LAYER}.feed_forward.shared.gate.weight", f"{LAYER}.feed_forward.shared.input.weight"),
        "model.layers.{i}.shared_mlp.input_linear.weight",
        Split((20, 20)),
    ),
    *rename(f"{LAYER}.feed_forward.shared.output.weight", "model.layers.{i}.shared_mlp.output_linear.weight"),
)
NEMOTRON = "model.layers.{i}.mixer"

FAMILIES = (
    Family(
        name="Mamba",
        paper="https://arxiv.org/abs/2312.00752",
        length=70,
        theirs=("MambaConfig", "MambaForCausalLM"),
        config={**OUTSIDE, "state_size": STATE, "time_step_rank": RANK},
        spec={**ALONE, "mixer": SELECTIVE, "tie": "output"},
        renames=(*TIED, *selective("backbone.layers.{i}.mixer")),
        cache="cache_params",
    ),
    Family(
        name="Mamba-2",
        paper="https://arxiv.org/abs/2405.21060",
        length=70,
        theirs=("Mamba2Config", "Mamba2ForCausalLM"),
        config={**OUTSIDE, "state_size": STATE, "num_heads": HEADS, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
        spec={**ALONE, "num_heads": HEADS, "mixer": {"name": "state_space", "state_dim": STATE, "num_groups": 2}},
        renames=(*MAMBA, *state_space("backbone.layers.{i}.mixer", groups=2)),
        cache="cache_params",
    ),
    Family(
        name="Falcon Mamba",
        paper="https://arxiv.org/abs/2410.05355",
        theirs=("FalconMambaConfig", "FalconMambaForCausalLM"),
        config={**OUTSIDE, "state_size": STATE, "time_step_rank": RANK},
        spec={**ALONE, "mixer": {**SELECTIVE, "parameter_norm": "rms_norm"}, "tie": "output"},
        renames=(
            *TIED,
            *selective("backbone.layers.{i}.mixer"),
            *(
                row
                for i, size in enumerate((RANK, STATE, STATE))
                for row in rename(f"{MIXER}.norms.{i}.weight", (), Constant(1.0, (size,)))
            ),
        ),
        cache="cache_params",
    ),
    Family(
        name="Jamba",
        paper="https://arxiv.org/abs/2403.19887",
        length=70,
        theirs=("JambaConfig", "JambaForCausalLM"),
        config={
            **SIZES,
            "num_experts": EXPERTS,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_dt_rank": RANK,
            "mamba_d_state": STATE,
        },
        spec={
            **SPEC,
            "position": "none",
            "layers": [{"mixer": {**SELECTIVE, "parameter_norm": "rms_norm"}, "feed_forward": {"name": "glu", "ffn_dim": F}}, {}],
            "feed_forward": mixture(normalize=False),
        },
        renames=(
            *outside(norm="final_layernorm"),
            *HYBRID_NORMS,
            *at((*selective("model.layers.{i}.mamba", normed=True), *glu("model.layers.{i}.feed_forward")), 0),
            *at((*attention(), *experts("model.layers.{i}.feed_forward", router="router.weight")), 1),
        ),
    ),
    Family(
        name="Bamba",
        paper="https://huggingface.co/blog/bamba",
        length=70,
        theirs=("BambaConfig", "BambaForCausalLM"),
        config={
            **SIZES,
            **BAMBA,
            "mamba_n_groups": 2,
            "attn_layer_indices": [1],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
        spec={
            **SPEC,
            "norm": EPS,
            "position": {"name": "rotary", "fraction": 0.5},
            "layers": [{"mixer": {"name": "state_space", "state_dim": STATE, "num_groups": 2}}, {}],
            "feed_forward": {"name": "glu", "ffn_dim": F},
        },
        renames=(
            *outside(norm="final_layernorm"),
            *HYBRID_NORMS,
            *glu("model.layers.{i}.feed_forward"),
            *at(state_space("model.layers.{i}.mamba", groups=2), 0),
            *at(attention(), 1),
        ),
    ),
    Family(
        name="Granite 3 (mixture of experts)",
        paper="https://arxiv.org/abs/2408.13359",
        theirs=("GraniteMoeConfig", "GraniteMoeForCausalLM"),
        config={**SIZES, **GRANITE, "num_local_experts": EXPERTS},
        spec={
            **SPEC,
            **GRANITE_SPEC,
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "scale": 0.125},
            "feed_forward": mixture(),
        },
        renames=(*outside(), *attention(), *norms(), *GRANITE_MIXTURE),
    ),
    Family(
        name="Granite 4 (shared experts)",
        paper="https://huggingface.co/ibm-research/moe-7b-1b-active-shared-experts",
        theirs=("GraniteMoeSharedConfig", "GraniteMoeSharedForCausalLM"),
        config={**SIZES, **GRANITE, "num_local_experts": EXPERTS, "shared_intermediate_size": 20},
        spec={
            **SPEC,
            **GRANITE_SPEC,
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "scale": 0.125},
            "feed_forward": mixture(shared={"name": "glu", "ffn_dim": 20}),
        },
        renames=(*outside(), *attention(), *norms(), *GRANITE_MIXTURE, *GRANITE_SHARED),
    ),
    Family(
        name="Granite 4 (hybrid)",
        paper="https://huggingface.co/ibm-granite/granite-4.0-h-small",
        theirs=("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM"),
        config={
            **SIZES,
            **GRANITE,
            **BAMBA,
            "num_local_experts": EXPERTS,
            "shared_intermediate_size": 20,
            "layer_types": ["mamba", "attention"],
        },
        spec={
            **SPEC,
            **GRANITE_SPEC,
            "position": "none",
            "layers": [
                {"mixer": {"name": "state_space", "state_dim": STATE, "eps": 1e-6}},
                {"attention": "dot_product", "mixer": {"name": "multi_head", "scale": 0.125}},
            ],
            "feed_forward": mixture(shared={"name": "glu", "ffn_dim": 20}),
        },
        renames=(
            *outside(),
            *norms(),
            *GRANITE_MIXTURE,
            *GRANITE_SHARED,
            *at(state_space("model.layers.{i}.mamba"), 0),
            *at(attention(), 1),
        ),
    ),
    Family(
        name="Falcon-H1",
        paper="https://arxiv.org/abs/2507.22448",
        theirs=("FalconH1Config", "FalconH1ForCausalLM"),
        config={
            **SIZES,
            **BAMBA,
            "mamba_d_ssm": INNER,
            "mamba_n_groups": 2,
            "mamba_rms_norm": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e11},
            "embedding_multiplier": 5.0,
            "lm_head_multiplier": 0.25,
            "mlp_multipliers": [0.5, 0.75],
            "key_multiplier": 0.5,
            "attention_in_multiplier": 1.5,
            "attention_out_multiplier": 0.75,
            "ssm_multipliers": [0.5, 0.75, 1.25, 1.5, 0.625],
            "ssm_in_multiplier": 1.25,
            "ssm_out_multiplier": 0.5,
        },
        spec={
            **SPEC,
            "norm": EPS,
            "position": {"name": "rotary", "base": 1e11},
            "mixer": {
                "name": "parallel",
                "mixers": [
                    "multi_head",
                    {"name": "state_space", "state_dim": STATE, "num_groups": 2, "norm_before_gate": True},
                ],
            },
            "feed_forward": {"name": "glu", "ffn_dim": F},
            "embedding": {"name": "token", "scale": 5.0},
            "head": {"name": "linear", "scale": 0.25},
        },
        renames=(
            *outside(norm="final_layernorm"),
            *HYBRID_NORMS,
            *(
                row
                for ours, theirs, factor in (("query", "q", 1.5), ("key", "k", 0.75), ("value", "v", 1.5), ("output", "o", 0.75))
                for row in rename(f"{MIXER}.mixers.0.{ours}.weight", f"model.layers.{{i}}.self_attn.{theirs}_proj.weight", Scale(factor))
            ),
            *state_space(
                "model.layers.{i}.mamba",
                groups=2,
                ours=f"{MIXER}.mixers.1",
                scales=tuple(1.25 * number for number in (0.5, 0.75, 1.25, 1.5, 0.625)),
                output=0.5,
            ),
            *(
                row
                for ours, theirs, factor in (("gate", "gate", 0.5), ("input", "up", 1.0), ("output", "down", 0.75))
                for row in rename(
                    f"{LAYER}.feed_forward.{ours}.weight", f"model.layers.{{i}}.feed_forward.{theirs}_proj.weight", Scale(factor)
                )
            ),
        ),
        note="Its fixed factors of projections become part of the weights.",
    ),
    Family(
        name="Nemotron-H",
        paper="https://arxiv.org/abs/2504.03624",
        theirs=("NemotronHConfig", "NemotronHForCausalLM"),
        config={
            **SIZES,
            "num_hidden_layers": 4,
            "head_dim": 6,
            "layers_block_type": ["mamba", "mlp", "attention", "moe"],
            "mamba_num_heads": HEADS,
            "mamba_head_dim": 8,
            "ssm_state_size": STATE,
            "n_groups": 2,
            "chunk_size": 4,
            "time_step_min": 1e-300,
            "n_routed_experts": EXPERTS,
            "moe_intermediate_size": F,
            "moe_shared_expert_intermediate_size": 20,
            "routed_scaling_factor": 2.5,
        },
        spec={
            **SPEC,
            "num_layers": 4,
            "head_dim": 6,
            "norm": EPS,
            "position": "none",
            "layers": [
                {"mixer": {"name": "state_space", "state_dim": STATE, "num_groups": 2}, "feed_forward": "none"},
                {"mixer": "none", "feed_forward": {"name": "mlp", "ffn_dim": F, "activation": "relu_squared", "bias": False}},
                {"feed_forward": "none"},
                {"mixer": "none"},
            ],
            "feed_forward": mixture(
                expert={"name": "mlp", "ffn_dim": F, "activation": "relu_squared", "bias": False},
                shared={"name": "mlp", "ffn_dim": 20, "activation": "relu_squared", "bias": False},
                scores="sigmoid",
                bias_rate=0.001,
                scale=2.5,
            ),
        },
        renames=(
            *outside(norm="norm_f", embedding="embeddings"),
            *at(rename(f"{LAYER}.mixer_residual.norm.weight", "model.layers.{i}.norm.weight"), 0, 2),
            *at(rename(f"{LAYER}.feed_forward_residual.norm.weight", "model.layers.{i}.norm.weight"), 1, 3),
            *at(state_space(NEMOTRON, groups=2), 0),
            *at(rows(f"{LAYER}.feed_forward", NEMOTRON, {"input.weight": "up_proj.weight", "output.weight": "down_proj.weight"}), 1),
            *at(attention(NEMOTRON), 2),
            *at(
                (
                    *rows(
                        f"{LAYER}.feed_forward",
                        NEMOTRON,
                        {
                            "router.weight": "gate.weight",
                            "bias": "gate.e_score_correction_bias",
                            "shared.input.weight": "shared_experts.up_proj.weight",
                            "shared.output.weight": "shared_experts.down_proj.weight",
                        },
                    ),
                    *rename(
                        tuple(f"{LAYER}.feed_forward.experts.{e}.input.weight" for e in range(EXPERTS)),
                        f"{NEMOTRON}.experts.up_proj",
                        Reshape((-1, D), (EXPERTS, F, D)),
                        Split((F,) * EXPERTS),
                    ),
                    *rename(
                        tuple(f"{LAYER}.feed_forward.experts.{e}.output.weight" for e in range(EXPERTS)),
                        f"{NEMOTRON}.experts.down_proj",
                        Reshape((-1, F), (EXPERTS, D, F)),
                        Split((D,) * EXPERTS),
                    ),
                ),
                3,
            ),
        ),
        note="transformers bounds steps from below by 0.001 where it reads many tokens, but not where it reads one; here the bound is 0.",
    ),
)
