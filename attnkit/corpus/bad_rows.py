"""The handling of unusable rows."""

from typing import Literal, get_args

from attnkit.registry import ConfigurationError

OnBadRows = Literal["error", "skip"]


class BadRows:
    """The unusable rows of one split: `error` raises at the first one, `skip` omits and counts them.

    If a file is read several times, each row is counted once.

    Args:
        on_bad_rows: How to handle them (default: `error`, for readers without this setting: messages do not mention it).

    Attributes:
        first: The location of the first skipped row, and what is wrong with it.

    Raises:
        ConfigurationError: `on_bad_rows` is neither.

    Example:
        >>> bad = BadRows("skip")
        >>> for _ in range(2):
        ...     bad.add("train.csv:7", "3 cells, but the header has 2")
        >>> len(bad), bad.first
        (1, 'train.csv:7: 3 cells, but the header has 2')
    """

    def __init__(self, on_bad_rows: OnBadRows | None = None) -> None:
        if on_bad_rows not in (None, *get_args(OnBadRows)):
            raise ConfigurationError(f"on_bad_rows must be error or skip, but is {on_bad_rows!r}")
        self._on_bad_rows = on_bad_rows
        self._places: set[str] = set()
        self.first: str | None = None

    def __len__(self) -> int:
        return len(self._places)

    def add(self, where: str, reason: str) -> None:
        """Skip a row.

        Raises:
            ConfigurationError: Bad rows are errors.
        """
        message = f"{where}: {reason}"
        if self._on_bad_rows != "skip":
            hint = "" if self._on_bad_rows is None else ". Correct the row, or omit such rows with on_bad_rows: skip"
            raise ConfigurationError(message.removesuffix(".") + hint if hint else message)
        self._places.add(where)
        self.first = self.first or message
