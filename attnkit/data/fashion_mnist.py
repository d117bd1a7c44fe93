"""Fashion-MNIST: small grey images of clothes."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.data.image_reading import read_images
from attnkit.data.images import ImageData, Images, Part
from attnkit.data.packages import find_package_file
from attnkit.files import read_gzip
from attnkit.registry import ConfigurationError, datasets

PACKAGE = "dataset-fashion-mnist"
FOLDER = "usr/share/datasets/fashion-mnist"
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
IMAGE_SHAPE = (1, 28, 28)


@datasets.register("fashion_mnist")
class FashionMNIST(ImageData):
    """Grey images of clothes, 28 x 28 pixels, ten classes: 60,000 for training and 10,000 for test.

    The last `validation_images` of the 60,000 are the validation part, and not trained on; the files are in random order.

    Data: Xiao et al. 2017, https://arxiv.org/abs/1708.07747, from the Debian package `dataset-fashion-mnist`.

    Args:
        folder: Where the package was unpacked; else it is looked for where Debian installs it.
        validation_images: How many training images are set aside for validation; with 0 there is no validation.
        predict: Where other images to predict for are: a `.npz` or `.npy` file, a folder of image files (resized, and made grey), or an
            image file. They are white on black. Default: the test images.
        shift: Training images are moved at random, by up to so many pixels in each direction.
        flip: Whether every other training image is mirrored, left to right.
        augmentation: Further random changes of training images: names of transforms of `torchvision.transforms.v2`, or mappings with a
            name and arguments.
        batch_size: Images in a batch over all processes.
        seed: Of the order and of the augmentation; global random states play no part.
        num_workers: Processes that prepare batches (0: the main process does).

    Raises:
        ConfigurationError: The package is not there (the message has the commands that get it), or a file is damaged.
    """

    def __init__(
        self,
        *,
        folder: str = "data",
        validation_images: int = 5000,
        predict: str | None = None,
        shift: int = 0,
        flip: bool = False,
        augmentation: Sequence[str | Mapping[str, Any]] = (),
        batch_size: int = 128,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            image_shape=list(IMAGE_SHAPE),
            classes=list(CLASSES),
            mean=None,
            std=None,
            shift=shift,
            flip=flip,
            augmentation=augmentation,
            batch_size=batch_size,
            seed=seed,
            num_workers=num_workers,
        )
        if validation_images < 0:
            raise ConfigurationError(f"validation_images must be at least 0, but is {validation_images}")
        self.folder, self.validation_images, self.predict = folder, validation_images, predict

    @override
    def images(self, part: Part) -> Images | None:
        if part == "test":
            return self._read("t10k")
        images = self._all_training_images
        rest = len(images.names) - self.validation_images
        if rest < 1:
            raise ConfigurationError(f"validation_images={self.validation_images} leaves none of {len(images.names)} to train on")
        if part == "train":
            return images.select(range(rest))
        return images.select(range(rest, len(images.names))) if self.validation_images else None

    @override
    def prediction_images(self) -> Images:
        return self._read("t10k") if self.predict is None else read_images(self.predict, labelled=False, shape=IMAGE_SHAPE)

    @cached_property
    def _all_training_images(self) -> Images:
        return self._read("train")

    def _read(self, prefix: str) -> Images:
        pixels, labels = (
            read_idx(find_package_file(PACKAGE, f"{FOLDER}/{prefix}-{kind}-ubyte.gz", folder=self.folder))
            for kind in ("images-idx3", "labels-idx1")
        )
        if pixels.shape[1:] != IMAGE_SHAPE[1:] or labels.shape != pixels.shape[:1] or len(labels) == 0:
            raise ConfigurationError(f"{FOLDER}/{prefix}-*: images {list(pixels.shape)} and labels {list(labels.shape)} do not go together")
        return Images(pixels[:, None], labels.tolist(), [str(i) for i in range(len(labels))])


def read_idx(path: Path) -> Tensor:
    """Return the bytes of a compressed idx file (http://yann.lecun.com/exdb/mnist) in their shape, uint8.

    Raises:
        ConfigurationError: The file is truncated, damaged, or of another format.
    """
    content = read_gzip(path)
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, 4 + 4 * axes, 4)]
    if not axes or len(content) != 4 + 4 * axes + math.prod(shape):
        raise ConfigurationError(f"{path} is truncated, or no idx file of bytes")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * axes).view(shape)
