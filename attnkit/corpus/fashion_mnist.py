"""Fashion-MNIST: small greyscale images of clothes."""

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from typing_extensions import override

from attnkit.corpus.base import ImageCorpus, Part
from attnkit.corpus.image_reading import Images, read_images
from attnkit.corpus.named import Named, Source
from attnkit.registry import ConfigurationError, corpora, require_at_least


@corpora.register("fashion_mnist")
class FashionMNIST(Named, ImageCorpus):
    """Greyscale images of clothes, 28 x 28 pixels, ten classes: 60,000 for training and 10,000 for test.

    The last `validation_images` of the 60,000, whose order is random, are the validation split and are not trained on.

    Paper: Xiao et al. 2017, https://arxiv.org/abs/1708.07747

    Args:
        source: `hub`: `hub:zalando-datasets/fashion_mnist`. `files`: those of `python scripts/fashion_mnist.py`, from the Debian package
            `dataset-fashion-mnist` (MIT), which has the same images in the same order. `auto`: the files if they exist, otherwise the
            hub, whose images must then be the same.
        folder: The folder with the files.
        validation_images: Number of training images to set aside for validation; 0 for no validation.

    Raises:
        ConfigurationError: The images cannot be found, or are damaged.
    """

    classes: ClassVar = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    script: ClassVar = "fashion_mnist"
    suffix: ClassVar = ".npz"
    hub: ClassVar = "zalando-datasets/fashion_mnist"
    digests: ClassVar = {"train": "702c42dc1c7307b9", "test": "51c8380e93029bb3"}

    def __init__(self, *, source: Source = "auto", folder: str = "data", validation_images: int = 5000) -> None:
        super().__init__(folder=folder, source=source)
        require_at_least(0, validation_images=validation_images)
        self.validation_images = validation_images

    @override
    def has(self, part: Part) -> bool:
        return part != "validation" or self.validation_images > 0

    @override
    def check(self, part: Part) -> None:
        super().check("test" if part == "test" else "train")

    @override
    def images(self, part: Part, *, shape: Sequence[int] | None) -> Images:
        if part == "test":
            return self._read("test")
        count = len(self._train.names)
        rest = count - self.validation_images
        if rest < 1:
            raise ConfigurationError(f"validation_images={self.validation_images} leaves none of the {count} training images to train on")
        self.origins[part] = self.origins["train"]
        return self._train.select(range(rest) if part == "train" else range(rest, count))

    @cached_property
    def _train(self) -> Images:
        return self._read("train")

    def _read(self, part: Part) -> Images:
        found = read_images(self.location(part), labelled=True, class_names=False)
        self.compare(part, [found.pixels.numpy().tobytes(), repr(found.labels)])
        return Images(found.pixels, found.labels, [str(i) for i in range(len(found.names))])
