"""Turns a user's texts into batches of ids, with a warning about characters unknown to the model."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnkit.corpus.tables import unified
from attnkit.task.base import Task
from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.unknown import UnknownTokens, listed
from attnkit.wording import counted

T = TypeVar("T")

BATCH = 64  # texts
WIDTH = 40  # characters of a text in a message

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def in_batches(
    task: Task,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    encode: Callable[[str], Sequence[int]],
    answer: Callable[[list[int], Tensor], Sequence[T]],
    *,
    sort: bool = True,
) -> list[T]:
    r"""Return the answers for texts, computed batch by batch, in the order of the texts.

    `answer` receives the indices of a batch's texts and their ids [B, T]. With `sort`, texts of similar length share a batch, which
    reduces padding. Line breaks `\r\n` are read as `\n`, as in data files.
    """
    if isinstance(texts, str):
        raise TypeError(f"texts must be a list, as in [{texts!r}], but is a single string")
    texts = [unified(text) for text in texts]  # as in data files
    warn_of_unknown(tokenizer, texts)
    ids = [torch.tensor(encode(text)) for text in texts]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i])) if sort else list(range(len(ids)))
    found: dict[int, T] = {}
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        padded = pad_sequence([ids[i] for i in rows], batch_first=True, padding_value=Tokenizer.pad_id).to(task.device)
        found.update(zip(rows, answer(rows, padded), strict=True))
    return [found[i] for i in range(len(ids))]


def warn_of_unknown(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Warn once, for all texts together, about characters unknown to the tokenizer.

    Example:
        >>> import attnkit, warnings
        >>> tokenizer = attnkit.tokenizers.build("character").train(["abc"])
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_of_unknown(tokenizer, ["abc", "a한", "b?"])
        >>> print(caught[0].message)
        unknown to the tokenizer, so the model sees <unk> instead: '한' (U+D55C), '?' (U+003F) in 'a한' and 1 other text
    """
    found = [(text, symbols) for text in texts if (symbols := tokenizer.unknown(text))]
    if found:
        text, others = found[0][0], len(found) - 1
        shown = repr(text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…")
        more = f" and {counted(others, 'other text')}" if others else ""
        unknown = listed(symbol for _, symbols in found for symbol in symbols)
        rank_zero_warn(f"unknown to the tokenizer, so the model sees <unk> instead: {unknown} in {shown}{more}", category=UnknownTokens)


def one_line(text: str) -> str:
    r"""Return a text as one line without tabs: line breaks, tabs and backslashes become `\n`, `\r`, `\t` and `\\`, as read by `printf %b`.

    Example:
        >>> print(one_line("so\tgood,\nreally"))
        so\tgood,\nreally
    """
    return text.translate(_ESCAPES)


def marked(line: str, *, right: bool, truth: str) -> str:
    """Mark a line with an output as right or wrong; a wrong one is followed by the truth.

    Example:
        >>> marked("bow -> B IY", right=False, truth="B AW")
        'wrong  bow -> B IY  (B AW)'
    """
    return f"ok     {line}" if right else f"wrong  {line}  ({truth})"
