"""Strips of images of clothes, and their captions."""

from collections.abc import Sequence

import numpy as np
import torch
from typing_extensions import override

from attnkit.corpus.base import Part, SignalCorpus
from attnkit.corpus.fashion_mnist import FashionMNIST
from attnkit.corpus.named import Source
from attnkit.corpus.signals import Signals
from attnkit.registry import corpora, fields_as_keywords, require_at_least

WORDS = ("top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
_SIZE = 28


@corpora.register("fashion_strips")
@fields_as_keywords
class FashionStrips(SignalCorpus):
    """Strips of one to `items` images of Fashion-MNIST side by side, with random gaps. The caption names them from left to right.

    The images are real; the strips and the captions, such as `bag sneaker dress`, are composed. Each split uses only images of the same
    split.

    Paper: Xiao et al. 2017, https://arxiv.org/abs/1708.07747 (the images)

    Args:
        items: Maximum number of images in a strip, which is 28 pixels high and 28 (`items` + 1) wide.
        train_rows: Number of training strips.
        validation_rows: Number of validation strips.
        test_rows: Number of test strips.
        validation_images: Number of images for the validation strips, which are not trained on; see the corpus `fashion_mnist`.
        source: See the corpus `fashion_mnist`.
        folder: The folder with the files of `python scripts/fashion_mnist.py`.
        seed: Seed of the strips.

    Raises:
        ConfigurationError: The images cannot be found, or a number is below 1.
    """

    items: int = 3
    train_rows: int = 20_000
    validation_rows: int = 1000
    test_rows: int = 2000
    validation_images: int = 5000
    source: Source = "auto"
    folder: str = "data"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.counts: dict[Part, int] = {"train": self.train_rows, "validation": self.validation_rows, "test": self.test_rows}
        require_at_least(1, items=self.items, train_rows=self.train_rows, validation_rows=self.validation_rows, test_rows=self.test_rows)
        self._images = FashionMNIST(source=self.source, folder=self.folder, validation_images=self.validation_images)

    @override
    def check(self, part: Part) -> None:
        self._images.check(part)

    @override
    def signals(self, part: Part, *, shape: Sequence[int] | None) -> Signals:
        images = self._images.images(part, shape=None)
        assert images.labels is not None
        rng = np.random.default_rng([self.seed, list(self.counts).index(part)])
        strips = torch.zeros(self.counts[part], 1, _SIZE, _SIZE * (self.items + 1), dtype=torch.uint8)
        captions = []
        for strip in strips:
            chosen = rng.integers(len(images.names), size=rng.integers(1, self.items, endpoint=True))
            free = strip.shape[2] - _SIZE * len(chosen)
            gaps = np.sort(rng.integers(free, size=len(chosen), endpoint=True))
            for place, (i, gap) in enumerate(zip(chosen, gaps, strict=True)):
                start = int(gap) + _SIZE * place
                strip[:, :, start : start + _SIZE] = images.pixels[i]
            captions.append([" ".join(WORDS[int(images.labels[i])] for i in chosen)])
        return Signals(list(strips), captions, [f"{part} {i}" for i in range(len(strips))])
