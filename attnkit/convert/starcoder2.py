# https://arxiv.org/abs/2402.19173
"""StarCoder2."""

from typing import Any

from attnkit.convert.family import Family, activation, feed_forward_fields, one_dropout
from attnkit.convert.fields import Fields
from attnkit.convert.llama import EMBEDDING, UNREAD, head, projections, rows, sizes, sizes_fields, tie, window_fields
from attnkit.convert.renames import Rename, rename
from attnkit.convert.rotation import rotary


def spec(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose`."""
    dropout = one_dropout(fields, "residual_dropout", "embedding_dropout", 0.0)
    fields.require(norm_type="layer_norm", mlp_type="default", scale_attn_weights=True)
    fields.ignore("activation_function", "layer_norm_epsilon", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
    has_biases = fields.read("use_bias", bool, True)
    return {
        **sizes(fields), "position": rotary(fields), "norm": {"name": "layer_norm", "eps": fields.read("norm_epsilon", float, 1e-5)},
        "feed_forward": {
            "name": "mlp", "ffn_dim": fields.read("intermediate_size", int), "bias": has_biases,
            "activation": activation(fields, "hidden_act", "gelu_pytorch_tanh"),
        },
        "bias": has_biases, "dropout": dropout, "window": fields.optional("sliding_window", int), "tie": tie(fields, True),
    }  # fmt: skip


def config(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an architecture."""
    layer, dropout = architecture["layers"][0], architecture["dropout"]
    return {
        **sizes_fields(architecture), **window_fields(architecture), **feed_forward_fields(layer), "use_bias": bool(layer["biases"]),
        "norm_epsilon": layer["norm"].get("eps", 1e-5), "residual_dropout": dropout, "embedding_dropout": dropout,
    }  # fmt: skip


def renames(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames."""
    kind = "*" if spec.get("bias", True) else "weight"
    return (
        *EMBEDDING,
        *rename("stack.decoder.final_norm.*", "model.norm.*"),
        *projections(kind),
        *rows("feed_forward.", "mlp.", {f"input.{kind}": f"c_fc.{kind}", f"output.{kind}": f"c_proj.{kind}"}),
        *rows("", "", {"mixer_residual.norm.*": "input_layernorm.*", "feed_forward_residual.norm.*": "post_attention_layernorm.*"}),
        *head(spec),
    )


FAMILIES = {"starcoder2": Family(spec, config, renames, "Starcoder2ForCausalLM", "model.", UNREAD)}
