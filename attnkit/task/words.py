"""The vectors of a task's words."""

import torch
from torch import Tensor

from attnkit.embedding import Embedding
from attnkit.embedding.vectors import write_vectors
from attnkit.models.base import generating
from attnkit.registry import ConfigurationError
from attnkit.task.base import Task
from attnkit.task.transfer import words_of
from attnkit.tokenizer import Tokenizer
from attnkit.wording import counted


def word_vectors(task: Task) -> tuple[list[str], Tensor]:
    """Return the words of a task's vocabulary, special tokens left out, and their vectors [V, D]; if there are two tables, the source's."""
    task.configure_model()
    for path, embedding in task.model.named_modules():
        if isinstance(embedding, Embedding) and embedding.reads == "tokens":
            words = words_of(task.hparams, path)
            ids = torch.arange(len(Tokenizer.special_tokens), len(words), device=task.device)
            with generating(task):
                return words[len(Tokenizer.special_tokens) :], embedding(ids[None])[0].float().cpu()
    raise ConfigurationError(f"the model of task {task.registered_name!r} has no word vectors")


def export_vectors(checkpoint: str, out: str) -> str:
    """Write the word vectors of a checkpoint in word2vec's text format, and return a line that says how to start from them."""
    words, vectors = word_vectors(Task.load(checkpoint))
    count = write_vectors(out, words, vectors.numpy())
    dim = vectors.shape[1]
    return f"Wrote {out}: {counted(count, 'word')}; embedding: {{name: pretrained, path: {out}, dim: {dim}}} starts from them"
