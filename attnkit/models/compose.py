"""From names to a model."""

from collections.abc import Callable
from typing import Any

from attnkit.models.base import Model
from attnkit.models.decoder import DecoderModel
from attnkit.models.encoder import EncoderModel
from attnkit.models.encoder_decoder import EncoderDecoderModel
from attnkit.models.head import Tie
from attnkit.registry import ConfigurationError, EmbeddingSpec, StackSpec, embeddings, stacks
from attnkit.stack import DecoderStack, EncoderDecoderStack, EncoderStack

# shape of the stack -> the model around it, and the sizes that it needs and may have
_MODELS: tuple[tuple[type, Callable[..., Model], tuple[str, ...], tuple[str, ...]], ...] = (
    (EncoderStack, EncoderModel, ("vocab_size",), ("num_classes",)),
    (DecoderStack, DecoderModel, ("vocab_size",), ()),
    (EncoderDecoderStack, EncoderDecoderModel, ("src_vocab_size", "tgt_vocab_size"), ()),
)


def compose(
    *,
    stack: StackSpec,
    vocab_size: int | None = None,
    src_vocab_size: int | None = None,
    tgt_vocab_size: int | None = None,
    num_classes: int | None = None,
    embedding: EmbeddingSpec = "token",
    tie: Tie = "none",
    pad_id: int = 0,
    bos_id: int = 1,
    eos_id: int | None = 2,
    **stack_arguments: Any,
) -> Any:
    """Build a model from names.

    Args:
        stack: The stack: its name with the arguments beside it, or a mapping with both. Its shape decides the model: `EncoderModel`,
            `DecoderModel` or `EncoderDecoderModel`, which say how they are called.
        vocab_size: Tokens of an encoder or decoder.
        src_vocab_size: Source tokens of an encoder-decoder.
        tgt_vocab_size: Target tokens of an encoder-decoder.
        num_classes: Classes of an encoder that classifies (default: logits for each token).
        embedding: The embedding.
        tie: Which tables are shared: `none`, `output` (target embedding and output), `all` (source embedding too).
        pad_id: Fills the rows of a batch.
        bos_id: Starts a target.
        eos_id: Ends a sequence, or None for never.
        **stack_arguments: The stack's own arguments, such as `d_model`, `attention` or `position`; checked against the stack.

    Returns:
        A `torch.nn.Module` with the attribute `spec`: plain data from which `attnkit.compose(**model.spec)` builds the same model.

    Raises:
        ConfigurationError: An unknown name or argument, a value of the wrong type, or an illegal combination.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(
        ...     stack="encoder_decoder", d_model=16, num_layers=2, num_heads=4, attention={"name": "additive", "hidden_dim": 8},
        ...     position="learned", residual="post_norm", src_vocab_size=20, tgt_vocab_size=30)
        >>> model.spec["attention"]
        {'name': 'additive', 'hidden_dim': 8}
        >>> type(attnkit.compose(**model.spec)).__name__
        'EncoderDecoderModel'
    """
    name, own = stacks.split(stack)
    if twice := set(own) & set(stack_arguments):
        raise ConfigurationError(f"stack {name!r} has {', '.join(sorted(twice))} twice: in the mapping and beside it")
    resolved = stacks.resolve({"name": name, **own, **stack_arguments})
    found = [m for m in _MODELS if issubclass(stacks.get(name), m[0])]
    if not found:
        raise ConfigurationError(f"stack {name!r} is no EncoderStack, DecoderStack or EncoderDecoderStack: let its class inherit from one")
    _, model_class, needed, optional = found[0]
    sizes = {"vocab_size": vocab_size, "src_vocab_size": src_vocab_size, "tgt_vocab_size": tgt_vocab_size, "num_classes": num_classes}
    given = {size: value for size, value in sizes.items() if value is not None}
    if wrong := [size for size in given if size not in needed + optional]:
        raise ConfigurationError(f"a model with stack {name!r} takes {' and '.join(needed + optional)}, not {' and '.join(wrong)}")
    if missing := [size for size in needed if size not in given]:
        raise ConfigurationError(f"a model with stack {name!r} needs {' and '.join(missing)}: the number of tokens of its vocabulary")
    ids = {"pad_id": pad_id, "bos_id": bos_id, "eos_id": eos_id}
    rest = {**given, "embedding": embeddings.resolve(embedding), "tie": tie, **ids}
    model = model_class(stack=resolved, **rest)
    model.spec = {**resolved, "stack": name, **rest}
    del model.spec["name"]
    return model
