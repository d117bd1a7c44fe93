"""Gemma and its relatives."""

from published.families.llama import LOCAL, TIED, default, family
from published.family import Rename

from attnkit.convert import gemma
from attnkit.convert.gemma import offset_by_one
from attnkit.convert.llama import ATTENTION, BODY, GLU, NORMS, OUTSIDE

GEGLU = {"name": "glu", "ffn_dim": 24, "activation": "gelu_tanh"}

FAMILIES = (
    family(
        "Gemma",
        "https://arxiv.org/abs/2403.08295",
        "Gemma",
        {"head_dim": 8, "num_key_value_heads": 1},
        {"head_dim": 8, "num_kv_heads": 1, "feed_forward": GEGLU, "embedding": "token", **TIED},
        offset_by_one(*BODY),
    ),
    family(
        "Gemma 2",
        "https://arxiv.org/abs/2408.00118",
        "Gemma2",
        {"head_dim": 8, "query_pre_attn_scalar": 24, **LOCAL},
        {
            "head_dim": 8,
            "feed_forward": GEGLU,
            "embedding": "token",
            "residual": "sandwich_norm",
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "scale": 24**-0.5, "softcap": 50.0},
            "head": {"name": "linear", "softcap": 30.0},
            "layers": [{"window": 4}, {}],
            **TIED,
        },
        gemma.renames(TIED),
        note="`scale` is `query_pre_attn_scalar`^-0.5.",
    ),
    family(
        "VaultGemma",
        "https://arxiv.org/abs/2510.15001",
        "VaultGemma",
        {"head_dim": 8, "query_pre_attn_scalar": 24, **LOCAL},
        {
            "head_dim": 8,
            "feed_forward": GEGLU,
            "embedding": "token",
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "scale": 24**-0.5, "softcap": 50.0},
            "head": {"name": "linear", "softcap": 30.0},
            "layers": [{"window": 4}, {}],
            **TIED,
        },
        offset_by_one(
            *OUTSIDE,
            *ATTENTION,
            *GLU,
            *(Rename(r.ours, tuple(n.replace("post_attention", "pre_feedforward") for n in r.theirs)) for r in NORMS),
        ),
        note="`scale` is `query_pre_attn_scalar`^-0.5.",
    ),
    family(
        "Gemma 3",
        "https://arxiv.org/abs/2503.19786",
        "Gemma3Text",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 24,
            **LOCAL,
            "rope_parameters": {
                "sliding_attention": default(1e4),
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
        },
        {
            "head_dim": 8,
            "feed_forward": GEGLU,
            "embedding": "token",
            "residual": "sandwich_norm",
            "attention": "dot_product",
            "mixer": {"name": "multi_head", "scale": 24**-0.5},
            "query_key_norm": "rms_norm",
            "layers": [{"window": 4}, {"position": {"name": "rotary", "base": 1e6, "scaling": {"name": "linear", "factor": 8.0}}}],
            **TIED,
        },
        gemma.renames({**TIED, "query_key_norm": "rms_norm"}),
        note="`scale` is `query_pre_attn_scalar`^-0.5.",
    ),
)
