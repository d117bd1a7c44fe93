"""An imported encoder has its tokenizer, and fills masks as it did before; ids are attnkit's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf
import torch
from safetensors.torch import load_file, save_file
from samples.framed import framed
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from attnkit import convert
from attnkit.cli.main import main
from attnkit.convert.masked import MaskedVocabulary, read_masked_vocabulary
from attnkit.registry import ConfigurationError
from attnkit.task import Task
from tests.convert.models import edit, published

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = [
    "In the beginning God created the heaven and the earth.", "Été à Zürich, 2024: it's 1,000!", "", " leading  spaces\tand\nlines ",
    "中文 and 한국어 🙂", "unaffable [SEP] <s> [MASK]", "x" * 120, "\u200b\u00a0\x00",
]  # fmt: skip
SPECIAL = {"wordpiece": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "bpe": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}
OURS = 5


def wordpiece(*, lowercase: bool = True) -> hf.Tokenizer:
    """Return a tokenizer in BERT's steps."""
    tokenizer = hf.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXTS[:2] * 3, trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL["wordpiece"]))
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return tokenizer


def bpe() -> hf.Tokenizer:
    """Return a tokenizer in RoBERTa's steps."""
    tokenizer = hf.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = [hf.AddedToken(token, lstrip=token == "<mask>", special=True) for token in SPECIAL["bpe"]]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def modern() -> hf.Tokenizer:
    """Return a tokenizer in ModernBERT's steps, whose special tokens are called as BERT's."""
    content = bpe().to_str()
    for theirs, name in zip(SPECIAL["bpe"], ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), strict=True):
        content = content.replace(json.dumps(theirs), json.dumps(name))
    tokenizer = hf.Tokenizer.from_str(content)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


KINDS: dict[str, Callable[[], hf.Tokenizer]] = {"bert": wordpiece, "roberta": bpe, "distilbert": wordpiece, "modernbert": modern}


def written(folder: Path, kind: str = "bert", tokenizer: hf.Tokenizer | None = None) -> tuple[Any, hf.Tokenizer]:
    """Write a model and its tokenizer, with three ids more than tokens, and return both."""
    tokenizer = KINDS[kind]() if tokenizer is None else tokenizer
    model = published(kind, folder, vocab_size=tokenizer.get_vocab_size() + 3)
    tokenizer.save(str(folder / "tokenizer.json"))
    if kind == "modernbert":
        roles = {f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "unk", "mask")}
        (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    return model, tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_texts_get_the_ids_of_the_published_tokenizer(kind: str, tmp_path: Path) -> None:
    _, tokenizer = written(tmp_path, kind)
    ours, unknown = convert.load_task(tmp_path).tokenizer, tokenizer.token_to_id("[UNK]")  # which a bpe never writes
    plain = hf.Tokenizer.from_str(tokenizer.to_str())
    plain.encode_special_tokens = True  # theirs reads special tokens in a text, ours does not
    for text in TEXTS:
        wanted = plain.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == [ours.unk_id if i == unknown else OURS + i for i in wanted], text
        if unknown not in wanted:
            assert ours.decode(ours.encode(text)) == plain.decode(wanted)
    assert len(ours) == OURS + tokenizer.get_vocab_size() + 3


@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_filled_like_the_published_model(kind: str, tmp_path: Path) -> None:
    model, tokenizer = written(tmp_path, kind)
    task, (mask,) = convert.load_task(tmp_path).to("cpu").eval(), ("<mask>" if kind == "roberta" else "[MASK]",)
    text = "In the {} God created the <unknown> {} and the earth."
    ids = tokenizer.encode(text.replace("{}", mask)).ids
    places = [i for i, token in enumerate(ids) if token == tokenizer.token_to_id(mask)]
    with torch.no_grad():
        wanted = model(torch.tensor([ids])).logits[0, places].softmax(-1)
    (found,) = task.fill([text.replace("{}", "<mask>")], top=len(wanted[0]))
    assert len(found) == 2
    labels = [task.tokenizer.tokens([OURS + i])[0] for i in range(len(wanted[0]))]
    for probabilities, candidates in zip(wanted, found, strict=True):
        best = sorted(zip(labels, probabilities.tolist(), strict=True), key=lambda pair: -pair[1])
        assert [p for _, p in candidates] == pytest.approx([p for _, p in best], rel=1e-4, abs=1e-7)
        assert candidates[0].token == best[0][0]


def test_older_names_and_duplicate_weights_are_read(tmp_path: Path) -> None:
    written(tmp_path)
    before = convert.load_task(tmp_path).state_dict()
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): w for name, w in weights.items()
    }
    more = {
        "bert.pooler.dense.weight": torch.zeros(16, 16), "bert.pooler.dense.bias": torch.zeros(16),
        "cls.seq_relationship.weight": torch.zeros(2, 16), "cls.seq_relationship.bias": torch.zeros(2),
        "bert.embeddings.position_ids": torch.arange(34)[None],
        "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": weights["cls.predictions.bias"].clone(),
    }  # fmt: skip
    save_file({**renamed, **more}, path)
    after = convert.load_task(tmp_path).state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    more["cls.predictions.decoder.weight"][0, 0] += 1
    save_file({**renamed, **more}, path)
    with pytest.raises(
        ConfigurationError, match=r"decoder\.weight differs from bert\.embeddings\.word_embeddings\.weight, but they are the same weight"
    ):
        convert.load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_a_head_is_imported_with_a_new_one(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = written(tmp_path, kind)
    before = convert.load_task(tmp_path).state_dict()
    body = type(model.base_model)(model.config)  # with a pooler
    body.load_state_dict(model.base_model.state_dict(), strict=False)
    body.save_pretrained(tmp_path)
    assert any("pooler" in name for name in load_file(tmp_path / "model.safetensors")) is (kind in ("bert", "roberta"))
    with pytest.raises(ConfigurationError, match=r"it has no head; `attnkit import`, or load_task, gives it a new one"):
        convert.load(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="has no head for masked tokens, so the model gets a new, untrained one"):
        assert main(["import", str(tmp_path), "--out", "encoder.safetensors"]) == 0
    after = Task.load("encoder.safetensors").state_dict()
    assert after.keys() == before.keys()
    assert {name for name, x in before.items() if not torch.equal(after[name], x)} <= {name for name in before if ".head." in name}
    dense = after["model.head.dense.weight"]
    assert 0.01 < dense.std() < 1
    assert torch.equal(dense, convert.load_task(tmp_path).state_dict()["model.head.dense.weight"])


def test_special_tokens_are_found_by_the_tokenizer_files_names(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    tokenizer.add_special_tokens(["<start>", "<hole>"])
    written(tmp_path, tokenizer=tokenizer)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"cls_token": "<start>", "mask_token": {"content": "<hole>"}, "sep_token": None})
    )
    rows = read_masked_vocabulary(tmp_path, tokenizer.get_vocab_size() + 3).rows
    assert rows == tuple(tokenizer.token_to_id(token) for token in ("<start>", "[SEP]", "[UNK]", "<hole>"))


def test_attnkit_only_ids_are_never_predicted_and_others_keep_their_rows() -> None:
    theirs, bias = torch.arange(8.0).view(4, 2), torch.arange(4.0)
    vocabulary = MaskedVocabulary({}, (2, 3, 1, 0))
    assert vocabulary.embedding(theirs).tolist() == [[0, 0], [4, 5], [6, 7], [2, 3], [0, 1], [0, 1], [2, 3], [4, 5], [6, 7]]
    assert vocabulary.bias(bias).tolist() == [-1e4] * 5 + [0, 1, 2, 3]


def broken(tokenizer: hf.Tokenizer, change: dict[str, Any]) -> str:
    """Return the JSON of a tokenizer with other values, by their paths."""
    content = json.loads(tokenizer.to_str())
    for path, value in change.items():
        *parents, last = path.split(".")
        place = content
        for parent in parents:
            place = place[parent]
        place[last] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.continuing_subword_prefix": "@@"}, "its continuing_subword_prefix is '@@', but attnkit only supports '##'"),
        ({"model.max_input_chars_per_word": 200}, "its max_input_chars_per_word is 200"),
        ({"normalizer": {"type": "NFC"}}, "it lacks 'lowercase'"),
        ({"normalizer": None}, "is not a tokenizer that attnkit can import"),
        ({"normalizer.strip_accents": False}, "its strip_accents is False"),
        ({"normalizer.handle_chinese_chars": False}, "its handle_chinese_chars is False"),
        ({"normalizer.clean_text": False}, "its clean_text is False"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "its pre_tokenizer is 'Whitespace'"),
        ({"decoder.cleanup": False}, "its decoder is"),
        ({"model.type": "Unigram"}, "no token '<s>', and tokenizer_config.json names no other cls_token"),
        ({"model.unk_token": "[ODD]"}, r"it has no token '\[ODD\]'"),
        ({"model.vocab": []}, "is not a tokenizer that attnkit can import"),
    ],
)
def test_unsupported_tokenizer_steps_are_rejected(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    _, tokenizer = written(tmp_path)
    (tmp_path / "tokenizer.json").write_text(broken(tokenizer, change))
    with pytest.raises(ConfigurationError, match=message):
        convert.load_task(tmp_path)


def test_accents_follow_the_lowercase_setting(tmp_path: Path) -> None:
    _, tokenizer = written(tmp_path, tokenizer=wordpiece(lowercase=False))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert convert.load_task(tmp_path).tokenizer.spec["lowercase"] is False
    (tmp_path / "tokenizer.json").write_text(broken(tokenizer, {"normalizer.strip_accents": True}))
    with pytest.raises(ConfigurationError, match="its strip_accents is True"):
        convert.load_task(tmp_path)


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        ("bert", {"do_lower_case": False}, "In the"),
        ("bert", {"strip_accents": False}, "Été"),
        ("bert", {"tokenize_chinese_chars": False}, "中文"),
        ("roberta", {"add_prefix_space": True}, "In"),
    ],
)
def test_settings_that_change_the_tokenizer_are_refused(kind: str, settings: dict[str, Any], text: str, tmp_path: Path) -> None:
    written(tmp_path, kind)
    before = transformers.AutoTokenizer.from_pretrained(tmp_path)
    path, ((name, value),) = tmp_path / "tokenizer_config.json", settings.items()
    path.write_text(json.dumps(settings))
    changed = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert changed.tokenize(text) != before.tokenize(text)
    with pytest.raises(ConfigurationError, match=f"transformers reads it with {name}: {value}.*save_pretrained"):
        convert.load_task(tmp_path)
    path.write_text(json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"}))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).tokenize(text) == before.tokenize(text)
    convert.load_task(tmp_path)
    changed.save_pretrained(tmp_path)
    if name == "do_lower_case":
        assert convert.load_task(tmp_path).tokenizer.spec["lowercase"] is False
    else:  # the files agree, on what attnkit does not have
        with pytest.raises(ConfigurationError, match=r"its (strip_accents|handle_chinese_chars) is False|without add_prefix_space"):
            convert.load_task(tmp_path)


def test_texts_are_lowercased_unless_the_settings_disable_it(tmp_path: Path) -> None:
    written(tmp_path, tokenizer=wordpiece(lowercase=False))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).do_lower_case
    with pytest.raises(ConfigurationError, match=r"do_lower_case: True, from tokenizer_config\.json or by default, instead of False"):
        convert.load_task(tmp_path)


def test_sizes_are_checked_before_ids_are_named(tmp_path: Path) -> None:
    written(tmp_path)
    edit(tmp_path, vocab_size=10**9)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ConfigurationError, match="it describes a far larger model than"):
        convert.load_task(tmp_path)


def test_a_folder_without_a_tokenizer_yields_only_the_model(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ConfigurationError, match=r"has no tokenizer\.json"):
        convert.load_task(tmp_path)
    assert convert.load(tmp_path).spec["stack"] == "encoder"


def test_segments_match_the_published_model(tmp_path: Path) -> None:
    model, _ = written(tmp_path)
    tokens, segments = torch.randint(5, 40, (2, 9)), torch.tensor([[0] * 4 + [1] * 5] * 2)
    with torch.no_grad():
        found, wanted = convert.load(tmp_path).eval()(tokens, segments=segments), model(tokens, token_type_ids=segments).logits
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_questions_and_passages_are_encoded_like_the_published_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = written(tmp_path)
    monkeypatch.chdir(tmp_path)
    question, passage = "It's God created", "In the beginning God created heaven ."
    Path("mine.tsv").write_text(f"question\tpassage\tanswer\tstart\n{question}\t{passage}\tIn\t0\n", encoding="utf-8")
    assert main(["import", str(tmp_path), "--out", "bert.safetensors"]) == 0
    spec = {"name": "question_answering", "init_from": "bert.safetensors"}
    recipe = {"model": spec, "data": {"name": "questions", "corpus": {"name": "files", "train": "mine.tsv", "validation": "mine.tsv"}}}
    Path("mine.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    assert main(["fit", "--config", "mine.yaml", "--trainer.max_steps=1", "--trainer.accelerator=cpu", "--model.optimizer.lr=0.0"]) == 0
    [checkpoint] = Path("runs").rglob("last.ckpt")
    task: Any = Task.load(checkpoint).eval()
    pair = tokenizer.encode(question, passage)
    assert set(pair.type_ids) == {0, 1}
    ids = [1 if i == pair.ids[0] else 2 if i == pair.ids[-1] else OURS + i for i in pair.ids]
    data = framed("questions", train="mine.tsv", tokenizer=task.tokenizer.spec)
    assert next(iter(data.train_dataloader()))["tokens"].tolist() == [ids]
    given = {"input_ids": torch.tensor([pair.ids]), "token_type_ids": torch.tensor([pair.type_ids])}
    with torch.no_grad():
        states = model.bert(**given).last_hidden_state
        torch.testing.assert_close(task(torch.tensor([ids])), task.model.head(states), rtol=1e-4, atol=1e-5)
    wanted = model.bert.embeddings.token_type_embeddings.weight
    torch.testing.assert_close(task.model.embedding.segment, wanted, rtol=0, atol=0)


def test_a_decoder_configuration_is_rejected(tmp_path: Path) -> None:
    written(tmp_path)
    edit(tmp_path, is_decoder=True)
    with pytest.raises(ConfigurationError, match="is_decoder is True, but attnkit only imports models where it is False"):
        convert.load(tmp_path)
