# https://arxiv.org/abs/2401.04088
"""Mixtures of experts that otherwise use Llama's names: Mixtral, Qwen3-MoE."""

from typing import Any

from attnkit.convert import llama
from attnkit.convert.family import Family, feed_forward_fields, joined
from attnkit.convert.fields import Fields
from attnkit.convert.renames import Rename
from attnkit.registry import ConfigurationError


def mixture(fields: Fields, expert: dict[str, Any], default: int, chosen: int, **options: Any) -> dict[str, Any]:
    """Return the spec of a mixture of experts; the field for the number of experts has two names."""
    count = fields.optional("num_local_experts", int)
    if (other := fields.read("num_experts", int, count or default)) != (count or other):
        raise ConfigurationError(f"{fields.source}: num_experts is {other}, but num_local_experts is {count}")
    return {
        "name": "mixture_of_experts", "num_experts": other, "top_k": fields.read("num_experts_per_tok", int, chosen), "expert": expert,
        "balance_loss": fields.read("router_aux_loss_coef", float, 0.001), **options,
    }  # fmt: skip


def mixtral(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Mixtral model."""
    spec = llama.read(fields, eps=1e-5, base=1e6)
    fields.require(router_jitter_noise=0.0)
    return {**spec, "window": fields.optional("sliding_window", int), "feed_forward": mixture(fields, spec["feed_forward"], 8, 2)}


def qwen3_moe(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Qwen3-MoE model, in which some layers may be dense."""
    spec, every = llama.llama(fields), fields.read("decoder_sparse_step", int, 1)
    dense, plain = spec["feed_forward"], fields.optional("mlp_only_layers", list) or []
    expert = {**dense, "ffn_dim": fields.read("moe_intermediate_size", int, 768)}
    fields.ignore("max_window_layers")  # all layers have the window
    spec = {
        **spec, "query_key_norm": spec["norm"], "window": llama.window_of(fields),
        "feed_forward": mixture(fields, expert, 128, 8, normalize=fields.read("norm_topk_prob", bool, False)),
    }  # fmt: skip
    return llama.with_layers(spec, [{"feed_forward": dense} if i in plain or (i + 1) % every else {} for i in range(spec["num_layers"])])


def mixture_fields(layer: dict[str, Any], count: str = "num_experts") -> dict[str, Any]:
    """Return the fields of a mixture of experts."""
    found = layer["feed_forward"]
    own = {"num_experts_per_tok": found.get("top_k", 1), "router_aux_loss_coef": found.get("balance_loss", 0.0)}
    return {count: found.get("num_experts", 1), **own}


def mixtral_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Mixtral model."""
    mixture = mixture_fields(architecture["layers"][0], "num_local_experts")
    return {**llama.body_fields(architecture), **llama.window_fields(architecture), **mixture}


def mixtures_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Qwen3-MoE model for mixtures of experts in some layers, and for a window in all layers."""
    layers = architecture["layers"]
    plain = [i for i, layer in enumerate(layers) if "expert" not in layer["feed_forward"]]
    mixed = next((layer for layer in layers if "expert" in layer["feed_forward"]), layers[0])
    window = layers[0]["window"]
    return {
        **feed_forward_fields(layers[plain[0]] if plain else mixed), **mixture_fields(mixed),
        **feed_forward_fields(mixed, "moe_intermediate_size"), "norm_topk_prob": mixed["feed_forward"].get("normalize", False),
        "mlp_only_layers": plain, "use_sliding_window": window is not None, "sliding_window": window,
    }  # fmt: skip


def experts(spec: dict[str, Any], theirs: str, names: dict[str, str]) -> tuple[Rename, ...]:
    """Return the renames of the router and of each expert."""
    each = [llama.rows(f"feed_forward.experts.{e}.", f"{theirs}.experts.{e}.", names) for e in range(spec["feed_forward"]["num_experts"])]
    return (*llama.rows("feed_forward.", f"{theirs}.", {"router.weight": "gate.weight"}), *(row for some in each for row in some))


def of_mixtral(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames of a Mixtral model."""
    names = {"gate.weight": "w1.weight", "input.weight": "w3.weight", "output.weight": "w2.weight"}
    return (*llama.body(spec), *llama.NORMS, *experts(spec, "block_sparse_moe", names))


def of_qwen3_moe(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames of a Qwen3-MoE model."""
    dense = [{**spec, **layer}["feed_forward"]["name"] == "glu" for layer in spec.get("layers", ({},))]
    return (*llama.body(spec), *llama.NORMS, *(llama.GLU if any(dense) else ()), *(() if all(dense) else experts(spec, "mlp", llama.PARTS)))


FAMILIES = {
    "mixtral": Family(mixtral, mixtral_fields, of_mixtral, "MixtralForCausalLM", "model.", llama.UNREAD),
    "qwen3_moe": Family(qwen3_moe, joined(llama.bias_fields, mixtures_fields), of_qwen3_moe, "Qwen3MoeForCausalLM", "model.", llama.UNREAD),
}
