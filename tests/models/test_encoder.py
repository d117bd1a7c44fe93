"""The encoder's token logits, with BERT's head."""

from typing import Any

import pytest
import torch
from torch import nn

import attnkit

SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 1, "vocab_size": 9}


@pytest.mark.parametrize("tie", ["none", "output"])
@pytest.mark.parametrize("stack", ["encoder", "recurrent_encoder"])
def test_the_bert_head_follows_its_equation(stack: str, tie: Any, seed: int) -> None:
    heads = {"num_heads": 2, "norm": "rms_norm"} if stack == "encoder" else {}
    model = attnkit.compose(stack=stack, **SIZES, **heads, tie=tie, head="bert")
    tokens = torch.randint(3, 9, (2, 5))
    bias = model.head.bias if tie == "output" else model.head.projection.bias
    nn.init.normal_(bias)
    assert type(model.head.norm).__name__ == ("RMSNorm" if stack == "encoder" else "LayerNorm")
    x = model.stack(model.embedding(tokens))
    x = model.head.norm(nn.functional.gelu(x @ model.head.dense.weight.T + model.head.dense.bias))
    table = model.embedding.weight if tie == "output" else model.head.projection.weight
    torch.testing.assert_close(model(tokens), x @ table.T + bias)
    model(tokens).logsumexp(-1).sum().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]
    rebuilt = attnkit.compose(**model.spec)
    rebuilt.load_state_dict(model.state_dict())
    assert torch.equal(rebuilt(tokens), model(tokens))


def test_the_chosen_tokens_are_a_mask_of_all_tokens() -> None:
    model, tokens = attnkit.compose(stack="encoder", **SIZES, num_heads=2), torch.randint(3, 9, (2, 5))
    chosen = tokens == tokens[0, 0]
    torch.testing.assert_close(model(tokens, chosen=chosen), model(tokens)[chosen])
    with pytest.raises(TypeError, match="chosen must be a bool tensor"):
        model(tokens, chosen=chosen.long())
    with pytest.raises(ValueError, match=r"chosen must have shape \[2, 5\]"):
        model(tokens, chosen=chosen[:1])
