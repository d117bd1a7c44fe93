"""What every data module of labelled images does."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from attnkit.data.augmentation import Augmentation
from attnkit.data.image_batches import ImageBatch, ImageBatchSampler, ImageExamples
from attnkit.data.loading import process_share, sampler_loader
from attnkit.registry import ConfigurationError, nearest

Part = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Images:
    """Images as they are stored.

    Attributes:
        pixels: [N, C, H, W] uint8.
        labels: The class of each, by name or by number; None without labels.
        names: What each is called: a path, or an index.
    """

    pixels: Tensor
    labels: Sequence[str] | Sequence[int] | None
    names: Sequence[str]

    def select(self, indices: Sequence[int]) -> "Images":
        """Return some of the images."""
        labels: Any = None if self.labels is None else [self.labels[i] for i in indices]
        return Images(self.pixels[torch.as_tensor(indices)], labels, [self.names[i] for i in indices])


class ImageData(LightningDataModule, ABC):
    """Images with labels, as normalised batches. A subclass says where they come from.

    Args:
        image_shape: Channels (1 or 3), height and width (default: those of the training images).
        classes: The names of the classes, in the order of their ids (default: those of the training images, sorted).
        mean: Of each channel, from 0 to 1 (default: of the training images). It comes with every checkpoint.
        std: Standard deviation of each channel, likewise.
        shift: Training images are moved at random, by up to so many pixels in each direction.
        flip: Whether every other training image is mirrored, left to right.
        augmentation: Further random changes of training images: names of transforms of `torchvision.transforms.v2`, or mappings with a
            name and arguments.
        batch_size: Images in a batch over all processes.
        seed: Of the order and of the augmentation, at least 0.
        num_workers: Processes that prepare batches (0: the main process does).

    Attributes:
        tokenizer_spec: None: these are no texts.

    Raises:
        ConfigurationError: A number is out of range, or a class is listed twice.
    """

    tokenizer_spec: ClassVar[None] = None

    def __init__(
        self,
        *,
        image_shape: list[int] | None,
        classes: list[str] | None,
        mean: list[float] | None,
        std: list[float] | None,
        shift: int,
        flip: bool,
        augmentation: Sequence[str | Mapping[str, Any]],
        batch_size: int,
        seed: int,
        num_workers: int,
    ) -> None:
        super().__init__()
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("num_workers", num_workers, 0)):
            if value < least:
                raise ConfigurationError(f"{name} must be at least {least}, but is {value}")
        if image_shape is not None and (len(image_shape) != 3 or image_shape[0] not in (1, 3) or min(image_shape) < 1):
            raise ConfigurationError(f"image_shape must be [channels, height, width] with 1 or 3 channels, but is {image_shape}")
        if (mean is None) != (std is None):
            raise ConfigurationError("mean and std belong together: give both, or none to measure them on the training images")
        if std is not None and min(std) <= 0:
            raise ConfigurationError(f"std must be positive, but is {std}")
        if classes is not None and (twice := [c for i, c in enumerate(classes) if c in classes[:i]]):
            raise ConfigurationError(f"classes must be distinct, but {twice[0]!r} is listed twice")
        self.given_shape, self._classes = image_shape, classes
        self._given = None if mean is None or std is None else (mean, std)
        self.augmentation = Augmentation(shift=shift, flip=flip, transforms=augmentation, seed=seed)
        self.batch_size, self.seed, self.num_workers = batch_size, seed, num_workers

    @abstractmethod
    def images(self, part: Part) -> Images | None:
        """Return the images of a part. Without a validation part (None), there is no validation."""

    @abstractmethod
    def prediction_images(self) -> Images:
        """Return the images to predict classes for."""

    @cached_property
    def image_shape(self) -> list[int]:
        """Channels, height and width."""
        return self.given_shape or list(self._training.pixels.shape[1:])

    @cached_property
    def classes(self) -> list[str]:
        """The name of each class, by its id."""
        if self._classes is not None:
            return self._classes
        labels = self._training.labels or ()
        numbers = [label for label in labels if isinstance(label, int)]
        return [str(i) for i in range(max(numbers) + 1)] if numbers else sorted({str(label) for label in labels})

    @cached_property
    def normalisation(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel of the training images, whose values go from 0 to 1."""
        if self._given is not None:
            return self._given
        mean, std = [], []
        for channel in self._training.pixels.unbind(1):
            counts = torch.bincount(channel.reshape(-1), minlength=256).double()  # exact, and no float copy of the data
            share, values = counts / counts.sum(), torch.arange(256, dtype=torch.float64) / 255
            mean.append(float((share * values).sum()))
            std.append(float((share * (values - mean[-1]).square()).sum().sqrt()) or 1.0)  # a constant channel becomes zero
        return mean, std

    @override
    def state_dict(self) -> dict[str, Any]:
        mean, std = self.normalisation
        return {"image_shape": self.image_shape, "classes": self.classes, "mean": mean, "std": std}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.image_shape, self.classes = state_dict["image_shape"], state_dict["classes"]
        self.normalisation = self._given or (state_dict["mean"], state_dict["std"])

    @override
    def train_dataloader(self) -> DataLoader[ImageBatch]:
        return self._loader("train", self._training, order="shuffled")

    @override
    def val_dataloader(self) -> DataLoader[ImageBatch] | list[Any]:
        validation = self.images("validation")
        return [] if validation is None else self._loader("validation", validation, order="fixed")

    @override
    def test_dataloader(self) -> DataLoader[ImageBatch]:
        test = self.images("test")
        assert test is not None
        return self._loader("test", test, order="fixed")

    @override
    def predict_dataloader(self) -> DataLoader[ImageBatch]:
        return self._loader("predict", self.prediction_images(), order="given")

    @cached_property
    def _training(self) -> Images:
        images = self.images("train")
        assert images is not None
        return images

    def _loader(self, part: str, images: Images, *, order: Literal["shuffled", "fixed", "given"]) -> DataLoader[ImageBatch]:
        if list(images.pixels.shape[1:]) != self.image_shape:
            raise ConfigurationError(f"the {part} images have shape {list(images.pixels.shape[1:])}, not {self.image_shape} as in training")
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
        sampler = ImageBatchSampler(examples, batch_size=self.batch_size, order=order, seed=self.seed, **process_share(self.trainer))
        return sampler_loader(examples, sampler, trainer=self.trainer, num_workers=self.num_workers)

    def _label_tensor(self, part: str, images: Images) -> Tensor:
        if images.labels is None:
            raise ConfigurationError(f"the {part} images have no labels")
        ids: dict[str | int, int] = {name: i for i, name in enumerate(self.classes)} | {i: i for i in range(len(self.classes))}
        for label, name in zip(images.labels, images.names, strict=True):
            if label not in ids:
                raise ConfigurationError(
                    f"the {part} image {name} has the class {label!r}, which is none of the training's.{nearest(str(label), self.classes)} "
                    f"Classes: {', '.join(self.classes)}"
                )
        return torch.tensor([ids[label] for label in images.labels])
