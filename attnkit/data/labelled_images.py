"""Labelled images, as normalised batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from attnkit.corpus import ImageCorpus, Images
from attnkit.corpus.image_reading import read_images
from attnkit.data.augmentation import Augmentation
from attnkit.data.base import Framing, Split, require_distinct, require_image_shape
from attnkit.data.batching import Order
from attnkit.data.config import FramingConfig
from attnkit.data.loading import BatchSampler, Integers, Share
from attnkit.data.summary import Summary
from attnkit.registry import ConfigurationError, datasets, keywords_of, nearest, require_at_least
from attnkit.strategy.sharing import DataShare
from attnkit.wording import adjective, counted


class ImageBatch(TypedDict, total=False):
    """A batch of images, with labels except in prediction, and with names except in training.

    A filler (`attnkit.data.loading.Share`) has an image, but no label or name.
    """

    example: Tensor  # [B] int64: the index of each image; -1 for a filler
    image: Tensor  # [B, C, H, W] float32, normalised
    label: Tensor  # [B] int64, the class; [0] for a filler
    text: list[str]  # the path of each image, or its index


class ImageExamples(Dataset[ImageBatch]):
    """Images held in memory as bytes; an item is one process's part of a batch, indexed by a `Share`."""

    def __init__(
        self,
        *,
        pixels: Tensor,  # [N, C, H, W] uint8
        labels: Tensor | None,  # [N] int64; None in prediction
        names: Sequence[str] | None,  # None in training
        mean: Sequence[float],  # per channel, from 0 to 1
        std: Sequence[float],
        augmentation: Augmentation | None,  # None in evaluation
    ) -> None:
        self.pixels, self.labels, self.names, self.augmentation = pixels, labels, names, augmentation
        self._mean, self._std = (255 * torch.tensor(values).view(-1, 1, 1) for values in (mean, std))

    def content(self) -> list[Any]:
        """Return the arrays that make up the examples, by which a resumed run recognises them."""
        return [self.pixels, *([] if self.labels is None else [self.labels])]

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, share: Share) -> ImageBatch:
        index = torch.as_tensor(share.rows)
        pixels = self.pixels[index] if self.augmentation is None else self.augmentation(self.pixels, index, epoch=share.epoch)
        batch: ImageBatch = {"example": share.example(share.rows), "image": (pixels.float() - self._mean) / self._std}
        if self.labels is not None:
            batch["label"] = self.labels[torch.as_tensor(share.answered, dtype=torch.int64)]
        if self.names is not None:
            batch["text"] = [self.names[i] for i in share.answered]
        return batch


class ImageBatchSampler(BatchSampler):
    """Yields batches of up to `batch_size` examples with sizes that differ by at most one, each example once per epoch over all processes.

    All processes share each batch. The order is a pure function of seed and epoch; see `attnkit.data.batching.TokenBatchSampler`.

    Example:
        >>> [share.rows.tolist() for share in ImageBatchSampler(range(5), batch_size=2, order="given")]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, examples: Any, *, batch_size: int, order: Order, seed: int = 0, share: DataShare | None = None) -> None:
        super().__init__(examples, share=share, shuffle=order == "shuffled", seed=seed)
        self.order = order
        self._count = len(examples)
        self.num_batches = -(-self._count // batch_size)

    @override
    def batches(self, rng: np.random.Generator) -> list[Integers]:
        indices = np.arange(self._count) if self.order == "given" else rng.permutation(self._count)
        return np.array_split(indices, self.num_batches)


@dataclass(frozen=True, kw_only=True)
class LabelledImagesConfig(FramingConfig):
    """The options of `labelled_images`."""

    image_shape: list[int] | None = None
    classes: list[str] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    shift: int = 0
    flip: bool = False
    augmentation: Sequence[str | Mapping[str, Any]] = ()
    batch_size: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, batch_size=self.batch_size)
        require_distinct(self.classes)
        if (self.mean is None) != (self.std is None):
            raise ConfigurationError("mean and std go together: set both, or neither to compute them from the training images")
        if self.std is not None and min(self.std) <= 0:
            raise ConfigurationError(f"std must be positive, but is {self.std}")


@datasets.register("labelled_images")
class LabelledImages(Framing[ImageBatch]):
    """Images with classes, for the task `classification`.

    Images are held in memory as bytes. Each channel is normalised by the mean and standard deviation of the training images, which are
    saved in every checkpoint.

    Args:
        corpus: The images: a corpus such as `fashion_mnist`, the path of your own `.npz` file or folder (with a `/` in it), or
            `hub:NAME`.
        predict: The images for prediction: a `.npz` or `.npy` file, a folder of image files, an image file, or a hub data set
            (default: the test images).
        image_shape: Channels (1: greyscale, 3: colour), height and width that image files are converted to (default: those of the first
            training image; the other training images must then have its size, and be greyscale if it is, and those of other splits are
            converted). The summary of a split says how many were converted. Arrays are never resized.
        classes: The names of the classes, in the order of their ids (default: those of the corpus, or of the training images, sorted).
        mean: Mean of each channel, from 0 to 1 (default: that of the training images).
        std: Standard deviation of each channel (default: that of the training images).
        shift: Maximum random shift of training images, in pixels in each direction.
        flip: Whether to flip training images horizontally with probability 0.5.
        augmentation: Further random changes to training images: names of transforms of `torchvision.transforms.v2`, or mappings with a
            name and arguments.
        batch_size: Maximum number of images in a batch over all processes.

    Attributes:
        tokenizer_spec: None: the data are not texts.

    Raises:
        ConfigurationError: The corpus has no images or cannot be read, a number is out of range, or a class is listed twice.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> path = pathlib.Path(tempfile.mkdtemp(), "digits.npz")
        >>> np.savez(path, images=np.zeros((5, 8, 8), np.uint8), labels=np.arange(5))
        >>> data = LabelledImages(corpus=str(path), batch_size=4)
        >>> data.image_shape, data.classes
        ([1, 8, 8], ['0', '1', '2', '3', '4'])
    """

    takes: ClassVar = ImageCorpus
    needs_predict: ClassVar = False
    keeps = ("image_shape", "classes")
    corpus: ImageCorpus
    tokenizer_spec: ClassVar[None] = None
    config: LabelledImagesConfig

    @keywords_of(LabelledImagesConfig)
    def __init__(self, config: LabelledImagesConfig) -> None:
        super().__init__(config)
        require_image_shape(config.image_shape)
        self._given = None if config.mean is None or config.std is None else (config.mean, config.std)
        transforms = config.augmentation
        self.augmentation = Augmentation(shift=config.shift, flip=config.flip, transforms=transforms, seed=self.seed)

    @cached_property
    def image_shape(self) -> list[int]:
        """Channels, height and width."""
        return self.config.image_shape or list(self.rows("train").pixels.shape[1:])

    @cached_property
    def classes(self) -> list[str]:
        """The name of each class, by its id."""
        if (given := self.config.classes or self.corpus.classes) is not None:
            return [*given]
        labels = self.rows("train").labels or ()
        numbers = [label for label in labels if isinstance(label, int)]
        return [str(i) for i in range(max(numbers) + 1)] if numbers else sorted({str(label) for label in labels})

    @cached_property
    def normalisation(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel of the training images, scaled to [0, 1]."""
        if self._given is not None:
            return self._given
        mean, std = [], []
        for channel in self.rows("train").pixels.unbind(1):
            counts = torch.bincount(channel.reshape(-1), minlength=256).double()  # exact, and without a float copy of the data
            share, values = counts / counts.sum(), torch.arange(256, dtype=torch.float64) / 255
            mean.append(float((share * values).sum()))
            std.append(float((share * (values - mean[-1]).square()).sum().sqrt()) or 1.0)  # a constant channel becomes zero
        return mean, std

    @override
    def state_dict(self) -> dict[str, Any]:
        mean, std = self.normalisation
        return {**super().state_dict(), "mean": mean, "std": std}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.normalisation = self._given or (state_dict["mean"], state_dict["std"])

    @override
    def read(self, part: Split) -> Images:
        if part != "predict":
            return self.corpus.images(part, shape=self.config.image_shape if part == "train" else self.image_shape)
        if self.predict is None:
            self.corpus.bad_rows["predict"] = self.corpus.bad_rows["test"]
            return self.corpus.images("test", shape=self.image_shape)
        columns = [str(column) for column in self.corpus.columns_for("image")]
        bad_rows = self.corpus.bad_rows["predict"]
        return read_images(self.predict, labelled=False, shape=self.image_shape, columns=columns, bad_rows=bad_rows)

    @override
    def sampler(self, examples: Any, *, order: Order) -> BatchSampler:
        return ImageBatchSampler(examples, batch_size=self.config.batch_size, order=order, seed=self.seed, share=self.share)

    @override
    def examples(self, part: Split) -> ImageExamples:
        images = self.rows(part)
        if list(images.pixels.shape[1:]) != self.image_shape:
            found = list(images.pixels.shape[1:])
            raise ConfigurationError(f"the {adjective(part)} images have shape {found}, not {self.image_shape} as in training")
        mean, std = self.normalisation
        if not len(mean) == len(std) == self.image_shape[0]:
            raise ConfigurationError(f"mean and std need one number for each of {self.image_shape[0]} channels, but are {mean} and {std}")
        examples = ImageExamples(
            pixels=images.pixels,
            labels=None if part == "predict" else self._label_tensor(part, images),
            names=None if part == "train" else images.names,
            mean=mean,
            std=std,
            augmentation=self.augmentation if part == "train" else None,
        )
        summary = Summary(part, counted(len(examples), "image"))
        for note, count in images.notes.items():
            summary.note(count, note)
        self.summaries.say(summary)
        return examples

    def _label_tensor(self, part: str, images: Images) -> Tensor:
        if images.labels is None:
            raise ConfigurationError(f"the {adjective(part)} images have no labels")
        ids: dict[str | int, int] = {name: i for i, name in enumerate(self.classes)} | {i: i for i in range(len(self.classes))}
        for label, name in zip(images.labels, images.names, strict=True):
            if label not in ids:
                raise ConfigurationError(
                    f"the {adjective(part)} image {name} has the class {label!r}, which is not among the training classes."
                    f"{nearest(str(label), self.classes)} Classes: {', '.join(self.classes)}"
                )
        return torch.tensor([ids[label] for label in images.labels])
