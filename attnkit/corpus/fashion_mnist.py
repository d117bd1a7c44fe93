"""Fashion-MNIST: small greyscale images of clothes."""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.corpus.base import ImageCorpus, Part
from attnkit.corpus.image_reading import read_images
from attnkit.corpus.images import Images
from attnkit.corpus.packages import find_package_file
from attnkit.files import read_gzip
from attnkit.registry import ConfigurationError, corpora

HUB = "zalando-datasets/fashion_mnist"
PACKAGE = "dataset-fashion-mnist"
FOLDER = "usr/share/datasets/fashion-mnist"


@corpora.register("fashion_mnist")
class FashionMNIST(ImageCorpus):
    """Greyscale images of clothes, 28 x 28 pixels, ten classes: 60,000 for training and 10,000 for test.

    The last `validation_images` of the 60,000 are the validation split, and are not trained on; the files are in random order.

    Paper: Xiao et al. 2017, https://arxiv.org/abs/1708.07747

    Args:
        source: `package`: the Debian package `dataset-fashion-mnist` (MIT). `hub`: `hub:zalando-datasets/fashion_mnist`, which has the
            same images in the same order.
        folder: The folder with the unpacked package; an installed package is found too.
        validation_images: Number of training images to set aside for validation; 0 for no validation.

    Raises:
        ConfigurationError: The package is missing (the message has the commands to get it), or a file is damaged.
    """

    classes: ClassVar = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

    def __init__(self, *, source: Literal["package", "hub"] = "package", folder: str = "data", validation_images: int = 5000) -> None:
        super().__init__()
        if validation_images < 0:
            raise ConfigurationError(f"validation_images must be at least 0, but is {validation_images}")
        self.source, self.folder, self.validation_images = source, folder, validation_images

    @override
    def has(self, part: Part) -> bool:
        return part != "validation" or self.validation_images > 0

    @override
    def check(self, part: Part) -> None:
        if self.source == "package":
            self._files("train")

    @override
    def images(self, part: Part, *, shape: Sequence[int] | None) -> Images:
        if part == "test":
            return self._read("test")
        count = len(self._train.names)
        rest = count - self.validation_images
        if rest < 1:
            raise ConfigurationError(f"validation_images={self.validation_images} leaves none of the {count} training images to train on")
        return self._train.select(range(rest) if part == "train" else range(rest, count))

    @cached_property
    def _train(self) -> Images:
        return self._read("train")

    def _files(self, part: Literal["train", "test"]) -> list[Path]:
        prefix = f"{FOLDER}/{'train' if part == 'train' else 't10k'}"
        return [find_package_file(PACKAGE, f"{prefix}-{kind}-ubyte.gz", folder=self.folder) for kind in ("images-idx3", "labels-idx1")]

    def _read(self, part: Literal["train", "test"]) -> Images:
        if self.source == "hub":
            found = read_images(f"hub:{HUB}:{part}", labelled=True, class_names=False)
            return Images(found.pixels, found.labels, [str(i) for i in range(len(found.names))])
        path, labels_path = self._files(part)
        pixels, labels = read_idx(path), read_idx(labels_path)
        if pixels.shape[1:] != (28, 28) or labels.shape != pixels.shape[:1] or len(labels) == 0:
            raise ConfigurationError(f"{path}: images {list(pixels.shape)} and labels {list(labels.shape)} do not match")
        return Images(pixels[:, None], labels.tolist(), [str(i) for i in range(len(labels))])


def read_idx(path: Path) -> Tensor:
    """Read a compressed idx file of bytes (http://yann.lecun.com/exdb/mnist) as a uint8 tensor of its shape.

    Raises:
        ConfigurationError: The file is truncated, damaged, or of another format.
    """
    content = read_gzip(path)
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, 4 + 4 * axes, 4)]
    if not axes or len(content) != 4 + 4 * axes + math.prod(shape):
        raise ConfigurationError(f"{path} is truncated, or not an idx file of bytes")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * axes).view(shape)
