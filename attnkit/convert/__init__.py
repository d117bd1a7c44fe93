"""Published models: `load` builds one from a folder in transformers' format, `load_task` with its tokenizer.

One file describes one family, or those with its names: how a configuration becomes a spec, and a table of renames.
"""

from attnkit.convert.importing import load, load_task

__all__ = ["load", "load_task"]
