"""Labelled images from files, or from a hub data set."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from typing_extensions import override

from attnkit.data.image_reading import Location, read_images
from attnkit.data.images import ImageData, Images, Part
from attnkit.data.splitting import check_validation, set_aside
from attnkit.registry import ConfigurationError, datasets


@datasets.register("labelled_images")
class LabelledImages(ImageData):
    """Images with classes: your own arrays or folders of files, or a hub data set.

    A location is a `.npz` file with the arrays `images` and `labels`, a list `[images.npy, labels.npy]`, a folder with a sub-folder of
    image files for each class, or `hub:NAME:SPLIT` (`hub:NAME:CONFIG:SPLIT`) for the `datasets` library. Arrays are uint8, [N, H, W] or
    with 1 or 3 channels before or after height and width; labels are integers from 0.

    Images are held in memory as bytes. Each channel is normalised by mean and standard deviation of the training images; both are in
    every checkpoint.

    Args:
        train: Where the training images are.
        validation: Where the validation images are.
        test: Where the test images are.
        predict: Where the images to predict for are: a `.npz` or `.npy` file, a folder of image files, an image file, or a hub data set.
        validation_fraction: In place of `validation`, the part of the training images to validate on, between 0 and 1.
        image_column: The column of the images on the hub.
        label_column: The column of the classes on the hub.
        image_shape: Channels (1 is grey, 3 colour), height and width that image files are brought to (default: as the first training
            image, and all others must be). Arrays are never resized.
        classes: The names of the classes, in the order of their ids (default: those of the training images, sorted).
        mean: Of each channel, from 0 to 1 (default: of the training images).
        std: Standard deviation of each channel, likewise.
        shift: Training images are moved at random, by up to so many pixels in each direction.
        flip: Whether every other training image is mirrored, left to right.
        augmentation: Further random changes of training images: names of transforms of `torchvision.transforms.v2`, or mappings with a
            name and arguments.
        batch_size: Images in a batch over all processes.
        seed: Of the order, the augmentation and `validation_fraction`; global random states play no part.
        num_workers: Processes that prepare batches (0: the main process does).

    Raises:
        ConfigurationError: A file is missing, damaged or of another form, or a library that it needs is not installed.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> path = pathlib.Path(tempfile.mkdtemp(), "digits.npz")
        >>> np.savez(path, images=np.zeros((5, 8, 8), np.uint8), labels=np.arange(5))
        >>> data = LabelledImages(train=str(path), batch_size=4)
        >>> data.image_shape, data.classes
        ([1, 8, 8], ['0', '1', '2', '3', '4'])
    """

    def __init__(
        self,
        *,
        train: str | list[str] | None = None,
        validation: str | list[str] | None = None,
        test: str | list[str] | None = None,
        predict: str | None = None,
        validation_fraction: float = 0.0,
        image_column: str = "image",
        label_column: str = "label",
        image_shape: list[int] | None = None,
        classes: list[str] | None = None,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        shift: int = 0,
        flip: bool = False,
        augmentation: Sequence[str | Mapping[str, Any]] = (),
        batch_size: int = 128,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            image_shape=image_shape,
            classes=classes,
            mean=mean,
            std=std,
            shift=shift,
            flip=flip,
            augmentation=augmentation,
            batch_size=batch_size,
            seed=seed,
            num_workers=num_workers,
        )
        check_validation(validation, validation_fraction)
        self._locations: dict[str, Location | None] = {"train": train, "validation": validation, "test": test, "predict": predict}
        self.validation_fraction = validation_fraction
        self.columns = (image_column, label_column)

    @override
    def images(self, part: Part) -> Images | None:
        if part == "train":
            return self._split[0]
        if part == "validation" and self._locations["validation"] is None:
            return self._split[1]
        return self._read(part, shape=self.image_shape)

    @override
    def prediction_images(self) -> Images:
        return self._read("predict", shape=self.image_shape)

    @cached_property
    def _split(self) -> tuple[Images, Images | None]:
        """The training images, and those set aside for validation."""
        images = self._read("train", shape=self.given_shape)
        if self.validation_fraction == 0:
            return images, None
        kept, aside = set_aside(range(len(images.names)), self.validation_fraction, seed=self.seed, what="images")
        return images.select(kept), images.select(aside)

    def _read(self, part: str, *, shape: Sequence[int] | None) -> Images:
        location = self._locations[part]
        if location is None:
            needs = " (image_shape, classes, mean and std are taken from it, unless they are given)" if part == "train" else ""
            raise ConfigurationError(f"labelled_images has no {part} data: set {part} to a file, a folder or a hub data set{needs}")
        return read_images(location, labelled=part != "predict", shape=shape, columns=self.columns)
