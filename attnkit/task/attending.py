"""Attention maps of a task's model, labelled with tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from attnkit.drawing import AttentionMap
from attnkit.models import EncoderDecoderModel, Model
from attnkit.models.base import generating
from attnkit.recording import attention_maps, record_attention
from attnkit.registry import ConfigurationError
from attnkit.task.base import Task
from attnkit.task.generating import UNFINISHED, TextGenerator, input_mask
from attnkit.task.texts import warn_of_unknown
from attnkit.tokenizer import Tokenizer

UNKNOWN = "†"  # marks text that is unknown to the tokenizer
LONGEST = 8  # maximum number of tokens that one character may consist of


@dataclass(frozen=True)
class Reading:
    """Tokens that a task's model reads, with everything needed to label them."""

    task: Task
    inputs: Tensor  # the source (tokens, images or frames) or the only sequence [B, S]
    tokenizer: Tokenizer | None  # its tokenizer; None for images and frames, whose vectors are numbered from 1
    target: Tensor | None = None  # bos, tokens, eos, padding [B, T], for an encoder-decoder
    target_tokenizer: Tokenizer | None = None
    documents: Tensor | None = None  # the document of each token [B, S], if a language model's attention stays inside it
    unknown: Sequence[str] = ()  # the texts behind the unknown tokens of the inputs, in order, if known
    target_unknown: Sequence[str] = ()
    mask: Tensor | None = None  # which frames are real [B, S]

    @property
    def output(self) -> str | None:
        """The first target as a text, or None."""
        return None if self.target is None or self.target_tokenizer is None else self.target_tokenizer.decode(self.target[0].tolist())

    def maps(self) -> dict[str, Tensor]:
        """Return the weights [B, H, Q, K] by module path, without dropout; raise a `ConfigurationError` if the model has no attention."""
        model = cast(Model, self.task.model)
        if self.target is not None:
            mask = input_mask(self.inputs) if self.mask is None else self.mask
            maps = attention_maps(model, self.inputs, self.target[:, 1:], mask=mask)
        else:
            with generating(self.task), record_attention(model) as maps:
                self.task(self.inputs, *([] if self.documents is None else [self.documents]))
        if not maps:
            raise ConfigurationError(
                f"this model has no attention to show: its stack is {model.spec['stack']!r}, with attention {model.spec.get('attention')!r}"
            )
        return maps

    def queries(self, path: str) -> Tensor:
        """Return the token of each row of the weights at `path` [B, Q]; for cross-attention, the target token generated there.

        Vectors of images and frames are numbered from 1; padding is 0.
        """
        part, kind, _ = place(path)
        if self.target is None or part == "encoder":
            return self.sources
        read, written = self.target[:, :-1], self.target[:, 1:]
        return written if kind == "cross" else read.masked_fill(written == Tokenizer.pad_id, Tokenizer.pad_id)

    @property
    def sources(self) -> Tensor:
        """The token of each source vector [B, S]; for images and frames, the number of the vector, from 1, or 0 for padding."""
        if self.tokenizer is not None:
            return self.inputs
        embedding = cast(EncoderDecoderModel, self.task.model).source_embedding
        with torch.no_grad():
            count = embedding(self.inputs).shape[1]
        numbers = torch.arange(1, count + 1, device=self.inputs.device).expand(len(self.inputs), -1)
        return numbers if self.mask is None else numbers * embedding.mask(self.mask)

    def labelled(self, maps: Mapping[str, Tensor], row: int = 0) -> list[AttentionMap]:
        """Return the maps of one row of the batch, without padding, sorted into encoder, decoder and cross-attention, then by layer."""
        found = []
        for path, weights in maps.items():
            part, kind, layer = place(path)
            decodes = self.target is not None and part == "decoder"
            queries = self.queries(path)[row]
            keys = queries if kind == "self" else self.sources[row]
            real_queries, real_keys = queries != Tokenizer.pad_id, keys != Tokenizer.pad_id
            source = (self.tokenizer, self.unknown)
            reader = (self.target_tokenizer, self.target_unknown) if decodes and self.target_tokenizer is not None else source
            query_labels, query_unknown = _labels(*reader, queries[real_queries].tolist())
            key_labels, key_unknown = _labels(*(reader if kind == "self" else source), keys[real_keys].tolist())
            source_name = "source tokens" if self.tokenizer is not None else "patches" if self.inputs.ndim == 4 else "stacks of frames"
            read = "tokens read" if self.target is None else "target tokens read" if decodes else source_name
            found.append(
                AttentionMap(
                    part=part,
                    kind=kind,
                    layer=layer,
                    weights=weights[row][:, real_queries][:, :, real_keys].float().cpu(),
                    queries=query_labels,
                    keys=key_labels,
                    rows="target token written" if kind == "cross" else read,
                    columns=source_name if kind == "cross" else read,
                    note=f"{UNKNOWN} unknown to the tokenizer" if query_unknown or key_unknown else "",
                )
            )
        return sorted(found, key=lambda m: (m.kind == "cross", m.part != "encoder", m.layer))


def place(path: str) -> tuple[str, Any, int]:
    """Return the part (encoder or decoder), the kind (self or cross) and the layer of an attention module, from its path.

    Example:
        >>> place("stack.decoder.layers.2.cross_mixer")
        ('decoder', 'cross', 2)
        >>> place("stack.decoder.attention")  # of a recurrent decoder
        ('decoder', 'cross', 0)
    """
    names = path.split(".")
    layer = next((int(name) for name in names if name.isdigit()), 0)
    return "encoder" if "encoder" in names else "decoder", "self" if "mixer" in names else "cross", layer


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return a label for each token. Tokens that are bytes of the same character are labelled with the character and a number.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 260}).train(["a"])
        >>> token_labels(tokenizer, tokenizer.encode("a가"))
        ['a', '가₁', '가₂', '가₃']
    """
    labels = tokenizer.tokens(ids)
    start = 0
    while start < len(ids):
        stop = start + 1
        if UNFINISHED in labels[start]:
            for end in range(start + 2, min(start + LONGEST, len(ids)) + 1):
                joined = tokenizer.decode(ids[start:end])
                if UNFINISHED not in joined and ids[end - 1] >= len(Tokenizer.special_tokens):
                    labels[start:end] = [f"{joined}{chr(ord('₁') + i)}" for i in range(end - start)]
                    stop = end
                    break
        start = stop
    return labels


def _labels(tokenizer: Tokenizer | None, unknown: Sequence[str], ids: Sequence[int]) -> tuple[list[str], bool]:
    """Return a label for each token, and whether any is marked as unknown: unknown tokens are labelled with their text, if available."""
    if tokenizer is None:
        return [str(i) for i in ids], False
    labels = token_labels(tokenizer, ids)
    places = [place for place, i in enumerate(ids) if i == Tokenizer.unk_id]
    marked = dict(zip(places, unknown, strict=False))  # there is no text behind generated tokens
    for place, text in marked.items():
        labels[place] = UNKNOWN + text
    return labels, bool(marked)


def read_text(task: Task, text: str, target: str | None = None, *, beam_size: int | None = None) -> Reading:
    """Return a task's reading of a text, with the given target or, in an encoder-decoder, the one that its model generates.

    Works for tasks with an encoder-decoder (`src_tokenizer`, `output_tokenizer`) and for tasks with one `tokenizer`. The latter read the
    text between bos and eos, unless they have their own `input_ids`; a language model reads the target after the text.
    """
    task.configure_model()
    model: Any = task.model
    device = task.device
    if isinstance(model, EncoderDecoderModel) and isinstance(task, TextGenerator):
        source, written = _tokenizer(task, "src_tokenizer"), task.output_tokenizer
        src = torch.tensor([task.input_ids(text)], device=device)
        if target is None:
            output = model.generate(src, src != Tokenizer.pad_id, **task.completed({} if beam_size is None else {"beam_size": beam_size}))
        elif beam_size is not None:
            raise ConfigurationError("with --target, nothing is generated: remove --beam_size")
        else:
            output = torch.tensor([[*written.encode(target), Tokenizer.eos_id]], device=device)
        tgt = torch.cat([src.new_full((1, 1), Tokenizer.bos_id), output], 1)
        unknown, target_unknown = _unknown(source, text), () if target is None else _unknown(written, target)
        return Reading(task, src, source, tgt, written, unknown=unknown, target_unknown=target_unknown)
    tokenizer = _tokenizer(task, "tokenizer")
    if isinstance(task, TextGenerator):
        ids = [*task.input_ids(text), *tokenizer.encode(target or "")]
    else:
        ids = tokenizer.between_ends(text)
        if target is not None:
            raise ConfigurationError(f"the task {task.registered_name!r} generates no text: remove --target")
    if beam_size is not None:
        raise ConfigurationError(f"the task {task.registered_name!r} reads the text and generates nothing: remove --beam_size")
    return Reading(
        task, torch.tensor([ids], device=device), tokenizer, unknown=[*_unknown(tokenizer, text), *_unknown(tokenizer, target or "")]
    )


def read_batch(task: Task, batch: Mapping[str, Any], rows: int) -> Reading:
    """Return a task's reading of the first rows of a batch with `src` and `tgt`, or with `tokens`."""
    read = {name: x[:rows] for name, x in batch.items() if name in ("src", "src_mask", "tgt", "tokens", "documents")}
    if "src" in read and "tgt" in read:
        source = None if read["src"].is_floating_point() else _tokenizer(task, "src_tokenizer")
        return Reading(task, read["src"], source, read["tgt"], _tokenizer(task, "tgt_tokenizer"), mask=read.get("src_mask"))
    if "tokens" in read:
        return Reading(task, read["tokens"], _tokenizer(task, "tokenizer"), documents=read.get("documents"))
    raise ConfigurationError(f"attention maps need a batch with src and tgt, or with tokens, but this one has {', '.join(batch)}")


def _unknown(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the parts of a text that are unknown to a tokenizer, and warn about them."""
    warn_of_unknown(tokenizer, [text])
    return tokenizer.unknown(text)


def _tokenizer(task: Task, name: str) -> Tokenizer:
    tokenizer = getattr(task, name, None)
    if not isinstance(tokenizer, Tokenizer):
        raise ConfigurationError(f"the task {task.registered_name!r} has no {name}, so there is no text to show attention for")
    return tokenizer
