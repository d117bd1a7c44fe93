"""Linear recurrences over time, in chunks and in parallel: what the linear-time mixers are made of."""
