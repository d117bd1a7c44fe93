# https://arxiv.org/abs/1310.4546
"""A map of words in a plane."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from attnkit.embedding.similarity import WordSpace, plane
from attnkit.probe.base import Probe, Row
from attnkit.registry import ConfigurationError, probes
from attnkit.task import Task
from attnkit.task.words import word_vectors


@probes.register("word_map")
class WordMap(Probe):
    r"""The positions of words in the plane of the first two principal components of their vectors, and the words nearest to each.

    Limits: It shows the two directions in which these words differ most, not the others: words that are close in the plane
    may be far apart in all directions, which `nearest` takes into account.

    The vectors, of unit length, are those of the embedding, before any layer.

    Equation:
        $$X - \bar X = U S V^\top, \quad (\mathrm{first}, \mathrm{second}) = U_{1,2} S_{1,2}$$

    Paper: Mikolov et al. 2013, https://arxiv.org/abs/1310.4546 (figure 2)

    Args:
        words: The words (default: 24, at equal distances in the vocabulary).
        neighbours: Number of nearest words.
    """

    x = "word"
    y = ("first", "second")
    as_points = True
    needs_data = False

    def __init__(self, *, words: Sequence[str] = (), neighbours: int = 5) -> None:
        if isinstance(words, str):
            raise ConfigurationError(f"words must be a list, as in [{words!r}], but is the string {words!r}")
        if (words and len(set(words)) < 2) or neighbours < 1:
            raise ConfigurationError(f"a map needs at least 2 words and 1 neighbour, but has {len(set(words))} and {neighbours}")
        self.words, self.neighbours = list(dict.fromkeys(words)), neighbours

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        space = WordSpace(*word_vectors(task))
        words = self.words or space.words[:: -(-len(space.words) // 24)]
        places = plane(space.vectors[[space.id(word) for word in words]]).tolist()
        return [
            {"word": word, "first": first, "second": second, "nearest": " ".join(w for w, _ in space.neighbours(word, self.neighbours))}
            for word, (first, second) in zip(words, places, strict=True)
        ]
