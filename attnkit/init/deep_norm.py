# https://arxiv.org/abs/2203.00555
"""DeepNorm's initialisation."""

import torch

from attnkit.init.base import Init, Part
from attnkit.registry import inits


@inits.register("deep_norm")
class DeepNormInit(Init):
    r"""Each module's own initialisation, scaled down with depth for values, outputs and feed-forward networks; for residual `deep_norm`.

    These are the linear maps of the layers called `value`, `output` and `input` (the first map of a feed-forward network, of a convolution
    or of a recurrence). Where `input` computes queries and keys, too, as in `delta_rule`, only its rows for the values are scaled. All
    else keeps its initialisation: queries, keys, gates, decays, routers, the cells of RNNs, and biases.

    Equation:
        $$W = \beta W_0, \quad \beta = (8 N)^{-1/4}, \quad \text{with a memory}\ (12 N)^{-1/4}$$
        for N layers and Glorot's W_0

    Paper: Wang et al. 2022, https://arxiv.org/abs/2203.00555 (which uses $0.87 (N^4 M)^{-1/16}$ for an encoder with a decoder); gates as
    in the authors' own RetNet, https://github.com/microsoft/torchscale

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(
        ...     stack="encoder", d_model=64, num_layers=2, num_heads=2, vocab_size=9, residual="deep_norm", init="deep_norm")
        >>> weight = model.stack.encoder.layers[0].feed_forward.input.weight
        >>> round(weight.abs().max().item() / (6 / (64 + 256)) ** 0.5, 2)  # 16^(-1/4)
        0.5
    """

    def draw(self, part: Part) -> None:
        """Draw one module."""
        part.reset()
        name = part.path.rpartition(".")[2]
        if ".layers." in part.path and part.role in ("branch", "hidden") and name in ("value", "output", "input"):
            rows = getattr(part.parent, "value_rows", slice(None)) if name == "input" else slice(None)
            with torch.no_grad():
                part.weight[rows].mul_((4 * part.branches) ** -0.25)  # 2 N sublayers, or 3 N with a memory
