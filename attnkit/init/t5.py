# https://arxiv.org/abs/1910.10683
"""T5's initialisation."""

from torch import nn

from attnkit.attention.dot_product import DotProduct
from attnkit.init.base import Init, Part, set_normal
from attnkit.position import Position
from attnkit.registry import check_positive, inits


@inits.register("t5")
class T5(Init):
    r"""Normal distributions scaled by fan-in. Queries of an unscaled score (`dot_product`) are drawn smaller to compensate.

    Equation:
        $$W \sim N(0, 1 / \mathrm{fan\_in}), \quad W_Q \sim N(0, 1 / (d \, d_h)) \ \text{for dot product}, \quad
        W_{\mathrm{head}} \sim N(0, 1 / d), \quad E \sim N(0, 1)$$
        for embeddings E; position biases are Glorot-uniform

    Paper: Raffel et al. 2020, https://arxiv.org/abs/1910.10683 (in the authors' code; transformers draws $W_{\mathrm{head}}$ from N(0, 1),
    with which logits start at $\sqrt d$)

    All other modules draw as with `default`, as do the maps to the gates of `mlstm` and `rwkv7` and to the steps of
    `selective_state_space`, which begin at values of their own.

    Args:
        factor: Multiplies all standard deviations.

    Raises:
        ConfigurationError: `factor` is not positive.

    Example:
        >>> import attnkit
        >>> sizes = {"d_model": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 99}
        >>> model = attnkit.compose(stack="decoder", attention="dot_product", init="t5", **sizes)
        >>> round(model.stack.decoder.layers[0].mixer.query.weight.std().item() * (64 * 16) ** 0.5, 1)
        1.0
    """

    def __init__(self, *, factor: float = 1.0) -> None:
        check_positive(factor=factor)
        self.factor = factor

    def draw(self, part: Part) -> None:
        """Draw one module."""
        module = part.module
        if part.role == "table":
            set_normal(part, std=self.factor / getattr(module, "factor", 1.0))
        elif isinstance(module, nn.Linear) and part.role != "other":
            is_unscaled = part.path.endswith(".query") and type(getattr(part.parent, "attention", None)) is DotProduct
            width = module.in_features * (getattr(part.parent, "head_dim", 1) if is_unscaled else 1)
            set_normal(part, std=self.factor * width**-0.5)
        else:
            part.reset()
            if isinstance(module, Position) and "weight" in dict(module.named_parameters()):
                nn.init.xavier_uniform_(part.weight, gain=self.factor)
