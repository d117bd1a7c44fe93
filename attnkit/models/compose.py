"""Builds models from names."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Unpack, get_args, get_type_hints, overload

import torch
from torch._subclasses.fake_tensor import FakeTensor

from attnkit.init import Init
from attnkit.models.base import GeneratingModel, Model, Tie
from attnkit.models.classifier import ClassifierModel
from attnkit.models.decoder import DecoderModel
from attnkit.models.encoder import EncoderModel
from attnkit.models.encoder_decoder import EncoderDecoderModel
from attnkit.models.options import (
    DecoderArguments,
    EncoderArguments,
    EncoderClassifierArguments,
    EncoderDecoderArguments,
    RecurrentDecoderArguments,
    RecurrentDecoderClassifierArguments,
    RecurrentEncoderArguments,
    RecurrentEncoderClassifierArguments,
    RecurrentEncoderDecoderArguments,
)
from attnkit.models.pooling import Pooling
from attnkit.registry import (
    Argument,
    ConfigurationError,
    EmbeddingSpec,
    HeadSpec,
    InitSpec,
    MultiTokenSpec,
    ResolvedSpec,
    StackSpec,
    WrongType,
    embeddings,
    heads,
    inits,
    multi_tokens,
    require_at_least,
    stacks,
)
from attnkit.stack import DecoderStack, EncoderDecoderStack, EncoderStack

# the kind of stack, and whether the model classifies -> the model around the stack
_MODELS: tuple[tuple[type, bool, Callable[..., Model]], ...] = (
    (EncoderStack, False, EncoderModel),
    (DecoderStack, False, DecoderModel),
    (EncoderStack, True, ClassifierModel),
    (DecoderStack, True, ClassifierModel),
    (EncoderDecoderStack, False, EncoderDecoderModel),
)


# Type checkers take a stack that is not built in, or named by a variable, as {"name": name}: otherwise every typo would match.
@overload
def compose(*, stack: Literal["decoder"], **options: Unpack[DecoderArguments]) -> DecoderModel: ...
@overload
def compose(*, stack: Literal["recurrent_decoder"], **options: Unpack[RecurrentDecoderArguments]) -> DecoderModel: ...
@overload
def compose(*, stack: Literal["encoder"], **options: Unpack[EncoderArguments]) -> EncoderModel: ...
@overload
def compose(*, stack: Literal["recurrent_encoder"], **options: Unpack[RecurrentEncoderArguments]) -> EncoderModel: ...
@overload
def compose(*, stack: Literal["encoder_decoder"], **options: Unpack[EncoderDecoderArguments]) -> EncoderDecoderModel: ...
@overload
def compose(*, stack: Literal["recurrent_encoder_decoder"], **options: Unpack[RecurrentEncoderDecoderArguments]) -> EncoderDecoderModel: ...
@overload
def compose(*, stack: Literal["encoder", "decoder"], **options: Unpack[EncoderClassifierArguments]) -> ClassifierModel: ...
@overload
def compose(*, stack: Literal["recurrent_encoder"], **options: Unpack[RecurrentEncoderClassifierArguments]) -> ClassifierModel: ...
@overload
def compose(*, stack: Literal["recurrent_decoder"], **options: Unpack[RecurrentDecoderClassifierArguments]) -> ClassifierModel: ...
@overload
def compose(*, stack: Mapping[str, Any], **options: Any) -> Any: ...
def compose(
    *,
    stack: StackSpec,
    vocab_size: int | None = None,
    src_vocab_size: int | None = None,
    tgt_vocab_size: int | None = None,
    num_classes: int | None = None,
    image_shape: Sequence[int] | None = None,
    src_shape: Sequence[int] | None = None,
    pooling: Pooling | None = None,
    pooler: bool = False,
    embedding: EmbeddingSpec = "token",
    src_embedding: EmbeddingSpec | None = None,
    tie: Tie = "none",
    head: HeadSpec | None = None,
    multi_token: MultiTokenSpec | None = None,
    init: InitSpec = "default",
    pad_id: int = 0,
    bos_id: int = 1,
    eos_id: int | None = 2,
    **stack_arguments: Any,
) -> Any:
    """Build a model from names.

    Args:
        stack: The name of the stack, whose arguments follow as keywords, or a mapping with both. Its kind determines the model:
            `EncoderModel`, `DecoderModel` or `EncoderDecoderModel`, or with `num_classes`, `ClassifierModel`.
        vocab_size: Number of tokens of an encoder or decoder.
        src_vocab_size: Number of source tokens of an encoder-decoder.
        tgt_vocab_size: Number of target tokens of an encoder-decoder.
        num_classes: Number of outputs of an encoder or decoder for a whole sequence, or with `pooling="none"` for each token (default:
            logits of the vocabulary for each token).
        image_shape: Channels, height and width, in place of `vocab_size`, for an embedding that reads images.
        src_shape: The shape of a source other than text, in place of `src_vocab_size`: [channels, height, width] of an image, or
            [features] of each audio frame.
        pooling: With classes, the vector that represents a sequence: `class_token`, the first one (bos of a text, like BERT's [CLS], or an
            embedding's own class token; not for a decoder, whose first token sees no other); `mean` over all real tokens (default);
            `last`, the last real one; or `none` for outputs for each token.
        pooler: With classes: whether BERT's dense layer with tanh precedes the output map.
        embedding: The embedding.
        src_embedding: The embedding of the source of an encoder-decoder, such as `patch` or `frames` (default: `embedding`).
        tie: The tables that are shared: `none`, `output` (target embedding and output), `inputs` (source and target embeddings, as in
            T5 1.1), or `all` (both embeddings and the output: Vaswani et al., T5, Marian); the last two need a single vocabulary.
        head: Without classes: the map to the logits (default: `linear`).
        multi_token: With a decoder stack: the module that predicts further tokens in training (default: none).
        init: The initialisation, seeded by one number from torch's global generator: for equal seeds, parameters of equal name and shape
            start equal, whatever else differs.
        pad_id: The token that pads the rows of a batch.
        bos_id: The token that starts a target.
        eos_id: The token that ends a sequence, or None; that of a model that generates must be in its vocabulary.
        **stack_arguments: The stack's own arguments, such as `d_model`, `attention` or `position`; checked against the stack.

    Returns:
        A `torch.nn.Module` with the attribute `spec`: plain data from which `attnkit.compose(**model.spec)` builds the same model.

    Raises:
        ConfigurationError: A name or argument is unknown, a value has the wrong type or is out of range, or a combination is not legal.

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
    sizes = {"vocab_size": vocab_size, "src_vocab_size": src_vocab_size, "tgt_vocab_size": tgt_vocab_size, "num_classes": num_classes}
    special_tokens = {"pad_id": pad_id, "bos_id": bos_id, "eos_id": eos_id}
    _check_types(**sizes, image_shape=image_shape, src_shape=src_shape, pooler=pooler, **special_tokens)
    require_at_least(1, **sizes)
    require_at_least(0, **special_tokens)
    name, own = stacks.split(stack)
    if twice := set(own) & set(stack_arguments):
        raise ConfigurationError(f"stack {name!r} has {', '.join(sorted(twice))} twice: in the mapping and as a keyword")
    resolved = stacks.resolve({"name": name, **own, **stack_arguments} if stack_arguments else stack)
    shaped = {classifies: model for shape, classifies, model in _MODELS if issubclass(stacks.get(name), shape)}
    if not shaped:
        raise ConfigurationError(
            f"stack {name!r} is not an EncoderStack, DecoderStack or EncoderDecoderStack: let its class inherit from one"
        )
    classifies = num_classes is not None
    model_class: Any = shaped.get(classifies, shaped[False])
    options = {
        **sizes,
        "image_shape": None if image_shape is None else list(image_shape),
        "src_shape": None if src_shape is None else list(src_shape),
        "src_embedding": None if src_embedding is None else embeddings.resolve(src_embedding),
        "pooling": pooling,
        "pooler": pooler or None,
        "head": None if head is None else heads.resolve(head),
        "multi_token": None if multi_token is None else multi_tokens.resolve(multi_token),
        "tie": None if tie == "none" else tie,
    }
    given = {option: value for option, value in options.items() if value is not None}
    declared = {option: p for option, p in inspect.signature(model_class).parameters.items() if option in options}
    if wrong := [option for option in given if option not in declared]:
        kind = f"a model with stack {name!r}" + (" and num_classes" if classifies and "num_classes" in declared else "")
        raise ConfigurationError(f"{kind} takes {', '.join(declared)}, not {' and '.join(wrong)}")
    if missing := [size for size, p in declared.items() if p.default is p.empty and size not in given]:
        raise ConfigurationError(f"a model with stack {name!r} needs {' and '.join(missing)}: the number of tokens of its vocabulary")
    vocabulary = tgt_vocab_size if "tgt_vocab_size" in declared else vocab_size
    read = {"pad_id": pad_id} | ({"bos_id": bos_id} if "tgt_vocab_size" in declared else {})
    read |= {} if eos_id is None or not issubclass(model_class, GeneratingModel) else {"eos_id": eos_id}
    if vocabulary is not None and (outside := [token for token, number in read.items() if number >= vocabulary]):
        raise ConfigurationError(
            f"{outside[0]} is {read[outside[0]]}, outside the vocabulary of {vocabulary} tokens, 0 to {vocabulary - 1}"
            + ("; for a model without an end token, set eos_id to None" if outside[0] == "eos_id" else "")
        )
    if "head" in declared:
        given.setdefault("head", heads.resolve("linear"))
    reads = embeddings.resolve(embedding)
    if not classifies and embeddings.get(reads.name).reads != "tokens":
        cure = "set it as src_embedding" if "src_embedding" in declared else "the model needs num_classes"
        inputs = {"image": "images"}.get(kind := embeddings.get(reads.name).reads, kind)
        raise ConfigurationError(f"embedding {reads.name!r} reads {inputs}, so {cure}: it has no tokens to predict")
    if pooling not in (None, *get_args(Pooling)):
        raise ConfigurationError(f"pooling must be one of {', '.join(get_args(Pooling))}, but is {pooling!r}")
    drawn_seed = torch.randint(2**62, (), device="cpu")
    seed = 0 if isinstance(drawn_seed, FakeTensor) else int(drawn_seed)  # fake parameters have no numbers
    drawn: Init = inits.build(starts := inits.resolve(init))
    rest = {**given, **special_tokens}
    with torch.random.fork_rng(devices=[]):  # modules draw when they are built, which must not advance the global generator
        try:
            model = model_class(stack=resolved, embedding=reads, **rest)
        except ValueError as error:  # from a constructor, such as for a number out of range
            raise error if isinstance(error, ConfigurationError) else ConfigurationError(str(error)) from error
    drawn(model, seed)
    model.learning_rates = drawn.learning_rates(model)
    plain = {key: value.plain() if isinstance(value, ResolvedSpec) else value for key, value in rest.items()}
    model.spec = {**resolved.plain(), "stack": name, **plain, "embedding": reads.plain(), "init": starts.plain()}
    del model.spec["name"]
    return model


def _check_types(**values: Any) -> None:
    """Raise unless each value has the type of the `compose` argument of this name."""
    hints = get_type_hints(compose)
    for name, value in values.items():
        try:
            Argument(name, hints[name]).resolve(value)
        except WrongType as error:
            raise ConfigurationError(f"{name} {error}") from None
