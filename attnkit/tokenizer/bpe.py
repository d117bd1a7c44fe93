"""Byte-level byte-pair encoding."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar, Literal, Self, get_args

import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from typing_extensions import override

from attnkit.files import parse_json
from attnkit.registry import ConfigurationError, tokenizers
from attnkit.tokenizer.base import Normalization, normalization_of
from attnkit.tokenizer.library import LibraryTokenizer

LARGEST_MODEL = 64 << 20  # maximum characters of a model's JSON

SplitName = Literal["gpt2", "llama3", "qwen2", "qwen3_5"]

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?%s+|\p{N}%s| ?[^\s%s\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
EXPRESSIONS: dict[str, str] = {
    "llama3": _WORDS % (r"\p{L}", "{1,3}", r"\p{L}"),
    "qwen2": _WORDS % (r"\p{L}", "", r"\p{L}"),
    "qwen3_5": _WORDS % (r"[\p{L}\p{M}]", "", r"\p{L}\p{M}"),
}
"""The published regular expressions of words, other than GPT-2's, which the library has built in."""

_BYTES = len(pre_tokenizers.ByteLevel.alphabet())


@tokenizers.register("bpe")
class BPE(LibraryTokenizer):
    """Byte-level byte-pair encoding: the tokens are all bytes, and merges of the most frequent pairs of neighbours.

    Every text can be encoded, so nothing is unknown, and decoding restores it up to Unicode normalisation. Special tokens are not parsed:
    `<eos>` in a text is ordinary text. Trained and run by the `tokenizers` library.

    A token includes the space before it. So does an extra token, which absorbs the space before it and is decoded with one. A text with
    extra tokens is restored exactly if spaces surround them, as in `to be or <mask> to be`.

    Paper: Sennrich et al. 2016, https://arxiv.org/abs/1508.07909

    Args:
        vocab_size: Target number of ids, special and extra tokens included: at least 260 (256 bytes and 4 special tokens) plus the extra
            tokens. There are fewer ids if the texts have too few pairs.
        lowercase: Whether to convert texts to lower case.
        split: The regular expression that splits a text before merges: `gpt2` (words, numbers and runs of other symbols, each with the
            space before it), `llama3` (numbers of up to three digits, line breaks apart, any symbol before a word), `qwen2` (the same
            with single digits) or `qwen3_5` (the same, and words keep the marks of their letters).
        model: The trained model as JSON text of the `tokenizers` library (GPT-2's `tokenizer.json`), or `None` for an untrained tokenizer.
            Its vocabulary and merges are used, with ids counted from the first that is neither special nor extra. A model that splits or
            changes texts as this tokenizer does not is refused. Its special tokens are not parsed; other tokens that were added to it, such
            as the runs of spaces in Pythia's, are.
        normalization: Unicode normalisation form, applied to texts first: `NFC`, `NFD`, `NFKC`, `NFKD` or `none` (default: `NFC`; with
            `model`, `none`, since a spec without this argument predates it).

    Raises:
        ConfigurationError: `vocab_size` is too small, or `model` is not a trained model, or encodes texts in other steps.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 262}).train(["low lower lowest"] * 2)
        >>> tokenizer.tokens(tokenizer.encode("lowly"))
        ['low', 'l', 'y']
        >>> tokenizer.decode(tokenizer.encode("lowly ≤ 안녕"))
        'lowly ≤ 안녕'
        >>> masking = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 266, "extra_tokens": ["<mask>"]}).train(["low and low"])
        >>> masking.tokens(masking.encode("low <mask> low"))
        ['low', '<mask>', ' low']
    """

    _joins_extra: ClassVar[str] = " ?"

    def __init__(
        self,
        *,
        vocab_size: int = 8000,
        lowercase: bool = False,
        split: SplitName = "gpt2",
        model: str | None = None,
        extra_tokens: list[str] | None = None,
        normalization: Normalization | None = None,
    ) -> None:
        super().__init__(extra_tokens=extra_tokens, normalization=normalization_of(normalization, trained=model is not None))
        self._shift = len(self.special_tokens) + len(self.extra_tokens)  # the model numbers its own tokens from 0
        if vocab_size < (smallest := self._shift + _BYTES):
            raise ConfigurationError(f"tokenizer 'bpe': vocab_size must be at least {smallest}, but is {vocab_size}")
        self.vocab_size = vocab_size
        self.lowercase = lowercase
        if split not in (names := get_args(SplitName)):
            raise ConfigurationError(f"tokenizer 'bpe': split must be one of {', '.join(names)}, but is {split!r}")
        self.split = split
        self._json = model
        own = [step for step, is_on in ((self.normalization, True), ("Lowercase", lowercase)) if is_on]
        self._model = None if model is None else self._tokenizer(*_read_model(model, own, split))
        self._size = self._shift + (0 if self._model is None else self._model.get_vocab_size())  # counting takes long

    @property
    @override
    def spec(self) -> dict[str, Any]:
        return {
            "name": "bpe",
            "vocab_size": self.vocab_size,
            "lowercase": self.lowercase,
            "extra_tokens": list(self.extra_tokens) or None,
            "normalization": self.normalization,
            "model": self._json,
            **({} if self.split == "gpt2" else {"split": self.split}),  # specs of trained tokenizers are compared, also with older ones
        }

    @override
    def train(self, texts: Iterable[str]) -> Self:
        model = self._tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size - self._shift, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        model.train_from_iterator((piece for text in texts for piece in self._pieces(text)[::2]), trainer)
        return self._with(model=model.to_str())

    @override
    def _ours(self, ids: Iterable[int]) -> list[int]:
        return [token + self._shift for token in ids]

    @override
    def decode(self, ids: Iterable[int]) -> str:
        model = self._trained_model()
        runs = groupby((i for i in self._content(ids) if i != self.unk_id), key=lambda i: i < self._shift)
        text = ""
        for extra, run in runs:
            piece = " ".join(self.tokens(run)) if extra else model.decode([i - self._shift for i in run])
            text += f" {piece}" if extra and text else piece
        return text

    @override
    def tokens(self, ids: Iterable[int]) -> list[str]:
        model = self._trained_model()
        named = [*self.special_tokens, *self.extra_tokens]
        return [named[i] if i < self._shift else model.decode([i - self._shift]) for i in self._known(ids)]

    @override
    def begins_word(self, ids: Iterable[int]) -> list[bool]:
        model = self._trained_model()
        return [i < self._shift or _begins_word(model.id_to_token(i - self._shift) or "") for i in self._known(ids)]

    def __len__(self) -> int:
        return self._size

    def _tokenizer(self, model: models.BPE, added: Sequence[hf.AddedToken] = ()) -> hf.Tokenizer:
        """Return the pipeline that runs a model with added tokens, otherwise configured by this tokenizer's settings alone."""
        tokenizer = hf.Tokenizer(model)
        tokenizer.add_tokens(list(added))
        if self.lowercase:
            tokenizer.normalizer = normalizers.Lowercase()
        if self.split == "gpt2":
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        else:
            words = pre_tokenizers.Split(hf.Regex(EXPRESSIONS[self.split]), "isolated")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer


def _read_model(text: str, normalizers: list[str], split: SplitName) -> tuple[models.BPE, list[hf.AddedToken]]:
    """Return a model with the vocabulary and merges of a JSON text, which must not have other steps than this tokenizer's.

    Also return the added tokens that are not special.

    Nothing else of the text is built: it could contain regular expressions that never finish, or unlimited padding.
    """
    try:
        if len(text) > LARGEST_MODEL:
            raise ValueError(f"it has {len(text):,} characters, more than the limit of {LARGEST_MODEL:,}")
        pipeline = parse_json(text)
        model = pipeline["model"]
        if model.get("type", "BPE") != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
            raise ValueError("its model is not byte-level BPE")
        vocabulary = model["vocab"]
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise ValueError("the ids of its vocabulary are not 0, 1, 2, ...")
        if missing := set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys():
            raise ValueError(f"its vocabulary lacks {len(missing)} of the {_BYTES} bytes")
        _require_own_steps(pipeline, normalizers, split)
        merges = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
        added = _added(pipeline.get("added_tokens", ()), vocabulary)
        return models.BPE(vocab=vocabulary, merges=merges, ignore_merges=model.get("ignore_merges", False)), added
    except Exception as error:  # any type may be wrong, and the library raises nothing narrower
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ConfigurationError(f"tokenizer 'bpe': model must be the JSON text of a trained model ({reason})") from error


def _require_own_steps(pipeline: Mapping[str, Any], normalizers: list[str], split: SplitName) -> None:
    """Raise if the library would encode a text without special tokens in other steps than this tokenizer."""
    steps = steps_of(pipeline.get("normalizer"), "normalizers")
    if others := [step["type"] for step in steps if step["type"] not in normalizers]:
        raise ValueError(f"it normalises texts by {others[0]}: set normalization or lowercase accordingly, if either can express it")
    if (found := split_of(pipeline)) != split:
        raise ValueError(f"it splits texts as {found!r} does, not as {split!r}: set split to {found}")
    if dropout := pipeline["model"].get("dropout"):
        raise ValueError(f"it leaves out merges at random (dropout {dropout})")


def _added(tokens: Sequence[Mapping[str, Any]], vocabulary: Mapping[str, int]) -> list[hf.AddedToken]:
    """Return the added tokens that are read in any text, which must have their ids in the vocabulary."""
    read = [token for token in tokens if not token["special"]]
    if others := [token["content"] for token in read if vocabulary.get(token["content"]) != token["id"]]:
        raise ValueError(f"it reads added tokens such as {others[0]!r}, whose id is not in its vocabulary")
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return [hf.AddedToken(token["content"], special=False, **{flag: token[flag] for flag in flags}) for token in read]


def split_of(pipeline: Mapping[str, Any]) -> str:
    """Return the name of the expression by which a pipeline splits texts, or raise a `ValueError`.

    Example:
        >>> split_of({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}})
        'gpt2'
    """
    steps = steps_of(pipeline.get("pre_tokenizer"), "pretokenizers")
    plain = {"type": "ByteLevel", "add_prefix_space": False}
    found = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]
    if found in ([plain], [{**plain, "use_regex": True}]):  # the option is on where older files lack it
        return "gpt2"
    for name, expression in EXPRESSIONS.items():
        words = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        if found == [words, {**plain, "use_regex": False}]:
            return name
    kinds = " and ".join(step["type"] for step in steps) or "nothing"
    raise ValueError(
        f"it splits texts by {kinds}, which is none of {', '.join(get_args(SplitName))}: ByteLevel with use_regex and without "
        "add_prefix_space, or a Split by the expression of Llama 3, Qwen2 or Qwen3.5 and ByteLevel without either"
    )


def steps_of(step: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """Return the steps of a part of a pipeline, which may be a sequence."""
    if step is None:
        return []
    return [part for inner in step[key] for part in steps_of(inner, key)] if step["type"] == "Sequence" else [step]


def _begins_word(token: str) -> bool:
    """Return whether a token, as the model spells it (one letter per byte), begins with white space or ASCII punctuation."""
    first = token[:1]
    return not first.isalnum() if first.isascii() else "\u0100" <= first <= "\u0120"  # the letters of the bytes 0x00 to 0x20
