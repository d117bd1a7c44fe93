"""Documents packed into one long sequence of token ids, and its windows for language models."""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from attnkit.data.loading import BatchSampler, Integers, Share
from attnkit.files import regular
from attnkit.strategy.sharing import DataShare
from attnkit.tokenizer import Tokenizer

PIECE = 8192  # maximum characters of a document to encode at once
_CHUNK = 1 << 24  # ids to count at once
_IDS, _MARKS = "ids.bin", "marks.npy"
_BETWEEN_TOKENS = re.compile(r".*(?:\S(?=[^\S\r\n])|[^\W_](?=\s))", re.DOTALL)  # Llama 3's words end with marks and the breaks after them
_BEFORE_SPACE = re.compile(r".*\S(?=\s)", re.DOTALL)


class LanguageModelBatch(TypedDict, total=False):
    """A batch for training or evaluating a language model; in prediction it has only `example`, `tokens` and `text`."""

    example: Tensor  # [B] int64: the start of each window in the text; -1 for a filler, see `attnkit.data.loading.Share`
    tokens: Tensor  # [B, T] int64: inputs; bos at the start of a document
    targets: Tensor  # [B, T] int64: the next token of each input, eos at the end of a document; padding where nothing is scored
    documents: Tensor  # [B, T] int64: the document within the row that each input belongs to; only if requested
    characters: Tensor  # int64 scalar, in evaluation: the number of characters of the scored targets
    answers: Tensor  # [B] int64, in the evaluation of prompts and answers: the number of answers of a row, 0 for a filler
    text: list[str]  # in prediction


class Piece(NamedTuple):
    """A part of a document, and whether it is the last one."""

    text: str
    ends: bool


def pieces(chunks: Iterable[str]) -> Iterator[Piece]:
    """Cut a document, given in chunks of any size, into pieces of at most `PIECE` characters.

    Cuts are made before white space if there is any, so that the tokens of the pieces equal those of the whole (unless line breaks after
    marks are all there is). A document of only white space has no pieces.

    Example:
        >>> [len(piece.text) for piece in pieces(["word " * 2000, "end"])]
        [8189, 1814]
    """
    buffer = ""
    begun = False
    for chunk in chunks:
        buffer += chunk
        start = 0
        while len(buffer) - start > PIECE:
            span = start, start + PIECE
            space = _BETWEEN_TOKENS.match(buffer, *span) or _BEFORE_SPACE.match(buffer, *span)
            end = space.end() if space else start + PIECE
            yield Piece(buffer[start:end], ends=False)
            start, begun = end, True
        buffer = buffer[start:]
    if begun or buffer.strip():
        yield Piece(buffer, ends=True)


class PackedText:
    """A text as token ids on disk, in a folder written by `write`, read on demand; raises a `ValueError` if a file is damaged.

    Attributes:
        ids: [N + 1] unsigned integers: eos, then the documents, each followed by eos.
        marks: [M, 2] int64: the numbers of tokens and of characters before certain positions, the last of which is the end.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self._arguments = (folder, vocab_size)
        self.marks: Integers = _marks(folder / _MARKS)
        self.ids = np.memmap(regular(folder / _IDS), dtype=_dtype(vocab_size), mode="r")
        if len(self.ids) != self.marks[-1, 0] + 1:
            raise ValueError(f"{len(self.ids)} ids instead of {self.marks[-1, 0] + 1}")

    def __reduce__(self) -> tuple[type[Self], tuple[Path, int]]:
        """Pickle only the arguments: worker processes open the files themselves."""
        return type(self), self._arguments

    def checked(self) -> Self:
        """Read the whole text once and return `self`; raise a `ValueError` if an id is not in the vocabulary, or padding."""
        _, vocab_size = self._arguments
        if int(self.ids.min()) == Tokenizer.pad_id:  # read from a part of the file that was not written before a power failure
            raise ValueError(f"the id {Tokenizer.pad_id} is padding, so a part was not written")
        if (largest := int(self.ids.max())) >= vocab_size:
            raise ValueError(f"the id {largest} is beyond the vocabulary of {vocab_size}")
        return self

    def __len__(self) -> int:
        """Return the number of targets N: all tokens and one eos per document."""
        return len(self.ids) - 1

    def count(self, token: int) -> int:
        """Count a token in `ids` without copying all of them."""
        return sum(int(np.count_nonzero(self.ids[start : start + _CHUNK] == token)) for start in range(0, len(self.ids), _CHUNK))

    def documents(self) -> Iterator[int]:
        """Yield the hash of each document."""
        chunks = range(0, len(self.ids), _CHUNK)
        ends = np.concatenate([start + np.flatnonzero(self.ids[start : start + _CHUNK] == Tokenizer.eos_id) for start in chunks])
        return (hash(self.ids[before + 1 : end].tobytes()) for before, end in pairwise(ends))

    def characters_before(self, targets: Integers) -> Integers:
        """Return the number of characters of the first `targets` tokens: exact at 0 and N, interpolated between `marks` elsewhere."""
        return np.rint(np.interp(targets, self.marks[:, 0], self.marks[:, 1])).astype(np.int64)

    @staticmethod
    def write(folder: Path, parts: Iterable[Piece], tokenizer: Tokenizer) -> None:
        """Encode `parts` into files in `folder`, one part at a time, so that memory does not grow with the text.

        Characters are counted in Unicode form NFC, whatever form the tokenizer uses, so that bits per character are comparable.
        """
        dtype = _dtype(len(tokenizer))
        marks = [(0, 0)]
        tokens = characters = 0
        ended = True
        with (folder / _IDS).open("wb") as file:
            file.write(np.array([Tokenizer.eos_id], dtype=dtype).tobytes())
            for text, ended in parts:
                ids = [*tokenizer.encode(text), *([Tokenizer.eos_id] if ended else [])]
                file.write(np.array(ids, dtype=dtype).tobytes())
                tokens, characters = tokens + len(ids), characters + len(unicodedata.normalize("NFC", text))
                if characters - marks[-1][1] >= PIECE // 2 and tokens > marks[-1][0]:
                    marks.append((tokens, characters))
            if not ended:  # the text was cut inside a document
                file.write(np.array([Tokenizer.eos_id], dtype=dtype).tobytes())
                tokens += 1
        if tokens > marks[-1][0]:
            marks.append((tokens, characters))
        np.save(folder / _MARKS, np.array(marks, dtype=np.int64))


class Windows(Dataset[LanguageModelBatch]):
    """Windows of `context` tokens of a packed text (a shorter text is one window); an item is one process's part of a batch.

    It is indexed by a `Share` of an array [B, 2]: the start of each window, and the number of its targets that are not scored. With
    `documents`, batches have the document of each token; with `counts`, the number of characters of their targets.
    """

    def __init__(self, text: PackedText, *, context: int, documents: bool, counts: bool) -> None:
        self.text = text
        self.context = min(context, len(text))
        self.documents = documents
        self.counts = counts

    def content(self) -> list[Any]:
        """Return the arrays that make up the examples, by which a resumed run recognises them."""
        return [self.text.ids]

    def __len__(self) -> int:
        """Return the number of non-overlapping windows."""
        return len(self.text) // self.context

    def __getitem__(self, share: Share) -> LanguageModelBatch:
        starts, unscored = share.rows[:, :1], share.rows[:, 1:]
        if share.is_filler:
            unscored = np.full_like(unscored, self.context)
        columns = np.arange(self.context + 1)
        places = (starts + columns) % len(self.text)  # a ring: the end of the last document is the start of the first
        rows = torch.from_numpy(self.text.ids[places].astype(np.int64))  # [B, T + 1]
        tokens = rows[:, :-1].masked_fill(rows[:, :-1] == Tokenizer.eos_id, Tokenizer.bos_id)
        targets = rows[:, 1:].masked_fill(torch.from_numpy(columns[:-1] < unscored), Tokenizer.pad_id)
        batch: LanguageModelBatch = {"example": share.example(starts[:, 0]), "tokens": tokens, "targets": targets}
        if self.documents:
            batch["documents"] = (tokens == Tokenizer.bos_id).cumsum(1)
        if self.counts:
            ends = self.text.characters_before(starts + self.context)
            batch["characters"] = torch.tensor(int((ends - self.text.characters_before(starts + unscored)).sum()))
        return batch


class WindowSampler(BatchSampler):
    """Yields batches of up to `batch_size` windows; every epoch has the same number of batches, and all processes share each batch.

    In training (without `stride`), the text is a ring, cut into non-overlapping blocks at different places and in a different order in each
    epoch; a remainder shorter than a block is omitted. The order is a pure function of seed and epoch, independent of global random states.

    In evaluation, every target is scored exactly once. A window begins `stride` tokens after the previous one and scores the targets that
    the previous one did not; the last window ends with the text. Batches come in one random order that is always the same, so that the
    first few are a representative sample.
    """

    def __init__(self, windows: Windows, *, batch_size: int, stride: int | None, seed: int = 0, share: DataShare | None = None) -> None:
        super().__init__(windows, share=share, shuffle=stride is None, seed=seed)
        self._length, self._context = len(windows.text), windows.context
        self._stride = stride
        count = len(windows) if stride is None else 1 + math.ceil((self._length - self._context) / stride)
        self.num_batches = math.ceil(count / batch_size)

    @override
    def batches(self, rng: np.random.Generator) -> list[Integers]:
        windows = rng.permutation(self._blocks(rng) if self._stride is None else self._overlapping(self._stride))
        return np.array_split(windows, self.num_batches)

    def _blocks(self, rng: np.random.Generator) -> Integers:
        starts = int(rng.integers(self._length)) + self._context * np.arange(self._length // self._context)
        return np.stack([starts % self._length, np.zeros_like(starts)], axis=1)

    def _overlapping(self, stride: int) -> Integers:
        last = self._length - self._context
        starts = np.append(np.arange(0, last, stride), last)  # [W]
        scored = np.append(0, starts[:-1] + self._context)  # the end of the targets scored by earlier windows
        return np.stack([starts, scored - starts], axis=1)


def _marks(path: Path) -> Integers:
    try:
        marks = np.load(regular(path), mmap_mode="r")  # allocates no more memory than the size of the file
    except Exception as error:  # parsing the header may raise almost anything
        raise ValueError(f"{path.name} is not an array ({error})") from error
    if marks.dtype != np.int64 or marks.ndim != 2 or marks.shape[1] != 2 or len(marks) == 0 or (np.diff(marks, axis=0) < 0).any():
        raise ValueError(f"{path.name} has {marks.dtype} of shape {marks.shape} instead of increasing pairs of int64")
    return np.array(marks)


def _dtype(vocab_size: int) -> type[np.unsignedinteger]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32
