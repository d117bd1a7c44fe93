# https://arxiv.org/abs/1301.3781
"""Word vectors from a file."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnkit.embedding.base import Embedding, VectorCounts, looked_up, refuse_segments
from attnkit.embedding.vectors import read_vectors
from attnkit.linear import Linear
from attnkit.registry import ConfigurationError, embeddings


@embeddings.register("pretrained")
class Pretrained(Embedding):
    r"""Word vectors from a file (word2vec, GloVe), frozen or fine-tuned, followed by a linear map if their width is not `d_model`.

    Equation:
        $$x_t = W \, v_{w_t} \ \text{for words in the file}, \quad x_t = W \, u_{w_t} \ \text{for others}$$

    Paper: Mikolov et al. 2013, https://arxiv.org/abs/1301.3781; Pennington et al. 2014, https://aclanthology.org/D14-1162 (GloVe)

    `load_vectors` reads the file once, before training starts; from then on, checkpoints contain the vectors. Supported formats are
    word2vec's text and `.bin`, GloVe's text, and `.npy` with a list of words in another file; see `read_vectors`.

    Initialisation: words without a vector get one from a normal distribution with the standard deviation of the known vectors' elements,
    which is always trained. The output projection cannot be tied to this embedding.

    Args:
        vocab_size: Number of tokens V.
        d_model: Width D.
        path: Path of the file.
        dim: Width of the file's vectors.
        tune: Whether to train the file's vectors too. Otherwise nothing changes them, not even weight decay.
        lowercase: Whether a word that is missing from the file uses the vector of its lower-case form (GloVe 6B, for instance, is all
            lower case). An exact match takes precedence.
        scale: Whether to divide all vectors by a number that gives their elements a mean square of one, as in embedding `token`.

    Raises:
        ValueError: `vocab_size` or `dim` is not positive.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "vectors.txt")
        >>> _ = path.write_text("the 0.5 1 2\ncat -2 3 1\n")
        >>> embedding = Pretrained(vocab_size=3, d_model=4, path=str(path), dim=3)
        >>> print(embedding.load_vectors(["<unk>", "The", "cat"]))
        2 of 3 words have a vector (1 only in lower case), 1 do not
        >>> embedding(torch.tensor([[1, 2, 0]])).shape
        torch.Size([1, 3, 4])
    """

    weight: None
    known: Tensor
    vectors: Tensor | None

    def __init__(
        self, *, vocab_size: int, d_model: int, path: str, dim: int, tune: bool = False, lowercase: bool = True, scale: bool = True
    ) -> None:
        super().__init__()
        if vocab_size < 1 or dim < 1:
            raise ValueError(f"vocab_size and dim must be positive, but are {vocab_size} and {dim}")
        self.path, self.dim, self.tune, self.lowercase, self.scale = path, dim, tune, lowercase, scale
        self.rows = nn.Parameter(torch.empty(vocab_size, dim))  # if not tuned, only rows of words without a vector are used
        self.register_buffer("vectors", None if tune else torch.empty(vocab_size, dim))
        self.register_buffer("known", torch.empty(vocab_size, dtype=torch.bool))
        self.register_load_state_dict_post_hook(_restored)  # type: ignore[no-untyped-call]
        self.reset_parameters()
        self.projection = None if dim == d_model else Linear(dim, d_model, bias=False)

    def reset_parameters(self) -> None:
        """Draw all rows from a standard normal distribution, and discard the vectors. (The linear map initialises itself.)"""
        nn.init.normal_(self.rows)
        nn.init.zeros_(self.known)
        if self.vectors is not None:
            nn.init.zeros_(self.vectors)
        self._is_ready = False

    @torch.no_grad()
    def load_vectors(self, words: Sequence[str]) -> VectorCounts:
        """Read the file.

        Raises:
            ConfigurationError: The file is invalid (see `read_vectors`), or has none of the words.
            ValueError: The number of words is not V.
        """
        if len(words) != len(self.rows):
            raise ValueError(f"the vocabulary has {len(self.rows)} words, but {len(words)} were given")
        forms = {*words, *(word.lower() for word in words)} if self.lowercase else set(words)
        found = read_vectors(self.path, forms, dim=self.dim)
        exact = {i: found[word] for i, word in enumerate(words) if word in found}
        lower = {i: found[word.lower()] for i, word in enumerate(words) if self.lowercase and i not in exact and word.lower() in found}
        if not (both := exact | lower):
            raise ConfigurationError(
                f"{self.path} has none of the {len(words)} words of the vocabulary, such as {', '.join(map(repr, words[-3:]))}; "
                f"its words must match the tokenizer's (use tokenizer 'word')"
            )
        vectors = torch.from_numpy(np.stack(list(both.values())))  # [known, dim]
        if self.scale:
            vectors /= vectors.square().mean().sqrt().clamp(min=torch.finfo(vectors.dtype).tiny)
        nn.init.normal_(self.rows, std=float(vectors.std(correction=0)))
        self.known.zero_()[list(both)] = True
        if self.vectors is None:
            self.rows[list(both)] = vectors.to(self.rows)
        else:
            self.rows[list(both)] = 0  # never used; at zero, weight decay cannot change them
            self.vectors.zero_()[list(both)] = vectors.to(self.vectors)
        self._is_ready = True
        return VectorCounts(len(exact), len(lower), len(words) - len(both))

    def forward(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        """Embed tokens [B, T] as [B, T, D]; raise a `ConfigurationError` if no vectors were loaded, or there are `segments`."""
        refuse_segments(segments)
        if not self._is_ready:
            raise ConfigurationError(f"the vectors of {self.path} are not loaded: call load_vectors(words) or load a checkpoint")
        x = looked_up(inputs, self.rows)  # [B, T, dim]
        if self.vectors is not None:
            x = torch.where(self.known[inputs][..., None], nn.functional.embedding(inputs, self.vectors), x)
        return x if self.projection is None else self.projection(x)


def _restored(module: nn.Module, incompatible_keys: Any) -> None:
    """Record after `load_state_dict` whether the state dict had vectors."""
    assert isinstance(module, Pretrained)
    module._is_ready = bool(module.known.any())
