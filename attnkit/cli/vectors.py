"""`attnkit export CHECKPOINT --out vectors.txt`: the word vectors of a checkpoint."""

from attnkit.embedding.vectors import write_vectors
from attnkit.task import Task
from attnkit.task.words import word_vectors


def export_vectors(checkpoint: str, out: str) -> str:
    """Write the word vectors of a checkpoint in word2vec's text format, and return a line that says how to start from them.

    Raises:
        CheckpointError: The checkpoint cannot be used.
        ConfigurationError: Its model reads no tokens.
    """
    words, vectors = word_vectors(Task.load(checkpoint))
    count = write_vectors(out, words, vectors.numpy())
    dim = vectors.shape[1]
    return f"Wrote {out}: {count:,} words; embedding: {{name: pretrained, path: {out}, dim: {dim}}} starts from them"
