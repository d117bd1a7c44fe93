"""Images and sound frames, with their texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from attnkit.corpus import image_decoding, sound_reading
from attnkit.corpus.image_decoding import ImageDecoder
from attnkit.corpus.image_reading import ARRAYS, files_below, left_out, read_images
from attnkit.corpus.media import Stored, read_usable, shown
from attnkit.corpus.reading import read_columns
from attnkit.corpus.sound_reading import read_sound
from attnkit.corpus.tables import BadRows, Column
from attnkit.registry import ConfigurationError

SUFFIXES = (*sound_reading.SUFFIXES, *image_decoding.SUFFIXES)


@dataclass(frozen=True)
class Signals:
    """Images or sounds."""

    arrays: Sequence[Tensor]  # images [C, H, W] uint8 of one shape, or frames [S, F] float32 of one width
    texts: Sequence[Sequence[str]] | None  # the texts of each, the canonical one first; None without texts
    names: Sequence[str]  # the name of each: a path or an index
    notes: Mapping[str, int] = field(default_factory=dict)  # notes on reading for the summary, with counts


def read_signals(
    location: str, *, shape: Sequence[int] | None, columns: Sequence[Column] = ("file",), bad_rows: BadRows | None = None
) -> Signals:
    """Read images or sounds without texts: a file, a folder of files, an array of images, or a table with a column of files."""
    path, others = Path(location), list[Path]()
    if path.suffix in ARRAYS:
        images = read_images(location, labelled=False)
        return Signals(list(images.pixels), None, images.names)
    if path.is_dir():
        paths, others = files_below(path, suffixes=SUFFIXES)
        files = [stored(file) for file in paths]
    elif path.suffix.lower() in SUFFIXES:
        files = [stored(path)]
    else:
        of_hub: dict[str, Stored] = {}
        names = [name for (name,) in read_columns(location, columns, bad_rows=bad_rows, stored=of_hub)]
        files = [of_hub.get(name) or stored(path.parent / name) for name in names]
    found = read_each([(file, ()) for file in files], shape=shape, bad_rows=BadRows() if bad_rows is None else bad_rows)
    return Signals(found.arrays, None, found.names, {**found.notes, **left_out(others)})


def stored(path: Path) -> Stored:
    """Return the `Stored` of an image or sound file."""
    return Stored(shown(path), is_sound=path.suffix.lower() not in image_decoding.SUFFIXES, path=str(path))


def read_each(files: Sequence[tuple[Stored, Sequence[str]]], *, shape: Sequence[int] | None, bad_rows: BadRows) -> Signals:
    """Read sounds and images; images are converted to `shape` (default: that of the first one). Unusable files are bad rows."""
    decode = ImageDecoder(shape)
    found = read_usable((file for file, _ in files), lambda file: read_sound(file) if file.is_sound else decode(file), bad_rows)
    if not found:
        skipped = f" can be used. The first skipped file: {bad_rows.first}" if bad_rows else f": {', '.join(SUFFIXES)}"
        raise ConfigurationError(f"none of the images or sounds{skipped}")
    usable = [files[i] for i in found]
    return Signals(list(found.values()), [texts for _, texts in usable], [file.name for file, _ in usable], decode.notes)
