# https://arxiv.org/abs/1810.04805
"""BERT's initialisation."""

from attnkit.init.base import Init, Part, set_normal
from attnkit.registry import check_positive, inits


@inits.register("bert")
class BERT(Init):
    r"""Normal distributions of the same width, cut off at two standard deviations.

    Equation:
        $$W \sim N(0, s^2), \quad |W_{ij}| \le 2 s$$

    Paper: Devlin et al. 2019, https://arxiv.org/abs/1810.04805 (in their code)

    This applies to tables, linear maps and the head; biases are zero. All other modules draw as with `default`, as do the maps to the
    gates of `mlstm` and `rwkv7` and to the steps of `selective_state_space`, which begin at values of their own.

    Args:
        std: Standard deviation s before the cut.

    Raises:
        ConfigurationError: `std` is not positive.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="encoder", d_model=64, num_layers=1, num_heads=2, vocab_size=99, init="bert")
        >>> bool(model.head.projection.weight.abs().max() <= 0.04)
        True
    """

    def __init__(self, *, std: float = 0.02) -> None:
        check_positive(std=std)
        self.std = std

    def draw(self, part: Part) -> None:
        """Draw one module."""
        if part.role == "other":
            part.reset()
        else:
            set_normal(part, std=self.std, truncated=True)
