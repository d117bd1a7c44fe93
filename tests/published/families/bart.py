"""BART, and encoder-decoders with its names."""

from typing import Any

from published.family import Drop, Family, Rename, Reshape, rename
from published.sizes import SEQ2SEQ, SEQ2SEQ_SIZES

SIZES = {**SEQ2SEQ_SIZES, "max_position_embeddings": 20, "pad_token_id": 0, "forced_eos_token_id": None}
LEARNED = {"name": "learned", "max_length": 20}
SINES_FIRST = {"name": "sinusoidal", "interleaved": False}
FAIRSEQ = {**SINES_FIRST, "base": 10_000.0 ** (8 / 7), "first": 2}  # longest wavelength exactly 2 pi 10,000
SPEC = {
    **SEQ2SEQ,
    "position": LEARNED,
    "residual": "post_norm",
    "embedding_norm": True,
    "embedding": {"name": "token", "scale": False},
    "tie": "all",
    "head": {"name": "linear", "bias": True},
}
PRE_NORM = {"residual": "pre_norm"}
PLAIN = {**SPEC, "embedding_norm": False, "position": SINES_FIRST, "embedding": "token"}
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
SUBLAYERS = {"mixer": "self_attn", "cross_mixer": "encoder_attn"}


def mlp(activation: str) -> dict[str, Any]:
    return {"feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": activation}}


def layers(side: str, *, key_bias: bool = True) -> tuple[Rename, ...]:
    """Return the renames of the layers of the `encoder` or the `decoder`."""
    ours, theirs = f"stack.{side}.layers.{{i}}", f"model.{side}.layers.{{i}}"
    rows: list[Rename] = []
    for sublayer, their_sublayer in SUBLAYERS.items():
        if side == "encoder" and sublayer == "cross_mixer":
            continue
        for our_part, their_part in PROJECTIONS.items():
            kind = "weight" if our_part == "key" and not key_bias else "*"
            rows += rename(f"{ours}.{sublayer}.{our_part}.{kind}", f"{theirs}.{their_sublayer}.{their_part}.{kind}")
        rows += rename(f"{ours}.{sublayer}_residual.norm.*", f"{theirs}.{their_sublayer}_layer_norm.*")
    for our_part, their_part in {"feed_forward.input": "fc1", "feed_forward.output": "fc2"}.items():
        rows += rename(f"{ours}.{our_part}.*", f"{theirs}.{their_part}.*")
    rows += rename(f"{ours}.feed_forward_residual.norm.*", f"{theirs}.final_layer_norm.*")
    return tuple(rows)


def table(*, offset: int | None = 2, embedding_norm: bool = True, final_norm: bool = False, bias: bool = True) -> tuple[Rename, ...]:
    """Return the renames. Learned positions start after `offset` rows that nothing reads; None: they are computed."""
    rows = [*rename("embeddings.shared.weight", "model.shared.weight"), *layers("encoder"), *layers("decoder")]
    if bias:
        rows += rename("head.bias", "final_logits_bias", Reshape((40,), (1, 40)))
    for side in ("encoder", "decoder"):
        if offset is not None:
            drop = [Drop(offset)] if offset else []
            rows += rename(f"stack.{side}.position.weight", f"model.{side}.embed_positions.weight", *drop)
        if embedding_norm:
            rows += rename(f"stack.{side}.embedding_norm.*", f"model.{side}.layernorm_embedding.*")
        if final_norm:
            rows += rename(f"stack.{side}.final_norm.*", f"model.{side}.layer_norm.*")
    return tuple(rows)


TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

FAMILIES = (
    Family(
        name="BART",
        paper="https://arxiv.org/abs/1910.13461",
        theirs=("BartConfig", "BartForConditionalGeneration"),
        config=SIZES,
        spec=SPEC,
        renames=table(),
        padding="right",
    ),
    Family(
        name="mBART",
        paper="https://arxiv.org/abs/2001.08210",
        theirs=("MBartConfig", "MBartForConditionalGeneration"),
        config={**SIZES, "scale_embedding": True},
        spec={**SPEC, **PRE_NORM, "embedding": "token"},
        renames=table(final_norm=True),
        padding="right",
    ),
    Family(
        name="PLBart",
        paper="https://arxiv.org/abs/2103.06333",
        theirs=("PLBartConfig", "PLBartForConditionalGeneration"),
        config={**SIZES, "scale_embedding": True},
        spec={**SPEC, "embedding": "token"},
        renames=table(),
        padding="right",
    ),
    Family(
        name="Blenderbot",
        paper="https://arxiv.org/abs/2004.13637",
        theirs=("BlenderbotConfig", "BlenderbotForConditionalGeneration"),
        config={**SIZES, "scale_embedding": True},
        spec={**SPEC, **PRE_NORM, "embedding": "token", "embedding_norm": False},
        renames=table(offset=0, embedding_norm=False, final_norm=True),
        padding="right",
    ),
    Family(
        name="Blenderbot small",
        paper="https://arxiv.org/abs/2004.13637",
        missing="its decoder normalises token embeddings before positions are added, its encoder after; attnkit has one order for both",
    ),
    Family(
        name="Marian",
        paper="https://arxiv.org/abs/1804.00344",
        theirs=("MarianConfig", "MarianMTModel"),
        config={**SIZES, "scale_embedding": True, "activation_function": "swish"},
        spec={**PLAIN, **mlp("silu")},
        renames=table(offset=None, embedding_norm=False),
        unread=TABLES,
        padding="right",
    ),
    Family(
        name="Pegasus",
        paper="https://arxiv.org/abs/1912.08777",
        theirs=("PegasusConfig", "PegasusForConditionalGeneration"),
        config={**SIZES, "scale_embedding": True, "activation_function": "relu"},
        spec={**PLAIN, **PRE_NORM, **mlp("relu")},
        renames=table(offset=None, embedding_norm=False, final_norm=True),
        unread=TABLES,
        padding="right",
    ),
    Family(
        name="M2M-100",
        paper="https://arxiv.org/abs/2010.11125",
        theirs=("M2M100Config", "M2M100ForConditionalGeneration"),
        config={**SIZES, "scale_embedding": True, "activation_function": "relu", "pad_token_id": 1},
        spec={**PLAIN, **PRE_NORM, **mlp("relu"), "position": FAIRSEQ, "head": "linear"},
        renames=table(offset=None, embedding_norm=False, final_norm=True, bias=False),
        padding="right",
        note="NLLB-200 (https://arxiv.org/abs/2207.04672) has this architecture too, except for its mixture of experts.",
    ),
)
