from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import fashion_mnist as sample

from attnkit import ConfigurationError
from attnkit.corpus.base import Part
from attnkit.corpus.fashion_mnist import FashionMNIST
from attnkit.corpus.image_reading import Images
from attnkit.data.labelled_images import LabelledImages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    sample.write(root, train=60, test=20)
    return root


def images(folder: Path | str, part: Part, **arguments: Any) -> Images:
    return FashionMNIST(folder=str(folder), **arguments).images(part, shape=None)


def test_the_last_training_images_are_for_validation(folder: Path) -> None:
    whole = images(folder, "train", validation_images=0)
    train, validation = (images(folder, part, validation_images=10) for part in ("train", "validation"))
    assert torch.equal(torch.cat([train.pixels, validation.pixels]), whole.pixels)
    assert [len(part.names) for part in (train, validation)] == [50, 10]
    assert not FashionMNIST(folder=str(folder), validation_images=0).has("validation")
    with pytest.raises(ConfigurationError, match="validation_images=60 leaves none of the 60"):
        images(folder, "train", validation_images=60)


def test_pixels_and_labels_are_aligned(folder: Path) -> None:
    test = images(folder, "test")
    assert test.labels is not None
    rows = test.pixels[:, 0].amax(2).argmax(1)  # where the bar begins
    assert rows.tolist() == [4 + 2 * int(label) for label in test.labels]


def test_the_hub_provides_the_same_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, pillow = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    packaged = images(folder, "test")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=[f"no. {i}" for i in range(10)])})
    rows = {"image": [pillow.fromarray(p.numpy()) for p in packaged.pixels[:, 0]], "label": packaged.labels}
    stored = datasets.Dataset.from_dict(rows, features=features)
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, split: asked.append((name, split)) or stored)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name: ["train", "test"])
    found = images("absent", "test", source="hub")
    assert asked == [(FashionMNIST.hub, "test")]
    assert torch.equal(found.pixels, packaged.pixels)
    assert (found.labels, found.names) == (packaged.labels, packaged.names)


def framed(folder: Path | str, **arguments: Any) -> LabelledImages:
    return LabelledImages(corpus={"name": "fashion_mnist", "folder": str(folder), "validation_images": 5}, **arguments)


def test_classes_have_their_names(folder: Path) -> None:
    data = framed(folder)
    assert data.image_shape == [1, 28, 28]
    assert data.classes[9] == "Ankle boot"
    assert data.tokenizer_spec is None


def test_a_checkpoint_predicts_without_the_package(folder: Path, tmp_path: Path) -> None:
    state = framed(folder).state_dict()
    np.save(tmp_path / "new.npy", np.zeros((3, 28, 28), np.uint8))
    data = framed("absent", predict=str(tmp_path / "new.npy"))
    data.load_state_dict(state)
    (batch,) = data.predict_dataloader()
    assert batch["image"].shape == (3, 1, 28, 28)
    mean, std = data.normalisation
    torch.testing.assert_close(batch["image"], torch.full((3, 1, 28, 28), -mean[0] / std[0]))


def test_prediction_defaults_to_the_test_images_in_order(folder: Path) -> None:
    data = framed(folder, batch_size=8)
    assert [name for batch in data.predict_dataloader() for name in batch["text"]] == [str(i) for i in range(20)]
