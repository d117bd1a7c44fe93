"""Published models: `load` builds one from a folder in transformers' format, `load_task` with its tokenizer; `save` writes one.

One file describes one family, or those with its names: how a configuration becomes a spec and the reverse, and a table of renames.
"""

from attnkit.convert.exporting import save
from attnkit.convert.importing import load, load_task

__all__ = ["load", "load_task", "save"]
