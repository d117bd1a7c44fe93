# https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
"""GPT-2."""

from typing import Any

from attnkit.convert.family import Family, activation, feed_forward_fields, one_dropout
from attnkit.convert.fields import Fields
from attnkit.convert.llama import head, tie
from attnkit.convert.renames import LAYER, Map, Rename, Split, rename, transpose

FUSED = tuple(f"{LAYER}.mixer.{x}.*" for x in ("query", "key", "value"))


def spec(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose`."""
    width, eps = fields.read("n_embd", int), fields.read("layer_norm_epsilon", float, 1e-5)
    dropout = one_dropout(fields, "resid_pdrop", "embd_pdrop", 0.1)
    fields.ignore("is_decoder")
    fields.require(
        scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False, is_encoder_decoder=False,
    )  # fmt: skip
    return {
        "stack": "decoder", "d_model": width, "num_layers": fields.read("n_layer", int), "num_heads": fields.read("n_head", int),
        "attention": "scaled_dot_product", "position": {"name": "learned", "max_length": fields.read("n_positions", int, 1024)},
        "norm": {"name": "layer_norm", "eps": eps},
        "feed_forward": {
            "name": "mlp", "ffn_dim": fields.optional("n_inner", int) or 4 * width,
            "activation": activation(fields, "activation_function", "gelu_new"),
        },
        "residual": "pre_norm", "dropout": dropout, "attention_dropout": fields.read("attn_pdrop", float, 0.1), "bias": True,
        "embedding": {"name": "token", "scale": False}, "tie": tie(fields, True), "vocab_size": fields.read("vocab_size", int),
    }  # fmt: skip


def config(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an architecture."""
    layer, dropout = architecture["layers"][0], architecture["dropout"]
    return {
        "n_embd": architecture["d_model"], "n_layer": len(architecture["layers"]), "n_head": layer["num_heads"],
        "n_positions": layer["position"].get("max_length", 1024), "layer_norm_epsilon": layer["norm"].get("eps", 1e-5),
        **feed_forward_fields(layer, "n_inner", "activation_function"), "tie_word_embeddings": architecture["tie"] == "output",
        "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": layer["attention_dropout"],
    }  # fmt: skip


def kinds(ours: str | tuple[str, ...], theirs: str, weight: tuple[Map, ...], bias: tuple[Map, ...] = ()) -> tuple[Rename, ...]:
    """Return the renames of a weight and a bias that have different maps."""
    first, second = rename(ours, theirs)
    return Rename(first.ours, first.theirs, weight), Rename(second.ours, second.theirs, bias)


def layer(width: int) -> tuple[Rename, ...]:
    """Return the renames of a layer."""
    parts = Split((width,) * 3)
    return (
        *kinds(FUSED, "transformer.h.{i}.attn.c_attn.*", (transpose(), parts), (parts,)),
        *kinds(f"{LAYER}.mixer.output.*", "transformer.h.{i}.attn.c_proj.*", (transpose(),)),
        *kinds(f"{LAYER}.feed_forward.input.*", "transformer.h.{i}.mlp.c_fc.*", (transpose(),)),
        *kinds(f"{LAYER}.feed_forward.output.*", "transformer.h.{i}.mlp.c_proj.*", (transpose(),)),
        *rename(f"{LAYER}.mixer_residual.norm.*", "transformer.h.{i}.ln_1.*"),
        *rename(f"{LAYER}.feed_forward_residual.norm.*", "transformer.h.{i}.ln_2.*"),
    )


def renames(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames."""
    return (
        *rename("embedding.weight", "transformer.wte.weight"),
        *rename("stack.decoder.position.weight", "transformer.wpe.weight"),
        *rename("stack.decoder.final_norm.*", "transformer.ln_f.*"),
        *layer(spec["d_model"]),
        *head(spec),
    )


FAMILIES = {"gpt2": Family(spec, config, renames, "GPT2LMHeadModel", "transformer.", ("*.attn.bias", "*.attn.masked_bias"))}
