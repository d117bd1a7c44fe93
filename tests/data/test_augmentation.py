import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from attnkit import ConfigurationError
from attnkit.data.augmentation import Augmentation


def images(rng: np.random.Generator, count: int = 40, channels: int = 2) -> torch.Tensor:
    return torch.from_numpy(rng.integers(1, 256, size=(count, channels, 6, 5), dtype=np.uint8))


def variants(image: torch.Tensor, shift: int, flip: bool) -> list[torch.Tensor]:
    """Return every crop of the padded image, of it and of its mirror image."""
    height, width = image.shape[1:]
    padded = [torch.nn.functional.pad(i, (shift,) * 4) for i in ([image, image.flip(2)] if flip else [image])]
    places = range(2 * shift + 1)
    return [p[:, y : y + height, x : x + width] for p in padded for y in places for x in places]


@pytest.mark.parametrize(("shift", "flip"), [(0, True), (1, False), (2, True)])
def test_an_image_becomes_a_shift_of_itself_or_its_mirror_image(shift: int, flip: bool, rng: np.random.Generator) -> None:
    given = images(rng)
    index = torch.from_numpy(rng.permutation(40)[:30])
    changed = Augmentation(shift=shift, flip=flip, seed=1)(given, index, epoch=2)
    which = [
        next(k for k, v in enumerate(variants(given[i], shift, flip)) if torch.equal(v, c)) for i, c in zip(index, changed, strict=True)
    ]
    assert len(set(which)) > 1
    assert changed.dtype == torch.uint8


def test_no_augmentation_changes_nothing(rng: np.random.Generator) -> None:
    given = images(rng)
    assert torch.equal(Augmentation()(given, torch.tensor([3, 1]), epoch=0), given[[3, 1]])


def test_augmentation_depends_on_the_epoch_and_not_on_the_batch(rng: np.random.Generator) -> None:
    given, seed = images(rng), int(rng.integers(2**31))
    together = Augmentation(shift=2, flip=True, seed=seed)(given, torch.arange(40), epoch=3)
    torch.manual_seed(0)
    alone = torch.cat([Augmentation(shift=2, flip=True, seed=seed)(given, torch.tensor([i]), epoch=3) for i in range(40)])
    assert torch.equal(together, alone)
    for other_seed, other_epoch in ((seed, 4), (seed + 1, 3)):
        assert not torch.equal(together, Augmentation(shift=2, flip=True, seed=other_seed)(given, torch.arange(40), epoch=other_epoch))


def test_without_torchvision_the_error_gives_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    with pytest.raises(ConfigurationError, match=r"needs the package torchvision: pip install 'attnkit\[augmentation\]'.* shift and flip"):
        Augmentation(transforms=["RandAugment"])
    with pytest.raises(ConfigurationError, match="shift must be at least 0"):
        Augmentation(shift=-1)


def test_torchvision_built_for_another_torch_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "torchvision" / "transforms"
    broken.mkdir(parents=True)
    (broken.parent / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')", encoding="utf-8")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigurationError, match=r"cannot be imported \(operator torchvision::nms .*\): install the build that matches this torch"
    ):
        Augmentation(transforms=["RandAugment"])


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the library, with one transform that draws from torch's global random state."""

    class Noise:
        def __init__(self, amount: int = 3) -> None:
            self.amount = amount

        def __call__(self, image: torch.Tensor) -> torch.Tensor:
            return image // 2 + torch.randint(self.amount, image.shape, dtype=torch.uint8)

    class Normalize:
        def __call__(self, image: torch.Tensor) -> torch.Tensor:
            raise TypeError("Input tensor should be a float tensor. Got torch.uint8.")

    v2: Any = ModuleType("torchvision.transforms.v2")
    v2.Noise, v2.Normalize, v2.ConvertImageDtype = Noise, Normalize, lambda: lambda image: image / 255
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", v2)


@pytest.mark.usefixtures("torchvision")
def test_a_named_transform_draws_by_seed_epoch_and_image_only(rng: np.random.Generator) -> None:
    given = images(rng, count=4)
    state = torch.get_rng_state()
    changed = Augmentation(transforms=[{"name": "Noise", "amount": 9}], seed=5)(given, torch.tensor([2, 0]), epoch=1)
    assert torch.equal(state, torch.get_rng_state())
    again = Augmentation(transforms=[{"name": "Noise", "amount": 9}], seed=5)
    torch.rand(7)
    assert torch.equal(again(given, torch.tensor([0]), epoch=1)[0], changed[1])
    assert not torch.equal(again(given, torch.tensor([0]), epoch=2)[0], changed[1])
    assert Augmentation(transforms=["Noise"])(given, torch.tensor([1]), epoch=0).shape == (1, 2, 6, 5)


@pytest.mark.usefixtures("torchvision")
def test_unknown_transforms_and_arguments_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"has no 'Nois'. Did you mean 'Noise'"):
        Augmentation(transforms=["Nois"])
    with pytest.raises(ConfigurationError, match=r"augmentation Noise: .*unexpected keyword argument 'size'"):
        Augmentation(transforms=[{"name": "Noise", "size": 1}])


@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize(("name", "message"), [("Normalize", "Normalize failed on .* float"), ("ConvertImageDtype", "leave images")])
def test_a_transform_of_batches_or_floats_is_named(name: str, message: str, rng: np.random.Generator) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Augmentation(transforms=["Noise", name])(images(rng), torch.tensor([1]), epoch=0)
