"""Images or sounds, with texts, as normalised batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from attnkit.corpus.base import SignalCorpus
from attnkit.corpus.signals import Signals, read_signals
from attnkit.corpus.sound_reading import REFERENCE_RATE
from attnkit.data.base import Framing, Split, require_image_shape, spec_of
from attnkit.data.batching import PairExamples, Seq2SeqBatch, Sequences
from attnkit.data.cache import trained
from attnkit.data.config import RowsConfig
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets, keywords_of, tokenizers
from attnkit.tokenizer import Tokenizer
from attnkit.wording import adjective


@dataclass(frozen=True, kw_only=True)
class SignalTextConfig(RowsConfig):
    """The options of `signal_text`."""

    image_shape: list[int] | None = None
    tgt_tokenizer: TokenizerSpec = "word"


@datasets.register("signal_text")
class SignalText(Framing[Seq2SeqBatch]):
    """Images with captions, or sounds with transcripts, for the task `seq2seq`.

    Sounds are frames of log-mel energies. Each channel of images, and each feature of frames, is normalised by its mean and standard
    deviation in training; both are saved in every checkpoint.

    Args:
        corpus: The images or sounds: a corpus such as `fashion_strips`, or the path of your own table of files and texts.
        predict: The images or sounds for prediction: a file, a folder of files, an array of images, or a table with the corpus's
            column of files, `file` (default: those of the test split).
        image_shape: Channels, height and width that image files are converted to (default: those of the first training image).
        tgt_tokenizer: Spec of the tokenizer of the texts; an untrained one is trained on the training texts.
        batch_tokens: Maximum number of source positions (frames, or columns of images) and target tokens in a batch over all processes,
            padding included.
        max_length: Training rows with more frames, columns or tokens than this are omitted (default: no limit). Evaluation and prediction
            omit nothing.

    Attributes:
        src_tokenizer_spec: None: the sources are not texts.

    Example:
        >>> import pathlib, tempfile, wave
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name, milliseconds in (("a.wav", 60), ("b.wav", 100)):
        ...     with wave.open(str(folder / name), "wb") as file:
        ...         file.setparams((1, 2, 16000, 0, "NONE", ""))
        ...         file.writeframes(bytes(2 * 16 * milliseconds))
        >>> _ = (folder / "mine.tsv").write_text("a.wav\\tno\\nb.wav\\tyes yes\\n")
        >>> data = SignalText(corpus=str(folder / "mine.tsv"))
        >>> batch = next(iter(data.train_dataloader()))
        >>> data.src_shape, batch["src"].shape, batch["src_mask"].sum(1).sort().values, batch["tgt"].shape
        ([40], torch.Size([2, 8, 40]), tensor([4, 8]), torch.Size([2, 4]))
    """

    takes: ClassVar = SignalCorpus
    needs_predict: ClassVar = False
    keeps = ("tgt_tokenizer", "src_shape")
    corpus: SignalCorpus
    src_tokenizer_spec: ClassVar[None] = None
    tgt_tokenizer_spec = spec_of("tgt_tokenizer")
    config: SignalTextConfig

    @keywords_of(SignalTextConfig)
    def __init__(self, config: SignalTextConfig) -> None:
        super().__init__(config)
        require_image_shape(config.image_shape)
        self._tokenizer: Tokenizer = tokenizers.build(config.tgt_tokenizer)

    @cached_property
    def tgt_tokenizer(self) -> Tokenizer:
        """The trained tokenizer of the texts."""
        return trained(self._tokenizer, lambda: (text for texts in self.rows("train").texts or () for text in texts))

    @cached_property
    def src_shape(self) -> list[int]:
        """Channels, height and width of images, or the number of features per frame."""
        return self.config.image_shape or shape_of(self.rows("train").arrays[0])

    @cached_property
    def normalisation(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel (from 0 to 255) or feature of the training data."""
        total = squares = torch.zeros(self.src_shape[0], dtype=torch.float64)
        count = 0
        for array in self.rows("train").arrays:
            values = (array.flatten(1) if array.ndim == 3 else array.T).double()  # [C, N]
            total, squares, count = total + values.sum(1), squares + values.square().sum(1), count + values.shape[1]
        mean = total / count
        std = (squares / count - mean.square()).clamp(min=0).sqrt()
        return mean.tolist(), torch.where(std > 0, std, 1.0).tolist()

    @override
    def state_dict(self) -> dict[str, Any]:
        mean, std = self.normalisation
        return {**super().state_dict(), "mean": mean, "std": std, "reference_rate": REFERENCE_RATE}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.config.image_shape not in (None, state_dict["src_shape"]):
            raise ConfigurationError(
                f"data.image_shape: the weights in the checkpoint are for images of shape {state_dict['src_shape']}, so the run would "
                f"ignore {self.config.image_shape}. Remove it, or train a new model"
            )
        super().load_state_dict(state_dict)
        self.normalisation = state_dict["mean"], state_dict["std"]
        if len(self.src_shape) == 1 and "reference_rate" not in state_dict:
            rank_zero_warn(
                f"this checkpoint is from a version whose sound features depended on the sampling rate: unless its training sounds had "
                f"{REFERENCE_RATE} samples per second, train again"
            )

    @override
    def read(self, part: Split) -> Signals:
        shape = self.config.image_shape if part == "train" else self.src_shape if len(self.src_shape) == 3 else None
        if part != "predict":
            return self.corpus.signals(part, shape=shape)
        if self.predict is not None:
            bad_rows = self.corpus.bad_rows["predict"]
            return read_signals(self.predict, shape=shape, columns=self.corpus.columns_for("file"), bad_rows=bad_rows)
        self.corpus.bad_rows["predict"] = self.corpus.bad_rows["test"]
        return replace(self.corpus.signals("test", shape=shape), texts=None)

    @override
    def examples(self, part: Split) -> "SignalExamples":
        signals = self.rows(part)
        unit = "image" if len(self.src_shape) == 3 else "sound"
        for array, name in zip(signals.arrays, signals.names, strict=True):
            if shape_of(array) != self.src_shape:
                hint = "; to resize image files, set data.image_shape" if unit == "image" else ""
                raise ConfigurationError(f"the {unit} {name} has the shape {shape_of(array)}, not {self.src_shape} as in training{hint}")
        references: Sequence[Sequence[str]] = signals.texts or [[] for _ in signals.names]
        rows = [(i, text) for i, texts in enumerate(references) for text in (texts if part == "train" else texts[:1] or [""])]
        ids = [self.tgt_tokenizer.between_ends(text) for _, text in rows]
        lengths = [max(length_of(signals.arrays[i]), len(found)) for (i, _), found in zip(rows, ids, strict=True)]
        kept, summary = self.within_limit(part, lengths, unit=unit, rows=f"{adjective(part)} rows")
        for note, count in signals.notes.items():
            summary.note(count, note)
        if part != "train":
            summary.note_references(self.tgt_tokenizer, (text for texts in references for text in texts))
        for r in kept:
            summary.add(self.tgt_tokenizer, rows[r][1], ids[r])
        self.summaries.say(summary)
        written = self.tgt_tokenizer.normalized  # as models write them, so that equal texts are equal strings
        pairs = zip(signals.names, references, strict=True)
        return SignalExamples(
            arrays=[signals.arrays[rows[r][0]] for r in kept],
            tgt=None if signals.texts is None else Sequences([ids[r] for r in kept]),
            texts=None if part == "train" else [(name, [*map(written, texts)]) for name, texts in pairs],
            normalisation=self.normalisation,
        )


def shape_of(array: Tensor) -> list[int]:
    """Return the channels, height and width of an image, or the number of features per frame."""
    return list(array.shape) if array.ndim == 3 else [array.shape[1]]


def length_of(array: Tensor) -> int:
    """Return the number of columns of an image, or the number of frames."""
    return array.shape[2] if array.ndim == 3 else array.shape[0]


class SignalExamples(PairExamples):
    """Images [C, H, W] uint8 of the same shape, or frames [S, F] float32, and the ids of their texts.

    The normalisation is the mean and standard deviation of each channel or feature.
    """

    unit = "{} frames or columns and {} target tokens"

    def __init__(
        self,
        *,
        arrays: Sequence[Tensor],
        tgt: Sequences | None,
        texts: Sequence[tuple[str, list[str]]] | None,
        normalisation: tuple[Sequence[float], Sequence[float]],
    ) -> None:
        super().__init__(lengths=np.array([length_of(array) for array in arrays]), tgt=tgt, texts=texts)
        self.arrays = arrays
        axes = (-1, 1, 1) if arrays[0].ndim == 3 else (-1,)
        self._mean, self._std = (torch.tensor(values).view(axes) for values in normalisation)

    @override
    def content(self) -> list[Any]:
        return [*self.arrays, *super().content()]

    @override
    def sources(self, rows: Sequence[int], length: int) -> Seq2SeqBatch:
        arrays = [(self.arrays[i].float() - self._mean) / self._std for i in rows]
        if arrays[0].ndim == 3:
            return {"src": torch.stack(arrays)}
        mask = torch.arange(length) < torch.tensor([[len(frames)] for frames in arrays])
        src = torch.stack([torch.nn.functional.pad(frames, (0, 0, 0, length - len(frames))) for frames in arrays])
        return {"src": src, "src_mask": mask}
