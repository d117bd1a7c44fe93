import pytest
import torch

import attnkit
from attnkit.attention import Attention


def test_every_attention_of_a_model_is_recorded_by_its_path(seed: int) -> None:
    model = attnkit.compose(
        stack="encoder_decoder", d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, cross_attention="additive",
        src_vocab_size=9, tgt_vocab_size=9, dropout=0.2, attention_dropout=0.2,
    ).train()  # fmt: skip
    src, tgt = torch.randint(3, 8, (2, 6)), torch.randint(3, 8, (2, 5))
    mask = torch.arange(6) < torch.tensor([[6], [3]])
    torch.manual_seed(seed)
    expected = model(src, tgt, src_mask=mask)
    torch.manual_seed(seed)
    with attnkit.record_attention(model) as maps:
        recorded = model(src, tgt, src_mask=mask)
    assert torch.equal(expected, recorded)
    shapes = {path.removeprefix("stack."): tuple(weights.shape) for path, weights in maps.items()}
    assert shapes == {
        **{f"encoder.layers.{i}.self_attention": (2, 4, 6, 6) for i in (0, 1)},
        **{f"decoder.layers.{i}.self_attention": (2, 4, 5, 5) for i in (0, 1)},
        **{f"decoder.layers.{i}.cross_attention": (2, 4, 5, 6) for i in (0, 1)},
    }
    for weights in maps.values():
        assert not weights.requires_grad
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert (maps["stack.decoder.layers.1.cross_attention"][1, :, :, 3:] == 0).all()


def test_gradients_are_the_same(seed: int) -> None:
    model = attnkit.compose(stack="decoder", d_model=16, num_layers=1, num_heads=2, vocab_size=9)
    tokens = torch.randint(3, 8, (2, 5))
    model(tokens).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with attnkit.record_attention(model):
        model(tokens).sum().backward()
    assert all(torch.equal(expected[name], p.grad) for name, p in model.named_parameters() if p.grad is not None)


def test_nothing_is_recorded_after_the_block_even_after_an_error(seed: int) -> None:
    model = attnkit.compose(stack="decoder", d_model=16, num_layers=1, num_heads=2, vocab_size=9)
    with pytest.raises(ZeroDivisionError), attnkit.record_attention(model) as maps:
        raise ZeroDivisionError
    model(torch.randint(3, 8, (2, 5)))
    assert not maps
    assert not any(m._forward_hooks for m in model.modules() if isinstance(m, Attention))


def test_an_attention_alone_is_recorded_under_its_own_name(seed: int) -> None:
    attention = attnkit.attentions.build("cosine", head_dim=4, num_heads=2)
    x = torch.randn(1, 2, 3, 4)
    with attnkit.record_attention(attention) as maps:
        attention(query=x, key=x, value=x)
    assert [tuple(w.shape) for w in maps.values()] == [(1, 2, 3, 3)]
