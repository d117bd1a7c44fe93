import torch
from torch import nn
from torch.nn.functional import layer_norm, silu

import attnkit


def test_activation_and_bias_of_the_dense_layer_are_configurable(seed: int) -> None:
    head = attnkit.heads.build(
        {"name": "bert", "activation": "silu", "dense_bias": False}, d_model=4, outputs=5, norm="layer_norm"
    ).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    hidden = layer_norm(silu(x @ head.dense.weight.T), (4,), head.norm.weight, head.norm.bias)
    torch.testing.assert_close(head(x), hidden @ head.projection.weight.T + head.projection.bias, rtol=1e-12, atol=1e-12)
    assert head.dense.bias is None
