"""Data sections of earlier versions in today's words: data modules of the first edition are framings of a corpus today."""

from collections.abc import Mapping
from typing import Any

_SPLITS = ("train", "validation", "test", "validation_fraction", "on_bad_rows")
_CORPORA: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "text_pairs": ("text_pairs", "files", _SPLITS),
    "labelled_text": ("labelled_text", "files", _SPLITS),
    "labelled_images": ("labelled_images", "files", _SPLITS),
    "text": ("text", "files", (*_SPLITS, "test_fraction", "separator")),
    "cmudict": ("text_pairs", "cmudict", ()),
    "scan": ("text_pairs", "scan", ("split", "validation_commands")),
    "libreoffice_help": ("text_pairs", "libreoffice_help", ("source", "target", "folder")),
    "kjv": ("text", "kjv", ("folder",)),
    "movie_snippets": ("labelled_text", "movie_snippets", ("folder",)),
    "fashion_mnist": ("labelled_images", "fashion_mnist", ("folder", "validation_images")),
}
"""Data sets of the first edition: their framing and corpus of today, and the arguments that belong to the corpus today."""
_CLASSES = ("CMUDict", "Scan", "LibreOfficeHelp", "KJV", "MovieSnippets", "FashionMNIST")
"""Names of the classes of those that are corpora today: keys of what they have saved, the tokenizers that they have trained."""
_COLUMNS = ("source_column", "target_column", "column", "text_column", "image_column", "label_column")  # in the order of today's `columns`
_RENAMED = {"max_validation_words": "max_validation_sources", "max_validation_pairs": "max_validation_sources"}
_UNLABELLED: dict[Any, dict[str, Any]] = {
    "imdb": {"name": "imdb"},
    "imdb_passages": {"name": "imdb"},
    **{domain: {"name": "movie_snippets", "domain": domain} for domain in ("amazon", "editorials", "tweets")},
}
_PASSAGE_WORDS = 80  # the length of the passages of `imdb_passages`
_ONE_SOURCE = ("cmudict", "scan", "libreoffice_help", "kjv", "movie_snippets", "fashion_mnist", "imdb")
"""Corpora that once had the argument `on_bad_rows`, although none of their rows is bad."""


def in_todays_words(section: Any, checkpoint: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """Return a data section in today's words, which need not be valid, and what it cannot say; None if its data module is unknown.

    Every default is written in the section; the checkpoint has the tokenizers that the data module trained.
    """
    if not isinstance(section, Mapping):
        return None, []
    return ({**section, **_second_edition(section)}, []) if "corpus" in section else _first_edition(section, checkpoint)


def _second_edition(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the corpora of a section, whose arguments have changed since."""
    unlabelled = section.get("unlabelled")
    more = {"unlabelled": [_corpus(spec) for spec in unlabelled]} if isinstance(unlabelled, list) else {}
    return {"corpus": _corpus(section["corpus"]), **more}


def _corpus(spec: Any) -> Any:
    if not isinstance(spec, Mapping):
        return spec
    name, arguments = spec.get("name"), {key: value for key, value in spec.items() if key != "name"}
    if name == "hub":
        location = [part for part in (arguments.pop("path", None), arguments.pop("config", None)) if isinstance(part, str)]
        return {"name": "files", "hub": ":".join(location), **arguments}
    if name in _ONE_SOURCE:
        arguments.pop("on_bad_rows", None)
        if arguments.get("source") == "package":  # the same rows, from where they are: files that a script writes, or the hub
            arguments["source"] = "auto"
    return {"name": name, **arguments}


def _first_edition(section: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    saved = {key: value for name in _CLASSES if isinstance(state := checkpoint.get(name), Mapping) for key, value in state.items()}
    arguments: dict[str, Any] = {
        _RENAMED.get(str(key), str(key)): value if value is None else saved.get(key, value) for key, value in section.items()
    }
    name = arguments.pop("name", None)
    if name == "span_corruption":  # of the text of another data set
        text = arguments.pop("text", None)
        inner, lost = in_todays_words({"name": text} if isinstance(text, str) else text, {})
        return (None, []) if inner is None else ({"name": name, "corpus": inner["corpus"], **arguments}, lost)
    if not isinstance(name, str) or name not in _CORPORA:
        return None, []
    framing, corpus, own = _CORPORA[name]
    columns = {"columns": found} if (found := [arguments.pop(key) for key in _COLUMNS if key in arguments]) else {}
    spec = {"name": corpus, **{key: arguments.pop(key) for key in own if key in arguments}, **columns}
    lost = []
    if sources := arguments.get("unlabelled"):
        translated, lost = _unlabelled(sources, folder=spec.get("folder", "data"))
        arguments |= translated
    return {"name": framing, "corpus": spec, **arguments}, lost


def _unlabelled(sources: Any, *, folder: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments for unlabelled texts, and the sources that no longer exist, or whose texts were cut in another way."""
    listed = list(sources) if isinstance(sources, list | tuple) else [sources]
    names = [source for source in listed if isinstance(source, str) and source in _UNLABELLED]
    known = [name for name in names if name != "imdb" or "imdb_passages" not in names]
    where = {} if folder == "data" else {"folder": folder}
    passages = {"passage_words": _PASSAGE_WORDS} if "imdb_passages" in known else {}
    lost = [f"unlabelled {source!r:.40}" for source in listed if source not in known]
    return {"unlabelled": [{**_UNLABELLED[source], **where} for source in known], **passages}, lost
