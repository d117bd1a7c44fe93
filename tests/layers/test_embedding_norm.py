import pytest
import torch
from torch import nn

import attnkit


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_the_norm_comes_after_the_positions_and_before_the_layers(norm: str, seed: int) -> None:
    sizes = {"d_model": 8, "num_layers": 2, "num_heads": 2, "norm": norm, "residual": "post_norm"}
    stack = attnkit.stacks.build({"name": "encoder", **sizes, "position": "learned", "embedding_norm": True}).double()
    plain = attnkit.stacks.build({"name": "encoder", **sizes, "position": "none"}).double()
    for parameter in stack.encoder.embedding_norm.parameters():
        nn.init.normal_(parameter)
    nn.init.normal_(stack.encoder.position.weight)
    plain.load_state_dict({name: tensor for name, tensor in stack.state_dict().items() if name in plain.state_dict()})
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    expected = plain(stack.encoder.embedding_norm(x + stack.encoder.position.weight[:5]))
    torch.testing.assert_close(stack(x), expected)


def test_dropout_comes_after_the_norm(seed: int) -> None:
    stack = attnkit.stacks.build({"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "embedding_norm": True, "dropout": 0.5})
    seen: list[torch.Tensor] = []
    stack.encoder.dropout.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    stack.train()(torch.randn(2, 5, 8))
    torch.testing.assert_close(seen[0].mean(-1), torch.zeros(2, 5), atol=1e-5, rtol=0)


def test_without_it_there_is_no_such_parameter() -> None:
    stack = attnkit.stacks.build({"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2})
    assert not [name for name in stack.state_dict() if "embedding_norm" in name]
