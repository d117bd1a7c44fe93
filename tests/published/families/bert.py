"""BERT and the encoders of text around it."""

from published.family import Drop, Family, Rename, rename

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 40,
    "max_position_embeddings": 20,
    "pad_token_id": 0,
}
SPEC = {
    "stack": "encoder",
    "d_model": 16,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 40,
    "position": {"name": "learned", "max_length": 20},
    "norm": {"name": "layer_norm", "eps": 1e-12},
    "residual": "post_norm",
    "embedding_norm": True,
    "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu"},
    "embedding": {"name": "token", "scale": False, "num_segments": 2},
    "tie": "output",
    "head": "bert",
}
LAYER = "stack.encoder.layers.{i}"
PARTS = {
    "mixer.query": "attention.self.query",
    "mixer.key": "attention.self.key",
    "mixer.value": "attention.self.value",
    "mixer.output": "attention.output.dense",
    "mixer_residual.norm": "attention.output.LayerNorm",
    "feed_forward.input": "intermediate.dense",
    "feed_forward.output": "output.dense",
    "feed_forward_residual.norm": "output.LayerNorm",
}


def layers(theirs: str, **other: str) -> tuple[Rename, ...]:
    """Return the renames of the layers `theirs`; `other` maps parts (with `_` for dots) to their differing names."""
    changed = {ours: other.get(ours.replace(".", "_"), part) for ours, part in PARTS.items()}
    return tuple(row for ours, part in changed.items() for row in rename(f"{LAYER}.{ours}.*", f"{theirs}.{{i}}.{part}.*"))


def embeddings(
    theirs: str, *, offset: int = 0, segments: bool = True, positions: bool = True, norm: bool = True, table: str = ""
) -> tuple[Rename, ...]:
    """Return the renames of BERT's embeddings. RoBERTa's positions start after two rows that nothing reads."""
    words = rename("embedding.weight", table or f"{theirs}.word_embeddings.weight")
    places = rename("stack.encoder.position.weight", f"{theirs}.position_embeddings.weight", *([Drop(offset)] if offset else []))
    kinds = rename("embedding.segment", f"{theirs}.token_type_embeddings.weight")
    norms = rename("stack.encoder.embedding_norm.*", f"{theirs}.LayerNorm.*")
    return (*words, *(places if positions else ()), *(kinds if segments else ()), *(norms if norm else ()))


def head(dense: str, norm: str, bias: str) -> tuple[Rename, ...]:
    return (*rename("head.dense.*", f"{dense}.*"), *rename("head.norm.*", f"{norm}.*"), *rename("head.bias", bias))


BERT_HEAD = head("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")
ROBERTA_HEAD = head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
ROBERTA_SIZES = {**SIZES, "pad_token_id": 1, "max_position_embeddings": 22, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
ROBERTA = {**SPEC, "norm": "layer_norm", "embedding": {"name": "token", "scale": False, "num_segments": 1}}
PRE_NORM = {"residual": "pre_norm", "embedding_norm": False}
WORDS = {"name": "token", "scale": False}


def final_norm(theirs: str) -> tuple[Rename, ...]:
    return rename("stack.encoder.final_norm.*", f"{theirs}.*")


def roberta(name: str, paper: str, classes: str, table: str = "") -> Family:
    """Return a family with RoBERTa's architecture."""
    return Family(
        name=name,
        paper=paper,
        theirs=(f"{classes}Config", f"{classes}ForMaskedLM"),
        config=ROBERTA_SIZES,
        spec=ROBERTA,
        renames=(*embeddings("roberta.embeddings", offset=2, table=table), *layers("roberta.encoder.layer"), *ROBERTA_HEAD),
        padding="right",
    )


DISTIL = {
    "mixer_query": "attention.q_lin",
    "mixer_key": "attention.k_lin",
    "mixer_value": "attention.v_lin",
    "mixer_output": "attention.out_lin",
    "mixer_residual_norm": "sa_layer_norm",
    "feed_forward_input": "ffn.lin1",
    "feed_forward_output": "ffn.lin2",
    "feed_forward_residual_norm": "output_layer_norm",
}
MPNET = {
    "mixer_query": "attention.attn.q",
    "mixer_key": "attention.attn.k",
    "mixer_value": "attention.attn.v",
    "mixer_output": "attention.attn.o",
    "mixer_residual_norm": "attention.LayerNorm",
}
PREFIXED_NORMS = {"mixer_residual_norm": "attention.LayerNorm", "feed_forward_residual_norm": "intermediate.LayerNorm"}

FAMILIES = (
    Family(
        name="BERT",
        paper="https://arxiv.org/abs/1810.04805",
        theirs=("BertConfig", "BertForMaskedLM"),
        config=SIZES,
        spec=SPEC,
        renames=(*embeddings("bert.embeddings"), *layers("bert.encoder.layer"), *BERT_HEAD),
        padding="right",
    ),
    roberta("RoBERTa", "https://arxiv.org/abs/1907.11692", "Roberta"),
    roberta("XLM-R", "https://arxiv.org/abs/1911.02116", "XLMRoberta", table="lm_head.decoder.weight"),
    roberta("CamemBERT", "https://arxiv.org/abs/1911.03894", "Camembert", table="lm_head.decoder.weight"),
    Family(
        name="RoBERTa-PreLayerNorm",
        paper="https://arxiv.org/abs/1904.01038",
        theirs=("RobertaPreLayerNormConfig", "RobertaPreLayerNormForMaskedLM"),
        config=ROBERTA_SIZES,
        spec={**ROBERTA, "residual": "pre_norm"},
        renames=(
            *embeddings("roberta_prelayernorm.embeddings", offset=2),
            *layers("roberta_prelayernorm.encoder.layer", **PREFIXED_NORMS),
            *final_norm("roberta_prelayernorm.LayerNorm"),
            *ROBERTA_HEAD,
        ),
        padding="right",
    ),
    Family(
        name="XLM-R XL",
        paper="https://arxiv.org/abs/2105.00572",
        theirs=("XLMRobertaXLConfig", "XLMRobertaXLForMaskedLM"),
        config=ROBERTA_SIZES,
        spec={**ROBERTA, **PRE_NORM},
        renames=(
            *embeddings("roberta.embeddings", offset=2, norm=False),
            *layers("roberta.encoder.layer", mixer_residual_norm="attention.self_attn_layer_norm", feed_forward_residual_norm="LayerNorm"),
            *final_norm("roberta.encoder.LayerNorm"),
            *ROBERTA_HEAD,
        ),
        padding="right",
    ),
    Family(
        name="Megatron-BERT",
        paper="https://arxiv.org/abs/1909.08053",
        theirs=("MegatronBertConfig", "MegatronBertForMaskedLM"),
        config=SIZES,
        spec={**SPEC, **PRE_NORM},
        renames=(
            *embeddings("bert.embeddings", norm=False),
            *layers("bert.encoder.layer", mixer_residual_norm="attention.ln", feed_forward_residual_norm="ln"),
            *final_norm("bert.encoder.ln"),
            *BERT_HEAD,
        ),
        padding="right",
    ),
    Family(
        name="DistilBERT",
        paper="https://arxiv.org/abs/1910.01108",
        theirs=("DistilBertConfig", "DistilBertForMaskedLM"),
        config={"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4, "vocab_size": 40, "max_position_embeddings": 20},
        spec={**SPEC, "embedding": WORDS},
        renames=(
            *embeddings("distilbert.embeddings", segments=False),
            *layers("distilbert.transformer.layer", **DISTIL),
            *head("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
        ),
        padding="right",
    ),
    Family(
        name="ELECTRA (base, large)",
        paper="https://arxiv.org/abs/2003.10555",
        theirs=("ElectraConfig", "ElectraForMaskedLM"),
        config={**SIZES, "embedding_size": 16},
        spec=SPEC,
        renames=(
            *embeddings("electra.embeddings"),
            *layers("electra.encoder.layer"),
            *head("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
        ),
        padding="right",
        note="The small ones have narrower embeddings, as ALBERT has.",
    ),
    Family(
        name="RoFormer",
        paper="https://arxiv.org/abs/2104.09864",
        theirs=("RoFormerConfig", "RoFormerForMaskedLM"),
        config={**SIZES, "embedding_size": 16},
        spec={**SPEC, "position": {"name": "rotary", "interleaved": True}},
        renames=(*embeddings("roformer.embeddings", positions=False), *layers("roformer.encoder.layer"), *BERT_HEAD),
        padding="right",
        unread=("roformer.encoder.embed_positions.weight",),
    ),
    Family(
        name="MPNet",
        paper="https://arxiv.org/abs/2004.09297",
        theirs=("MPNetConfig", "MPNetForMaskedLM"),
        config={**SIZES, "pad_token_id": 1, "max_position_embeddings": 22, "layer_norm_eps": 1e-12},
        spec={**SPEC, "layers": [{"position": "relative"}], "embedding": WORDS},
        renames=(
            *embeddings("mpnet.embeddings", offset=2, segments=False),
            *rename("stack.encoder.other_positions.0.weight", "mpnet.encoder.relative_attention_bias.weight"),
            *layers("mpnet.encoder.layer", **MPNET),
            *head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        ),
        padding="right",
    ),
    Family(
        name="ESM-2",
        paper="https://doi.org/10.1126/science.ade2574",
        theirs=("EsmConfig", "EsmForMaskedLM"),
        config={
            **SIZES,
            "pad_token_id": 1,
            "mask_token_id": 2,
            "layer_norm_eps": 1e-5,
            "position_embedding_type": "rotary",
            "token_dropout": True,
            "emb_layer_norm_before": False,
        },
        spec={**SPEC, **PRE_NORM, "norm": "layer_norm", "position": "rotary", "embedding": {"name": "token", "scale": 0.88}},
        renames=(
            *rename("embedding.weight", "esm.embeddings.word_embeddings.weight"),
            *layers("esm.encoder.layer", mixer_residual_norm="attention.LayerNorm", feed_forward_residual_norm="LayerNorm"),
            *final_norm("esm.encoder.emb_layer_norm_after"),
            *head("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        ),
        padding="right",
        unread=("esm.contact_head.regression.weight", "esm.contact_head.regression.bias", "esm.rotary_embeddings.inv_freq"),
        note="Sequences without mask tokens; with some, their embeddings are scaled by the number of mask tokens.",
    ),
)
