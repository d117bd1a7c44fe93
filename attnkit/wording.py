"""Wording of messages."""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1.

    Example:
        >>> counted(1, "text"), counted(24310, "pair")
        ('1 text', '24,310 pairs')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def adjective(split: str) -> str:
    """Return the name of a split in the form that precedes a noun.

    Example:
        >>> adjective("train"), adjective("test")
        ('training', 'test')
    """
    return {"train": "training", "predict": "prediction"}.get(split, split)
