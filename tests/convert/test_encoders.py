"""An encoder of attnkit is written as a model that transformers reads as the same one, and fills masks as it does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import attnkit
from attnkit import convert
from attnkit.convert.architecture import architecture, differences
from attnkit.convert.importing import ENCODERS
from attnkit.models import EncoderModel
from attnkit.recipe import read_yaml
from attnkit.registry import ConfigurationError
from tests.convert.models import ENCODERS as CLASSES
from tests.convert.models import model_of, published, transformers
from tests.convert.test_exporting import CHANGES, STRANGE
from tests.convert.test_masked import KINDS, written

pytestmark = pytest.mark.filterwarnings("ignore")
NORM = {"name": "layer_norm", "eps": 1e-3}
BASE: dict[str, Any] = {
    "stack": "encoder", "d_model": 16, "num_layers": 3, "num_heads": 4, "vocab_size": 40, "norm": NORM, "residual": "post_norm",
    "embedding": {"name": "token", "scale": False, "num_segments": 2}, "position": {"name": "learned", "max_length": 32}, "bias": True,
    "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu"}, "embedding_norm": True, "tie": "output", "head": "bert",
    "dropout": 0.3, "attention_dropout": 0.2,
}  # fmt: skip
NEAR = {"window": 4, "position": {"name": "rotary", "base": 500.0}}
SPECS: dict[str, dict[str, Any]] = {
    "distilbert": {**BASE, "norm": {"name": "layer_norm", "eps": 1e-12}, "embedding": {"name": "token", "scale": False}},
    "bert": BASE,
    "roberta": {**BASE, "feed_forward": {**BASE["feed_forward"], "activation": "relu"}},
    "modernbert": {
        **BASE, "norm": {**NORM, "bias": False}, "residual": "pre_norm", "position": {"name": "rotary", "base": 1e3}, "bias": False,
        "feed_forward": {"name": "glu", "ffn_dim": 24, "activation": "gelu"}, "head": {"name": "bert", "dense_bias": False},
        "embedding": {"name": "token", "scale": False}, "num_layers": 5,
        "layers": [{"norm": "none", "feed_forward": "none"}, {"mixer": "none"}, {**NEAR, "repeat": 2}, {}], "dropout": 0.0,
    },
}  # fmt: skip
"""One model for each family, which no family before it can express."""


def read(folder: Path) -> Any:
    """Return the model that transformers makes of a folder."""
    return transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()


def distance(model: EncoderModel, theirs: Any) -> float:
    """Return how far the logits of transformers' model, or that in a folder, are from ours at real tokens, relative to the largest."""
    theirs = read(theirs) if isinstance(theirs, Path) else theirs
    tokens = torch.randint(1, model.spec["vocab_size"], (2, 14), generator=torch.Generator().manual_seed(0))
    tokens[0, 9:] = 0
    real = tokens != 0
    segments = (torch.arange(14) > 5).long().expand(2, -1) if model.embedding.num_segments > 1 else None
    more = {} if segments is None else {"token_type_ids": segments}
    with torch.no_grad():
        wanted, found = model(tokens, real, segments)[real], theirs(tokens, real.long(), **more).logits[real]
    return float((found - wanted).abs().max() / wanted.abs().max())


def test_all_families_are_tested() -> None:
    assert SPECS.keys() == ENCODERS.keys() == CLASSES.keys()


@pytest.mark.parametrize("tie", ["output", "none"])
@pytest.mark.parametrize("kind", SPECS)
def test_transformers_loads_an_equal_model(kind: str, tie: str, tmp_path: Path) -> None:
    model = model_of(SPECS[kind], tie=tie)
    assert convert.save(model, tmp_path / "out").model_type == kind
    assert type(read(tmp_path / "out")).__name__ == ENCODERS[kind].model_class == CLASSES[kind][1]
    assert distance(model, tmp_path / "out") < 1e-5
    found = convert.load(tmp_path / "out")
    assert not list(differences(architecture(model), architecture(found)))
    assert all(torch.equal(found.state_dict()[name], weight) for name, weight in model.state_dict().items())
    for option in ("dropout", "attention_dropout"):
        assert found.spec[option] == (0.0 if kind == "modernbert" else model.spec[option])


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("tie", [True, False])
def test_a_published_model_is_written_back_unchanged(kind: str, tie: bool, tmp_path: Path) -> None:
    model = published(kind, tmp_path / "in", tie_word_embeddings=tie)
    convert.save(convert.load(tmp_path / "in"), tmp_path / "out", model_type=kind)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "out"))
    assert before.keys() == after.keys()
    unread = {"cls.predictions.bias", "lm_head.bias"} if not tie else set()
    assert all(torch.equal(after[name], x) for name, x in before.items() if name not in unread and "position_embeddings" not in name)
    tokens = torch.randint(2, 40, (2, 14))
    with torch.no_grad():
        torch.testing.assert_close(read(tmp_path / "out")(tokens).logits, model(tokens).logits, rtol=1e-5, atol=1e-5)


WRITTEN = {"distilbert": 5, "bert": 27, "roberta": 5, "modernbert": 27}
"""How many of these each family has."""
OTHERS = [
    *CHANGES, *STRANGE,
    *({"head": {"name": "bert", **own}} for own in ({"activation": "relu"}, {"activation": "tanh"}, {"dense_bias": False})),
    {"head": {"name": "bert", "activation": "silu"}, "feed_forward": {**BASE["feed_forward"], "activation": "silu"}},
    {"position": {"name": "learned", "max_length": 20}}, {"embedding": {"name": "token", "scale": 2.0, "num_segments": 3}},
    {"eos_id": None},
    {"embedding_norm": False}, {"final_norm": True}, {"layers": [{**NEAR, "window": 3}, {}]},
    {"layers": [{"norm": "none", "feed_forward": "none"}, {"mixer": "none"}, {}, NEAR]},
    {"layers": [{**NEAR, "norm": "none", "feed_forward": "none"}, {"mixer": "none"}, {**NEAR, "window": 5}]},
    {"layers": [{"norm": "none", "feed_forward": "none"}, {"mixer": "none"}, {"mixer": "none"}]}, {"feed_forward": "glu"},
    {"feed_forward": {**BASE["feed_forward"], "activation": "gelu_tanh"}}, {"init": "bert"}, {"dropout": 0.5},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECS)
def test_every_other_option_is_exported_exactly_or_rejected(kind: str, tmp_path: Path) -> None:
    written, refused, theirs = 0, 0, getattr(transformers, CLASSES[kind][1])
    for i, change in enumerate(OTHERS if kind in ("bert", "modernbert") else OTHERS[::6]):  # the other two are much as BERT
        try:
            model = model_of(SPECS[kind], **change)
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
    assert refused > 10
    assert len(list(tmp_path.iterdir())) == written


TEXTS = [
    "in the beginning God created the heaven and the earth", "2024 12345 1,000.50", "it's  we'll\n\n\tnext  line", "안녕 세상 é é ½ ﬁ",
    "HELLO'S ΑΣ İstanbul ǅ", "\u200b\u00a0🙂🙂 👩‍👩‍👧 \x1c\x85\u2028", "e\u0301 \u1112\u1161\u11ab \u212b \ufb01", "x=y+1;//#!??...", " ",
]  # fmt: skip
MASKED = ["in the <mask> God created the <mask> and the earth", "<mask>", "<mask><mask> 안녕", "it's <mask>.", "\u0338<mask>\u0338 É"]
TOKENIZERS: list[dict[str, Any]] = [
    {"name": "bpe", "vocab_size": 320, "lowercase": True}, {"name": "bpe", "vocab_size": 320, "split": "llama3", "normalization": "NFKC"},
    {"name": "character"}, {"name": "word"}, {"name": "wordpiece", "vocab_size": 200},
    {"name": "wordpiece", "vocab_size": 200, "lowercase": True, "normalization": "none"},
]  # fmt: skip
SMALL = {
    "name": "encoder", "d_model": 16, "num_layers": 2, "num_heads": 2, "norm": "layer_norm", "residual": "post_norm",
    "position": {"name": "learned", "max_length": 70}, "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu"},
    "embedding_norm": True,
}  # fmt: skip


def masked(tokenizer: Any, **options: Any) -> Any:
    """Return a task with weights that matter."""
    task: Any = attnkit.tasks.build({"name": "masked_lm", "stack": SMALL, "tokenizer": tokenizer.spec, **options})
    task.configure_model()
    torch.manual_seed(0)
    for parameter in task.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    return task.eval()


def same_fillings(task: Any, folder: Path, *, mask: str = "<mask>") -> None:
    """Check that the pipeline of transformers fills masks as the task does."""
    fill = transformers.pipeline("fill-mask", model=str(folder), device="cpu")
    for text, candidates in zip(MASKED, task.fill(MASKED, top=10_000), strict=True):
        found = fill(text.replace("<mask>", mask), top_k=fill.model.config.vocab_size)
        for wanted, rows in zip(candidates, found if isinstance(found[0], list) else [found], strict=True):
            # sums of equal probabilities are in any order, and tokens of bytes have one text
            probabilities = [row["score"] for row in rows][: len(wanted)]
            assert probabilities == pytest.approx([p for _, p in wanted], rel=1e-3, abs=1e-7)
            assert rows[0]["token_str"].strip() == wanted[0].token.strip()
            assert all(row["score"] < 1e-7 for row in rows[len(wanted) :])


@pytest.mark.parametrize(
    ("spec", "tie"),
    [*((spec, "output") for spec in TOKENIZERS), (TOKENIZERS[2], "none")],
    ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x.values())),
)
def test_a_transformers_pipeline_fills_masks_like_the_task(spec: dict[str, Any], tie: str, tmp_path: Path) -> None:
    extra = ["<mask>"] if spec["name"] == "word" else ["<mask>", "<url>"]
    tokenizer = attnkit.tokenizers.build({**spec, "extra_tokens": extra}).train([*TEXTS, *MASKED] * 2)
    task = masked(tokenizer, tie=tie)
    saved = convert.save(task, tmp_path / "out")
    assert saved.model_type == "bert"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(theirs) == len(tokenizer)
    for text in [*TEXTS, *MASKED, "a <url>", "x <MASK> <Url>"]:
        assert theirs(text)["input_ids"] == tokenizer.between_ends(text), repr(text)
    assert theirs(["in", "in the beginning"], padding=True)["input_ids"][0][-1] == 0
    same_fillings(task, tmp_path / "out")


def train(task: Any) -> None:
    """Train on a few texts, until all weights have changed."""
    rows = [task.tokenizer.between_ends(text)[:30] for text in [*TEXTS, *MASKED]]
    tokens = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=1e-2)
    task.train()
    for step in range(30):
        batch = {"tokens": tokens, "masked": task.hide({"tokens": tokens}, step, "fit")}
        sums = task.objective(batch)
        (sums.loss / sums.targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    task.eval()


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_model_goes_back_to_transformers(kind: str, is_trained: bool, tmp_path: Path) -> None:
    _, tokenizer = written(tmp_path / "in", kind)
    task, mask = convert.load_task(tmp_path / "in").eval(), "<mask>" if kind == "roberta" else "[MASK]"
    if is_trained:
        before = {name: x.clone() for name, x in task.state_dict().items()}
        train(task)
        assert all((task.state_dict()[name] - x).abs().max() > 1e-3 for name, x in before.items())
    saved = convert.save(task, tmp_path / "out")
    assert saved.model_type == kind
    assert any("tie_word_embeddings is false" in note for note in saved.notes) is is_trained
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in [text.replace("<mask>", mask) for text in [*TEXTS, *MASKED]]:
        assert theirs(text)["input_ids"] == tokenizer.encode(text).ids, repr(text)
    same_fillings(task, tmp_path / "out", mask=mask)
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("in", "out")]
    assert [config["vocab_size"] for config in configs] == [tokenizer.get_vocab_size() + 3] * 2
    if is_trained:
        again = convert.load_task(tmp_path / "out").eval()
        for one, other in zip(again.fill(MASKED, top=5), task.fill(MASKED, top=5), strict=True):
            assert [c.token for row in one for c in row] == [c.token for row in other for c in row]
    else:
        before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "out"))
        changed = {name for name, x in before.items() if not torch.equal(x, after[name])}
        assert before.keys() == after.keys()
        assert not changed - {"roberta.embeddings.position_embeddings.weight"}  # its first two are never read


@pytest.mark.parametrize("recipe", ["bert", "bert_passages"])
def test_models_of_masked_lm_recipes_can_be_exported(recipe: str, tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "recipes" / "masked_lm" / f"{recipe}.yaml"
    model = read_yaml(file.read_text(), where=str(file))["model"]
    smaller = {**model["stack"], "d_model": 16, "stack": "encoder"}
    del smaller["name"]
    network = model_of({**smaller, "tie": model["tie"], "embedding": model["embedding"], "head": "bert", "vocab_size": 40})
    assert convert.save(network, tmp_path / "out").model_type == "bert"
    assert distance(network, tmp_path / "out") < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_keep_their_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    tokenizer = attnkit.tokenizers.build({"name": "character", "extra_tokens": ["<mask>"]}).train(TEXTS)
    task = masked(tokenizer, embedding={"name": "token", "scale": False})
    task.model.to(dtype)
    convert.save(task, tmp_path / "out")
    assert {x.dtype for x in load_file(tmp_path / "out" / "model.safetensors").values()} == {dtype}
    found = convert.load(tmp_path / "out").state_dict()
    assert all(torch.equal(found[name], x) for name, x in task.model.state_dict().items() if name != "head.bias")
    assert found["head.bias"][:5].tolist() == [torch.tensor(-1e4).to(dtype)] * 5
    assert torch.equal(found["head.bias"][5:], task.model.head.bias[5:])
    scaled = masked(tokenizer)
    scaled.model.to(dtype)
    if dtype == torch.float64:
        assert "norm of the head divided by it" in convert.save(scaled, tmp_path / "scaled").notes[0]
    else:
        with pytest.raises(ConfigurationError, match=r"^bert cannot express embedding.scale: 4.0, and no other family"):
            convert.save(scaled, tmp_path / "scaled")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": "sinusoidal"}, r"^bert cannot express position: sinusoidal, and no other"),
        ({"head": "linear"}, "bert cannot express head: linear"),
        ({"embedding_norm": False}, "bert cannot express embedding_norm: False"),
        ({"residual": "pre_norm"}, "bert cannot express final_norm: True, residual: pre_norm"),
        ({"norm": "rms_norm"}, "bert cannot express norm: rms_norm"),
        ({"head": {"name": "bert", "dense_bias": False}}, "bert cannot express head.dense_bias: False"),
        ({**SPECS["modernbert"], "layers": None}, "modernbert cannot express feed_forward: glu, norm: layer_norm, layers, and"),
    ],
)
def test_the_error_names_what_the_nearest_family_lacks(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        convert.save(model_of(BASE, **changes), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_exported_mask_token_absorbs_the_preceding_space(tmp_path: Path) -> None:
    """Also if that of the published tokenizer did not."""
    tokenizer = KINDS["roberta"]()
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["lstrip"] = False
    written(tmp_path / "in", "roberta", type(tokenizer).from_str(json.dumps(content)))
    task = convert.load_task(tmp_path / "in").eval()
    convert.save(task, tmp_path / "out")
    same_fillings(task, tmp_path / "out")


def test_a_tokenizer_that_would_give_different_ids_is_left_out(tmp_path: Path) -> None:
    plain = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 330}).train(TEXTS)
    model = json.loads(plain.spec["model"])
    model["model"]["vocab"]["<mask>"] = len(model["model"]["vocab"])
    for i, spec in enumerate(({"name": "bpe", "model": json.dumps(model)}, {"name": "word", "tokens": ["a"], "punctuation": "apart"})):
        saved = convert.save(masked(attnkit.tokenizers.build({**spec, "extra_tokens": ["<mask>"]})), tmp_path / str(i))
        assert any(note.startswith("written without a tokenizer") for note in saved.notes)
        assert not (tmp_path / str(i) / "tokenizer.json").exists()
