# https://arxiv.org/abs/1810.04805
"""BERT, RoBERTa and DistilBERT; the latter two are BERT with other parameter names and without some of its embeddings."""

from collections.abc import Mapping
from typing import Any

from attnkit.convert.family import Config, Family, Labelled, Spec, activation, feed_forward_fields
from attnkit.convert.fields import Fields
from attnkit.convert.llama import tie
from attnkit.convert.renames import Rename, drop_first, rename

LAYER = "stack.encoder.layers.{i}"
PARTS = {
    "mixer.query": "attention.self.query", "mixer.key": "attention.self.key", "mixer.value": "attention.self.value",
    "mixer.output": "attention.output.dense", "mixer_residual.norm": "attention.output.LayerNorm",
    "feed_forward.input": "intermediate.dense", "feed_forward.output": "output.dense", "feed_forward_residual.norm": "output.LayerNorm",
}  # fmt: skip
DISTIL_PARTS = {
    "mixer.query": "attention.q_lin", "mixer.key": "attention.k_lin", "mixer.value": "attention.v_lin", "mixer.output": "attention.out_lin",
    "mixer_residual.norm": "sa_layer_norm", "feed_forward.input": "ffn.lin1", "feed_forward.output": "ffn.lin2",
    "feed_forward_residual.norm": "output_layer_norm",
}  # fmt: skip
OLD_NORMS = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
UNREAD = ("*.pooler.dense.*", "cls.seq_relationship.*", "*.embeddings.position_ids")


def encoder(fields: Fields, *, head: str, eps: float, **sizes: Any) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` with these sizes."""
    fields.require(is_decoder=False, add_cross_attention=False, is_encoder_decoder=False)
    return {
        "stack": "encoder", "attention": "scaled_dot_product", "norm": {"name": "layer_norm", "eps": eps}, "residual": "post_norm",
        "bias": True, "embedding_norm": True, "tie": tie(fields, True), "head": {"name": "bert", "activation": head},
        "vocab_size": fields.read("vocab_size", int), **sizes,
    }  # fmt: skip


def bert(fields: Fields, *, unused: int = 0, head: str | None = None) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a BERT model, or another with its fields; the first `unused` positions are not used."""
    fields.require(position_embedding_type="absolute", use_relative_positions=False, directionality="bidi")
    fields.ignore("pooler_type", "pooler_fc_size", "pooler_num_fc_layers", "pooler_num_attention_heads", "pooler_size_per_head")
    phi = activation(fields, "hidden_act", "gelu")
    return encoder(
        fields, head=head or phi, eps=fields.read("layer_norm_eps", float, 1e-12), d_model=fields.read("hidden_size", int, 768),
        num_layers=fields.read("num_hidden_layers", int, 12), num_heads=fields.read("num_attention_heads", int, 12),
        position={"name": "learned", "max_length": fields.read("max_position_embeddings", int, 512, least=unused + 1) - unused},
        feed_forward={"name": "mlp", "ffn_dim": fields.read("intermediate_size", int, 3072), "activation": phi},
        dropout=fields.read("hidden_dropout_prob", float, 0.1), attention_dropout=fields.read("attention_probs_dropout_prob", float, 0.1),
        embedding={"name": "token", "scale": False, "num_segments": fields.read("type_vocab_size", int, 2)},
    )  # fmt: skip


def roberta(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a RoBERTa model: padding has its id as position, and the first token the next one."""
    pad = fields.read("pad_token_id", int, 1, least=0)
    return {**bert(fields, unused=pad + 1, head="gelu"), "pad_id": pad}


def distilbert(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a DistilBERT model, which has no segments."""
    fields.ignore("sinusoidal_pos_embds", "tie_weights_", "output_past", "qa_dropout", "seq_classif_dropout")
    phi = activation(fields, "activation", "gelu")
    return encoder(
        fields, head=phi, eps=1e-12, d_model=fields.read("dim", int, 768), num_layers=fields.read("n_layers", int, 6),
        num_heads=fields.read("n_heads", int, 12), dropout=fields.read("dropout", float, 0.1),
        position={"name": "learned", "max_length": fields.read("max_position_embeddings", int, 512)},
        feed_forward={"name": "mlp", "ffn_dim": fields.read("hidden_dim", int, 3072), "activation": phi},
        attention_dropout=fields.read("attention_dropout", float, 0.1), embedding={"name": "token", "scale": False},
    )  # fmt: skip


def config(architecture: dict[str, Any], *, unused: int = 0) -> dict[str, Any]:
    """Return the fields of an architecture."""
    layer = architecture["layers"][0]
    return {
        "hidden_size": architecture["d_model"], "num_hidden_layers": len(architecture["layers"]), "num_attention_heads": layer["num_heads"],
        **feed_forward_fields(layer), "max_position_embeddings": layer["position"].get("max_length", 512) + unused,
        "type_vocab_size": architecture["embedding"].get("num_segments") or 1, "layer_norm_eps": layer["norm"].get("eps", 1e-12),
        "hidden_dropout_prob": architecture["dropout"], "attention_probs_dropout_prob": layer["attention_dropout"],
        "tie_word_embeddings": architecture["tie"] == "output",
    }  # fmt: skip


def roberta_config(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an architecture."""
    pad = architecture["pad_id"]
    return {**config(architecture, unused=pad + 1), "pad_token_id": pad}


def distilbert_config(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an architecture."""
    layer = architecture["layers"][0]
    return {
        "dim": architecture["d_model"], "n_layers": len(architecture["layers"]), "n_heads": layer["num_heads"],
        **feed_forward_fields(layer, "hidden_dim", "activation"), "dropout": architecture["dropout"],
        "attention_dropout": layer["attention_dropout"], "max_position_embeddings": layer["position"].get("max_length", 512),
        "tie_word_embeddings": architecture["tie"] == "output",
    }  # fmt: skip


OUTPUT = "head.projection.*"


def family(
    spec: Spec, config: Config, name: str, theirs: str, head: tuple[str, str, str, str], labelled: Labelled, *,
    layers: str = "encoder.layer", parts: dict[str, str] = PARTS, has_segments: bool = True, aliases: Mapping[str, str] | None = None,
) -> Family:  # fmt: skip
    """Return a family whose weight names begin with `theirs`; `head` names its dense layer, norm, output map and output bias."""
    (dense, norm, decoder, bias), inputs = head, f"{theirs}.embeddings"
    words = f"{inputs}.word_embeddings.weight"

    def renames(spec: dict[str, Any]) -> tuple[Rename, ...]:
        unused = [drop_first(spec["pad_id"] + 1)] if "pad_id" in spec else []
        return (
            *rename("embedding.weight", words),
            *rename("stack.encoder.position.weight", f"{inputs}.position_embeddings.weight", *unused),
            *(rename("embedding.segment", f"{inputs}.token_type_embeddings.weight") if has_segments else ()),
            *rename("stack.encoder.embedding_norm.*", f"{inputs}.LayerNorm.*"),
            *(row for part, name in parts.items() for row in rename(f"{LAYER}.{part}.*", f"{theirs}.{layers}.{{i}}.{name}.*")),
            *rename("head.dense.*", f"{dense}.*"), *rename("head.norm.*", f"{norm}.*"),
            *(rename("head.bias", bias) if spec["tie"] == "output" else rename(OUTPUT, f"{decoder}.*")),
        )  # fmt: skip

    twice = {f"{decoder}.weight": words, **({f"{decoder}.bias": bias} if bias != f"{decoder}.bias" else {})}
    return Family(spec, config, renames, f"{name}ForMaskedLM", f"{theirs}.", UNREAD, aliases or {}, twice, labelled=labelled)


LABELLED = {"TokenClassification": rename(OUTPUT, "classifier.*"), "QuestionAnswering": rename(OUTPUT, "qa_outputs.*")}
TRANSFORM = "cls.predictions.transform"
FAMILIES = {
    "distilbert": family(
        distilbert, distilbert_config, "DistilBert", "distilbert",
        ("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"), LABELLED, layers="transformer.layer",
        parts=DISTIL_PARTS, has_segments=False,
    ),
    "bert": family(
        bert, config, "Bert", "bert", (f"{TRANSFORM}.dense", f"{TRANSFORM}.LayerNorm", "cls.predictions.decoder", "cls.predictions.bias"),
        {**LABELLED, "SequenceClassification": (*rename("pooler.dense.*", "bert.pooler.dense.*"), *LABELLED["TokenClassification"])},
        aliases=OLD_NORMS,
    ),
    "roberta": family(
        roberta, roberta_config, "Roberta", "roberta", ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
        {
            **LABELLED,
            "SequenceClassification": (*rename("pooler.dense.*", "classifier.dense.*"), *rename(OUTPUT, "classifier.out_proj.*")),
        },
    ),
}  # fmt: skip
"""The families; each can express the models of those before it, and others."""
