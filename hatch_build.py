"""The long description of a distribution: README.md without the links that only work in a checkout."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

NOTE = "The pages of documentation that this text names are in the folder `docs` of the source distribution.\n"


def long_description(readme: str) -> str:
    """Return a README with its links to files as plain text: a package index shows no files, and the project has no public address yet.

    An image becomes its alternative text.

    Example:
        >>> print(long_description("![A map.](map.svg) See [the guide](docs/guide.md), [PyTorch](https://pytorch.org)."))
        A map. See the guide, [PyTorch](https://pytorch.org).
        <BLANKLINE>
        The pages of documentation that this text names are in the folder `docs` of the source distribution.
        <BLANKLINE>
    """
    return re.sub(r"!?\[([^\[\]]*)\]\((?!https?://|#)[^()\s]*\)", r"\1", readme) + f"\n\n{NOTE}"


class LongDescription(MetadataHookInterface):
    """Sets the field `readme` of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": long_description(text)}
