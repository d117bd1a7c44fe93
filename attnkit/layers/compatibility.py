"""Which position encodings work with which scores."""

from attnkit.position import Position
from attnkit.registry import AttentionSpec, ConfigurationError, PositionSpec, attentions, positions


def check_compatible(*, attention: AttentionSpec, position: PositionSpec, is_cross: bool = False) -> None:
    """Raise if a position encoding does not work with a score.

    Args:
        attention: The score.
        position: The position encoding.
        is_cross: Whether it is that of cross-attention, which has no embeddings of its own to add positions to.

    Raises:
        ConfigurationError: It does not; the message says why.

    Example:
        >>> check_compatible(attention="additive", position="alibi")
        >>> check_compatible(attention="additive", position="rotary")
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: position 'rotary' is not legal with attention 'additive': ...
    """
    position_name, attention_name = positions.resolve(position).name, attentions.resolve(attention).name
    kind = positions.get(position_name)
    if is_cross and kind.embedding is not Position.embedding:
        legal = [n for n in positions.names() if positions.get(n).embedding is Position.embedding]
        raise ConfigurationError(
            f"cross_position {position_name!r} is not legal: it adds to the embeddings, which `position` does already. "
            f"Choose one of: {', '.join(legal)}."
        )
    if kind.needs_inner_product and not attentions.get(attention_name).inner_product:
        legal = [n for n in attentions.names() if attentions.get(n).inner_product]
        raise ConfigurationError(
            f"position {position_name!r} is not legal with attention {attention_name!r}: it rotates queries and keys so that their inner "
            f"product depends on their distance, and the score of {attention_name!r} is not an inner product. "
            f"Choose another position, or one of these attentions: {', '.join(legal)}."
        )
