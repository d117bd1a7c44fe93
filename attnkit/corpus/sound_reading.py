"""Reads sound files as features."""

import io
import math
import wave
from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from attnkit.corpus.media import Stored, Unreadable

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg")
LARGEST = 64 << 20  # maximum bytes of a sound file, and of its 16-bit samples
FEATURES = 40  # channels of the mel spectrogram
HIGHEST = 8000.0  # Hz
REFERENCE_RATE = 16000
"""The sampling rate, in samples per second, at which energies are not rescaled."""
STREAMED = 0x7FFFF000  # a header that claims at least this many bytes was written before the size was known, as to a pipe


def read_sound(file: Stored) -> Tensor:
    """Return the log-mel frames [S, 40] of a sound, averaged over channels first; raise `Unreadable` if it cannot be used."""
    with file.open() as opened:
        content = opened.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise Unreadable(f"it is larger than {LARGEST:,} bytes, the limit for sounds")
    samples, rate = _pcm(content) or _by_soundfile(content)
    if rate < 2 * HIGHEST:
        raise Unreadable(f"it has {rate} samples per second, but the features need {2 * HIGHEST:.0f} or more")
    if len(samples) < rate // 40:
        raise Unreadable(f"it has {len(samples)} samples, less than one frame of 25 ms")
    if not np.isfinite(samples).all():
        raise Unreadable("some of its samples are NaN or infinite")
    return log_mel(torch.from_numpy(samples.mean(1)), rate=rate)


def _pcm(content: bytes) -> tuple[np.ndarray, int] | None:
    """Return the samples [N, channels] and the sampling rate of a 16-bit WAV file; None for any other file."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            data = file.readframes(file.getnframes())
            missing = file.getnframes() * width * channels - len(data)
    except (wave.Error, EOFError) as error:
        if content[:4] == b"RIFF" and "unknown format" not in str(error):
            raise Unreadable(f"it is truncated, damaged or not a WAV file ({error})") from error
        return None
    if width != 2:
        return None
    if missing > 0 and missing + len(data) < STREAMED:
        raise Unreadable(f"it is truncated: {missing:,} of the {missing + len(data):,} bytes of its sound are missing")
    return np.frombuffer(data[: len(data) // (2 * channels) * 2 * channels], "<i2").reshape(-1, channels) / 2**15, rate


def _by_soundfile(content: bytes) -> tuple[np.ndarray, int]:
    """Return the samples [N, channels] and the sampling rate of a sound in another format."""
    try:
        library = import_module("soundfile")
    except (ImportError, OSError) as error:  # OSError: the C library is missing
        raise Unreadable(
            "it is not a 16-bit WAV file: other sounds need the package soundfile (pip install 'attnkit[sounds]'), or convert it, as with: "
            "ffmpeg -i SOUND -c:a pcm_s16le -ar 16000 OUT.wav"
        ) from error
    try:
        with library.SoundFile(io.BytesIO(content)) as file:
            most = LARGEST // (2 * file.channels)
            samples, claimed, rate = file.read(most + 1, always_2d=True), file.frames, file.samplerate
    except library.LibsndfileError as error:
        raise Unreadable(f"it is damaged, or not a sound ({error})") from error
    if len(samples) > most:
        raise Unreadable(f"it has more than {most:,} samples in each channel")
    if len(samples) < claimed:
        raise Unreadable(f"it is truncated: {len(samples):,} of its {claimed:,} samples can be read")
    return samples, rate


def log_mel(samples: Tensor, *, rate: int) -> Tensor:
    r"""Return the log energies of 40 mel bands up to 8 kHz, for frames of 25 ms every 10 ms, [S, 40] float32.

    Equation:
        $$f_{tc} = \log \frac{16000 \cdot 512}{r n} \sum_k M_{ck} \lvert X_{tk} \rvert^2, \quad
        \mathrm{mel}(f) = 2595 \log_{10}(1 + f / 700)$$

    with the short-time Fourier transform X (Hann window, n points at r samples per second; the factor makes energies independent of the
    sampling rate) and triangular filters M between 42 equally spaced points on the mel scale (Davis and Mermelstein 1980,
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
