"""Hostile YAML."""

import os
from pathlib import Path

from tests.hostile.files.writing import text


def yaml_laughs(folder: Path) -> Path:
    """Aliases of aliases stand for 9 to the power of 9 texts."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    return text(folder, "a.yaml", "\n".join(lines))


def yaml_merges(folder: Path) -> Path:
    """Merge keys that double a mapping 40 times."""
    lines = ["a0: &a0 {x: 1}", *(f"a{i + 1}: &a{i + 1} {{<<: [*a{i}, *a{i}]}}" for i in range(40))]
    return text(folder, "a.yaml", "\n".join(lines))


def yaml_cycle(folder: Path) -> Path:
    """A list that contains itself."""
    return text(folder, "a.yaml", "model: &a [*a]")


def yaml_deep(folder: Path) -> Path:
    """100,000 lists inside each other."""
    return text(folder, "a.yaml", "[" * 100_000)


def yaml_code(folder: Path) -> Path:
    """A tag that makes unsafe loaders run a command."""
    return text(folder, "a.yaml", "model: !!python/object/apply:os.system ['touch \"$ATTNKIT_CANARY\"']")


def yaml_list_key(folder: Path) -> Path:
    """A list as a key."""
    return text(folder, "a.yaml", "{[model]: 1}")


def yaml_mapping_key(folder: Path) -> Path:
    """A mapping as a key."""
    return text(folder, "a.yaml", "{{model: a}: 1}")


def yaml_twice(folder: Path) -> Path:
    """A key twice, deep inside."""
    return text(folder, "a.yaml", "model: {stack: {d_model: 8, d_model: 9}}")


def yaml_huge_integer(folder: Path) -> Path:
    """An integer with more digits than Python converts."""
    return text(folder, "a.yaml", f"seed_everything: {'9' * 100_000}")


def yaml_sexagesimal(folder: Path) -> Path:
    """An integer to the base of 60 with as many digits as fit."""
    return text(folder, "a.yaml", f"seed_everything: 1{':59' * 80_000}")


def yaml_infinite(folder: Path) -> Path:
    """A number that overflows."""
    return text(folder, "a.yaml", "trainer: {max_epochs: 1e999999}")


def yaml_nul(folder: Path) -> Path:
    """The character NUL, as an escape."""
    return text(folder, "a.yaml", 'data: {train: "a\\0b"}')


def yaml_surrogate(folder: Path) -> Path:
    """Half of a surrogate pair, as an escape."""
    return text(folder, "a.yaml", 'data: {train: "\\ud800"}')


def yaml_no_character(folder: Path) -> Path:
    """An escape beyond Unicode."""
    return text(folder, "a.yaml", '"\\UFFFFFFFF"')


def yaml_wrong_tag(folder: Path) -> Path:
    """A tag that does not suit its text."""
    return text(folder, "a.yaml", "trainer: {max_epochs: !!int many}")


def yaml_large(folder: Path) -> Path:
    """100 MB, most of it a hole."""
    path = text(folder, "a.yaml", "model: a\n#")
    os.truncate(path, 100 << 20)
    return path


def yaml_latin(folder: Path) -> Path:
    """Bytes that are not UTF-8."""
    return text(folder, "a.yaml", b"model: caf\xe9")


def yaml_pipe(folder: Path) -> Path:
    """A pipe that nobody writes to."""
    os.mkfifo(folder / "a.yaml")
    return folder / "a.yaml"


def yaml_device(folder: Path) -> Path:
    """A link to a device that never ends."""
    (folder / "a.yaml").symlink_to("/dev/zero")
    return folder / "a.yaml"


def yaml_folder(folder: Path) -> Path:
    """A folder."""
    (folder / "a.yaml").mkdir()
    return folder / "a.yaml"
