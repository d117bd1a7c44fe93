# https://proceedings.mlr.press/v9/glorot10a.html
"""Each module's own initialisation."""

from attnkit.init.base import Init, Part
from attnkit.registry import inits


@inits.register("default")
class Default(Init):
    r"""Each module's own initialisation, as documented there: Glorot-uniform linear maps, tables with deviation d^-1/2, zero biases.

    Equation:
        $$W \sim U(-a, a), \quad a = \sqrt{6 / (\mathrm{fan\_in} + \mathrm{fan\_out})}$$

    Paper: Glorot and Bengio 2010, https://proceedings.mlr.press/v9/glorot10a.html

    Example:
        >>> import attnkit
        >>> sizes = {"d_model": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
        >>> one, other = (attnkit.compose(stack="encoder", feed_forward=kind, **sizes) for kind in ("mlp", "glu"))
        >>> for model in (one, other):
        ...     Default()(model, seed=1)
        >>> bool((one.head.projection.weight == other.head.projection.weight).all())
        True
    """

    def draw(self, part: Part) -> None:
        """Draw one module."""
        part.reset()
