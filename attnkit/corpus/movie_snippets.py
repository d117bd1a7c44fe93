"""Sentences with human ratings of their sentiment."""

from typing import ClassVar, Literal

from typing_extensions import override

from attnkit.corpus.base import LabelCorpus, Labelled, Labels, Part
from attnkit.corpus.named import Named
from attnkit.registry import corpora

Domain = Literal["movies", "amazon", "editorials", "tweets"]


@corpora.register("movie_snippets")
class MovieSnippets(Named, LabelCorpus):
    """10,605 sentences from movie reviews, each rated by 20 people from -4 (most negative) to 4 (most positive).

    The label is the mean rating or one of three classes: as in the paper, the mean rating divided by 4 is `negative` up to -0.05,
    `positive` from 0.05, and `neutral` in between (5,252, 5,167 and 186 sentences; the bounds belong to the outer classes).

    The splits are attnkit's, because the paper has none: a hash of the text selects the split, so the splits are mixed (the file is sorted)
    and reproducible, and repeated sentences are in one split only. A tenth is for validation and a tenth for test.

    Source: Hutto and Gilbert 2014, https://doi.org/10.1609/icwsm.v8i1.14550, from the sdist of the PyPI package `vaderSentiment` 0.5
    (MIT). No copy on the hub is known to have these ratings.

    Args:
        domain: The rated texts: `movies` or, from the same sdist, sentences from Amazon reviews (`amazon`, 3,708), sentences from New York
            Times editorials (`editorials`, 5,190) or `tweets` (4,200).
        folder: The folder with the files of `python scripts/movie_snippets.py`.
        labels: `class`, or `number`: the mean rating.

    Raises:
        ConfigurationError: The files are missing (the message has the command that creates them), or a file is damaged.
    """

    script: ClassVar = "movie_snippets"
    digests: ClassVar = {
        "movies/train": "831570dc452523c8",
        "movies/validation": "54eeb56450bd9698",
        "movies/test": "06ae9b6e4f5f5f72",
    }

    def __init__(self, *, domain: Domain = "movies", folder: str = "data", labels: Labels = "class") -> None:
        super().__init__(folder=folder, variant=domain)
        self.labels = labels

    @override
    def labelled(self, part: Part) -> list[Labelled]:
        rows = self.read(part, ["text", "label", "rating"])
        return [(text, rating if self.labels == "number" else label) for text, label, rating in rows]
