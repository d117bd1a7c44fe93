"""Recurrences over time, in chunks and in parallel: the building blocks of linear-time mixers."""
