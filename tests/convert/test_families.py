"""Each field of a published configuration is followed or refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from attnkit import convert
from attnkit.registry import ConfigurationError
from tests.convert.models import CLASSES, SIZES, UNWRITTEN, difference, edit, published, transformers, without

pytestmark = pytest.mark.filterwarnings("ignore")
KINDS = {**CLASSES, **UNWRITTEN}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_has_equal_outputs(kind: str, tmp_path: Path) -> None:
    assert difference(published(kind, tmp_path), tmp_path) < 1e-5


def rope(kind: str, **rest: Any) -> dict[str, Any]:
    """Return a rotation with another base."""
    return {"rope_type": kind, "rope_theta": 500.0, **rest}


LONGER = {"factor": 4.0, "original_max_position_embeddings": 16}
ROPES = (
    rope("default"), rope("linear", factor=4.0), rope("dynamic", factor=4.0), rope("default", partial_rotary_factor=0.5),
    rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32), rope("yarn", **LONGER),
    rope("yarn", **LONGER, beta_fast=8.0, beta_slow=2.0, truncate=False), rope("yarn", **LONGER, attention_factor=2.0),
    rope("yarn", **LONGER, mscale=2.0, mscale_all_dim=1.0),
)  # fmt: skip
OTHER: dict[str, tuple[Any, ...]] = {  # values to try; by default, a number is doubled and a bool negated
    "activation_function": ("gelu", "relu", "silu", "tanh"), "hidden_act": ("gelu", "relu2", "gelu_new", "linear", "sigmoid"),
    "hidden_activation": ("gelu", "silu", "tanh"), "n_inner": (24,), "sliding_window": (3, None), "head_dim": (8, None),
    "num_key_value_heads": (1, 4), "hidden_size": (64,), "n_embd": (32,), "num_attention_heads": (2,), "n_head": (2,), "vocab_size": (50,),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"), (0.05,)), "max_window_layers": (0, 1),
    "layer_types": (["full_attention", "sliding_attention"], ["sliding_attention"] * 2, ["full_attention"] * 2, ["chunked_attention"] * 2),
    "rope_parameters": ROPES, "no_rope_layers": ([1, 1], [0, 1], [0, 0]), "mlp_only_layers": ([0], [0, 1]), "decoder_sparse_step": (2, 3),
    "num_experts_per_tok": (1, 3), "num_local_experts": (5,), "attn_logit_softcapping": (2.0, None), "final_logit_softcapping": (0.5, None),
    "classifier_activation": ("silu", "tanh"), "query_pre_attn_scalar": (7,), "use_bidirectional_attention": (True,),
    "bos_token_id": (None, 5), "eos_token_id": (None, 5, [2, 7]), "pad_token_id": (0, 3),
}  # fmt: skip
PAIRS = zip(ROPES, (*ROPES[1:], ROPES[0]), strict=True)
NESTED = {"rope_parameters": tuple({"sliding_attention": local, "full_attention": far} for local, far in PAIRS)}
WINDOWS = ("layer_types", "max_window_layers", "use_sliding_window")  # fields that matter only with a window
ALWAYS = {"hidden_act", "is_encoder_decoder", "rope_parameters"}
REFUSED = {
    "gpt2": {
        *("activation_function", "add_cross_attention", "embd_pdrop", "resid_pdrop", "scale_attn_by_inverse_layer_idx"),
        "scale_attn_weights",
    },
    **{kind: {"mlp_bias"} for kind in ("llama", "granite")},
    "smollm3": {"mlp_bias", "layer_types"},
    **{kind: {"layer_types"} for kind in ("qwen2", "qwen3")},
    "phi3": {"embd_pdrop", "resid_pdrop"},
    "mixtral": {"num_experts_per_tok"},
    "gemma2": {"hidden_activation", "layer_types", "sliding_window", "use_bidirectional_attention"},
    "gemma3_text": {"attn_logit_softcapping", "hidden_activation", "layer_types", "sliding_window", "use_bidirectional_attention"},
    "qwen3_5_text": {"attention_bias", "layer_types"},
    "starcoder2": {"embedding_dropout", "residual_dropout"},
    **{kind: {"is_decoder", "add_cross_attention"} for kind in ("bert", "distilbert", "roberta")},
    "modernbert": {
        *("norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "layer_types"),
        *("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_activation", "hidden_activation"),
    },
}  # some values of these, by name, and of those in ALWAYS
UNFIT = ("architectures", "transformers_version", "dtype", "model_type", "id2label", "label2id", "return_dict")


def others(kind: str, name: str, value: Any) -> tuple[Any, ...]:
    """Return other values of a field."""
    values = OTHER | NESTED if kind == "gemma3_text" else OTHER
    if name in values:
        return values[name]
    if isinstance(value, bool):
        return (not value,)
    return (2 * value or 1,) if isinstance(value, int | float) else ()


def changes(kind: str) -> list[tuple[str, Any]]:
    """Return the fields of a configuration with other values."""
    fields = getattr(transformers, KINDS[kind][0])(**SIZES[kind]).to_dict()
    return [(name, other) for name, value in fields.items() if name not in UNFIT for other in others(kind, name, value)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_followed_or_rejected(kind: str, tmp_path: Path) -> None:
    followed, refused, fields = [], [], dict(changes(kind))
    for i, (name, value) in enumerate(changes(kind)):
        folder = tmp_path / str(i)
        more = {"use_sliding_window": True, "sliding_window": 3} if name in WINDOWS and "use_sliding_window" in fields else {}
        try:
            model = published(kind, folder, **{**more, name: value})
        except Exception:  # not a model of transformers either
            continue
        try:
            ours = convert.load(folder)
        except ConfigurationError as error:
            refused.append(name if name in str(error) or str(value) in str(error) else f"{name}: {error}")
        else:
            followed.append(name)
            assert difference(model, folder, ours) < 1e-5, f"{name}: {value} is silently ignored"
    assert len(set(followed)) > 12
    assert set(refused) <= ALWAYS | REFUSED.get(kind, set())


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_field_uses_the_class_default_or_is_rejected(kind: str, tmp_path: Path) -> None:
    written = published(kind, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    equal = 0
    for name in without(config, "model_type", "pad_token_id"):
        (tmp_path / "config.json").write_text(json.dumps(without(config, name)))
        try:
            ours = convert.load(tmp_path)
        except ConfigurationError:
            continue
        without_it = type(written.config).from_pretrained(tmp_path, attn_implementation="eager")
        is_other = without_it.to_dict() != written.config.to_dict()
        model = type(written).from_pretrained(tmp_path, attn_implementation="eager").eval() if is_other else written
        assert difference(model, tmp_path, ours) < 1e-5, name
        equal += 1
    assert equal > 10


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gemma3_text", "phi3", "starcoder2", "mixtral"])
def test_a_missing_window_uses_the_class_default(kind: str, tmp_path: Path) -> None:
    config = published(kind, tmp_path).config
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(without(content, "sliding_window")))
    spec = convert.load(tmp_path).spec
    found = spec["layers"][0]["window"] if spec["layers"] else spec["window"]
    assert found == type(config)().sliding_window


ODD = ("16", float("nan"), 10**30, -1, 0.5, True, [], {"a": [1]}, None)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_values_are_rejected_with_a_message(kind: str, tmp_path: Path) -> None:
    """Each field with every third value, which are others in the next field, and in the next family."""
    published(kind, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    refused = 0
    for name, value in ((name, value) for i, name in enumerate(config, [*KINDS].index(kind)) for value in ODD[i % 3 :: 3]):
        (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
        try:
            convert.load(tmp_path)
        except ConfigurationError:
            refused += 1
    assert refused > 25


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    published("llama", tmp_path)
    edit(tmp_path, attention_sparsity=0.5)
    with pytest.raises(ConfigurationError, match=r"has the field attention_sparsity \(0.5\), which is unknown to attnkit"):
        convert.load(tmp_path)


@pytest.mark.parametrize(
    "rope", [{"rope_theta": 500.0}, {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_scaling": None}]
)
def test_older_names_of_rotary_fields_are_read(rope: dict[str, Any], tmp_path: Path) -> None:
    kind = {"rope_type": "linear", "factor": 2.0} if rope.get("rope_scaling") else {"rope_type": "default"}
    model = published("llama", tmp_path, rope_parameters={**kind, "rope_theta": rope.get("rope_theta", 10000.0)})
    content = json.loads((tmp_path / "config.json").read_text())
    del content["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps({**content, **rope}))
    assert difference(model, tmp_path) < 1e-5


def rewrite(kind: str, folder: Path, *dropped: str, **fields: Any) -> Any:
    """Write config.json without some fields and with others, and return what transformers makes of it."""
    path = folder / "config.json"
    path.write_text(json.dumps({**without(json.loads(path.read_text()), *dropped), **fields}))
    return getattr(transformers, KINDS[kind][1]).from_pretrained(folder, attn_implementation="eager").eval()


GENERATION = {
    **{"num_beam_groups": 1, "diversity_penalty": 0.0, "typical_p": 1.0, "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None},
    **{"output_scores": False, "return_dict_in_generate": False, "forced_bos_token_id": None, "forced_eos_token_id": None},
    **{"remove_invalid_values": False, "exponential_decay_length_penalty": None, "suppress_tokens": None, "begin_suppress_tokens": None},
    **{"decoder_start_token_id": None, "sep_token_id": None, "cls_token_id": None, "prefix": None, "tf_legacy_loss": False},
}  # written into files by earlier versions
OLD_ROPE = {"rope_theta": 500.0, "rope_scaling": None}
OLDER: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [  # what files of earlier versions say otherwise
    ("gpt_neox", ("rope_parameters",), {"rotary_emb_base": 500.0, "rotary_pct": 0.5}),
    ("gpt_neox", ("rope_parameters",), {}),
    ("phi3", ("rope_parameters",), {**OLD_ROPE, "partial_rotary_factor": 0.5}),
    ("gemma2", ("rope_parameters", "layer_types"), {**OLD_ROPE, "hidden_act": "gelu", "cache_implementation": "hybrid"}),
    ("gemma3_text", ("rope_parameters", "layer_types"), {**OLD_ROPE, "rope_local_base_freq": 100.0, "sliding_window_pattern": 2}),
    ("gemma3_text", ("rope_parameters",), {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("qwen3_moe", ("num_local_experts", "rope_parameters"), {**OLD_ROPE, "num_experts": 4, "max_window_layers": 1}),
    ("qwen2", ("layer_types",), {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    ("smollm3", ("layer_types", "no_rope_layers"), {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    (
        "starcoder2",
        ("rope_parameters",),
        {"rope_theta": 500.0, "norm_type": "layer_norm", "mlp_type": "default", "activation_function": "gelu", "layer_norm_epsilon": 0.1},
    ),
    (
        "modernbert",
        ("rope_parameters", "layer_types"),
        {"global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 100.0, "reference_compile": False},
    ),
    ("bert", (), {"position_embedding_type": "absolute", "gradient_checkpointing": False}),
    ("distilbert", (), {"tie_weights_": True, "sinusoidal_pos_embds": True}),
    ("qwen2", (), {"use_mrope": False}),  # as in Qwen2.5
    ("llama", (), {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {}}),  # SmolLM2
    (
        "gpt2",
        (),
        {"n_special": 0, "predict_special_tokens": True, "output_past": True, "_num_labels": 1, "is_decoder": False},
    ),  # GPT-2 medium, DistilGPT2
    (
        "bert",
        (),
        {
            **{"directionality": "bidi", "pooler_type": "first_token_transform", "pooler_fc_size": 768, "pooler_size_per_head": 128},
            **{"pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "tokenizer_class": "BertTokenizer"},
        },
    ),  # BERT for Chinese and for many languages
    ("distilbert", (), {**GENERATION, "num_labels": 2, "pruned_heads": {}, "tie_encoder_decoder": False, "xla_device": None}),
    ("gpt_neox", (), {"attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1, "hidden_act": "gelu_fast"}),
]


@pytest.mark.parametrize(("kind", "dropped", "fields"), OLDER, ids=lambda x: x if isinstance(x, str) else ",".join(x))
def test_older_spellings_of_fields_are_read(kind: str, dropped: tuple[str, ...], fields: dict[str, Any], tmp_path: Path) -> None:
    published(kind, tmp_path)
    assert difference(rewrite(kind, tmp_path, *dropped, **fields), tmp_path) < 1e-5


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("phi3", {"rope_parameters": rope("linear", factor=2.0)}, "only imports Phi-3 models whose rope_type is 'default'"),
        ("phi3", {"rope_parameters": rope("longrope", short_factor=[1.0], long_factor=[1.0])}, "cannot import rope_type 'longrope'"),
        ("gpt_neox", {"rotary_pct": 0.5}, "has both rope_parameters and rotary_emb_base or rotary_pct"),
        ("gemma3_text", {"rope_local_base_freq": 5.0}, "has both rope_parameters and rope_theta, rope_local_base_freq or rope_scaling"),
        ("qwen3_moe", {"num_experts": 5}, "num_experts is 5, but num_local_experts is 4"),
        ("modernbert", {"local_rope_theta": 5.0}, "has both rope_parameters and global_rope_theta or local_rope_theta"),
        ("modernbert", {"local_attention": 1}, "local_attention must be a whole number from 2, but is 1"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers must have 1"),
        ("smollm3", {"no_rope_layers": [1, 2]}, "no_rope_layers must have 1"),
        ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise is 0.1"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved is True"),
        ("qwen2", {"use_mrope": True}, "use_mrope is True"),
        ("bert", {"directionality": "left"}, "directionality is 'left'"),
        ("bert", {"pruned_heads": {"0": [1]}}, "pruned_heads is"),
    ],
)
def test_inconsistent_fields_are_rejected(kind: str, fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    published(kind, tmp_path)
    edit(tmp_path, **fields)
    with pytest.raises(ConfigurationError, match=message):
        convert.load(tmp_path)


def test_two_rotations_are_refused(tmp_path: Path) -> None:
    published("llama", tmp_path)
    edit(tmp_path, rope_theta=500.0)
    with pytest.raises(ConfigurationError, match="has both rope_parameters and rope_theta or rope_scaling: remove one of the two"):
        convert.load(tmp_path)
