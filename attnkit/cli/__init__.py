"""The command line: parsing arguments, help, completion and schema."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnkit.cli.attnkit_cli import AttnkitCLI

__all__ = ["AttnkitCLI"]


def __getattr__(name: str) -> Any:  # lazy: imports torch and Lightning, which `attnkit list` does not need
    if name == "AttnkitCLI":
        from attnkit.cli.attnkit_cli import AttnkitCLI

        return AttnkitCLI
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
