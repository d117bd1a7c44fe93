"""The embedding of a model's inputs: tokens of a vocabulary, images of a shape, or frames of a width."""

from collections.abc import Mapping, Sequence

from attnkit.embedding import Embedding
from attnkit.registry import ConfigurationError, EmbeddingSpec, embeddings


def input_embedding(
    spec: EmbeddingSpec, *, d_model: int, vocab_size: int | None, shape: Sequence[int] | None, arguments: tuple[str, str]
) -> Embedding:
    """Build an embedding with the size of its inputs: `vocab_size`, or the `shape` of an image [C, H, W] or a frame [F].

    `arguments` has the names of the two sizes for messages.
    """
    name = embeddings.resolve(spec).name
    reads = embeddings.get(name).reads
    needed, other = arguments if reads == "tokens" else arguments[::-1]
    if (vocab_size is not None, shape is not None) != (reads == "tokens", reads != "tokens"):
        words = {"image": "images"}.get(reads, reads)
        raise ConfigurationError(f"embedding {name!r} reads {words}: the model needs {needed}, and takes no {other}")
    sizes: Mapping[str, object] = {"vocab_size": vocab_size}
    if shape is not None:
        if len(shape) != (axes := {"image": 3, "frames": 1}[reads]):
            raise ConfigurationError(f"embedding {name!r} reads {reads} of {axes} axes in each example, but {needed} is {list(shape)}")
        sizes = {"image_shape": list(shape)} if reads == "image" else {"num_features": shape[0]}
    embedding: Embedding = embeddings.build(spec, **sizes, d_model=d_model)
    return embedding
