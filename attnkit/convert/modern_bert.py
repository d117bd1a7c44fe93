# https://arxiv.org/abs/2412.13663
"""ModernBERT, an encoder with rotary positions and, in some layers, a window.

The first layer has no norm before its attention, so it becomes two of attnkit's: attention alone, then the feed-forward network alone.
"""

from itertools import groupby
from typing import Any

from attnkit.convert.bert import LAYER, OUTPUT
from attnkit.convert.family import THEIRS, Family, activation, feed_forward_fields
from attnkit.convert.fields import Fields
from attnkit.convert.llama import FULL, SLIDING, tie, windows
from attnkit.convert.renames import Rename, Split, rename
from attnkit.convert.rotation import rotations


def spec(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose`."""
    width, count, eps = (fields.read(*x) for x in (("hidden_size", int, 768), ("num_hidden_layers", int, 22), ("norm_eps", float, 1e-5)))
    fields.require(
        norm_bias=False, attention_bias=False, mlp_bias=False, decoder_bias=True, attention_dropout=0.0, embedding_dropout=0.0,
        mlp_dropout=0.0, position_embedding_type="absolute",
    )  # fmt: skip
    fields.ignore(
        "initializer_cutoff_factor", "cls_token_id", "sep_token_id", "classifier_pooling", "deterministic_flash_attn", "sparse_prediction",
        "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad", "layer_norm_eps",
    )  # fmt: skip
    every, half = fields.read("global_attn_every_n_layers", int, 3), fields.read("local_attention", int, 128, least=2) // 2
    near, far = rotations(fields, 1.6e5, "global_rope_theta", "local_rope_theta")
    kinds = [{**kind, "position": near} if kind else {} for kind in windows(fields, count, half + 1, lambda i: i % every != 0)]
    first = [{**kinds[0], "norm": "none", "feed_forward": "none"}, {"mixer": "none"}]
    layers = [*first, *({**kind, "repeat": len(list(run))} for kind, run in groupby(kinds[1:]))]
    return {
        "stack": "encoder", "d_model": width, "num_heads": fields.read("num_attention_heads", int, 12), "attention": "scaled_dot_product",
        "position": far, "norm": {"name": "layer_norm", "bias": False, "eps": eps}, "residual": "pre_norm", "dropout": 0.0, "bias": False,
        "feed_forward": {
            "name": "glu", "ffn_dim": fields.read("intermediate_size", int, 1152),
            "activation": activation(fields, "hidden_activation", "gelu"),
        },
        "layers": layers, "embedding_norm": True, "embedding": {"name": "token", "scale": False}, "tie": tie(fields, True),
        "head": {
            "name": "bert", "activation": activation(fields, "classifier_activation", "gelu"),
            "dense_bias": fields.read("classifier_bias", bool, False),
        },
        "vocab_size": fields.read("vocab_size", int, 50368),
    }  # fmt: skip


def config(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an architecture, whose first layer is two of attnkit's; rotary bases are read from one layer of each kind."""
    first, layers = architecture["layers"][0], [x for x in architecture["layers"] if x["mixer"]["name"] != "none"]
    windows = [layer["window"] for layer in layers]
    bases = [next((x["position"].get("base", 1e4) for x in layers if (x["window"] is None) is far), 1e4) for far in (False, True)]
    every = next((n for n in range(1, len(layers) + 1) if all((w is None) is (i % n == 0) for i, w in enumerate(windows))), None)
    head, norm = architecture["head"] or {}, architecture["norm"] or {}
    return {
        "hidden_size": architecture["d_model"], "num_hidden_layers": len(layers), "num_attention_heads": first["num_heads"],
        **feed_forward_fields(architecture["layers"][-1], name="hidden_activation"), "norm_eps": norm.get("eps", 1e-5),
        "layer_types": [FULL if window is None else SLIDING for window in windows],
        "local_attention": 2 * next(filter(None, windows), 65) - 2,
        **({} if every is None else {"global_attn_every_n_layers": every}),  # versions before 5 do not read layer_types
        "local_rope_theta": bases[0], "global_rope_theta": bases[1],
        "classifier_activation": THEIRS.get(head.get("activation", "gelu"), "gelu"), "classifier_bias": head.get("dense_bias", False),
        "tie_word_embeddings": architecture["tie"] == "output",
    }  # fmt: skip


def layer(number: int, width: int, ffn_dim: int) -> tuple[Rename, ...]:
    """Return the renames of one published layer."""
    attention, network = (LAYER.replace("{i}", str(i)) for i in ((0, 1) if number == 0 else (number + 1,) * 2))
    theirs, parts = f"model.layers.{number}", ("query", "key", "value")
    return (
        *rename(tuple(f"{attention}.mixer.{x}.weight" for x in parts), f"{theirs}.attn.Wqkv.weight", Split((width,) * 3)),
        *rename(f"{attention}.mixer.output.weight", f"{theirs}.attn.Wo.weight"),
        *(rename(f"{attention}.mixer_residual.norm.weight", f"{theirs}.attn_norm.weight") if number else ()),
        *rename(tuple(f"{network}.feed_forward.{x}.weight" for x in ("gate", "input")), f"{theirs}.mlp.Wi.weight", Split((ffn_dim,) * 2)),
        *rename(f"{network}.feed_forward.output.weight", f"{theirs}.mlp.Wo.weight"),
        *rename(f"{network}.feed_forward_residual.norm.weight", f"{theirs}.mlp_norm.weight"),
    )


def renames(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames."""
    count = sum(each.get("repeat", 1) for each in spec["layers"]) - 1
    dense = f"head.dense.{'*' if spec['head']['dense_bias'] else 'weight'}"
    return (
        *rename("embedding.weight", "model.embeddings.tok_embeddings.weight"),
        *rename("stack.encoder.embedding_norm.weight", "model.embeddings.norm.weight"),
        *rename("stack.encoder.final_norm.weight", "model.final_norm.weight"),
        *(row for number in range(count) for row in layer(number, spec["d_model"], spec["feed_forward"]["ffn_dim"])),
        *rename(dense, dense),
        *rename("head.norm.weight", "head.norm.weight"),
        *(rename("head.bias", "decoder.bias") if spec["tie"] == "output" else rename(OUTPUT, "decoder.*")),
    )


COPIES = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
FAMILIES = {"modernbert": Family(spec, config, renames, "ModernBertForMaskedLM", "model.", (), {}, COPIES)}
