"""Tones instead of spoken words, in the folders and tables of the script."""

import wave
from pathlib import Path

import numpy as np

TONES = {"AA": 300, "IY": 900, "S": 4000}
"""Hertz of each phoneme."""


def write(folder: Path) -> None:
    """Write two sounds for each split and each phoneme."""
    for part in ("train", "validation", "test"):
        rows = ["file\ttext"]
        for phoneme, hertz in TONES.items():
            for length in (1, 2):
                path = Path(part, f"{phoneme.lower()}{length}.wav")
                (folder / "spoken_words" / part).mkdir(parents=True, exist_ok=True)
                write_tone(folder / "spoken_words" / path, hertz, seconds=length / 10)
                rows.append(f"{path.as_posix()}\t{' '.join([phoneme] * length)}")
        (folder / "spoken_words" / f"{part}.tsv").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def write_tone(path: Path, hertz: float, *, seconds: float) -> None:
    """Write a tone of 16 bits at 16 kHz."""
    samples = np.sin(2 * np.pi * hertz * np.arange(round(16000 * seconds)) / 16000)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes((samples * 10000).astype("<i2").tobytes())
