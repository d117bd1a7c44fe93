# https://arxiv.org/abs/1409.2329
"""The recurrent decoder-only stack."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from typing_extensions import override

from attnkit.layers import Recurrent, RecurrentConfig, RecurrentState
from attnkit.registry import stacks
from attnkit.registry.keywords import keywords_of
from attnkit.stack.base import DecoderStack, refuse_masks
from attnkit.state import State


@stacks.register("recurrent_decoder")
class RecurrentDecoder(DecoderStack):
    r"""A recurrent language model, the counterpart of `decoder`: a token sees the past only through a state of fixed size.

    Padding on either side changes no state, and its outputs are zero. Every layer runs on torch's fused sequence kernel.

    The cells are those of Elman 1990, https://doi.org/10.1207/s15516709cog1402_1 (`rnn`), Hochreiter and Schmidhuber 1997,
    https://doi.org/10.1162/neco.1997.9.8.1735 (`lstm`), and Cho et al. 2014, https://arxiv.org/abs/1406.1078 (`gru`); equations and
    initialisation are in `attnkit.layers.RecurrentLayer`.

    Equation:
        $$h_t^{(l)} = \mathrm{cell}_l(\mathrm{dropout}(h_t^{(l-1)}), h_{t-1}^{(l)}), \quad h^{(0)} = x$$

    Paper: Zaremba et al. 2014, https://arxiv.org/abs/1409.2329

    Raises:
        ConfigurationError: The cell is unknown.

    Example:
        >>> import torch
        >>> stack = RecurrentDecoder(d_model=16, num_layers=2, cell="lstm")
        >>> x = torch.randn(2, 5, 16)
        >>> start, state = stack(x[:, :4])
        >>> end, state = stack(x[:, 4:], state=state)
        >>> torch.allclose(torch.cat([start, end], 1), stack(x)[0], atol=1e-5)
        True
    """

    @staticmethod
    @override
    def last_layer(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**arguments, "num_layers": 1, "embedding_norm": False}

    @keywords_of(RecurrentConfig)
    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.decoder = Recurrent(config)

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        documents: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, RecurrentState]:
        """Decode `x` [B, T, D]; see `DecoderStack.forward`. `attn_mask` and `documents` are refused."""
        refuse_masks(attn_mask, documents)
        assert state is None or isinstance(state, RecurrentState)
        y, after = self.decoder(x, key_mask=key_mask, state=state)
        return y, after
