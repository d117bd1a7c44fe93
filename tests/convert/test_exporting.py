"""A model of attnkit is written as a model that transformers reads as the same one, or not at all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import attnkit
from attnkit import convert
from attnkit.convert import exporting
from attnkit.convert.architecture import architecture, differences
from attnkit.convert.importing import DECODERS
from attnkit.models import DecoderModel
from attnkit.recipe import read_yaml
from attnkit.registry import ConfigurationError
from tests.convert.models import CLASSES, model_of, published, transformers

pytestmark = pytest.mark.filterwarnings("ignore")
PLAIN = {"name": "token", "scale": False}
ROTARY = {"name": "rotary", "base": 500.0}
RMS = {"name": "rms_norm", "eps": 1e-3}
BASE: dict[str, Any] = {
    "stack": "decoder", "d_model": 16, "num_layers": 3, "num_heads": 4, "vocab_size": 40, "embedding": PLAIN, "bias": False, "norm": RMS,
    "position": ROTARY, "feed_forward": {"name": "glu", "ffn_dim": 24},
}  # fmt: skip
OLD = {**BASE, "bias": True, "norm": {"name": "layer_norm", "eps": 1e-3}, "feed_forward": {"name": "mlp", "activation": "gelu"}}
WINDOWS = [{"window": 4, "repeat": 2}, {}]
MIXTURE = {"name": "mixture_of_experts", "num_experts": 4, "top_k": 2, "expert": BASE["feed_forward"]}


def mixer(**options: Any) -> dict[str, Any]:
    return {"name": "multi_head", **options}


GEMMA = {
    **BASE, "head_dim": 8, "attention": "dot_product", "embedding": "token", "residual": "sandwich_norm", "tie": "output",
    "feed_forward": {**BASE["feed_forward"], "activation": "gelu_tanh"}, "mixer": mixer(scale=0.25),
}  # fmt: skip
BIASES = mixer(biases=["query", "key", "value"])
SPECS: dict[str, dict[str, Any]] = {
    "gpt2": {**OLD, "position": {"name": "learned", "max_length": 32}, "tie": "output", "dropout": 0.3, "attention_dropout": 0.2},
    "gpt_neox": {
        **OLD, "residual": {"name": "parallel", "shared_norm": False}, "position": {**ROTARY, "fraction": 0.5}, "attention_dropout": 0.2
    },
    "llama": {**BASE, "num_kv_heads": 2, "bias": True},
    "mistral": {**BASE, "num_kv_heads": 1, "head_dim": 8, "window": 4, "tie": "output"},
    "qwen2": {**{k: v for k, v in BASE.items() if k != "bias"}, "mixer": BIASES, "layers": [{}, {"window": 4}]},
    "qwen3": {**BASE, "head_dim": 8, "query_key_norm": RMS},
    "smollm3": {**BASE, "layers": [{**WINDOWS[0], "position": "none"}, {}]},
    "olmo2": {**BASE, "residual": "output_norm", "query_key_norm": RMS, "mixer": mixer(query_key_norm_over="all")},
    "granite": {**BASE, "head": {"name": "linear", "scale": 0.3}, "residual": {"name": "pre_norm", "scale": 0.5}, "embedding": "token"},
    "mixtral": {**BASE, "feed_forward": MIXTURE},
    "qwen3_moe": {**BASE, "query_key_norm": RMS, "feed_forward": MIXTURE, "layers": [{}, {"feed_forward": BASE["feed_forward"]}]},
    "gemma2": {**GEMMA, "layers": WINDOWS, "head": {"name": "linear", "softcap": 3.0}, "mixer": mixer(scale=0.25, softcap=2.0)},
    "gemma3_text": {
        **GEMMA, "query_key_norm": RMS, "layers": [{"window": 4}, {"position": {"name": "rotary", "base": 1e3}}], "num_layers": 2
    },
    "phi3": {**BASE, "position": {**ROTARY, "fraction": 0.5}, "window": 4, "dropout": 0.1},
    "starcoder2": {**OLD, "num_kv_heads": 2, "tie": "output", "window": 4},
}  # fmt: skip
"""One model for each family, which no family before it can express."""


def read(folder: Path) -> Any:
    """Return the model that transformers makes of a folder."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def distance(model: DecoderModel, theirs: Any) -> float:
    """Return how far the logits of transformers' model, or that in a folder, are from ours, relative to the largest."""
    tokens = torch.randint(0, model.spec["vocab_size"], (2, 14), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted, found = model(tokens), (read(theirs) if isinstance(theirs, Path) else theirs)(tokens).logits
    return float((found - wanted).abs().max() / wanted.abs().max())


def test_all_families_are_tested() -> None:
    assert SPECS.keys() == DECODERS.keys() == CLASSES.keys()


@pytest.mark.parametrize("kind", SPECS)
def test_transformers_loads_an_equal_model(kind: str, tmp_path: Path) -> None:
    model = model_of(SPECS[kind])
    assert convert.save(model, tmp_path / "out").model_type == kind
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}  # without it, versions before 5 read nothing
    theirs = read(tmp_path / "out")
    assert distance(model, theirs) < 1e-5
    assert type(theirs).__name__ == DECODERS[kind].model_class == CLASSES[kind][1]
    prompt = torch.tensor([[5, 9, 30], [7, 7, 1]])
    mask = torch.ones_like(prompt)
    written = theirs.generate(prompt, attention_mask=mask, do_sample=False, max_new_tokens=10, pad_token_id=0)[:, 3:]
    assert torch.equal(written, model.generate(prompt, max_length=10))
    found = convert.load(tmp_path / "out")
    assert not list(differences(architecture(model), architecture(found)))
    assert found.eos_id == model.eos_id
    close = 1e-7 if kind.startswith("gemma") else 0.0  # norms are stored minus one
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], weight, rtol=0.0, atol=close)
    for option in ("dropout", "attention_dropout"):
        assert found.spec[option] == (model.spec[option] if kind in ("gpt2", "gpt_neox", "phi3") else 0.0)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_published_model_is_written_back_unchanged(kind: str, tmp_path: Path) -> None:
    model = published(kind, tmp_path / "in")
    convert.save(convert.load(tmp_path / "in"), tmp_path / "out", model_type=kind)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(torch.allclose(after[name], x, rtol=0.0, atol=1e-7 if kind.startswith("gemma") else 0.0) for name, x in before.items())
    tokens = torch.randint(0, 40, (2, 14))
    with torch.no_grad():
        torch.testing.assert_close(read(tmp_path / "out")(tokens).logits, model(tokens).logits, rtol=1e-5, atol=1e-5)


SCALINGS = (
    {"name": "linear", "factor": 4.0}, {"name": "yarn", "factor": 4.0, "original_length": 16, "beta_fast": 8.0, "truncate": False},
    {"name": "llama3", "factor": 8.0, "original_length": 32, "low_turns": 1.0, "high_turns": 4.0},
    {"name": "yarn", "factor": 4.0, "original_length": 16, "attention_factor": 2.0},
)  # fmt: skip
CHANGES: list[dict[str, Any]] = [
    {"norm": {**RMS, "eps": 0.1}}, {"norm": "layer_norm"}, {"query_key_norm": None}, {"query_key_norm": RMS},
    *({"position": {**ROTARY, "scaling": scaling}} for scaling in SCALINGS), {"position": {"name": "rotary", "base": 77.0}},
    {"position": "learned"}, {"position": {**ROTARY, "fraction": 0.5}}, {"window": 3}, {"window": None},
    {"layers": [{"position": "none"}, {}]}, {"layers": [{"num_kv_heads": 1}, {}]},
    {"tie": "none"}, {"tie": "output"}, {"num_kv_heads": 1}, {"num_heads": 2}, {"head_dim": 6}, {"bias": True}, {"bias": False},
    *({"mixer": mixer(**options)} for options in (
        {"scale": 0.7}, {"softcap": 2.0}, {"biases": ["query", "key", "value", "output"]}, {"scale": 2**-0.5},
    )),
    {"attention": "dot_product"},
    *({"feed_forward": {"name": "glu", "ffn_dim": 24, "activation": own}} for own in ("relu", "quick_gelu", "relu_squared", "gelu")),
    *({"feed_forward": {"name": "mlp", **own}} for own in ({}, {"ffn_dim": 5, "activation": "silu"})),
    *({"feed_forward": {**MIXTURE, **own}} for own in ({"top_k": 1, "normalize": False}, {"normalize": False})),
    {"residual": "output_norm"}, {"residual": "sandwich_norm"}, {"residual": {"name": "pre_norm", "scale": 0.5}}, {"d_model": 8},
    *({"embedding": {"name": "token", **own}} for own in ({}, {"scale": 3.0}, {"scale": False})),
    *({"head": {"name": "linear", **own}} for own in ({"scale": 0.5}, {"softcap": 1.0})),
    {"vocab_size": 41}, {"num_layers": 2}, {"init": "gpt2"},
]  # fmt: skip
"""Other values of options of a model, each of which some family has."""
STRANGE: list[dict[str, Any]] = [
    *({"norm": norm} for norm in ({**RMS, "learned": False}, {"name": "layer_norm", "bias": False}, "dynamic_tanh")),
    {"query_key_norm": {**RMS, "eps": 0.2}}, {"position": {**ROTARY, "scaling": {"name": "ntk", "factor": 4.0}}},
    *({"position": position} for position in ({**ROTARY, "interleaved": True}, "alibi", "none", "sinusoidal", "relative")),
    *({"layers": layers} for layers in (
        [{"window": 3}, {}, {"window": 5}], [{}, {"norm": "layer_norm"}], [{"share": True}], [{}, {"feed_forward": "none"}],
        [{"mixer": "none"}, {}],
    )),
    *({"mixer": mixer(**options)} for options in (
        {"biases": ["query"]}, {"gate": "head"}, {"clip": 0.1}, {"memory_keys": 2}, {"talking_heads": True},
        {"normalizer": "softmax_off_by_one"}, {"differential": 0.5}, {"value_residual": 0.5}, {"scale_growth": 0.1}, {"sub_norm": RMS},
    )), {"query_key_norm": RMS, "mixer": mixer(query_key_norm_after_rotation=True)},
    {"attention": "cosine"}, {"attention": "general"}, {"mixer": "retention"},
    *({"feed_forward": {"name": "glu", "ffn_dim": 24, **own}} for own in (
        {"activation": "tanh"}, {"bias": True}, {"activation": "xielu"}, {"sub_norm": RMS}, {"limit": 0.5}, {"offset": 1.0},
    )),
    {"feed_forward": {"name": "mlp", "bias": False}},
    *({"feed_forward": {**MIXTURE, **own}} for own in (
        {"scores": "sigmoid"}, {"scale": 2.0}, {"shared": "glu"}, {"router_bias": True}, {"bias_rate": 0.1}, {"eps": 1e-6},
    )),
    *({"residual": residual} for residual in ("post_norm", "parallel", "rezero", "layer_scale", "none")),
    {"skips": True}, {"embedding_norm": True}, {"final_norm": False},
    {"embedding": {"name": "token", "scale": False, "num_segments": 1}},
    *({"head": {"name": "linear", **own}} for own in ({"bias": True}, {"excluded": [0]})), {"head": "bert"},
    {"multi_token": {"name": "independent", "num_tokens": 2}},
]  # fmt: skip
"""Other values that no decoder has."""
WRITTEN = {
    **{"gpt2": 18, "gpt_neox": 19, "llama": 27, "mistral": 12, "qwen2": 15, "qwen3": 13, "smollm3": 16, "olmo2": 13, "granite": 19},
    **{"mixtral": 10, "qwen3_moe": 25, "gemma2": 29, "gemma3_text": 13, "phi3": 9, "starcoder2": 14},
}
"""How many of those that are tried each family has."""
WHOLE = ("gpt2", "gpt_neox", "llama", "qwen3_moe", "gemma2")  # the others are much like one of these: every second option, in turn
REFUSING = ("gpt2", "llama", "qwen3_moe")
"""Families that the strange values are tried with: what refuses them is the same for all, and these have all kinds of layers."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECS)
def test_every_other_option_is_exported_exactly_or_rejected(kind: str, tmp_path: Path) -> None:
    """A family that cannot express an option refuses it; logits show that the others do."""
    written, refused, theirs = 0, 0, getattr(transformers, CLASSES[kind][1])
    changes = CHANGES if kind in WHOLE else CHANGES[[*SPECS].index(kind) % 2 :: 2]
    for i, change in enumerate(changes + STRANGE if kind in REFUSING else changes):
        spec = {key: value for key, value in SPECS[kind].items() if not (key == "bias" and "biases" in change.get("mixer", {}))}
        try:
            model = model_of(spec, **change)
        except ConfigurationError:
            continue
        try:
            convert.save(model, tmp_path / str(i), model_type=kind)
        except ConfigurationError as error:
            refused += "cannot express" in str(error) or "export" in str(error)
        else:
            written += 1
            assert distance(model, theirs.from_pretrained(tmp_path / str(i), attn_implementation="eager").eval()) < 2e-5, change
    assert written == WRITTEN[kind]
    assert refused > (60 if kind in REFUSING else 4)
    assert len(list(tmp_path.iterdir())) == written


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_forget_gates_are_rejected(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="forget_gate"):
        convert.save(model_of(SPECS[kind], mixer=mixer(forget_gate=True)), tmp_path / "out")


@pytest.mark.parametrize(("tie", "spec"), [("output", "gpt2"), ("none", "llama"), ("output", "llama"), ("output", "gpt_neox")])
@pytest.mark.parametrize("scale", [True, 3.0])
def test_an_embedding_scale_is_folded_into_the_weights(scale: bool | float, tie: str, spec: str, tmp_path: Path) -> None:
    model = model_of(SPECS[spec], tie=tie, embedding={"name": "token", "scale": scale})
    saved = convert.save(model, tmp_path / "out", model_type=spec)
    assert saved.notes[0].startswith(f"the embeddings are stored multiplied by {4 if scale is True else 3}")
    assert ("final norm divided" in saved.notes[0]) is (tie == "output")
    assert distance(model, tmp_path / "out") < 1e-5


def test_half_precision_does_not_fold_a_scale_that_would_round_the_head(tmp_path: Path) -> None:
    scaled = {"embedding": {"name": "token", "scale": 3.0}, "tie": "output"}
    with pytest.raises(ConfigurationError, match=r"^llama cannot express embedding.scale: 3.0; without model_type, the first family"):
        convert.save(model_of(SPECS["llama"], **scaled).bfloat16(), tmp_path / "out", model_type="llama")
    assert convert.save(model_of(SPECS["llama"], **scaled).bfloat16(), tmp_path / "granite").model_type == "granite"
    apart = {**scaled, "tie": "none"}  # here it rounds as the forward pass does
    model = model_of(SPECS["llama"], **apart).bfloat16()
    assert convert.save(model, tmp_path / "apart").model_type == "llama"
    tokens = torch.arange(40)[None]
    with torch.no_grad():
        assert read(tmp_path / "apart").model.embed_tokens(tokens).equal(model.embedding(tokens))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_weights_keep_their_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    model = model_of(SPECS["llama"]).to(dtype)
    convert.save(model, tmp_path / "out")
    found = read(tmp_path / "out")
    assert found.config.dtype == dtype
    assert {p.dtype for p in found.parameters()} == {dtype} == {x.dtype for x in load_file(tmp_path / "out" / "model.safetensors").values()}
    if dtype == torch.float64:
        assert distance(model, tmp_path / "out") < 1e-7  # transformers computes rotations and norms in float32


def test_a_diverged_model_is_written_unchanged(tmp_path: Path) -> None:
    model = model_of(SPECS["llama"])
    with torch.no_grad():
        model.head.projection.weight[3, 2:5] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    convert.save(model, tmp_path / "out")
    assert torch.equal(
        load_file(tmp_path / "out" / "model.safetensors")["lm_head.weight"].nan_to_num(7), model.head.projection.weight.nan_to_num(7)
    )


@pytest.mark.parametrize("weights", [(0.01, 0.5), (-3.0, -1e-3), (50.0, 1e4)])
def test_norms_stored_minus_one_tolerate_rounding(weights: tuple[float, float], tmp_path: Path) -> None:
    model = model_of(SPECS["gemma2"])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(*weights)
    assert convert.save(model, tmp_path / "out").model_type == "gemma2"


def test_a_non_positive_context_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="context must be at least 1"):
        convert.save(model_of(SPECS["llama"]), tmp_path / "out", context=0)


def test_mixed_precision_is_refused(tmp_path: Path) -> None:
    model = model_of(SPECS["llama"])
    model.head.bfloat16()
    with pytest.raises(ConfigurationError, match=r"cannot express head\.projection\.weight in torch\.bfloat16"):
        convert.save(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": "alibi"}, r"^llama cannot express position: alibi, and no other family that attnkit exports can express the"),
        ({"multi_token": {"name": "independent", "num_tokens": 2}}, "llama cannot express multi_token: independent"),
        ({"mixer": "retention", "num_kv_heads": None}, "has the mixer 'retention', only multi_head"),
        ({"window": 3, "num_kv_heads": 1, "head": "bert", "bias": False}, "mistral cannot express head: bert"),
        ({"layers": [{"window": 3}, {}, {"window": 5}]}, "cannot express window: 5"),
        ({"layers": [{"share": True}]}, "llama cannot express share: True"),
    ],
)
def test_the_error_names_what_the_nearest_family_lacks(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        convert.save(model_of(SPECS["llama"], **changes), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_class_that_replaces_a_built_in_component_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms = attnkit.norms
    monkeypatch.setattr(norms, "_classes", {**norms._classes, "rms_norm": norms.get("rms_norm")})
    monkeypatch.setattr(norms, "_overridden", set())
    norms.register("rms_norm", override=True)(type("Mine", (norms.get("rms_norm"),), {"__module__": "my_norms"}))
    spec: dict[str, Any] = {"stack": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2, "position": "rotary", "vocab_size": 20}
    for norm, message in (("rms_norm", "my_norms.Mine replaces a built-in component"), ("layer_norm", "cannot express")):
        model = attnkit.compose(**spec, norm=norm, feed_forward="glu", bias=False, embedding={"name": "token", "scale": False})
        with pytest.raises(ConfigurationError, match=message):
            convert.save(model, tmp_path / "folder")


def test_only_language_models_are_exported(tmp_path: Path) -> None:
    size = {"d_model": 8, "num_layers": 1, "num_heads": 2}
    vectors = attnkit.compose(stack="encoder_decoder", **size, src_vocab_size=9, tgt_vocab_size=9)
    lstm = attnkit.compose(stack="recurrent_decoder", d_model=8, num_layers=1, vocab_size=9)
    tokenizer = attnkit.tokenizers.build("character").train(["ab"]).spec
    pairs = attnkit.tasks.build({
        "name": "seq2seq", "stack": {"name": "encoder_decoder", **size}, "src_tokenizer": tokenizer, "tgt_tokenizer": tokenizer,
    })  # fmt: skip
    for model, message in ((pairs, "not the task 'seq2seq'"), (vectors, "not EncoderDecoderModel"), (lstm, "stack: recurrent_decoder")):
        with pytest.raises(ConfigurationError, match=message):
            convert.save(model, tmp_path / "out")
    for kind in ("lama", "bert"):
        with pytest.raises(ConfigurationError, match=f"cannot export model_type '{kind}'"):
            convert.save(model_of(SPECS["llama"]), tmp_path / "out", model_type=kind)
    assert not list(tmp_path.iterdir())


def test_a_family_that_would_change_the_model_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the function that writes the configuration is wrong: what is written is read back."""
    family = DECODERS["llama"]
    wrong = {"rms_norm_eps": 0.5, "rope_theta": 7.0, "head_dim": 8, "hidden_act": "relu", "num_hidden_layers": 2, "rope_scaling": {}}
    for name, value in wrong.items():
        changed = type(family)(**{**vars(family), "config": lambda a, name=name, value=value: family.config(a) | {name: value}})
        monkeypatch.setitem(DECODERS, "llama", changed)
        if name != "rope_scaling":
            with pytest.raises(ConfigurationError, match="llama cannot express"):
                convert.save(model_of(SPECS["llama"]), tmp_path / "out", model_type="llama")
        else:
            convert.save(model_of(SPECS["llama"]), tmp_path / "out", model_type="llama")
    monkeypatch.setitem(DECODERS, "llama", type(family)(**{**vars(family), "renames": lambda spec: family.renames(spec)[1:]}))
    with pytest.raises(ConfigurationError, match=r"the model has the weight embedding.weight, which the family has no place for"):
        convert.save(model_of(SPECS["llama"]), tmp_path / "other", model_type="llama")


def test_weights_changed_by_the_disk_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(weights: dict[str, torch.Tensor], *rest: Any, **options: Any) -> None:
        save_file(weights | {"model.norm.weight": weights["model.norm.weight"] + 1}, *rest, **options)

    monkeypatch.setattr(exporting, "save_file", save)
    with pytest.raises(ConfigurationError, match=r"llama cannot express stack\.decoder\.final_norm\.weight"):
        convert.save(model_of(SPECS["llama"]), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_every_option_of_a_model_is_part_of_its_architecture() -> None:
    """A new option of `compose` must be compared, or be known to act in training only."""
    spec = model_of(SPECS["llama"]).spec
    described = architecture(attnkit.compose(**spec))
    compared = {*described, *described["layers"][0], "bias", "stack", "layers", "num_layers"}
    assert set(spec) - compared == {"init", "bos_id", "eos_id"}
    assert {"dropout", "attention_dropout", "backend"} < set(spec)
    named = attnkit.compose(**{**spec, "mixer": {**spec["mixer"], "value_dim": described["layers"][0]["head_dim"]}})
    assert not list(differences(described, architecture(named))), "values as wide as keys"


@pytest.mark.parametrize(("recipe", "kind"), [("gpt", "gpt2"), ("gpt_125m", "gpt2"), ("llama", "llama"), ("tiny", "gpt2")])
def test_models_of_language_model_recipes_can_be_exported(recipe: str, kind: str, tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "recipes" / "language_model" / f"{recipe}.yaml"
    model = read_yaml(file.read_text(), where=str(file))["model"]
    smaller = {**model["stack"], "d_model": 24, "num_layers": 2, "num_heads": 6}
    composed = {key: model[key] for key in ("tie", "embedding", "head") if key in model}
    network = attnkit.compose(**composed, **{**smaller, "stack": smaller.pop("name")}, vocab_size=40)
    assert convert.save(network, tmp_path / "out").model_type == kind
    assert distance(network.eval(), tmp_path / "out") < 1e-5
