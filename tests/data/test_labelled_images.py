import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples.framed import framed

import attnkit
from attnkit import ConfigurationError
from attnkit.corpus.image_reading import read_images
from attnkit.data.labelled_images import ImageBatchSampler, LabelledImages
from attnkit.data.loading import Share
from attnkit.strategy.sharing import DataShare


def make(**arguments: Any) -> LabelledImages:
    data: LabelledImages = framed("labelled_images", **arguments)
    return data


@pytest.fixture
def arrays(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(256, size=(23, 6, 5, 3), dtype=np.uint8), rng.permutation(23) % 4


@pytest.fixture
def path(tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]) -> str:
    np.savez(tmp_path / "a.npz", images=arrays[0], labels=arrays[1])
    return str(tmp_path / "a.npz")


def write_folder(folder: Path, images: dict[str, np.ndarray]) -> Path:
    pillow = pytest.importorskip("PIL.Image")
    for name, image in images.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(image).save(folder / name)
    return folder


def epoch(data: LabelledImages, number: int = 0) -> dict[str, torch.Tensor]:
    """Return all batches of an epoch of training as one."""
    loader = data.train_dataloader()
    loader.sampler.set_epoch(number)  # type: ignore[union-attr]
    batches: list[Any] = list(loader)
    return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}


def test_channels_are_normalised_with_training_statistics(path: str, arrays: tuple[np.ndarray, np.ndarray]) -> None:
    data = make(train=path, test=path, batch_size=5)
    assert data.image_shape == [3, 6, 5]
    assert data.classes == ["0", "1", "2", "3"]
    training = epoch(data)
    torch.testing.assert_close(training["image"].mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(training["image"].std((0, 2, 3), correction=0), torch.ones(3))
    np.testing.assert_allclose(data.normalisation, [f(arrays[0] / 255, (0, 1, 2)) for f in (np.mean, np.std)])
    test = list(data.test_dataloader())
    names = [int(name) for batch in test for name in batch["text"]]
    assert sorted(names) == list(range(23))
    images = torch.cat([batch["image"] for batch in test])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in data.normalisation)
    expected = torch.from_numpy(arrays[0][names]).permute(0, 3, 1, 2)
    torch.testing.assert_close((images * std + mean) * 255, expected.float(), atol=1e-3, rtol=0)
    assert torch.cat([batch["label"] for batch in test]).tolist() == arrays[1][names].tolist()


def test_training_order_is_a_function_of_seed_and_epoch(path: str) -> None:
    first, again = epoch(make(train=path, shift=1, flip=True)), epoch(make(train=path, shift=1, flip=True))
    assert torch.equal(first["image"], again["image"])
    for other in (epoch(make(train=path, shift=1, flip=True), 1), epoch(make(train=path, seed=1, shift=1, flip=True))):
        assert not torch.equal(first["image"], other["image"])
    assert set(first) == {"example", "image", "label"}


def test_evaluation_is_not_augmented_and_its_order_is_fixed(path: str) -> None:
    plain, augmented = make(train=path, test=path), make(train=path, test=path, shift=2, flip=True)
    (expected,), (batch,) = plain.test_dataloader(), augmented.test_dataloader()
    assert torch.equal(batch["image"], expected["image"])
    assert batch["text"] == expected["text"] != [str(i) for i in range(23)]


@pytest.mark.parametrize("order", ["shuffled", "fixed", "given"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_processes_share_every_image_once(order: Any, ranks: int, rng: np.random.Generator) -> None:
    count, size = int(rng.integers(20, 60)), int(rng.integers(2, 7))
    samplers = [ImageBatchSampler(range(count), batch_size=size, order=order, seed=3, share=DataShare(ranks, r)) for r in range(ranks)]
    batches = [share.batch for share in samplers[0]]
    lengths = {len(batch) for batch in batches}
    assert max(lengths) <= size
    assert max(lengths) - min(lengths) <= 1
    shares = [list(sampler) for sampler in samplers]
    assert {len(own) for own in shares} == {len(samplers[0])} == {len(batches)}
    assert sorted(i for own in shares for share in own if not share.is_filler for i in share.rows.tolist()) == list(range(count))


LITERALS = {  # as one process had them before batches were shared
    "shuffled": [[7, 4, 10, 1], [2, 5, 9, 0], [8, 6, 3]],
    "fixed": [[9, 7, 0, 2], [1, 4, 6, 10], [5, 3, 8]],
    "given": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]],
}


@pytest.mark.parametrize("order", LITERALS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_batches_do_not_depend_on_the_number_of_processes(order: Any, ranks: int) -> None:
    sampler = ImageBatchSampler(range(11), batch_size=4, order=order, seed=3, share=DataShare(ranks, ranks - 1))
    sampler.set_epoch(1)
    assert [share.batch.tolist() for share in sampler] == LITERALS[order]
    assert [share.rows.tolist() for share in sampler] == [batch[ranks - 1 :: ranks] for batch in LITERALS[order]]


def test_augmentation_depends_only_on_seed_epoch_and_image(path: str) -> None:
    options: dict[str, Any] = {"train": path, "batch_size": 6, "shift": 2, "flip": True}
    loader: Any = make(**options).train_dataloader()
    examples = loader.dataset
    whole = examples[Share(batch=[3, 9, 4, 7], epoch=2)]
    parts = [examples[Share(batch=[3, 9, 4, 7], epoch=2, rank=rank, processes=5)] for rank in range(5)]
    for name in ("example", "image", "label"):
        joined = torch.cat([part[name] for part in (parts[0], parts[1], parts[2], parts[3])])
        assert torch.equal(joined, whole[name]), name
    assert (parts[4]["example"].tolist(), len(parts[4]["image"]), len(parts[4]["label"])) == ([-1], 1, 0)
    assert not torch.equal(examples[Share(batch=[3, 9, 4, 7], epoch=3)]["image"], whole["image"])


def test_a_checkpoint_restores_classes_shape_and_normalisation(path: str, tmp_path: Path) -> None:
    state = make(train=path, classes=["a", "b", "c", "d"]).state_dict()
    np.save(tmp_path / "new.npy", np.full((2, 3, 6, 5), 7, np.uint8))
    data = make(predict=str(tmp_path / "new.npy"))  # no training data
    data.load_state_dict(state)
    assert (data.classes, data.image_shape) == (["a", "b", "c", "d"], [3, 6, 5])
    (batch,) = data.predict_dataloader()
    mean, std = data.normalisation
    torch.testing.assert_close(batch["image"][1, :, 2, 3], (7 / 255 - torch.tensor(mean)) / torch.tensor(std))
    assert batch["text"] == ["0", "1"]
    assert "label" not in batch


def test_given_mean_and_std_are_used(path: str) -> None:
    given = make(train=path, mean=[0.5, 0.5, 0.5], std=[0.5, 0.25, 0.5])
    image = epoch(given)["image"]
    assert image.abs().amax((0, 2, 3))[0] <= 1
    assert image.abs().amax((0, 2, 3))[1] > 1
    given.load_state_dict(make(train=path).state_dict())
    assert given.normalisation == ([0.5, 0.5, 0.5], [0.5, 0.25, 0.5])


def test_a_constant_channel_becomes_zero(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.full((4, 2, 2), 9, np.uint8), labels=np.arange(4))
    assert epoch(make(train=str(tmp_path / "a.npz")))["image"].abs().max() < 1e-6


def test_validation_images_are_held_out_from_training(path: str) -> None:
    data = make(train=path, validation_fraction=0.2, batch_size=4)
    held = [name for batch in data.val_dataloader() for name in batch["text"]]
    assert len(held) == 5
    assert len(epoch(data)["label"]) == 18
    assert make(train=path).val_dataloader() == []
    everything = read_images(path, labelled=True)
    kept = data.corpus.images("train", shape=None)
    assert sorted([*held, *kept.names]) == sorted(everything.names)


def test_equal_images_are_in_one_split_and_other_images_are_noticed(tmp_path: Path, arrays: tuple[np.ndarray, np.ndarray]) -> None:
    """`aside` identifies the images themselves: with other files of the same number, a model may be tested on its training images."""

    def splits(images: np.ndarray) -> tuple[list[set[bytes]], str | None]:
        np.savez(tmp_path / "twice.npz", images=np.concatenate([images, images]), labels=np.tile(arrays[1], 2))
        corpus = make(train=str(tmp_path / "twice.npz"), validation_fraction=0.3).corpus
        found = [corpus.images(part, shape=None).pixels for part in ("train", "validation")]
        assert sum(map(len, found)) == 46
        return [{image.numpy().tobytes() for image in pixels} for pixels in found], corpus.aside

    (train, validation), aside = splits(arrays[0])
    assert (len(validation), len(train & validation)) == (7, 0)
    assert splits(arrays[0])[1] == aside != splits(np.roll(arrays[0], 1, axis=0))[1]


@pytest.mark.parametrize("layout", ["NHW", "NHWC", "NCHW"])
def test_arrays_of_every_layout_are_read(layout: str, tmp_path: Path, rng: np.random.Generator) -> None:
    images = rng.integers(256, size=(5, 3, 7, 6), dtype=np.uint8)
    stored = {"NHW": images[:, 0], "NHWC": images.transpose(0, 2, 3, 1), "NCHW": images}[layout]
    np.save(tmp_path / "x.npy", stored)
    np.save(tmp_path / "y.npy", np.arange(5))
    read = read_images([str(tmp_path / "x.npy"), str(tmp_path / "y.npy")], labelled=True)
    np.testing.assert_array_equal(read.pixels, images[:, :1] if layout == "NHW" else images)
    assert read.labels == [0, 1, 2, 3, 4]


def test_folders_name_the_classes_and_files_are_resized_to_one_shape(tmp_path: Path, rng: np.random.Generator) -> None:
    grey, colour = rng.integers(256, size=(8, 6), dtype=np.uint8), rng.integers(256, size=(8, 6, 3), dtype=np.uint8)
    folder = write_folder(tmp_path / "train", {"dog/1.png": grey, "cat/2.png": grey, "cat/deep/3.PNG": colour})
    (folder / "dog" / "notes.txt").write_text("no image")
    with pytest.raises(ConfigurationError, match=r"3.PNG is in colour, but the first image is greyscale; set image_shape: \[3, 8, 6\]"):
        read_images(str(folder), labelled=True)
    data = make(train=str(folder), test=str(folder), predict=str(folder / "cat"), image_shape=[1, 8, 6])
    assert (data.classes, data.image_shape) == (["cat", "dog"], [1, 8, 6])
    images = data.corpus.images("train", shape=[1, 8, 6])
    np.testing.assert_array_equal(images.pixels[0, 0], grey)
    assert [Path(name).name for name in images.names] == ["2.png", "3.PNG", "1.png"]
    (batch,) = data.predict_dataloader()
    assert [Path(name).name for name in batch["text"]] == ["2.png", "3.PNG"]
    resized = make(train=str(folder), image_shape=[3, 4, 4])
    assert epoch(resized)["image"].shape == (3, 3, 4, 4)
    single = read_images(str(folder / "cat" / "2.png"), labelled=False)
    assert single.pixels.shape == (1, 1, 8, 6)


def test_left_out_files_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grey, colour = np.zeros((8, 6), np.uint8), np.zeros((9, 6, 3), np.uint8)
    train = write_folder(tmp_path / "train", {"cat/1.png": grey, "dog/1.png": grey + 1, "loose.png": grey})
    test = write_folder(tmp_path / "test", {"cat/1.png": grey, "cat/2.png": colour, "dog/deep/3.png": colour})
    for path in (train / "cat" / "a.heic", train / "dog" / "b.heic", train / "cat" / ".DS_Store"):
        path.write_bytes(b"")
    write_folder(train, {".ipynb_checkpoints/1.png": grey, "cat/.ipynb_checkpoints/1.png": grey})
    (train / "cat" / "more").symlink_to(test / "cat")  # a folder, whose images are not read
    data = make(train=str(train), test=str(test), predict=str(test))
    assert data.classes == ["cat", "dog"]
    list(data.train_dataloader())
    assert f"train: 2 images; 4 other files ignored, such as {train / 'loose.png'}\n" in caplog.text
    for loader, part in ((data.test_dataloader(), "test"), (data.predict_dataloader(), "predict")):
        list(loader)
        assert f"{part}: 3 images; 2 converted to greyscale, 2 resized to 8 x 6\n" in caplog.text
    caplog.clear()
    shared = make(train=str(train), validation_fraction=0.5, classes=["cat", "dog"])
    list(shared.train_dataloader())
    list(shared.val_dataloader())
    assert caplog.text.count("other files ignored") == 1


def test_16_bit_images_keep_upper_bits_and_32_bit_ones_are_rejected(tmp_path: Path, rng: np.random.Generator) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pixels = rng.integers(2**16, size=(4, 5), dtype=np.uint16)
    for name in ("a.png", "a.tif"):
        pillow.fromarray(pixels).save(tmp_path / name)
        read = read_images(str(tmp_path / name), labelled=False).pixels
        np.testing.assert_array_equal(read[0, 0], pixels // 256)
    for dtype in (np.int32, np.float32):
        pillow.fromarray(pixels.astype(dtype)).save(tmp_path / "a.tif")
        with pytest.raises(ConfigurationError, match="32-bit numbers: save it with 8 bits"):
            read_images(str(tmp_path / "a.tif"), labelled=False)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_upright_like_pillow(orientation: int, tmp_path: Path, rng: np.random.Generator) -> None:
    pillow = pytest.importorskip("PIL.Image")
    from PIL.ImageOps import exif_transpose

    exif = pillow.Exif()
    exif[0x0112] = orientation
    pillow.fromarray(rng.integers(256, size=(4, 6, 3), dtype=np.uint8)).save(tmp_path / "a.jpg", exif=exif)
    with pillow.open(tmp_path / "a.jpg") as image:
        expected = np.asarray(exif_transpose(image)).transpose(2, 0, 1)
    np.testing.assert_array_equal(read_images(str(tmp_path / "a.jpg"), labelled=False).pixels[0], expected)


def test_files_of_different_sizes_and_damaged_ones_are_named(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = write_folder(tmp_path, {"a/1.png": np.zeros((4, 4), np.uint8), "a/2.png": np.zeros((4, 5), np.uint8)})
    with pytest.raises(ConfigurationError, match=r"2.png has 4 x 5 pixels, but the first image has 4 x 4; to resize all, set image_shape"):
        read_images(str(folder), labelled=True)
    (folder / "a" / "2.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(ConfigurationError, match=r"2.png: it is damaged, or not an image"):
        read_images(str(folder), labelled=True)
    (folder / "b").mkdir()
    with pytest.raises(ConfigurationError, match="folder of the class 'b' has no image files"):
        read_images(str(folder), labelled=True)


def test_damaged_images_are_skipped_and_counted_in_training_and_prediction(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = {f"{name}/{i}.png": np.full((4, 4), i, np.uint8) for name in ("cat", "dog") for i in range(3)}
    folder = write_folder(tmp_path / "train", images)
    (folder / "cat" / "1.png").write_bytes(b"\x89PNG nothing")
    data = make(train=str(folder), on_bad_rows="skip", predict=str(folder / "cat"))
    found = epoch(data)
    assert sorted(found["label"].tolist()) == [0, 0, 1, 1, 1]
    assert f"train: 5 images; 1 bad row skipped, first: {folder}/cat/1.png: it is damaged" in caplog.text
    assert [Path(name).name for batch in data.predict_dataloader() for name in batch["text"]] == ["0.png", "2.png"]
    assert "predict: 2 images; 1 bad row skipped" in caplog.text
    with pytest.raises(ConfigurationError, match="or omit such rows with on_bad_rows: skip"):
        make(train=str(folder)).train_dataloader()
    for file in folder.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(ConfigurationError, match="none of the images can be used"):
        make(train=str(folder), on_bad_rows="skip").train_dataloader()


def test_a_class_missing_from_training_is_named(tmp_path: Path) -> None:
    image = np.zeros((4, 4), np.uint8)
    train = write_folder(tmp_path / "train", {"cat/1.png": image, "dog/1.png": image})
    test = write_folder(tmp_path / "test", {"cats/1.png": image})
    with pytest.raises(ConfigurationError, match=r"has the class 'cats', which is not among the training classes. Did you mean 'cat'"):
        make(train=str(train), test=str(test)).test_dataloader()


def test_hub_images_have_class_names(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    datasets, pillow = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    pixels = rng.integers(256, size=(3, 4, 5), dtype=np.uint8)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["zebra", "ape"])})
    stored = datasets.Dataset.from_dict({"image": [pillow.fromarray(p) for p in pixels], "label": [0, 1, 0]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, split: stored)
    data = make(train="hub:animals:train")
    assert (data.classes, data.image_shape) == (["ape", "zebra"], [1, 4, 5])
    images = data.corpus.images("train", shape=None)
    np.testing.assert_array_equal(images.pixels[:, 0], pixels)
    assert images.labels == ["zebra", "ape", "zebra"]
    with pytest.raises(ConfigurationError, match=r"no column 'lable'. Did you mean 'label'"):
        make(train="hub:animals:train", columns=["image", "lable"]).corpus.images("train", shape=None)


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_images_are_streamed_and_limited(streaming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, pillow = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["zebra", "ape"])})
    images = [pillow.fromarray(np.full((4, 5), i, np.uint8)) for i in range(9)]
    stored = datasets.Dataset.from_dict({"image": images, "label": [i % 2 for i in range(9)]}, features=features)
    asked: list[bool] = []

    def load(name: str, config: str | None, *, split: str, streaming: bool = False) -> object:
        asked.append(streaming)
        return stored.to_iterable_dataset() if streaming else stored

    monkeypatch.setattr(datasets, "load_dataset", load)
    data = make(train="hub:animals:train", streaming=streaming, max_rows=4)
    found = data.corpus.images("train", shape=None)
    assert (found.labels, found.pixels[:, 0, 0, 0].tolist()) == (["zebra", "ape"] * 2, [0, 1, 2, 3])
    assert asked == [streaming]
    with pytest.raises(ConfigurationError, match=r"no column 'lable'. Did you mean 'label'"):
        make(train="hub:animals:train", streaming=streaming, columns=["image", "lable"]).corpus.images("train", shape=None)


@pytest.mark.parametrize("framing", ["labelled_images", "signal_text"])
def test_file_names_that_are_not_utf8_can_be_written(framing: str, tmp_path: Path) -> None:
    pillow, name = pytest.importorskip("PIL.Image"), "caf\udce9.png"
    for part in ("train/a", "new"):
        (tmp_path / part).mkdir(parents=True)
        pillow.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / part / (name if part == "new" else "1.png"))
    (tmp_path / "train.tsv").write_text("train/a/1.png\ta\n")
    corpus = str(tmp_path / ("train.tsv" if framing == "signal_text" else "train"))
    data = attnkit.datasets.build({"name": framing, "corpus": corpus, "predict": str(tmp_path / "new")})
    batch = next(iter(data.predict_dataloader()))
    assert batch.get("text", batch.get("source")) == [str(tmp_path / "new" / r"caf\xe9.png")]
    (tmp_path / "train" / "\udcff").mkdir()
    with pytest.raises(ConfigurationError, match=r"class folder .*\\xff is not UTF-8, so it cannot be written: rename it"):
        read_images(str(tmp_path / "train"), labelled=True)


def test_hub_images_may_have_fractional_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, pillow = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    image, labels = pillow.fromarray(np.zeros((4, 5), np.uint8)), [float(i) for i in range(11)]
    stored = datasets.Dataset.from_dict({"image": [image] * 11, "label": labels})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, split: stored)
    data = make(train="hub:animals:train")
    assert [data.classes[i] for i in data.examples("train").labels] == [*map(str, labels)]  # "10.0" is sorted before "2.0"


def test_an_unlabelled_hub_image_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, pillow = pytest.importorskip("datasets"), pytest.importorskip("PIL.Image")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["zebra", "ape"])})
    image = pillow.fromarray(np.zeros((4, 5), np.uint8))
    stored = datasets.Dataset.from_dict({"image": [image, image], "label": [0, -1]}, features=features)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, split: stored)
    with pytest.raises(ConfigurationError, match="an image has the label -1, which is not one of the 2 classes"):
        read_images("hub:animals:train", labelled=True)


def test_without_pillow_the_error_names_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigurationError, match=r"image files need the package pillow: pip install 'attnkit\[images\]'"):
        read_images(str(tmp_path), labelled=True)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 4, 4), np.float32), np.zeros(2, int), "images must be uint8 .* but are float32"),
        (np.zeros((2, 4, 4, 5), np.uint8), np.zeros(2, int), r"must have shape \[N, H, W\].* but have \[2, 4, 4, 5\]"),
        (np.zeros((2, 4, 4), np.uint8), np.zeros(3, int), "labels must be 2 integers from 0"),
        (np.zeros((2, 4, 4), np.uint8), np.zeros(2), "labels must be 2 integers from 0"),
        (np.zeros((2, 4, 4), np.uint8), np.array([0, -1]), "labels must be 2 integers from 0"),
        (np.zeros((0, 4, 4), np.uint8), np.zeros(0, int), "must have shape"),
    ],
)
def test_arrays_of_an_unsupported_form_are_rejected(images: np.ndarray, labels: np.ndarray, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    with pytest.raises(ConfigurationError, match=message):
        read_images(str(tmp_path / "a.npz"), labelled=True)


def test_missing_damaged_or_unknown_files_are_rejected(path: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there are no images .*b.npz.* Did you mean 'a.npz'"):
        read_images(str(tmp_path / "b.npz"), labelled=True)
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:-100])
    with pytest.raises(ConfigurationError, match=r"truncated, damaged or not a .npz file"):
        read_images(path, labelled=True)
    np.savez(tmp_path / "x.npz", images=np.zeros((1, 2, 2), np.uint8))
    with pytest.raises(ConfigurationError, match="has no array 'labels'; it has images"):
        read_images(str(tmp_path / "x.npz"), labelled=True)
    (tmp_path / "x.csv").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be read as labelled images: give a folder"):
        read_images(str(tmp_path / "x.csv"), labelled=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"image_shape": [2, 4, 4]}, "1 or 3 channels"),
        ({"mean": [0.5]}, "mean and std go together"),
        ({"mean": [0.5], "std": [0.0]}, "std must be positive"),
        ({"classes": ["a", "a"]}, "'a' is listed twice"),
        ({"validation_fraction": 1.0}, "together below 1"),
        ({"validation": "x", "validation_fraction": 0.5}, "are mutually exclusive"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(train="x", **arguments)


def test_without_a_location_the_error_names_the_setting(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no training data: set data\.corpus.train"):
        make(test=path).image_shape  # noqa: B018
    with pytest.raises(ConfigurationError, match="mean and std need one number for each of 3 channels"):
        make(train=path, mean=[0.5], std=[0.5]).train_dataloader()
