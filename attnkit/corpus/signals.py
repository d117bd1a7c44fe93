"""Images and frames of sound, with their texts, and how they are read."""

import io
import math
import wave
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attnkit.corpus.image_decoding import SUFFIXES, ImageDecoder
from attnkit.corpus.image_reading import ARRAYS, files_below, left_out, read_images
from attnkit.corpus.reading import read_columns
from attnkit.corpus.tables import BadRows, Column
from attnkit.files import read_bytes
from attnkit.registry import ConfigurationError, nearest

WAV = ".wav"
LARGEST_WAV = 64 << 20  # maximum bytes of a WAV file
FEATURES = 40  # channels of the mel spectrogram
HIGHEST = 8000.0  # Hz
REFERENCE_RATE = 16000
"""Samples per second of the sounds whose energies are not rescaled."""
STREAMED = 0x7FFFF000  # a header that claims this many bytes or more was written before their number was known, as to a pipe

_CONVERT = "convert it to 16 bits at 16000 Hz or more, as with: ffmpeg -i SOUND -c:a pcm_s16le -ar 16000 OUT.wav"


@dataclass(frozen=True)
class Signals:
    """Images or sounds."""

    arrays: Sequence[Tensor]  # images [C, H, W] uint8 of one shape, or frames [S, F] float32 of one width
    texts: Sequence[Sequence[str]] | None  # the texts of each, the canonical one first; None without texts
    names: Sequence[str]  # the name of each: a path, or an index
    notes: Mapping[str, int] = field(default_factory=dict)  # what the summary says of their reading, and of how many


def read_signals(
    location: str, *, shape: Sequence[int] | None, columns: Sequence[Column] = ("file",), bad_rows: BadRows | None = None
) -> Signals:
    """Read images or sounds without texts: a file, a folder of files, an array of images, or a table with a column of files."""
    path, others = Path(location), list[Path]()
    if path.suffix in ARRAYS:
        images = read_images(location, labelled=False)
        return Signals(list(images.pixels), None, images.names)
    if path.is_dir():
        files, others = files_below(path, suffixes=(WAV, *SUFFIXES))
    elif path.suffix.lower() in (WAV, *SUFFIXES):
        files = [path]
    else:
        files = [path.parent / file for (file,) in read_columns(location, columns, bad_rows=bad_rows)]
    if not files:
        raise ConfigurationError(f"{location} has no sounds ({WAV}) and no images ({', '.join(SUFFIXES)})")
    found, notes = read_files(map(str, files), shape=shape, bad_rows=bad_rows)
    return Signals(list(found.values()), None, list(found), notes | left_out(others))


def read_files(
    files: Iterable[str], *, shape: Sequence[int] | None, bad_rows: BadRows | None = None
) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the images [C, H, W] uint8 and the log-mel frames [S, 40] of WAV files, by path, and notes of how many images were changed.

    Images are converted to `shape` (default: that of the first one, which the others must have). `bad_rows` skips unusable files.
    """
    bad = BadRows() if bad_rows is None else bad_rows
    decoder, found = ImageDecoder(shape, bad), dict[str, Tensor]()
    for name in files:
        path = Path(name)
        if not path.is_file():
            beside = [f.name for f in path.parent.iterdir()] if path.parent.is_dir() else []
            bad.add(name, f"there is no such file (looked in {path.parent.resolve()}).{nearest(path.name, beside)}")
        elif path.suffix.lower() in SUFFIXES:
            if (image := decoder.file(path)) is not None:
                found[name] = image
        else:
            try:
                found[name] = _read_sound(path)
            except ValueError as error:
                bad.add(name, str(error))
    if not found:
        raise ConfigurationError(f"none of the images or sounds can be used. The first one that was skipped: {bad.first}")
    return found, dict(decoder.notes)


def _read_sound(path: Path) -> Tensor:
    """Return the log-mel frames [S, 40] of a WAV file, or raise a `ValueError`."""
    if path.suffix.lower() != WAV:
        raise ValueError(f"it is neither a sound ({WAV}) nor an image ({', '.join(SUFFIXES)})")
    try:
        with wave.open(io.BytesIO(read_bytes(path, limit=LARGEST_WAV))) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            data = file.readframes(file.getnframes())
            missing = file.getnframes() * width * channels - len(data)
    except (wave.Error, EOFError) as error:
        if "unknown format" in str(error):
            raise ValueError(f"it is a WAV file of {error}: {_CONVERT}") from error
        raise ValueError(f"it is truncated, damaged or not a WAV file ({error})") from error
    if width != 2 or rate < 2 * HIGHEST:
        raise ValueError(f"it has {8 * width} bits at {rate} Hz: {_CONVERT}")
    if missing > 0 and missing + len(data) < STREAMED:
        raise ValueError(f"it is truncated: {missing:,} of the {missing + len(data):,} bytes of its sound are missing")
    samples = np.frombuffer(data[: len(data) // (2 * channels) * 2 * channels], "<i2").reshape(-1, channels).mean(1) / 2**15
    if len(samples) < rate // 40:
        raise ValueError(f"it has {len(samples)} samples, less than one frame of 25 ms")
    return log_mel(torch.from_numpy(samples), rate=rate)


def log_mel(samples: Tensor, *, rate: int) -> Tensor:
    r"""Return the logarithms of the energies of 40 bands of the mel scale to 8 kHz, for frames of 25 ms every 10 ms, [S, 40] float32.

    Equation:
        $$f_{tc} = \log \frac{16000 \cdot 512}{r n} \sum_k M_{ck} \lvert X_{tk} \rvert^2, \quad
        \mathrm{mel}(f) = 2595 \log_{10}(1 + f / 700)$$

    with the short-time Fourier transform X (Hann window, n points at r samples per second; the factor makes a sound's energies the same at
    any rate) and triangles M between 42 equally spaced points of the mel scale (Davis and Mermelstein 1980,
    https://doi.org/10.1109/TASSP.1980.1163420).

    Example:
        >>> tone = torch.sin(2 * torch.pi * 440 * torch.arange(16000, dtype=torch.float64) / 16000)
        >>> frames = log_mel(tone, rate=16000)
        >>> frames.shape, int(frames.mean(0).argmax())
        (torch.Size([98, 40]), 7)
    """
    length, step = rate // 40, rate // 100
    size = 2 ** math.ceil(math.log2(length))
    window = torch.hann_window(length, dtype=torch.float64)
    spectrum = torch.fft.rfft(samples.double().unfold(0, length, step) * window, size).abs().square()  # [S, size / 2 + 1]
    highest = 2595 * math.log10(1 + HIGHEST / 700)
    edges = 700 * (10 ** (torch.linspace(0, highest, FEATURES + 2, dtype=torch.float64) / 2595) - 1)  # Hz
    bins = torch.arange(size // 2 + 1) * rate / size
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    triangles = torch.minimum(rising, falling).clamp(min=0)  # [F, size / 2 + 1]
    energies: Tensor = spectrum @ triangles.T * (REFERENCE_RATE * 512 / (rate * size))
    return energies.clamp(min=1e-10).log().float()
