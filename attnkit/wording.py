"""Wording of messages."""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1.

    Example:
        >>> counted(1, "text"), counted(24310, "pair")
        ('1 text', '24,310 pairs')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"
