"""Images from arrays, from folders of files, and from the hub."""

import io
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnkit.corpus.hub import HUB, load_hub, stored_row
from attnkit.corpus.image_decoding import SUFFIXES, ImageDecoder
from attnkit.corpus.media import Stored, read_usable, shown
from attnkit.corpus.reading import chosen_by
from attnkit.corpus.tables import BadRows
from attnkit.files import nearest_beside, read_member, regular, search
from attnkit.registry import ConfigurationError, nearest

ARRAYS = (".npy", ".npz")

CHANNELS = (1, 3)

MAX_CLASSES = 1 << 20  # maximum number of classes if labels are an array

Location = str | list[str]


@dataclass(frozen=True)
class Images:
    """Images as stored, before normalisation."""

    pixels: Tensor  # [N, C, H, W] uint8
    labels: Sequence[str] | Sequence[int] | None  # the class of each image, by name or by number; None without labels
    names: Sequence[str]  # the name of each image: a path, or an index
    notes: Mapping[str, int] = field(default_factory=dict)  # notes on reading for the summary, with the numbers of images

    def select(self, indices: Sequence[int]) -> "Images":
        """Return the images at these indices."""
        labels: Any = None if self.labels is None else [self.labels[i] for i in indices]
        return Images(self.pixels[torch.as_tensor(indices)], labels, [self.names[i] for i in indices])


def read_images(
    location: Location,
    *,
    labelled: bool,
    shape: Sequence[int] | None = None,
    columns: Sequence[str] = ("image", "label"),
    class_names: bool = True,
    max_rows: int | None = None,
    streaming: bool = False,
    bad_rows: BadRows | None = None,
) -> Images:
    """Read images.

    - `.npz`: the array `images`, and with labels the array `labels`.
    - `[images.npy, labels.npy]`; without labels, `images.npy`.
    - A folder: with labels, one sub-folder of image files per class; without, the image files in it. They are read in alphabetical order.
    - An image file (without labels).
    - `hub:NAME:SPLIT` or `hub:NAME:CONFIG:SPLIT`: read by the `datasets` library.

    Arrays are uint8: [N, H, W] (greyscale), [N, H, W, C] or [N, C, H, W] with 1 or 3 channels. Labels are integers from 0. Image files
    and images from the hub are read by pillow, and rotated upright according to their EXIF data. They are converted to 1 (greyscale) or
    3 (colour) channels and resized as `shape` says (default: as the first image; all others must then have its height and width, and be
    greyscale if it is). Of 16-bit values, the upper 8 bits are used; transparency is ignored. Hidden files and folders (`.name`) are not
    read, and damaged files are `bad_rows`. Arrays are never changed. Named classes from the hub are returned by name if `class_names`,
    otherwise by number.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "digits.npz")
        >>> np.savez(path, images=np.zeros((5, 8, 8), np.uint8), labels=np.arange(5))
        >>> read_images(str(path), labelled=True).pixels.shape
        torch.Size([5, 1, 8, 8])
    """
    bad = BadRows() if bad_rows is None else bad_rows
    if isinstance(location, str) and location.startswith(HUB):
        return _from_hub(location, labelled, shape, columns, class_names, max_rows, streaming, bad)
    paths = [Path(part) for part in ([location] if isinstance(location, str) else location)]
    if not paths:
        raise ConfigurationError("the list of image files is empty")
    for path in paths:
        if not path.exists():
            raise ConfigurationError(f"there are no images {str(path)!r} (looked in {path.parent.resolve()}).{nearest_beside(path)}")
    path, suffixes = paths[0], [path.suffix.lower() for path in paths]
    if len(paths) == 1 and path.is_dir():
        return _from_folder(path, labelled, shape, bad)
    if suffixes == [".npz"]:
        return _from_arrays(str(path), *_from_archive(path, labelled))
    if suffixes == [".npy", ".npy"] and labelled:
        return _from_arrays(str(path), _mapped(path), _mapped(paths[1]))
    if suffixes == [".npy"] and not labelled:
        return _from_arrays(str(path), _mapped(path), None)
    if len(paths) == 1 and suffixes[0] in SUFFIXES and not labelled:
        return _from_files(paths, None, shape, bad)
    forms = "a folder with a sub-folder for each class, a .npz file, or [images.npy, labels.npy]" if labelled else "a folder, file or array"
    raise ConfigurationError(f"{location!r} cannot be read as {'labelled ' if labelled else ''}images: give {forms}")


def _from_arrays(where: str, images: Any, labels: Any) -> Images:
    if images.dtype != np.uint8:
        raise ConfigurationError(f"{where}: images must be uint8 (from 0 to 255), but are {images.dtype}; convert them before saving")
    pixels = torch.from_numpy(np.ascontiguousarray(images))
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.ndim == 4 and pixels.shape[1] not in CHANNELS:
        pixels = pixels.permute(0, 3, 1, 2).contiguous()
    if pixels.ndim != 4 or pixels.shape[1] not in CHANNELS or pixels.numel() == 0:
        raise ConfigurationError(f"{where}: images must have shape [N, H, W], [N, H, W, C] or [N, C, H, W], but have {list(images.shape)}")
    if labels is None:
        return Images(pixels, None, [str(i) for i in range(len(pixels))])
    if labels.shape != (len(pixels),) or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise ConfigurationError(
            f"{where}: labels must be {len(pixels)} integers from 0, one for each image, "
            f"but are {labels.dtype} of shape {list(labels.shape)}"
        )
    if labels.max() >= MAX_CLASSES:
        raise ConfigurationError(f"{where}: labels must be below {MAX_CLASSES:,}, but one is {labels.max()}")
    return Images(pixels, labels.tolist(), [str(i) for i in range(len(pixels))])


def _from_archive(path: Path, labelled: bool) -> tuple[Any, Any]:
    try:
        with zipfile.ZipFile(regular(path)) as archive:
            found = [name.removesuffix(".npy") for name in archive.namelist()]
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise ConfigurationError(f"{path} is truncated, damaged or not a .npz file ({error})") from error
    names = ("images", "labels") if labelled else ("images",)
    if missing := [name for name in names if name not in found]:
        raise ConfigurationError(f"{path} has no array {missing[0]!r}; it has {', '.join(found[:20]) or 'none'}")
    members = [(f"{path}: {name}", io.BytesIO(read_member(path, f"{name}.npy"))) for name in names]
    arrays = [_array(where, partial(np.lib.format.read_array, content, allow_pickle=False)) for where, content in members]
    return arrays[0], arrays[1] if labelled else None


def _array(where: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # parsing the header may raise almost anything
        raise ConfigurationError(f"{where} is truncated, damaged or not a .npy file ({error})") from error


def _mapped(path: Path) -> Any:
    """Return the array in a .npy file; it is memory-mapped first, so that no more is allocated than the file really holds."""
    return _array(str(path), lambda: np.array(np.load(regular(path), mmap_mode="r", allow_pickle=False)))


def _from_folder(folder: Path, labelled: bool, shape: Sequence[int] | None, bad_rows: BadRows) -> Images:
    search(str(folder))  # for the record of a study's run
    if not labelled:
        files, others = files_below(folder)
        if not files:
            raise ConfigurationError(f"{folder} has no image files ({', '.join(SUFFIXES)})")
        return _from_files(files, None, shape, bad_rows, others)
    entries = [f for f in sorted(folder.iterdir()) if not f.name.startswith(".")]
    if unreadable := [f for f in entries if f.is_dir() and shown(f) != str(f)]:
        raise ConfigurationError(f"the name of the class folder {shown(unreadable[0])} is not UTF-8, so it cannot be written: rename it")
    found = {f.name: files_below(f) for f in entries if f.is_dir()}
    if empty := [name for name, (files, _) in found.items() if not files]:
        raise ConfigurationError(f"{folder}: the folder of the class {empty[0]!r} has no image files ({', '.join(SUFFIXES)})")
    if not found:
        raise ConfigurationError(f"{folder} has no sub-folders: it needs one for each class, containing its images")
    pairs = [(file, name) for name, (files, _) in found.items() for file in files]
    others = [f for f in entries if not f.is_dir()] + [file for _, left in found.values() for file in left]
    return _from_files([f for f, _ in pairs], [label for _, label in pairs], shape, bad_rows, others)


def files_below(folder: Path, *, suffixes: Sequence[str] = SUFFIXES) -> tuple[list[Path], list[Path]]:
    """Return the files in a folder tree that have one of these suffixes, and the others, both without hidden files and sorted by name.

    Links to folders within the tree are not followed, and are among the others.
    """
    if folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve()):
        raise ConfigurationError(f"{folder} is a link to a folder that contains it; give each class its own images")
    try:
        paths = [f for f in sorted(folder.rglob("*")) if not any(part.startswith(".") for part in f.relative_to(folder).parts)]
        files = [f for f in paths if f.suffix.lower() in suffixes]
        return files, [f for f in paths if f.suffix.lower() not in suffixes and (f.is_file() or f.is_symlink())]  # rglob follows no links
    except (OSError, RecursionError) as error:
        raise ConfigurationError(f"{folder} cannot be searched for files ({error})") from error


def left_out(others: Sequence[Path]) -> dict[str, int]:
    """Return the note about files that are not read; empty if there are none."""
    return {f"other files ignored, such as {others[0]}": len(others)} if others else {}


def _from_files(
    files: Sequence[Path], labels: Sequence[str] | None, shape: Sequence[int] | None, bad_rows: BadRows, others: Sequence[Path] = ()
) -> Images:
    pixels, kept, notes = _stacked((Stored(shown(file), is_sound=False, path=str(file)) for file in files), shape, bad_rows)
    return Images(pixels, None if labels is None else [labels[i] for i in kept], [shown(files[i]) for i in kept], notes | left_out(others))


def _from_hub(
    location: str,
    labelled: bool,
    shape: Sequence[int] | None,
    columns: Sequence[str],
    class_names: bool,
    max_rows: int | None,
    streaming: bool,
    bad_rows: BadRows,
) -> Images:
    data = load_hub(location, streaming=streaming, media=columns[0])
    for column in columns if labelled else columns[:1]:
        found = list(data.column_names or next(iter(data), {}))
        if column not in found:
            raise ConfigurationError(
                f"{location}: no column {column!r}.{nearest(column, found)} Columns found: {', '.join(found)}. {chosen_by(columns)}"
            )
    labels: list[Any] = []

    def files() -> Iterator[Stored]:
        for i, row in enumerate(islice(data, max_rows)):
            label = row[columns[1]] if labelled else None
            labels.append(str(label) if isinstance(label, float) and not math.isnan(label) else label)  # a name: only integers are ids
            yield stored_row(f"{location}, row {i}", row, columns[0], is_sound=False)

    pixels, kept, notes = _stacked(files(), shape, bad_rows)
    names = [f"{location}, row {i}" for i in kept]
    if not labelled:
        return Images(pixels, None, names, notes)
    chosen = [labels[i] for i in kept]
    known = getattr((data.features or {}).get(columns[1]), "names", None)
    if known and (wrong := [label for label in chosen if label not in range(len(known))]):
        raise ConfigurationError(f"{location}: an image has the label {wrong[0]!r}, which is not one of the {len(known)} classes")
    return Images(pixels, [known[i] for i in chosen] if known and class_names else chosen, names, notes)


def _stacked(files: Iterable[Stored], shape: Sequence[int] | None, bad_rows: BadRows) -> tuple[Tensor, list[int], dict[str, int]]:
    """Return images as one tensor [N, C, H, W] uint8, the indices of their files, and how many were changed and how."""
    decode = ImageDecoder(shape)
    found = read_usable(files, decode, bad_rows)
    if not found:
        raise ConfigurationError(f"none of the images can be used. The first skipped image: {bad_rows.first}")
    return torch.stack(list(found.values())), list(found), dict(decode.notes)
