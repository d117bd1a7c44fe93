"""A published model that was imported and trained further is exported as the model that was trained, with the ids of the published one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit import convert
from attnkit.registry import ConfigurationError
from tests.convert.models import edit, transformers
from tests.convert.test_vocabulary import TEXTS, written

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPTS = ["in the beginning", "", "God created", "안녕 🙂 1,000"]
KINDS = {  # tokenizer, and whether the tables are tied
    "gpt2": ("gpt2", None, True), "gpt_neox": ("gpt2", "NFC", False), "llama": ("llama3", None, False), "qwen2": ("qwen2", "NFC", True),
    "gemma3_text": ("gpt2", None, True), "gemma2": ("gpt2", None, True), "granite": ("llama3", None, False),
}  # fmt: skip


def train(task: Any) -> None:
    """Train on a few texts, until all weights have changed."""
    rows = [[1, *task.tokenizer.encode(text), 2] for text in TEXTS]
    tokens = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=2e-2)
    task.train()
    for _ in range(40):
        sums = task.objective({"tokens": tokens})
        (sums.loss / sums.targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    task.eval()


def places(task: Any, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the ids of their tokens that are not special, and ours, by the texts of the tokens."""
    vocabulary = json.loads(task.tokenizer.spec["model"])["model"]["vocab"]
    shared = sorted(vocabulary.keys() & tokenizer.get_vocab().keys())
    assert len(shared) >= 298
    return [tokenizer.get_vocab()[token] for token in shared], [4 + vocabulary[token] for token in shared]


def compare(task: Any, folder: Path, *, same_ends: bool) -> None:
    """Check that transformers reads the model that attnkit has, each with its own ids."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs, ours = places(task, tokenizer)
    theirs, ours = [*theirs, tokenizer.eos_token_id], [*ours, 2]
    if not same_ends:
        theirs, ours = [*theirs, tokenizer.bos_token_id], [*ours, 1]
    for text in TEXTS:
        with torch.no_grad():
            wanted: Tensor = task(torch.tensor([task.input_ids(text)])).log_softmax(-1)[..., ours]
            found = model(**tokenizer(text, return_tensors="pt")).logits.log_softmax(-1)[..., theirs]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    found_ends = False
    for prompt, wanted_text in zip(PROMPTS, task.generate(PROMPTS, max_length=30), strict=True):
        inputs = tokenizer(prompt, return_tensors="pt")
        tokens = model.generate(**inputs, do_sample=False, max_new_tokens=30, pad_token_id=0)[0, inputs["input_ids"].shape[1] :]
        assert tokenizer.decode(tokens, skip_special_tokens=True) == wanted_text
        found_ends |= bool(tokens[-1] == tokenizer.eos_token_id)
    assert found_ends, "no text ends, so the row of <eos> is not tried"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("same_ends", [False, True])
def test_a_trained_model_goes_back_to_transformers(kind: str, same_ends: bool, tmp_path: Path) -> None:
    split, form, tied = KINDS[kind]
    is_first = kind in ("gpt_neox", "qwen2")
    _, tokenizer = written(tmp_path / "in", split, kind, form=form, first=is_first, tie_word_embeddings=tied)
    if same_ends:
        edit(tmp_path / "in", bos_token_id=tokenizer.token_to_id("<|end|>"))
    task = convert.load_task(tmp_path / "in")
    before = {name: x.clone() for name, x in task.state_dict().items()}
    train(task)
    assert all((task.state_dict()[name] - x).abs().max() > 1e-3 for name, x in before.items())
    saved = convert.save(task, tmp_path / "out", context=64)
    assert saved.model_type == kind
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    is_apart = same_ends and tied
    assert config["tie_word_embeddings"] is (tied and not is_apart)
    assert config["vocab_size"] == json.loads((tmp_path / "in" / "config.json").read_text())["vocab_size"]
    assert any("tie_word_embeddings is false" in note for note in saved.notes) is is_apart
    compare(task, tmp_path / "out", same_ends=same_ends)
    again = convert.load_task(tmp_path / "out")
    with torch.no_grad():
        tokens = torch.tensor([[1, 70, 80, 90]])
        torch.testing.assert_close(again.eval()(tokens).softmax(-1), task(tokens).softmax(-1), rtol=1e-4, atol=1e-6)


def test_a_head_trained_on_all_ids_exports_attnkits_ids(tmp_path: Path) -> None:
    """The published model could not write <pad>."""
    written(tmp_path / "in", "llama3", "llama")
    task = convert.load_task(tmp_path / "in")
    assert task.hparams["head"]["excluded"] == [0, 3]
    other = type(task)(**{**task.hparams, "head": "linear"})
    other.configure_model()
    other.model.load_state_dict(task.model.state_dict())
    convert.save(other, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["vocab_size"]) == (1, 2, len(task.tokenizer))
    other = type(task)(**{**task.hparams, "head": {"name": "linear", "excluded": [0]}})
    with pytest.raises(ConfigurationError, match=r"llama cannot express head\.excluded: \[0\]"):
        convert.save(other, tmp_path / "third")


def test_a_row_missing_from_the_published_model_is_reported(tmp_path: Path) -> None:
    _, tokenizer = written(tmp_path / "in", "llama3", "llama")
    edit(tmp_path / "in", bos_token_id=tokenizer.get_vocab_size() - 1)
    task = convert.load_task(tmp_path / "in")
    with torch.no_grad():
        task.model.embedding.weight[2] += 1
    assert (
        "<eos> in an input is read as another token, because the published model has a single token for both"
        in convert.save(task, tmp_path / "out").notes
    )


@pytest.mark.parametrize(
    ("task", "spec"),
    [
        ("causal_lm", {"name": "bpe", "vocab_size": 320, "lowercase": True}),
        ("masked_lm", {"name": "bpe", "vocab_size": 320, "lowercase": True, "extra_tokens": ["<mask>"]}),
        ("masked_lm", {"name": "wordpiece", "vocab_size": 200, "lowercase": True, "extra_tokens": ["<mask>"]}),
        ("classification", {"name": "wordpiece", "vocab_size": 200}), ("tagging", {"name": "bpe", "vocab_size": 320}),
    ],
)  # fmt: skip
def test_an_exported_model_is_reimported_from_transformers(task: str, spec: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = attnkit.tokenizers.build(spec).train(TEXTS * 2)
    pooled = {"pooling": "class_token", "pooler": True} if task == "classification" else {}
    small = {"norm": "layer_norm", "bias": True, "position": {"name": "learned", "max_length": 128}}
    encoder = {"name": "encoder", "residual": "post_norm", "embedding_norm": True}
    own = {"name": "decoder", "residual": "pre_norm"} if task == "causal_lm" else encoder
    stack = {"d_model": 16, "num_layers": 2, "num_heads": 4, **small, **own}
    labels = {"classes": ["yes", "no"]} if task in ("classification", "tagging") else {}
    before: Any = attnkit.tasks.build({"name": task, "stack": stack, "tokenizer": tokenizer.spec, **pooled, **labels})
    before.configure_model()
    for parameter in before.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    convert.save(before.eval(), tmp_path / "out", context=40)
    auto = {"causal_lm": "CausalLM", "masked_lm": "MaskedLM", "classification": "SequenceClassification", "tagging": "TokenClassification"}
    getattr(transformers, f"AutoModelFor{auto[task]}").from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "theirs")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.model_max_length == (128 if task == "causal_lm" else 40)
    theirs(["in the beginning"], truncation=True, max_length=4)  # which it writes
    theirs.save_pretrained(tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs" / "tokenizer.json").read_text())["truncation"]["max_length"] == 4
    after = convert.load_task(tmp_path / "theirs").eval()
    assert getattr(after, "classes", None) == labels.get("classes")
    first = len(after.tokenizer) - len(tokenizer)
    for text in TEXTS:
        ids = before.tokenizer.between_ends(text)[:100], after.tokenizer.between_ends(text)[:100]
        wanted, found = (model.model(torch.tensor([row])) for model, row in zip((before, after), ids, strict=True))
        if task in ("causal_lm", "masked_lm"):  # of the tokens of texts
            wanted, found = wanted[..., 5:], found[..., first + 5 :]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    convert.save(after, tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    if task in ("causal_lm", "masked_lm"):
        assert [again(text)["input_ids"] for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]
