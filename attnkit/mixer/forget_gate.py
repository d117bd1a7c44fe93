# https://arxiv.org/abs/2503.02130
"""Forget gates: a decay of attention that depends on the tokens."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.attention import DecayBias, FiniteBias
from attnkit.mixer.base import Tokens
from attnkit.position import QueryBias
from attnkit.state import Growing


def log_gates(logits: Tensor, real: Tensor | None) -> Tensor:
    """Return the logarithms of the gates [B, H, T, 1] of tokens, in fp32 or float64, from logits [B, T, H]; padding forgets nothing.

    Example:
        >>> log_gates(torch.zeros(1, 2, 1), torch.tensor([[True, False]])).flatten()
        tensor([-0.6931,  0.0000])
    """
    logs = F.logsigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))
    logs = logs if real is None else logs.masked_fill(~real[..., None], 0.0)
    return logs.transpose(1, 2)[..., None]


def forgetting(tokens: Tokens, logs: Growing, queries: int) -> Tokens:
    """Return `tokens` with the bias b_ij = sum of the logarithms `logs` of tokens j + 1 to i added, for the last `queries` tokens.

    Example:
        >>> half = torch.full((1, 1, 3, 1), 0.5).log2()
        >>> forgetting(Tokens(), Growing(half), 2).bias.values
        tensor([[[[-1.,  0.,  0.],
                  [-2., -1.,  0.]]]])
    """
    sums = logs.tensor.cumsum(-2)  # [B, H, K, 1]
    bias, decay = tokens.bias, DecayBias(logs.with_vectors(sums).last(queries).tensor, sums)
    assert not isinstance(bias, QueryBias)  # attention has computed it
    if bias is None:
        return replace(tokens, bias=decay)
    return replace(tokens, bias=bias + decay.values if isinstance(bias, Tensor) else FiniteBias(bias.values + decay.values))
