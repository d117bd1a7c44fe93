# https://arxiv.org/abs/1810.04805
"""BERT, and RoBERTa and DistilBERT, which are BERT with other names and without some of its embeddings."""

from typing import Any

from attnkit.convert.family import Family, activation
from attnkit.convert.fields import Fields
from attnkit.convert.renames import DropFirst, Rename, rename

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
UNUSED = 2
"""RoBERTa's positions before the first: padding has the position of its id, 1."""
UNREAD = ("*.pooler.dense.*", "cls.seq_relationship.*", "*.embeddings.position_ids")


def encoder(fields: Fields, *, head: str, eps: float, **sizes: Any) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` with these sizes."""
    fields.require(is_decoder=False, add_cross_attention=False, is_encoder_decoder=False, tie_word_embeddings=True)
    return {
        "stack": "encoder", "attention": "scaled_dot_product", "norm": {"name": "layer_norm", "eps": eps}, "residual": "post_norm",
        "bias": True, "embedding_norm": True, "tie": "output", "head": {"name": "bert", "activation": head},
        "vocab_size": fields.read("vocab_size", int), **sizes,
    }  # fmt: skip


def read(fields: Fields, *, positions: int, unused: int, segments: int, head: str | None, eps: float) -> dict[str, Any]:
    """Return the arguments for fields with BERT's names, with these defaults; `unused` positions come before the first."""
    fields.require(position_embedding_type="absolute", use_relative_positions=False)
    phi = activation(fields, "hidden_act", "gelu")
    return encoder(
        fields, head=head or phi, eps=fields.read("layer_norm_eps", float, eps), d_model=fields.read("hidden_size", int, 768),
        num_layers=fields.read("num_hidden_layers", int, 12), num_heads=fields.read("num_attention_heads", int, 12),
        position={"name": "learned", "max_length": fields.read("max_position_embeddings", int, positions, least=unused + 1) - unused},
        feed_forward={"name": "mlp", "ffn_dim": fields.read("intermediate_size", int, 3072), "activation": phi},
        dropout=fields.read("hidden_dropout_prob", float, 0.1), attention_dropout=fields.read("attention_probs_dropout_prob", float, 0.1),
        embedding={"name": "token", "scale": False, "num_segments": fields.read("type_vocab_size", int, segments)},
    )  # fmt: skip


def bert(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a BERT."""
    return read(fields, positions=512, unused=0, segments=2, head=None, eps=1e-12)


def roberta(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a RoBERTa, whose first positions are never read."""
    fields.require(pad_token_id=1)
    return read(fields, positions=512, unused=UNUSED, segments=2, head="gelu", eps=1e-12)


def distilbert(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a DistilBERT, which has no segments."""
    fields.ignore("sinusoidal_pos_embds", "tie_weights_", "output_past", "qa_dropout", "seq_classif_dropout")
    phi = activation(fields, "activation", "gelu")
    return encoder(
        fields, head=phi, eps=1e-12, d_model=fields.read("dim", int, 768), num_layers=fields.read("n_layers", int, 6),
        num_heads=fields.read("n_heads", int, 12), dropout=fields.read("dropout", float, 0.1),
        position={"name": "learned", "max_length": fields.read("max_position_embeddings", int, 512)},
        feed_forward={"name": "mlp", "ffn_dim": fields.read("hidden_dim", int, 3072), "activation": phi},
        attention_dropout=fields.read("attention_dropout", float, 0.1), embedding={"name": "token", "scale": False},
    )  # fmt: skip


def table(
    theirs: str, head: tuple[str, str, str], *, layers: str = "encoder.layer", parts: dict[str, str] = PARTS, has_segments: bool = True,
    unused: int = 0,
) -> tuple[Rename, ...]:  # fmt: skip
    """Return the renames of a model called `theirs`, and of the dense layer, the norm and the bias of its head."""
    (dense, norm, bias), inputs = head, f"{theirs}.embeddings"
    return (
        *rename("embedding.weight", f"{inputs}.word_embeddings.weight"),
        *rename("stack.encoder.position.weight", f"{inputs}.position_embeddings.weight", *([DropFirst(unused)] if unused else [])),
        *(rename("embedding.segment", f"{inputs}.token_type_embeddings.weight") if has_segments else ()),
        *rename("stack.encoder.embedding_norm.*", f"{inputs}.LayerNorm.*"),
        *(row for part, name in parts.items() for row in rename(f"{LAYER}.{part}.*", f"{theirs}.{layers}.{{i}}.{name}.*")),
        *rename("head.dense.*", f"{dense}.*"), *rename("head.norm.*", f"{norm}.*"), *rename("head.bias", bias),
    )  # fmt: skip


def copies(theirs: str, decoder: str, bias: str) -> dict[str, str]:
    """Return what some files store twice: the table and the biases of the head."""
    stored = {f"{decoder}.weight": f"{theirs}.embeddings.word_embeddings.weight", f"{decoder}.bias": bias}
    return {copy: name for copy, name in stored.items() if copy != name}


TRANSFORM = "cls.predictions.transform"
BERT = table("bert", (f"{TRANSFORM}.dense", f"{TRANSFORM}.LayerNorm", "cls.predictions.bias"))
DISTILBERT = table(
    "distilbert", ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"), layers="transformer.layer", parts=DISTIL_PARTS,
    has_segments=False,
)  # fmt: skip
ROBERTA = table("roberta", ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"), unused=UNUSED)

FAMILIES = {
    "bert": Family(
        bert, None, lambda _: BERT, "BertForMaskedLM", "bert.", UNREAD, OLD_NORMS,
        copies("bert", "cls.predictions.decoder", "cls.predictions.bias"),
    ),
    "roberta": Family(
        roberta, None, lambda _: ROBERTA, "RobertaForMaskedLM", "roberta.", UNREAD, {},
        copies("roberta", "lm_head.decoder", "lm_head.bias"),
    ),
    "distilbert": Family(
        distilbert, None, lambda _: DISTILBERT, "DistilBertForMaskedLM", "distilbert.", UNREAD, {},
        copies("distilbert", "vocab_projector", "vocab_projector.bias"),
    ),
}  # fmt: skip
