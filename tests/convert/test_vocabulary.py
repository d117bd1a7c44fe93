"""An imported model has its tokenizer, and writes what it wrote before; ids are attnkit's."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

import attnkit
from attnkit import convert
from attnkit.convert.vocabulary import SPECIAL, read_vocabulary
from attnkit.registry import ConfigurationError
from attnkit.tokenizer.bpe import EXPRESSIONS
from tests.convert.models import CLASSES, edit, published

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = [
    "in the beginning God created the heaven and the earth", "2024 12345 1,000.50", "it's  we'll\n\n\tnext  line \r\n", "안녕 세상 é é ½ ﬁ",
    "<|end|> text <|begin|>", " leading and trailing ", "", "x=y+1;//#!??...", "HELLO'S", "\u200b\u00a0🙂🙂",
]  # fmt: skip
MARKS = "नमस्ते x\u0323\u0301"  # letters with marks, which one of the expressions keeps together


def trained(split: str, *, form: str | None = None, first: bool = False, **model: Any) -> hf.Tokenizer:
    """Return a byte-level tokenizer with two special tokens, which come after the others or first."""
    tokenizer = hf.Tokenizer(models.BPE(**model))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split == "gpt2")
    words = [] if split == "gpt2" else [pre_tokenizers.Split(hf.Regex(EXPRESSIONS[split]), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, byte_level]) if words else byte_level
    if form is not None:
        tokenizer.normalizer = getattr(normalizers, form)()
    tokenizer.decoder = decoders.ByteLevel()
    ends, alphabet = ["<|begin|>", "<|end|>"], pre_tokenizers.ByteLevel.alphabet()
    special = ends if first else []
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_special_tokens(ends)
    return tokenizer


def written(
    folder: Path, split: str = "gpt2", kind: str = "llama", *, form: str | None = None, first: bool = False, **changes: Any
) -> tuple[Any, hf.Tokenizer]:
    """Write a model and its tokenizer, with five ids more than tokens, and return both."""
    tokenizer = trained(split, form=form, first=first)
    size = tokenizer.get_vocab_size()
    ends = {"bos_token_id": tokenizer.token_to_id("<|begin|>"), "eos_token_id": tokenizer.token_to_id("<|end|>")}
    model = published(kind, folder, **{"vocab_size": size + 5, **ends, **changes})
    tokenizer.save(str(folder / "tokenizer.json"))
    return model, tokenizer


@pytest.mark.parametrize(("split", "form"), [("gpt2", None), ("llama3", None), ("qwen2", "NFC"), ("qwen3_5", "NFC")])
def test_texts_get_the_ids_of_the_published_tokenizer(split: str, form: str | None, tmp_path: Path) -> None:
    _, tokenizer = written(tmp_path, split, form=form)
    ours = convert.load_task(tmp_path).tokenizer
    for text in [*TEXTS, MARKS]:
        plain = hf.Tokenizer.from_str(tokenizer.to_str())
        pieces = [text] if "<|" not in text else []  # theirs reads special tokens in a text, ours does not
        for piece in pieces:
            assert ours.encode(piece) == [SPECIAL + i for i in plain.encode(piece, add_special_tokens=False).ids], piece
            assert ours.decode(ours.encode(piece)) == plain.decode(plain.encode(piece).ids)
    assert ours.decode(ours.encode("<|end|> text")) == "<|end|> text"
    assert len(ours) == SPECIAL + tokenizer.get_vocab_size() - 2 + 5


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_5"])
def test_split_expressions_match_the_published_ones(kind: str) -> None:
    module = pytest.importorskip(f"transformers.models.{kind}.tokenization_{kind}")
    assert EXPRESSIONS[kind] == module.PRETOKENIZE_REGEX


def test_non_special_added_tokens_are_recognised_in_texts(tmp_path: Path) -> None:
    tokenizer = trained("gpt2", form="NFC")
    tokenizer.add_tokens([hf.AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)] + [hf.AddedToken("<think>", normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = attnkit.tokenizers.build(read_vocabulary(tmp_path, tokenizer.get_vocab_size() + 5, 0, 1).tokenizer)
    for text in ("in    the", "   in<think>the  \n  ", " " * 50, "< think >", "e\u0301  \u00e9"):
        assert ours.encode(text) == [SPECIAL + i for i in tokenizer.encode(text, add_special_tokens=False).ids], text
    assert ours.decode(ours.encode("in    the<think>")) == "in    the<think>"


OTHER_HEADS = {"granite": {"logits_scaling": 8.0}}


@pytest.mark.parametrize(
    ("kind", "tied", "same_ends"),
    [*((kind, is_one, is_one) for kind in CLASSES for is_one in (False, True)), ("llama", False, True), ("llama", True, False)],
)
def test_the_output_distribution_matches_the_published_model(kind: str, tied: bool, same_ends: bool, tmp_path: Path) -> None:
    model, tokenizer = written(tmp_path, kind=kind, tie_word_embeddings=tied, **OTHER_HEADS.get(kind, {}))
    end = tokenizer.get_vocab_size() - 1
    if same_ends:  # the other token is one like all others
        edit(tmp_path, bos_token_id=end)
    task = convert.load_task(tmp_path).to("cpu").eval()
    ids = [tokenizer.encode("in the beginning").ids, tokenizer.encode("God created the").ids]
    width = min(map(len, ids))
    theirs = torch.tensor([[end if same_ends else end - 1, *row[:width]] for row in ids])
    ours = torch.tensor([[1, *(SPECIAL + i for i in row[:width])] for row in ids])
    with torch.no_grad():
        wanted, found = model(theirs).logits.softmax(-1), task.model(ours).softmax(-1)
    start = SPECIAL + end - 1 if same_ends else 1
    places = [*range(SPECIAL, SPECIAL + end - 1), start, 2, *range(found.shape[-1] - 5, found.shape[-1])]
    assert not found[..., sorted(set(range(found.shape[-1])) - set(places))].any()
    torch.testing.assert_close(found[..., places], wanted)
    assert found.shape[-1] == wanted.shape[-1] + (3 if same_ends else 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "Unigram"}}, "lacks 'vocab'"),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": False}}, "by Metaspace, which is"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}}, "add_prefix_space"),
        ({"normalizer": {"type": "Prepend", "prepend": "_"}}, "with Prepend"),
        ({"normalizer": {"type": "Lowercase"}}, "only the tokenizer_class PreTrainedTokenizerFast"),
        ({"added_tokens": [{"id": 400, "content": "<x>", "special": True}]}, "distinct numbers below"),
        ({"added_tokens": [{"id": 305, "content": "in", "special": True}]}, "it has two ids for 'in'"),
        (
            {"normalizer": {"type": "NFC"}, "added_tokens": [{"id": 305, "content": "<é>", "special": False}]},
            "reads '<é>' before it normalises",
        ),
        ({"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, "decodes tokens with WordPiece, not ByteLevel"),
    ],
)
def test_an_unsupported_tokenizer_is_rejected(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    content = {**json.loads(trained("gpt2").to_str()), **change}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=message):
        read_vocabulary(tmp_path, 310, 0, 1)


CONTAINED = [  # tokens that a text may have: what the expression of GPT-2 makes of it, and what follows
    ("in", {}, False), ("x", {}, False), ("<|think|>", {"special": False}, False), ("WORD", {"ignore_merges": True}, True),
]  # fmt: skip


@pytest.mark.parametrize(("token", "flags", "is_word"), CONTAINED)
@pytest.mark.parametrize("role", ["bos", "eos", "both"])
def test_a_special_token_used_in_texts_keeps_its_id(role: str, token: str, flags: dict[str, Any], is_word: bool, tmp_path: Path) -> None:
    """A published model may end texts with a line break, say."""
    tokenizer = trained("gpt2")
    content = json.loads(tokenizer.to_str())
    content["model"] |= {"ignore_merges": is_word}
    if token not in content["model"]["vocab"]:
        size = len(content["model"]["vocab"])
        content["added_tokens"] = [{**each, "id": each["id"] + 1} for each in content["added_tokens"]]
        content["model"]["vocab"][token] = size
        if not is_word:
            content["added_tokens"].append({**content["added_tokens"][0], "id": size, "content": token, **flags})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    size = len(content["model"]["vocab"]) + 2
    contained, end = content["model"]["vocab"][token], size - 1
    bos, eos = (contained if role in (each, "both") else end for each in ("bos", "eos"))
    vocabulary = read_vocabulary(tmp_path, size, bos, eos)
    ours = attnkit.tokenizers.build(vocabulary.tokenizer)
    text = f"{token} {token}"
    theirs = hf.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert contained in theirs
    assert ours.encode(text) == [SPECIAL + i for i in theirs]
    assert vocabulary.apart == ({} if role == "both" else {"<|end|>": end})
    assert vocabulary.excluded == {"bos": [0, 1, 3], "eos": [0, 3, SPECIAL + contained], "both": [0, 1, 3, SPECIAL + contained]}[role]
    weights = {"embedding.weight": torch.rand(size, 2), "head.projection.weight": torch.rand(size, 2)}
    found, notes = vocabulary.theirs({name: vocabulary.ours(weight) for name, weight in weights.items()})
    assert (notes, found.keys()) == ([], weights.keys())
    assert all(found[name].equal(weight) for name, weight in weights.items())
    changed = {name: vocabulary.ours(weight) for name, weight in weights.items()}
    changed["embedding.weight"][[1, 2]] += 1
    changed["head.projection.weight"][vocabulary.excluded] += 1
    found, notes = vocabulary.theirs(changed)
    assert len(notes) == (2 if role == "both" else 1)
    assert found["head.projection.weight"].equal(weights["head.projection.weight"])
    kept = [i for i in range(size) if i != end or role == "both"]
    assert found["embedding.weight"][kept].equal(weights["embedding.weight"][kept])


def test_a_model_without_a_tokenizer_or_eos_is_rejected_with_advice(tmp_path: Path) -> None:
    published("llama", tmp_path)
    with pytest.raises(ConfigurationError, match=r"no tokenizer.json: AutoTokenizer.* In Python, `from attnkit import convert"):
        convert.load_task(tmp_path)
    published("llama", tmp_path, eos_token_id=None)
    with pytest.raises(ConfigurationError, match=r"has no eos_token_id.*In Python, `from attnkit import convert"):
        convert.load_task(tmp_path)


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_an_end_outside_the_vocabulary_is_not_silently_left_out(name: str, tmp_path: Path) -> None:
    published("llama", tmp_path, **{f"{name}_token_id": 40})
    with pytest.raises(ConfigurationError, match=f"{name}_token_id .*40, its vocab_size"):
        convert.load_task(tmp_path)
    convert.load(tmp_path)  # which leaves ids as they are


def marked(folder: Path, kind: str, split: str, **changes: Any) -> tuple[Any, hf.Tokenizer]:
    """Write a model whose tokenizer has a token for chats, and one that is read in texts."""
    model, tokenizer = written(folder, split, kind, **changes)
    tokenizer.add_special_tokens(["<|chat|>"])
    tokenizer.add_tokens([hf.AddedToken("<think>", normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return model, tokenizer


@pytest.mark.parametrize(
    ("kind", "split", "form", "pad", "named"),
    [
        ("llama", "llama3", None, 0, None), ("gpt2", "gpt2", None, None, None), ("qwen2", "qwen2", "NFC", 1, "<|chat|>"),
        ("gpt_neox", "gpt2", "NFC", 301, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("same_ends", [False, True])
def test_an_imported_model_is_exported_with_its_original_ids(
    kind: str, split: str, form: str | None, pad: int | None, named: str | None, same_ends: bool, tmp_path: Path
) -> None:
    model, tokenizer = marked(tmp_path / "in", kind, split, form=form, pad_token_id=pad)
    if named is not None:
        (tmp_path / "in" / "tokenizer_config.json").write_text(json.dumps({"pad_token": named}))
    if same_ends:
        edit(tmp_path / "in", bos_token_id=None)
    task = convert.load_task(tmp_path / "in")
    saved = convert.save(task, tmp_path / "out")
    assert saved.model_type == kind
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "out"))
    assert before.keys() == after.keys()
    assert all(after[name].equal(x) for name, x in before.items())
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    tokens = torch.randint(0, 300, (2, 14))
    with torch.no_grad():
        assert found(tokens).logits.equal(model(tokens).logits)
    size = len(model.get_input_embeddings().weight) - 5
    begin, end = (size - 1, size - 1) if same_ends else (size - 2, size - 1)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    wanted = pad if named is None else tokenizer.token_to_id(named)
    assert (found.config.bos_token_id, found.config.eos_token_id, found.config.pad_token_id) == (begin, end, wanted)
    assert theirs.pad_token_id == (wanted if wanted else None)  # 0 is a letter, which texts have
    for text in [*TEXTS, "in <think>the", "<|chat|>"]:
        ids = task.tokenizer.encode(text)
        others = 0 if same_ends else 1  # the begin is a token before the end, and texts have none of the two
        assert theirs(text)["input_ids"] == [begin, *(i - SPECIAL if i < SPECIAL + 300 else i - SPECIAL + 1 + others for i in ids)], text
        assert theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True) == task.tokenizer.decode(ids)
    assert theirs("<|chat|>", split_special_tokens=False)["input_ids"] == [begin, tokenizer.token_to_id("<|chat|>")]
    again = convert.load_task(tmp_path / "out")
    models = [json.loads(each.tokenizer.spec["model"])["model"] for each in (task, again)]
    assert models[0]["vocab"] == models[1]["vocab"]
    assert models[0]["merges"] == models[1]["merges"]
    assert all(again.state_dict()[name].equal(x) for name, x in task.state_dict().items())


def test_bos_and_eos_ids_come_from_the_file(tmp_path: Path) -> None:
    """Rows of tables may be equal, so they do not tell which token begins a text."""
    written(tmp_path / "in", "llama3", "llama")
    with torch.no_grad():
        weights = load_file(tmp_path / "in" / "model.safetensors")
        save_file({name: torch.ones_like(x) for name, x in weights.items()}, tmp_path / "in" / "model.safetensors")
    task = convert.load_task(tmp_path / "in")
    convert.save(task, tmp_path / "out")
    names = ("bos_token_id", "eos_token_id")
    before, after = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("in", "out"))
    assert [before[name] for name in names] == [after[name] for name in names]
