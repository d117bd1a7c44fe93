# https://arxiv.org/abs/2203.03466
"""Maximal update parametrisation."""

from torch import nn

from attnkit.embedding import Embedding
from attnkit.init.base import Init, Part, parts, set_normal
from attnkit.position import Position
from attnkit.registry import ConfigurationError, inits


@inits.register("mup")
class MuP(Init):
    r"""Maximal update parametrisation (muP) for Adam: the best learning rate of a narrow model is also the best for a wide one.

    Equation:
        $$W \sim N(0, 1 / \mathrm{fan\_in}), \quad W_{\mathrm{head}} \sim N(0, d_0 / d^2), \quad
        \eta_W = \eta_{\mathrm{head}} = \eta \, d_0 / d, \quad \eta_E = \eta_b = \eta$$
        for linear maps W of the stack, embeddings of tokens and patches E and vectors b, at width d and base width d_0. Maps whose inputs
        do not grow with d keep $\eta$: those of patches, positions, kernels of long convolutions, and latent vectors. A module
        that is not a linear map lists in `maps` its parameters whose inputs do. The maps to the gates of `mlstm` and `rwkv7` and to the
        steps of `selective_state_space` begin as with `default`, at values of their own.

    Paper: Yang et al. 2022, https://arxiv.org/abs/2203.03466 (table 3)

    Tasks scale the learning rates, and accept only `adam` and `adamw`. At the base width, nothing is scaled. Widen models by more heads,
    not by wider ones (with wider heads, logits would need a factor of 1 / d_h). Head and embedding have different scales, so they cannot
    share a table: `tie: none`. The learning rate of an embedding compensates for its factor $\sqrt{d}$.

    Args:
        base_width: The width d_0 at which the learning rate was tuned.

    Raises:
        ConfigurationError: The head of a model shares the embedding's table, or the model has recurrent cells.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(
        ...     stack="decoder", d_model=64, num_layers=1, num_heads=4, vocab_size=99, init={"name": "mup", "base_width": 16})
        >>> model.learning_rates["head.projection.weight"]
        0.25
    """

    def __init__(self, *, base_width: int) -> None:
        if base_width < 1:
            raise ConfigurationError(f"base_width must be positive, but is {base_width}")
        self.base_width = base_width

    def draw(self, part: Part) -> None:
        """Draw one module."""
        if isinstance(part.module, nn.Linear) and part.role != "other":
            width = part.module.in_features
            set_normal(part, std=width**-0.5 if part.role != "head" else self.base_width**0.5 / width)
        else:
            part.reset()

    def learning_rates(self, model: nn.Module) -> dict[str, float]:
        """Return the factors that scale the learning rates of matrices."""
        found = list(parts(model))
        if any(hasattr(part.module, "hidden_weight") for part in found):
            raise ConfigurationError("init 'mup' has no rule for recurrent cells: use a stack without them, or init 'default'")
        if not any(part.role == "head" for part in found):
            raise ConfigurationError("init 'mup' needs a head with its own matrix: set tie to 'none'")
        factors: dict[str, float] = {}
        for part in found:
            grows = not isinstance(part.parent, Embedding | Position) and not getattr(part.module, "fixed_inputs", False)
            if isinstance(part.module, nn.Linear) and grows:
                factors[f"{part.path}.weight"] = self.base_width / part.d_model
            elif part.role == "table" and getattr(part.module, "factor", 1.0) != 1.0:
                factors[f"{part.path}.weight"] = (self.base_width / part.d_model) ** 0.5
            for name in getattr(part.module, "maps", ()):
                factors[f"{part.path}.{name}"] = self.base_width / part.d_model
        return {name: factor for name, factor in factors.items() if factor != 1.0}
