"""Without graph breaks: training with every dropout, and a step from a state."""

import pytest
import torch

from attnkit.layers import Transformer, TransformerConfig


@pytest.mark.parametrize("attention", ["scaled_dot_product", "additive"])
def test_training_with_dropout(attention: str, seed: int) -> None:
    torch._dynamo.reset()
    feed_forward = {"name": "glu", "dropout": 0.2}
    sizes = {"d_model": 16, "num_layers": 1, "num_heads": 4}
    config = TransformerConfig(**sizes, attention=attention, feed_forward=feed_forward, dropout=0.2, attention_dropout=0.2)
    model = Transformer(config, causal=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 5, 16)
    first, second = compiled(x)[0], compiled(x)[0]
    assert not torch.equal(first, second)
    first.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_step_from_a_state(seed: int) -> None:
    torch._dynamo.reset()
    config = TransformerConfig(d_model=16, num_layers=2, num_heads=4, position="rotary", window=3)
    model = Transformer(config, causal=True).double().eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    x, key_mask = torch.randn(2, 5, 16).double(), torch.tensor([[False] + [True] * 4, [True] * 5])
    with torch.no_grad():
        _, state = model(x[:, :4], key_mask=key_mask[:, :4])
        expected, _ = model(x[:, 4:], key_mask=key_mask[:, 4:], state=state)
        torch.testing.assert_close(compiled(x[:, 4:], key_mask=key_mask[:, 4:], state=state)[0], expected, rtol=1e-10, atol=1e-10)
