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
    """Return a task's vocabulary without special tokens, and its vectors [V, D]; with two tables, the source's."""
    task.configure_model()
    for path, embedding in task.model.named_modules():
        if isinstance(embedding, Embedding) and embedding.reads == "tokens":
            words = words_of(task.hparams, path)
            ids = torch.arange(len(Tokenizer.special_tokens), len(words), device=task.device)
            with generating(task):
                return words[len(Tokenizer.special_tokens) :], embedding(ids[None])[0].float().cpu()
    raise ConfigurationError(f"the model of task {task.registered_name!r} has no word vectors")


def export_vectors(checkpoint: str, out: str) -> str:
    """Write a checkpoint's word vectors in word2vec's text format; return a line that says how to start from them."""
    words, vectors = word_vectors(Task.load(checkpoint))
    count = write_vectors(out, words, vectors.numpy())
    dim = vectors.shape[1]
    return f"Wrote {out}: {counted(count, 'word')}; embedding: {{name: pretrained, path: {out}, dim: {dim}}} starts from them"
