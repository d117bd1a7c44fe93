"""Options shared by framings."""

from dataclasses import dataclass

from attnkit.registry import CorpusSpec, TokenizerSpec, require_at_least


@dataclass(frozen=True, kw_only=True)
class FramingConfig:
    """The options of every framing. A framing declares its own options in a subclass, and documents them and its corpora itself.

    Args:
        corpus: Spec of a corpus of the kind that the framing takes.
        predict: A file with the inputs for prediction, such as sources or prompts: `.txt` with one per line, or a table with a column of
            them. Their order is preserved.
        seed: Seed of the order, of all random draws and of the corpus; global random states have no effect.
        num_workers: Processes that load batches (0: the main process).

    Raises:
        ConfigurationError: The corpus is of another kind or cannot be read, or a number is out of range.
    """

    corpus: CorpusSpec
    predict: str | None = None
    seed: int = 0
    num_workers: int = 0

    def __post_init__(self) -> None:
        require_at_least(0, seed=self.seed, num_workers=self.num_workers)


@dataclass(frozen=True, kw_only=True)
class TokensConfig(FramingConfig):
    """The options of framings whose batches have similar numbers of tokens.

    Args:
        batch_tokens: Maximum number of positions in a batch over all processes, padding included.
    """

    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, batch_tokens=self.batch_tokens)


@dataclass(frozen=True, kw_only=True)
class RowsConfig(TokensConfig):
    """The options of framings that may omit long rows.

    Args:
        max_length: Training rows with more tokens than this, special tokens included, are omitted (default: no limit). Evaluation and
            prediction omit nothing.
    """

    max_length: int | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizedRowsConfig(RowsConfig):
    """The options of framings with one tokenizer that may omit long rows.

    Args:
        tokenizer: Spec of the tokenizer; an untrained one is trained on the training texts.
    """

    tokenizer: TokenizerSpec = "bpe"
