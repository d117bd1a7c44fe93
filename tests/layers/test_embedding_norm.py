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


def test_the_embedding_norm_is_off_by_default() -> None:
    stack = attnkit.stacks.build({"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2})
    assert not [name for name in stack.state_dict() if "embedding_norm" in name]


@pytest.mark.parametrize("stack", ["recurrent_encoder", "recurrent_decoder", "recurrent_encoder_decoder"])
def test_a_recurrent_stack_normalises_its_embeddings(stack: str, seed: int) -> None:
    build = {"name": stack, "d_model": 8, "num_layers": 2}
    normed = attnkit.stacks.build({**build, "embedding_norm": True}).double()
    plain = attnkit.stacks.build(build).double()
    plain.load_state_dict({name: tensor for name, tensor in normed.state_dict().items() if "embedding_norm" not in name})
    x, y = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    if stack != "recurrent_encoder_decoder":
        norm = (normed.encoder if stack == "recurrent_encoder" else normed.decoder).embedding_norm
        nn.init.normal_(norm.weight)
        found, expected = normed(x), plain(norm(x))
    else:
        norm, other = normed.encoder.embedding_norm, normed.decoder.recurrent.embedding_norm
        nn.init.normal_(other.weight)
        found, expected = normed.decode(y, normed.encode(x)), plain.decode(other(y), plain.encode(norm(x)))
    found, expected = (z if isinstance(z, torch.Tensor) else z[0] for z in (found, expected))
    torch.testing.assert_close(found, expected)
