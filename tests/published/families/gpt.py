"""GPT and the families with its names."""

from published.family import Drop, Family, Map, Rename, Split, rename
from published.sizes import DECODER, SIZES, without

from attnkit.convert import gpt_neox
from attnkit.convert.gpt2 import FUSED, LAYER, layer

LEARNED = {"name": "learned", "max_length": 64}
GELU_TANH = {"name": "mlp", "activation": "gelu_tanh"}
QUERY_KEY_VALUE_OUTPUT = ("query", "key", "value", "output")


def ends(table: str, positions: str, final: str) -> tuple[Rename, ...]:
    """Return the rows outside the layers, leaving out empty names."""
    return (
        *rename("embedding.weight", table),
        *(rename("stack.decoder.position.weight", positions) if positions else ()),
        *(rename("stack.decoder.final_norm.*", final) if final else ()),
    )


def norms(mixer: str, feed_forward: str) -> tuple[Rename, ...]:
    """Return the rows of both norms of a layer."""
    return (
        *rename(f"{LAYER}.mixer_residual.norm.*", f"{mixer}.*"),
        *(rename(f"{LAYER}.feed_forward_residual.norm.*", f"{feed_forward}.*") if feed_forward else ()),
    )


def projections(inside: str, names: str, kind: str = "*") -> tuple[Rename, ...]:
    """Return the rows of four separate projections, by the names of query, key, value and output."""
    pairs = zip(QUERY_KEY_VALUE_OUTPUT, names.split(), strict=True)
    return tuple(row for ours, theirs in pairs for row in rename(f"{LAYER}.mixer.{ours}.{kind}", f"{inside}.{theirs}.{kind}"))


def mlp(inside: str, names: str, kind: str = "*", *maps: Map) -> tuple[Rename, ...]:
    """Return the rows of the feed-forward network, by the names of its two maps."""
    pairs = zip(("input", "output"), names.split(), strict=True)
    return tuple(row for ours, theirs in pairs for row in rename(f"{LAYER}.feed_forward.{ours}.{kind}", f"{inside}.{theirs}.{kind}", *maps))


GPT_LAYER = layer(16)
FALCON = (
    *ends("transformer.word_embeddings.weight", "", "transformer.ln_f.*"),
    *rename(f"{LAYER}.mixer.output.weight", "transformer.h.{i}.self_attention.dense.weight"),
    *mlp("transformer.h.{i}.mlp", "dense_h_to_4h dense_4h_to_h", "weight"),
)
FALCON_SPEC = {
    **DECODER, "bias": False, "position": "rotary", "feed_forward": {"name": "mlp", "activation": "gelu", "bias": False}, "tie": "output",
}  # fmt: skip
FALCON_GROUPS = rename(FUSED, "transformer.h.{i}.self_attention.query_key_value.*", Split((8, 4, 4), 2))[:1]
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

FAMILIES = (
    Family(
        name="GPT",
        paper="https://cdn.openai.com/research-covers/language-unsupervised/language_understanding_paper.pdf",
        theirs=("OpenAIGPTConfig", "OpenAIGPTLMHeadModel"),
        config={**SIZES, **NO_DROPOUT},
        spec={**DECODER, "position": LEARNED, "residual": "post_norm", "feed_forward": GELU_TANH, "tie": "output"},
        renames=(*ends("transformer.tokens_embed.weight", "transformer.positions_embed.weight", ""), *GPT_LAYER),
        decoding=False,
    ),
    Family(
        name="GPT-2",
        paper="https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf",
        theirs=("GPT2Config", "GPT2LMHeadModel"),
        config={**SIZES, **NO_DROPOUT},
        spec={**DECODER, "position": LEARNED, "feed_forward": GELU_TANH, "tie": "output"},
        renames=(*ends("transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.*"), *GPT_LAYER),
    ),
    Family(
        name="GPT-Neo",
        paper="https://doi.org/10.5281/zenodo.5297715",
        theirs=("GPTNeoConfig", "GPTNeoForCausalLM"),
        config={
            **without(SIZES, "num_hidden_layers", "num_attention_heads"),
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "resid_dropout": 0.0,
            "embed_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        spec={
            **DECODER,
            "position": LEARNED,
            "feed_forward": GELU_TANH,
            "tie": "output",
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "biases": ["output"]},
            "layers": [{}, {"window": 4}],
        },
        renames=(
            *ends("transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.*"),
            *projections("transformer.h.{i}.attn.attention", "q_proj k_proj v_proj out_proj", "weight"),
            *rename(f"{LAYER}.mixer.output.bias", "transformer.h.{i}.attn.attention.out_proj.bias"),
            *mlp("transformer.h.{i}.mlp", "c_fc c_proj"),
            *norms("transformer.h.{i}.ln_1", "transformer.h.{i}.ln_2"),
        ),
    ),
    Family(
        name="GPT-J",
        paper="https://github.com/kingoflolz/mesh-transformer-jax",
        theirs=("GPTJConfig", "GPTJForCausalLM"),
        config={**SIZES, "hidden_size": 32, "rotary_dim": 4},
        spec={
            **DECODER,
            "d_model": 32,
            "bias": False,
            "position": {"name": "rotary", "interleaved": True, "fraction": 0.5},
            "residual": "parallel",
            "feed_forward": GELU_TANH,
            "head": {"name": "linear", "bias": True},
        },
        renames=(
            *ends("transformer.wte.weight", "", "transformer.ln_f.*"),
            *projections("transformer.h.{i}.attn", "q_proj k_proj v_proj out_proj", "weight"),
            *mlp("transformer.h.{i}.mlp", "fc_in fc_out"),
            *norms("transformer.h.{i}.ln_1", ""),
            *rename("head.projection.*", "lm_head.*"),
        ),
    ),
    Family(
        name="CodeGen",
        paper="https://arxiv.org/abs/2203.13474",
        theirs=("CodeGenConfig", "CodeGenForCausalLM"),
        config={**SIZES, "hidden_size": 32, "rotary_dim": 4},
        spec={
            **DECODER,
            "d_model": 32,
            "bias": False,
            "position": {"name": "rotary", "interleaved": True, "fraction": 0.5},
            "residual": "parallel",
            "feed_forward": GELU_TANH,
            "head": {"name": "linear", "bias": True},
        },
        renames=(
            *ends("transformer.wte.weight", "", "transformer.ln_f.*"),
            *rename(
                tuple(f"{LAYER}.mixer.{x}.weight" for x in ("query", "value", "key")),
                "transformer.h.{i}.attn.qkv_proj.weight",
                Split((8, 8, 8), 4),  # the four cores of a TPU
            ),
            *rename(f"{LAYER}.mixer.output.weight", "transformer.h.{i}.attn.out_proj.weight"),
            *mlp("transformer.h.{i}.mlp", "fc_in fc_out"),
            *norms("transformer.h.{i}.ln_1", ""),
            *rename("head.projection.*", "lm_head.*"),
        ),
    ),
    Family(
        name="GPT-NeoX, Pythia",
        paper="https://arxiv.org/abs/2204.06745",
        theirs=("GPTNeoXConfig", "GPTNeoXForCausalLM"),
        config={**SIZES, "hidden_size": 32, "intermediate_size": 128},
        spec={
            **DECODER,
            "d_model": 32,
            "position": {"name": "rotary", "fraction": 0.25},
            "residual": {"name": "parallel", "shared_norm": False},
            "feed_forward": {"name": "mlp", "activation": "gelu"},
        },
        renames=gpt_neox.renames({"d_model": 32, "num_heads": 4}),
    ),
    Family(
        name="StarCoder, SantaCoder",
        paper="https://arxiv.org/abs/2305.06161",
        theirs=("GPTBigCodeConfig", "GPTBigCodeForCausalLM"),
        config={**SIZES, **NO_DROPOUT},
        spec={**DECODER, "num_kv_heads": 1, "position": LEARNED, "feed_forward": GELU_TANH, "tie": "output"},
        renames=(
            *ends("transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.*"),
            *rename(FUSED, "transformer.h.{i}.attn.c_attn.*", Split((16, 4, 4))),
            *rename(f"{LAYER}.mixer.output.*", "transformer.h.{i}.attn.c_proj.*"),
            *mlp("transformer.h.{i}.mlp", "c_fc c_proj"),
            *norms("transformer.h.{i}.ln_1", "transformer.h.{i}.ln_2"),
        ),
    ),
    Family(
        name="OPT",
        paper="https://arxiv.org/abs/2205.01068",
        theirs=("OPTConfig", "OPTForCausalLM"),
        config={**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 16, "dropout": 0.0},
        spec={**DECODER, "position": LEARNED, "tie": "output"},
        renames=(
            *ends("model.decoder.embed_tokens.weight", "", "model.decoder.final_layer_norm.*"),
            *rename("stack.decoder.position.weight", "model.decoder.embed_positions.weight", Drop(2)),
            *projections("model.decoder.layers.{i}.self_attn", "q_proj k_proj v_proj out_proj"),
            *mlp("model.decoder.layers.{i}", "fc1 fc2"),
            *norms("model.decoder.layers.{i}.self_attn_layer_norm", "model.decoder.layers.{i}.final_layer_norm"),
        ),
    ),
    Family(
        name="BioGPT",
        paper="https://arxiv.org/abs/2210.10341",
        theirs=("BioGptConfig", "BioGptForCausalLM"),
        config={**SIZES, "intermediate_size": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        spec={
            **DECODER,
            "position": LEARNED,
            "embedding": "token",
            "norm": "layer_norm",
            "feed_forward": {"name": "mlp", "activation": "gelu"},
            "tie": "output",
        },
        renames=(
            *ends("biogpt.embed_tokens.weight", "", "biogpt.layer_norm.*"),
            *rename("stack.decoder.position.weight", "biogpt.embed_positions.weight", Drop(2)),
            *projections("biogpt.layers.{i}.self_attn", "q_proj k_proj v_proj out_proj"),
            *mlp("biogpt.layers.{i}", "fc1 fc2"),
            *norms("biogpt.layers.{i}.self_attn_layer_norm", "biogpt.layers.{i}.final_layer_norm"),
        ),
    ),
    Family(
        name="CTRL",
        paper="https://arxiv.org/abs/1909.05858",
        theirs=("CTRLConfig", "CTRLLMHeadModel"),
        config={
            **{"n_embd": 16, "n_layer": 2, "n_head": 4, "dff": 64, "vocab_size": 40, "n_positions": 64},
            **{"resid_pdrop": 0.0, "embd_pdrop": 0.0},
        },
        spec={
            **DECODER,
            "position": {"name": "sinusoidal", "interleaved": False},
            "embedding": "token",
            "norm": {"name": "layer_norm", "eps": 1e-6},
            "tie": "output",
            "head": {"name": "linear", "bias": True},
        },
        renames=(
            *ends("transformer.w.weight", "", "transformer.layernorm.*"),
            *projections("transformer.h.{i}.multi_head_attention", "Wq Wk Wv dense"),
            *mlp("transformer.h.{i}.ffn", "0 2"),
            *norms("transformer.h.{i}.layernorm1", "transformer.h.{i}.layernorm2"),
            *rename("head.bias", "lm_head.bias"),
        ),
    ),
    Family(
        name="BLOOM",
        paper="https://arxiv.org/abs/2211.05100",
        theirs=("BloomConfig", "BloomForCausalLM"),
        config={"hidden_size": 16, "n_layer": 2, "n_head": 4, "vocab_size": 40},
        spec={**DECODER, "position": "alibi", "embedding_norm": True, "feed_forward": GELU_TANH, "tie": "output"},
        renames=(
            *ends("transformer.word_embeddings.weight", "", "transformer.ln_f.*"),
            *rename("stack.decoder.embedding_norm.*", "transformer.word_embeddings_layernorm.*"),
            *rename(FUSED, "transformer.h.{i}.self_attention.query_key_value.*", Split((4, 4, 4), 4)),
            *rename(f"{LAYER}.mixer.output.*", "transformer.h.{i}.self_attention.dense.*"),
            *mlp("transformer.h.{i}.mlp", "dense_h_to_4h dense_4h_to_h"),
            *norms("transformer.h.{i}.input_layernorm", "transformer.h.{i}.post_attention_layernorm"),
        ),
        tolerance=1e-8,
        note="equal to 1e-8: transformers rounds the square root of 2 / pi in its GELU to eight digits",
    ),
    Family(
        name="Falcon 7B",
        paper="https://arxiv.org/abs/2311.16867",
        theirs=("FalconConfig", "FalconForCausalLM"),
        config=SIZES,
        spec={**FALCON_SPEC, "num_kv_heads": 1, "residual": "parallel"},
        renames=(
            *FALCON,
            rename(FUSED, "transformer.h.{i}.self_attention.query_key_value.*", Split((16, 4, 4)))[0],
            *norms("transformer.h.{i}.input_layernorm", ""),
        ),
    ),
    Family(
        name="Falcon 40B",
        paper="https://arxiv.org/abs/2311.16867",
        theirs=("FalconConfig", "FalconForCausalLM"),
        config={**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2},
        spec={**FALCON_SPEC, "num_kv_heads": 2, "residual": {"name": "parallel", "shared_norm": False}},
        renames=(*FALCON, *FALCON_GROUPS, *norms("transformer.h.{i}.ln_attn", "transformer.h.{i}.ln_mlp")),
    ),
    Family(
        name="Falcon 2",
        paper="https://arxiv.org/abs/2407.14885",
        theirs=("FalconConfig", "FalconForCausalLM"),
        config={**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        spec={**FALCON_SPEC, "num_kv_heads": 2, "residual": "parallel"},
        renames=(*FALCON, *FALCON_GROUPS, *norms("transformer.h.{i}.input_layernorm", "")),
        note="unlike Falcon 40B, it has one norm in a layer (`num_ln_in_parallel_attn: 1`)",
    ),
    Family(
        name="Falcon RW",
        paper="https://arxiv.org/abs/2306.01116",
        theirs=("FalconConfig", "FalconForCausalLM"),
        config={**SIZES, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
        spec={
            **DECODER,
            "position": {"name": "alibi", "scale": 0.5},
            "feed_forward": {"name": "mlp", "activation": "gelu"},
            "tie": "output",
        },
        renames=(
            *FALCON,
            *rename(FUSED, "transformer.h.{i}.self_attention.query_key_value.*", Split((4, 4, 4), 4)),
            *rename(f"{LAYER}.mixer.output.bias", "transformer.h.{i}.self_attention.dense.bias"),
            *mlp("transformer.h.{i}.mlp", "dense_h_to_4h dense_4h_to_h", "bias"),
            *norms("transformer.h.{i}.input_layernorm", "transformer.h.{i}.post_attention_layernorm"),
        ),
        overrides={"_attn_implementation": "sdpa"},
        note="`scale` is `head_dim`^-0.5. The implementation `eager` of transformers 5.23 adds the biases twice; `sdpa` is compared.",
    ),
    Family(
        name="MPT",
        paper="https://www.databricks.com/blog/mpt-7b",
        theirs=("MptConfig", "MptForCausalLM"),
        config={"d_model": 16, "n_layers": 2, "n_heads": 4, "vocab_size": 40, "max_seq_len": 64},
        spec={
            **DECODER,
            "bias": False,
            "position": "alibi",
            "norm": {"name": "layer_norm", "bias": False},
            "feed_forward": {"name": "mlp", "activation": "gelu", "bias": False},
            "tie": "output",
        },
        renames=(
            *rename("embedding.weight", "transformer.wte.weight"),
            *rename("stack.decoder.final_norm.weight", "transformer.norm_f.weight"),
            rename(FUSED, "transformer.blocks.{i}.attn.Wqkv.*", Split((16, 16, 16)))[0],
            *rename(f"{LAYER}.mixer.output.weight", "transformer.blocks.{i}.attn.out_proj.weight"),
            *mlp("transformer.blocks.{i}.ffn", "up_proj down_proj", "weight"),
            *rename(f"{LAYER}.mixer_residual.norm.weight", "transformer.blocks.{i}.norm_1.weight"),
            *rename(f"{LAYER}.feed_forward_residual.norm.weight", "transformer.blocks.{i}.norm_2.weight"),
        ),
    ),
)
