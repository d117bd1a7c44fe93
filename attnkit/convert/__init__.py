"""Published models: `load` builds one from a folder in transformers' format, `load_task` adds its tokenizer, and `save` writes one.

Each family file describes one family, or several that share parameter names: how to convert between configurations and specs, and a table
of renames.
"""

from attnkit.convert.exporting import save
from attnkit.convert.importing import load, load_task

__all__ = ["load", "load_task", "save"]
