"""Tokenizers: text to token ids and back. `attnkit.tokenizers.names()` lists them."""

from attnkit.tokenizer.base import SymbolTokenizer, Tokenizer

__all__ = ["SymbolTokenizer", "Tokenizer"]
