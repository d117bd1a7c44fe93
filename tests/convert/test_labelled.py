"""Encoders that label texts, tokens or spans, as transformers' classes do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import attnkit
from attnkit import convert
from attnkit.convert import vocabulary
from attnkit.convert.folder import read_mapping
from attnkit.convert.importing import ENCODERS
from attnkit.convert.labelled import TASKS, class_of
from attnkit.registry import ConfigurationError
from tests.convert.models import SIZES, edit, model_of, transformers, without
from tests.convert.test_encoders import SMALL, SPECS, TEXTS
from tests.convert.test_masked import written

pytestmark = pytest.mark.filterwarnings("ignore")
HEADS = {
    "TokenClassification": {"pooling": "none", "num_classes": 3}, "QuestionAnswering": {"pooling": "none", "num_classes": 2},
    "SequenceClassification": {"pooling": "class_token", "pooler": True, "num_classes": 3},
}  # fmt: skip
PAIRS = [(kind, head) for kind, family in ENCODERS.items() for head in family.labelled]
PAIR = ("in the beginning", "God created the heaven and the earth")


def outputs(model: Any, head: str, **inputs: Any) -> torch.Tensor:
    """Return the outputs of a model of transformers."""
    with torch.no_grad():
        found = model(**inputs)
    return torch.stack([found.start_logits, found.end_logits], -1) if head == "QuestionAnswering" else found.logits


def read(folder: Path, head: str) -> Any:
    """Return the model that transformers makes of a folder."""
    return getattr(transformers, f"AutoModelFor{head}").from_pretrained(folder, attn_implementation="eager").eval()


def test_all_heads_are_tested() -> None:
    assert HEADS.keys() == TASKS.keys()
    assert len(PAIRS) == 8


@pytest.mark.parametrize(("kind", "head"), PAIRS)
def test_a_published_model_is_read_and_written_back_unchanged(kind: str, head: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    name = class_of(ENCODERS[kind], head)
    labels = {} if head == "QuestionAnswering" else {"num_labels": 3}
    config = getattr(transformers, f"{name.split('For')[0]}Config")(**SIZES[kind], **labels)
    model = getattr(transformers, name)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    model.save_pretrained(tmp_path / "in")
    ours = convert.load(tmp_path / "in").eval()
    tokens = torch.randint(2, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    wanted = outputs(model, head, input_ids=tokens)
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), wanted, rtol=1e-4, atol=1e-5)
    if head != "QuestionAnswering":  # whose model alone is that of two classes for each token
        assert convert.save(ours, tmp_path / "out", model_type=kind).model_type == kind
        torch.testing.assert_close(outputs(read(tmp_path / "out", head), head, input_ids=tokens), wanted, rtol=1e-4, atol=1e-5)


def task_of(head: str, tokenizer: Any, **options: Any) -> Any:
    """Return a task with weights that matter."""
    labels = {} if head == "QuestionAnswering" else {"classes": ["no", "yes", "안녕"]}
    pooled = {"pooling": "class_token", "pooler": True} if head == "SequenceClassification" else {}
    spec = {"name": TASKS[head], "stack": SMALL, "tokenizer": tokenizer.spec, **labels, **pooled, **options}
    task: Any = attnkit.tasks.build(spec)
    task.configure_model()
    torch.manual_seed(0)
    for parameter in task.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    return task.eval()


def same_outputs(task: Any, head: str, folder: Path) -> None:
    """Check that texts, or pairs of them, have the outputs of the task."""
    model, theirs = read(folder, head), transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer = task.tokenizer
    if head == "QuestionAnswering":
        ids = [*tokenizer.between_ends(PAIR[0]), *tokenizer.encode(PAIR[1]), tokenizer.eos_id]
        inputs = theirs(*PAIR, return_tensors="pt")
        with torch.no_grad():
            wanted = task(torch.tensor([ids]))
        torch.testing.assert_close(outputs(model, head, **inputs), wanted, rtol=1e-4, atol=1e-5)
        return
    texts = [text[:8] for text in TEXTS] + ["<eos> a"] * (not task.tokenizer.extra_tokens)  # a mask is read with the other special tokens
    inputs = theirs(texts, return_tensors="pt", padding=True)
    rows = [tokenizer.between_ends(text) for text in texts]
    tokens = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
    with torch.no_grad():
        wanted = task(tokens)
    found = outputs(model, head, **inputs)
    real = tokens != 0
    assert torch.equal(inputs["attention_mask"].bool(), real)
    found, wanted = (x[real] if head == "TokenClassification" else x for x in (found, wanted))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert list(model.config.id2label.values()) == task.classes


@pytest.mark.parametrize("segments", [0, 1, 2])
@pytest.mark.parametrize("head", HEADS)
def test_a_task_is_written_with_its_labels_and_its_tokenizer(head: str, segments: int, tmp_path: Path) -> None:
    tokenizer = attnkit.tokenizers.build("character").train([*TEXTS, *PAIR])
    task = task_of(head, tokenizer, embedding={"name": "token", "num_segments": segments})
    assert convert.save(task, tmp_path / "out").model_type == "bert"
    same_outputs(task, head, tmp_path / "out")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_a_fine_tuned_imported_encoder_is_exported(kind: str, head: str, tmp_path: Path) -> None:
    _, tokenizer = written(tmp_path / "in", kind)
    encoder = convert.load_task(tmp_path / "in")
    spec = {key: value for key, value in encoder.hparams.items() if key in ("stack", "embedding")}
    task = task_of(head, encoder.tokenizer, **spec)
    found = convert.save(task, tmp_path / "out").model_type
    assert found == ("bert" if (kind, head) == ("distilbert", "SequenceClassification") else kind)
    same_outputs(task, head, tmp_path / "out")
    pair = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(*PAIR)["input_ids"]
    is_one = pair.count(2) == 2  # RoBERTa has two </s> between texts, question_answering by default one
    assert (pair == tokenizer.encode(*PAIR).ids) is not (kind == "roberta" and is_one)
    assert kind != "roberta" or is_one is (head == "QuestionAnswering")
    again = convert.load_task(tmp_path / "out").eval()
    assert again.registered_name == TASKS[head]
    assert head == "QuestionAnswering" or again.classes == task.classes
    same_outputs(again, head, tmp_path / "out")
    with torch.no_grad():
        tokens = torch.tensor([[1, 50, 60, 2, 70, 2]])
        # in float64, since fp32 products of equal numbers differ with where they lie in memory
        torch.testing.assert_close(again.double()(tokens), task.double()(tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "is_ours"), [("bert", False), ("roberta", False), ("roberta", True)])
def test_questions_and_passages_keep_the_published_separators(
    kind: str, is_ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, kind)
    if is_ours:  # it writes the steps in another form
        convert.save(convert.load_task(tmp_path), tmp_path / "out")
        (tmp_path / "out").rename(tmp_path := tmp_path.with_name("other"))
    edit(tmp_path, architectures=[class_of(ENCODERS[kind], "QuestionAnswering")], num_labels=2)
    weights = load_file(tmp_path / "model.safetensors")
    body = {name: weight for name, weight in weights.items() if name.startswith(f"{kind}.")}
    save_file({**body, "qa_outputs.weight": torch.zeros(2, 16), "qa_outputs.bias": torch.zeros(2)}, tmp_path / "model.safetensors")
    files: list[str] = []
    monkeypatch.setattr(vocabulary, "read_mapping", lambda path: files.append(path.name) or read_mapping(path))
    task = convert.load_task(tmp_path)
    assert task.separators == (2 if kind == "roberta" else 1)
    convert.save(task, tmp_path / "back")
    before, after = (transformers.AutoTokenizer.from_pretrained(folder)(*PAIR)["input_ids"] for folder in (tmp_path, tmp_path / "back"))
    assert before == after
    assert files == ["tokenizer.json", "tokenizer_config.json"][: 1 + is_ours]  # once, since they may be large


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("bert", {"pooling": "mean"}, "cannot express pooler: False, pooling: mean"),
        ("bert", {"pooling": "class_token"}, "cannot express pooler: False, and no other"),
        ("bert", {"pooling": "last", "pooler": True}, "cannot express pooling: last"),
        ("modernbert", {"pooling": "none"}, "cannot express "),
        ("bert", {"pooling": "none", "position": "alibi"}, "cannot express position: alibi"),
    ],
)
def test_an_unsupported_head_is_rejected(kind: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = model_of(without(SPECS[kind], "tie", "head"), **changes, num_classes=2)
    with pytest.raises(ConfigurationError, match=message):
        convert.save(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_unsupported_inputs_stacks_and_tasks_are_rejected(tmp_path: Path) -> None:
    size = {"d_model": 8, "num_layers": 1, "num_heads": 2, "num_classes": 2}
    image = attnkit.compose(stack="encoder", **size, image_shape=[1, 4, 4], embedding={"name": "patch", "patch_size": 2})
    decoder = attnkit.compose(stack="decoder", **size, vocab_size=9, pooling="last")
    tokenizer = attnkit.tokenizers.build("character").train(["ab"]).spec
    numbers = attnkit.tasks.build({"name": "regression", "stack": SMALL, "tokenizer": tokenizer})
    for model, message in ((image, "has embedding: patch"), (decoder, "stack: decoder"), (numbers, "not the task 'regression'")):
        with pytest.raises(ConfigurationError, match=message):
            convert.save(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"problem_type": "multi_label_classification"}, "problem_type is 'multi_label_classification'"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label must map the ids"),
        ({"id2label": {"0": "a", "1": "a"}}, "must be distinct strings"),
        ({"id2label": {"0": "a", "1": "b"}}, "the weights do not fit config.json"),
        ({"architectures": ["BertForQuestionAnswering"]}, r"there are 3 labels \(id2label, num_labels\), but a span has two ends"),
        ({"id2label": None, "num_labels": 2**31 - 1}, "it describes a far larger model than"),  # before that many names are made
    ],
)
def test_inconsistent_labels_are_rejected(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    convert.save(model_of(without(SPECS["bert"], "tie", "head"), pooling="none", num_classes=3), tmp_path / "out")
    edit(tmp_path / "out", **fields)
    with pytest.raises(ConfigurationError, match=message):
        convert.load(tmp_path / "out")
