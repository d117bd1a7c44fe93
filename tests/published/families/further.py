"""Further encoders and encoder-decoders, and two small decoders: Ettin, XGLM, EuroBERT, GTE, ESM C, Switch, T5Gemma, Moonshine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from published.families import bart, bert, t5
from published.families.mixtral import EPS, EXPERTS, QUERY_KEY_NORM, attention, glu, mixture, norms, outside
from published.family import Constant, Family, Rename, Split, add, rename
from published.sizes import DECODER, LLAMA_SIZES, SEQ2SEQ, SIZES, WIDTHS, without
from torch import Tensor
from torch.nn.functional import gelu

WORDS = {"name": "token", "scale": False}
NO_BIAS = {"name": "layer_norm", "bias": False}
GLU = {"name": "glu", "ffn_dim": 24}
HALF = {"name": "rotary", "interleaved": True, "fraction": 0.5}
LAYER, DECODING = "stack.encoder.layers.{i}", "stack.decoder.layers.{i}"
PARTS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
POST_NORMS = {"mixer_residual.norm": "post_attention_layernorm", "feed_forward_residual.norm": "post_mlp_layernorm"}


def encoder(renames: Sequence[Rename], model: str = "model") -> tuple[Rename, ...]:
    """Return an encoder's rows, given a decoder's and their name of the model."""
    return tuple(
        replace(
            row,
            ours=tuple(name.replace("stack.decoder", "stack.encoder") for name in row.ours),
            theirs=tuple(name.replace("model.", f"{model}.") for name in row.theirs),
        )
        for row in renames
    )


def every(ours: str, theirs: str, names: dict[str, str], kind: str = "*") -> tuple[Rename, ...]:
    """Return the rows of the tensors of a kind (`*`: weights and biases) of the parts below two prefixes."""
    return tuple(row for left, right in names.items() for row in rename(f"{ours}.{left}.{kind}", f"{theirs}.{right}.{kind}"))


def ettin(number: int) -> tuple[Rename, ...]:
    """Return the rows of one layer. The first is two of ours, since its attention has no norm."""
    mixer, feed_forward = (f"stack.decoder.layers.{n}" for n in ((0, 1) if number == 0 else (number + 1, number + 1)))
    theirs = f"model.layers.{number}"
    return (
        *every(f"{mixer}.mixer", f"{theirs}.attn", {**PARTS, "output": "Wo"}, "weight"),
        *(every(mixer, theirs, {"mixer_residual.norm": "attn_norm"}, "weight") if number else ()),
        *rename(tuple(f"{feed_forward}.feed_forward.{x}.weight" for x in ("gate", "input")), f"{theirs}.mlp.Wi.weight", Split((24, 24))),
        *every(feed_forward, theirs, {"feed_forward.output": "mlp.Wo", "feed_forward_residual.norm": "mlp_norm"}, "weight"),
    )


def moonshine_frames(model: Any, wave: Tensor) -> Tensor:
    """Return the output of their convolutions for samples."""
    front = model.model.encoder
    frames = front.groupnorm(front.conv1(wave[:, None]).tanh())
    embedded: Tensor = gelu(front.conv3(gelu(front.conv2(frames)))).transpose(1, 2)
    return embedded


GEMMA_SIZES = {
    "head_dim": 8,
    "query_pre_attn_scalar": 24,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GEMMA: dict[str, Any] = {
    **WIDTHS,
    "head_dim": 8,
    "num_kv_heads": 2,
    "bias": False,
    "norm": "rms_norm",
    "position": "rotary",
    "residual": "sandwich_norm",
    "attention": "dot_product",
    "mixer": {"name": "multi_head", "scale": 24**-0.5, "softcap": 50.0},
    "feed_forward": {**GLU, "activation": "gelu_tanh"},
}


def switch(side: str, number: int) -> tuple[Rename, ...]:
    """Return the rows of the mixtures of one side, which are sublayers of this number there."""
    ours, theirs = f"stack.{side}.layers.{{i}}.feed_forward", f"{side}.block.{{i}}.layer.{number}.mlp"
    names = {f"experts.{e}.{x}": f"experts.expert_{e}.{y}" for e in range(EXPERTS) for x, y in t5.MLP.items()}
    return every(ours, theirs, {"router": "router.classifier", **names}, "weight")


def plus_one(table: Sequence[Rename]) -> tuple[Rename, ...]:
    """Return the rows, with norms whose weights theirs stores minus one."""
    return tuple(replace(row, maps=(add(1.0),)) if "norm.weight" in row.ours[0] else row for row in table)


def gemma_side(ours: str, theirs: str, *, with_memory: bool) -> tuple[Rename, ...]:
    """Return the rows of T5Gemma's encoder or decoder."""
    mixers = {"mixer": "self_attn"} | ({"cross_mixer": "cross_attn"} if with_memory else {})
    names = {f"{x}.{part}": f"{y}.{name}" for x, y in mixers.items() for part, name in PARTS.items()}
    names |= {
        f"{kind}_residual.{side}_norm": f"{place}_{name}_layernorm"
        for kind, name in {**mixers, "feed_forward": "feedforward"}.items()
        for side, place in (("input", "pre"), ("output", "post"))
    }
    names |= {f"feed_forward.{x}": f"mlp.{y}_proj" for x, y in (("gate", "gate"), ("input", "up"), ("output", "down"))}
    return (
        *every(f"{ours}.layers.{{i}}", f"{theirs}.layers.{{i}}", names, "weight"),
        *rename(f"{ours}.final_norm.weight", f"{theirs}.norm.weight"),
    )


FRAMES, HEARD, SPOKEN = "stack.encoder.encoder.layers.{i}", "model.encoder.layers.{i}", "model.decoder.layers.{i}"
SELF = {f"mixer.{x}": f"self_attn.{y}" for x, y in PARTS.items()}
CROSS = {f"cross_mixer.{x}": f"encoder_attn.{y}" for x, y in PARTS.items()}
MOONSHINE_NORMS = {"mixer": "input", "cross_mixer": "post_attention"}
XLMR_SIZES = {**bert.SIZES, "type_vocab_size": 1}
ROTATED = {**bert.SPEC, "embedding": {**WORDS, "num_segments": 1}}
LOCAL = {"window": 4, "position": {"name": "rotary", "base": 10_000.0}}

FAMILIES = (
    Family(
        name="Ettin (decoder)",
        paper="https://arxiv.org/abs/2507.11412",
        theirs=("ModernBertDecoderConfig", "ModernBertDecoderForCausalLM"),
        config={**SIZES, "intermediate_size": 24, "local_attention": 8, "layer_types": ["full_attention", "sliding_attention"]},
        spec={
            **without(DECODER, "num_layers"),
            "bias": False,
            "position": {"name": "rotary", "base": 160_000.0},
            "norm": NO_BIAS,
            "feed_forward": {**GLU, "activation": "gelu"},
            "layers": [{"norm": "none", "feed_forward": "none"}, {"mixer": "none"}, LOCAL],
            "embedding_norm": True,
            "tie": "output",
            "head": {"name": "bert", "dense_bias": False},
        },
        renames=(
            *rename("embedding.weight", "model.embeddings.tok_embeddings.weight"),
            *rename("stack.decoder.embedding_norm.weight", "model.embeddings.norm.weight"),
            *rename("stack.decoder.final_norm.weight", "model.final_norm.weight"),
            *ettin(0),
            *ettin(1),
            *rename("head.dense.weight", "lm_head.dense.weight"),
            *rename("head.norm.weight", "lm_head.norm.weight"),
            *rename("head.bias", "decoder.bias"),
        ),
        note="ModernBERT as a decoder; as there, its first layer is written as two. `window` is `local_attention` / 2.",
    ),
    Family(
        name="XGLM",
        paper="https://arxiv.org/abs/2112.10668",
        theirs=("XGLMConfig", "XGLMForCausalLM"),
        config={"d_model": 16, "num_layers": 2, "attention_heads": 4, "ffn_dim": 24, "vocab_size": 40, "max_position_embeddings": 64},
        spec={
            **DECODER,
            "embedding": "token",
            "position": bart.FAIRSEQ,
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu"},
            "tie": "output",
        },
        renames=(
            *rename("embedding.weight", "model.embed_tokens.weight"),
            *rename("stack.decoder.final_norm.*", "model.layer_norm.*"),
            *every(f"{DECODING}.mixer", "model.layers.{i}.self_attn", bart.PROJECTIONS),
            *every(DECODING, "model.layers.{i}", {"mixer_residual.norm": "self_attn_layer_norm"}),
            *every(DECODING, "model.layers.{i}", {"feed_forward_residual.norm": "final_layer_norm"}),
            *every(f"{DECODING}.feed_forward", "model.layers.{i}", {"input": "fc1", "output": "fc2"}),
        ),
    ),
    Family(
        name="EuroBERT",
        paper="https://arxiv.org/abs/2503.05500",
        theirs=("EuroBertConfig", "EuroBertForMaskedLM"),
        config=LLAMA_SIZES,
        spec={**DECODER, "stack": "encoder", "num_kv_heads": 2, "bias": False, "position": "rotary", "norm": EPS, "feed_forward": GLU},
        renames=encoder((*outside(), *attention(), *norms(), *glu("model.layers.{i}.mlp"))),
        padding="right",
    ),
    Family(
        name="jina-embeddings-v3",
        paper="https://arxiv.org/abs/2409.10173",
        theirs=("JinaEmbeddingsV3Config", "JinaEmbeddingsV3ForMaskedLM"),
        config=XLMR_SIZES,
        spec={**ROTATED, "norm": "layer_norm", "position": {"name": "rotary", "base": 20_000.0}},
        renames=(
            *bert.embeddings("roberta.embeddings", positions=False, table="lm_head.decoder.weight"),
            *every(f"{LAYER}.mixer", "roberta.layers.{i}.self_attn", PARTS),
            *every(f"{LAYER}.feed_forward", "roberta.layers.{i}.mlp", {"input": "fc1", "output": "fc2"}),
            *every(LAYER, "roberta.layers.{i}", POST_NORMS),
            *bert.ROBERTA_HEAD,
        ),
        padding="right",
        note="Without its task adapters.",
    ),
    Family(
        name="GTE",
        paper="https://arxiv.org/abs/2407.19669",
        theirs=("GteConfig", "GteForMaskedLM"),
        config=XLMR_SIZES,
        spec={
            **ROTATED,
            "position": {"name": "rotary", "base": 160_000.0},
            "feed_forward": {**GLU, "activation": "gelu", "bias": True},
        },
        renames=(
            *bert.embeddings("gte.embeddings", positions=False),
            *every(f"{LAYER}.mixer", "gte.layers.{i}.self_attn", PARTS),
            *glu("gte.layers.{i}.mlp", f"{LAYER}.feed_forward"),
            *rename(f"{LAYER}.feed_forward.output.bias", "gte.layers.{i}.mlp.down_proj.bias"),
            *(row for x in ("gate", "input") for row in rename(f"{LAYER}.feed_forward.{x}.bias", (), Constant(0.0, (24,)))),
            *every(LAYER, "gte.layers.{i}", POST_NORMS),
            *bert.head("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.bias"),
        ),
        padding="right",
        note="Of the three maps of its GLU, only the last has a bias there; here, those of the others are zero.",
    ),
    Family(
        name="data2vec (text)",
        paper="https://arxiv.org/abs/2202.03555",
        theirs=("Data2VecTextConfig", "Data2VecTextForMaskedLM"),
        config=bert.ROBERTA_SIZES,
        spec=bert.ROBERTA,
        renames=(
            *bert.embeddings("data2vec_text.embeddings", offset=2),
            *bert.layers("data2vec_text.encoder.layer"),
            *bert.ROBERTA_HEAD,
        ),
        padding="right",
    ),
    Family(
        name="ESM C",
        paper="https://www.evolutionaryscale.ai/blog/esm-cambrian",
        theirs=("EsmcConfig", "EsmcForMaskedLM"),
        config={**LLAMA_SIZES, "num_key_value_heads": 4},
        spec={
            **DECODER,
            "stack": "encoder",
            "bias": False,
            "position": "rotary",
            "residual": {"name": "pre_norm", "scale": 18**0.5},
            "query_key_norm": NO_BIAS,
            "mixer": {"name": "multi_head", "query_key_norm_over": "all"},
            "feed_forward": GLU,
            "head": "bert",
        },
        renames=(
            *encoder(
                (
                    *outside(head=None),
                    *attention(),
                    *norms(),
                    *(replace(row, ours=(row.ours[0][:-6] + "bias",), theirs=(row.theirs[0][:-6] + "bias",)) for row in norms()),
                    *QUERY_KEY_NORM,
                    *glu("model.layers.{i}.mlp"),
                ),
                "esmc",
            ),
            *rename("stack.encoder.final_norm.bias", (), Constant(0.0, (16,))),
            *every("head", "lm_head", {"dense": "dense", "norm": "layer_norm", "projection": "decoder"}),
        ),
        padding="right",
        note="`scale` is sqrt(36 / layers). Its final norm has no bias there; here, it is zero.",
    ),
    Family(
        name="MVP",
        paper="https://arxiv.org/abs/2206.12131",
        theirs=("MvpConfig", "MvpForConditionalGeneration"),
        config=bart.SIZES,
        spec=bart.SPEC,
        renames=bart.table(),
        padding="right",
        note="Without its task prompts.",
    ),
    Family(
        name="ProphetNet",
        paper="https://arxiv.org/abs/2001.04063",
        missing="streams that predict several following tokens, each with its own attention",
    ),
    Family(
        name="Switch Transformers",
        paper="https://arxiv.org/abs/2101.03961",
        theirs=("SwitchTransformersConfig", "SwitchTransformersForConditionalGeneration"),
        config={
            **t5.SIZES,
            "num_decoder_layers": 2,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "num_experts": EXPERTS,
        },
        spec={**t5.SPEC, "layers": [{}, {"feed_forward": mixture(top_k=1, normalize=False, expert=t5.SPEC["feed_forward"])}]},
        renames=(
            *(replace(row, theirs=tuple(name.replace("DenseReluDense", "mlp") for name in row.theirs)) for row in t5.table(t5.MLP)),
            *(row for side, number in (("encoder", 1), ("decoder", 2)) for row in switch(side, number)),
        ),
        padding="right",
        note="While no expert gets more than `expert_capacity` tokens of a row (published: 64): attnkit drops no token.",
    ),
    Family(
        name="T5Gemma",
        paper="https://arxiv.org/abs/2504.06225",
        theirs=("T5GemmaConfig", "T5GemmaForConditionalGeneration"),
        config={
            **{side: {**LLAMA_SIZES, **GEMMA_SIZES} for side in ("encoder", "decoder")},
            "vocab_size": 40,
            "bos_token_id": 1,
            "decoder_start_token_id": 1,
        },
        spec={
            "stack": "encoder_decoder",
            "src_vocab_size": 40,
            "tgt_vocab_size": 40,
            **GEMMA,
            "layers": [{"window": 4}, {}],
            "encoder": {"name": "encoder", **GEMMA, "layers": [{"window": 5}, {}]},
            "cross_mixer": GEMMA["mixer"],
            "embedding": "token",
            "head": {"name": "linear", "softcap": 30.0},
            "tie": "output",
        },
        renames=plus_one(
            (
                *rename("embeddings.src.weight", "model.encoder.embed_tokens.weight"),
                *rename("embeddings.tgt.weight", "model.decoder.embed_tokens.weight"),
                *(
                    row
                    for ours, side in (("stack.encoder.encoder", "encoder"), ("stack.decoder", "decoder"))
                    for row in gemma_side(ours, f"model.{side}", with_memory=side == "decoder")
                ),
            )
        ),
        padding="right",
        note="`scale` is `query_pre_attn_scalar`^-0.5, the encoder's `window` is `sliding_window` + 1.",
    ),
    Family(
        name="T5Gemma 2",
        paper="https://arxiv.org/abs/2512.14856",
        missing="decoder layers in which one attention reads their own tokens and the encoder's together",
    ),
    Family(
        name="Moonshine",
        paper="https://arxiv.org/abs/2410.15608",
        theirs=("MoonshineConfig", "MoonshineForConditionalGeneration"),
        config={
            "hidden_size": 16,
            "intermediate_size": 24,
            **{f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("num_hidden_layers", "num_attention_heads")},
            "vocab_size": 40,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        },
        spec={
            **SEQ2SEQ,
            "num_heads": 2,
            "bias": False,
            "norm": NO_BIAS,
            "position": HALF,
            "feed_forward": {**GLU, "bias": True},
            "encoder": {
                **WIDTHS,
                "name": "encoder",
                "num_heads": 2,
                "bias": False,
                "norm": NO_BIAS,
                "position": HALF,
                "feed_forward": SEQ2SEQ["feed_forward"],
            },
            "embedding": WORDS,
            "tie": "output",
        },
        renames=(
            *rename("embeddings.tgt.weight", "model.decoder.embed_tokens.weight"),
            *every(FRAMES, HEARD, {**SELF, "mixer_residual.norm": "input_layernorm"}, "weight"),
            *every(FRAMES, HEARD, {"feed_forward_residual.norm": "post_attention_layernorm"}, "weight"),
            *every(FRAMES, HEARD, {"feed_forward.input": "mlp.fc1", "feed_forward.output": "mlp.fc2"}),
            *every("stack", "model", {"encoder.encoder.final_norm": "encoder.layer_norm", "decoder.final_norm": "decoder.norm"}, "weight"),
            *every(DECODING, SPOKEN, {**SELF, **CROSS, "feed_forward_residual.norm": "final_layernorm"}, "weight"),
            *every(DECODING, SPOKEN, {f"{x}_residual.norm": f"{y}_layernorm" for x, y in MOONSHINE_NORMS.items()}, "weight"),
            *every(DECODING, SPOKEN, {"feed_forward.output": "mlp.fc2"}),
            *(
                row
                for kind in ("weight", "bias")
                for row in rename(
                    tuple(f"{DECODING}.feed_forward.{x}.{kind}" for x in ("input", "gate")),
                    f"{SPOKEN}.mlp.fc1.{kind}",
                    Split((24, 24)),
                )
            ),
        ),
        unread=tuple(f"model.encoder.{name}.*" for name in ("conv1", "conv2", "conv3", "groupnorm")),
        inputs=("input_values", (3200,)),
        front=moonshine_frames,
        padding=None,
        note="On embedded frames: attnkit has no convolutions over samples.",
    ),
)
