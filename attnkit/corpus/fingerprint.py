"""A hash of rows."""

import hashlib
from collections.abc import Iterable


def fingerprint(cells: Iterable[str | bytes]) -> str:
    """Return a hash of texts: of their content, their boundaries and their order.

    Example:
        >>> fingerprint(["ab", "c"]) == fingerprint(iter([b"ab", "c"]))
        True
        >>> fingerprint(["ab", "c"]) == fingerprint(["a", "bc"])
        False
    """
    total = hashlib.sha256()
    for cell in cells:
        data = cell if isinstance(cell, bytes) else cell.encode(errors="surrogatepass")  # tokenizers reject surrogates clearly
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()
