"""Named data sets, read from files written by a script, or from the hub."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from typing_extensions import override

from attnkit.corpus.base import Corpus, Part
from attnkit.corpus.fingerprint import fingerprint
from attnkit.corpus.hub import HUB, ask_hub
from attnkit.corpus.reading import read_columns
from attnkit.registry import ConfigurationError

Source = Literal["auto", "files", "hub"]


class Named(Corpus):
    """A named data set.

    Its files are `FOLDER/NAME/PART.jsonl`, or `FOLDER/NAME/VARIANT/PART.jsonl` if it has variants. The script `scripts/NAME.py` writes
    them, and the corpus `files` can read them too. Some data sets are also on the hub.

    Args:
        folder: The folder that the script has written to.
        source: `files`, `hub`, or `auto`: the files if they exist, otherwise the hub, whose rows must then match the documented ones.
        variant: The sub-folder of the files.
    """

    script: ClassVar[str]  # the name of the script and of its folder of files
    suffix: ClassVar[str] = ".jsonl"  # the suffix of the files
    hub: ClassVar[str | None] = None  # the name of the data set on the hub; None if it is not there
    digests: ClassVar[Mapping[str, str]]  # the start of the `fingerprint` of each file's documented rows, where known

    def __init__(self, *, folder: str, source: Source = "files", variant: str = "") -> None:
        super().__init__()
        self.folder, self.source, self.variant = folder, source, variant

    @cached_property
    def chosen(self) -> str:
        """The source: `files` or `hub`."""
        if self.source == "auto":
            return "files" if self._file("train").is_file() else "hub"
        return self.source

    @override
    def check(self, part: Part) -> None:
        if self.chosen == "hub":
            _ = self._splits
        elif not self._file(part).is_file():
            hub = f"; or set source: hub for {HUB}{self.hub}" if self.hub else ""
            raise ConfigurationError(f"there is no {self._file(part)}; {self._command}{hub}")

    def location(self, part: Part) -> str:
        """Return the location of a split."""
        self.check(part)
        return f"{HUB}{self.hub}:{part}" if self.chosen == "hub" else str(self._file(part))

    def read(self, part: Part, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the rows of a split; only the first column must be text."""
        rows = read_columns(self.location(part), columns, numbers=columns[1:])
        self.compare(part, (cell for row in rows for cell in row))
        return rows

    def compare(self, part: Part, cells: Iterable[str | bytes]) -> None:
        """Compare rows with the documented ones; the split's summary says if they differ. With `auto`, the hub's rows must not differ."""
        location = self.location(part)
        documented = self.digests.get("/".join(filter(None, (self.variant, part))))
        differ = documented is not None and not fingerprint(cells).startswith(documented)
        if differ and self.source == "auto" and self.chosen == "hub":
            raise ConfigurationError(f"{location} has rows that differ from the documented ones: set source: hub to use them anyway")
        self.origins[part] = f"{location}{', whose rows differ from the documented ones' if differ else ''}"

    @cached_property
    def _splits(self) -> Any:
        try:
            return ask_hub("get_dataset_split_names", f"{HUB}{self.hub}", self.hub)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}. Without the hub, {self._command}") from error

    @property
    def _command(self) -> str:
        return f"run `python scripts/{self.script}.py --folder {self.folder}` in a checkout of attnkit's repository to download the data"

    def _file(self, part: Part) -> Path:
        return Path(self.folder, self.script, self.variant, f"{part}{self.suffix}")
