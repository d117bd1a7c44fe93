"""Tokenizers: text to token ids and back. Names: `attnkit.tokenizers.names()`."""

from attnkit.registry import TokenizerSpec, tokenizers
from attnkit.tokenizer.base import SymbolTokenizer, Tokenizer

__all__ = ["SymbolTokenizer", "Tokenizer", "TokenizerSpec", "tokenizers"]
