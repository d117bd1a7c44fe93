# https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
"""GPT-2's initialisation, scaled by depth."""

from attnkit.init.base import Init, Part, set_normal
from attnkit.registry import check_positive, inits


@inits.register("gpt2")
class GPT2(Init):
    r"""Normal distributions of the same width, but narrower for the last map of each sublayer, to keep the stream from growing with depth.

    Equation:
        $$W \sim N(0, s^2), \quad W_{\mathrm{output}} \sim N(0, s^2 / n)$$
        where n is the number of sublayers that add to the stream, two per layer

    Paper: Radford et al. 2019, https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf

    This applies to tables, linear maps and the head; biases are zero. All other modules draw as with `default`, as do the maps to the
    gates of `mlstm` and `rwkv7` and to the steps of `selective_state_space`, which begin at values of their own. GPT-2 does not scale its
    embeddings: `embedding: {name: token, scale: false}`.

    Args:
        std: Standard deviation s.

    Raises:
        ConfigurationError: `std` is not positive.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="decoder", d_model=64, num_layers=8, num_heads=2, vocab_size=99, init="gpt2")
        >>> round(model.stack.decoder.layers[0].feed_forward.output.weight.std().item(), 4)  # 0.02 / 16^0.5
        0.005
    """

    def __init__(self, *, std: float = 0.02) -> None:
        check_positive(std=std)
        self.std = std

    def draw(self, part: Part) -> None:
        """Draw one module."""
        if part.role == "other":
            part.reset()
        else:
            set_normal(part, std=self.std / part.branches**0.5 if part.role == "branch" else self.std)
