"""No piece makes a tensor on the CPU that it should make on the device of its inputs; a GPU is not needed to see that."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from attnkit import ConfigurationError, draws
from tests.elsewhere import NAME, elsewhere, here, move
from tests.models.compositions import BATCH, LENGTH, build, compositions, inputs, one_layer

PARTS = 8
FUSED = ("-gru", "-rnn")  # torch transposes their outputs in place, which tensors elsewhere do not support
UNSTABLE = "-norm-none"  # rounding grows with every layer
KEYS = draws.make_keys(torch.arange(BATCH), 42)


def chosen() -> list[tuple[str, dict[str, Any]]]:
    """Return the compositions in decoders and encoder-decoders; of the pairs with a position, those of two attentions."""
    pairs = ("additive", "scaled_dot_product")
    return [
        (name, options)
        for name, options in compositions()
        if options["stack"] != "encoder"
        and "triton" not in name
        and ("position" not in options or options.get("attention", pairs[0]) in pairs)
    ]


def trained(model: nn.Module, tokens: Any, masks: Any, **others: Any) -> dict[str, torch.Tensor]:
    """Return the output and the gradients of a step, on the CPU."""
    output = model.train()(*tokens, **masks, **others)
    output.square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: here(x).detach() for name, x in {"output": output, **gradients}.items()}


@pytest.mark.parametrize("part", range(PARTS))
def test_every_component_trains_and_generates_on_another_device(part: int, seed: int) -> None:
    tried = 0
    for name, options in chosen()[part::PARTS]:
        try:
            model = build(options, dropout=0.2, **one_layer(name))
        except ConfigurationError:
            continue
        tried += 1
        draws.name_sites(model)
        tokens, masks = inputs(options)
        if not name.endswith(FUSED):
            with draws.using(KEYS):
                expected = trained(copy.deepcopy(model), tokens, masks)
                with elsewhere():
                    other = copy.deepcopy(model)
                    move(other)
                    found = trained(other, [x.to(NAME) for x in tokens], {key: mask.to(NAME) for key, mask in masks.items()})
            assert found.keys() == expected.keys()
            for key, x in found.items() if not name.endswith(UNSTABLE) else ():
                torch.testing.assert_close(x, expected[key], rtol=1e-3, atol=1e-4, msg=f"{name}: {key}")
        if hasattr(model, "generate"):
            mask = next(iter(masks.values()))
            wanted = model.generate(tokens[0], mask, max_length=3, beam_size=2)
            with elsewhere():
                move(model)
                made = model.generate(tokens[0].to(NAME), mask.to(NAME), max_length=3, beam_size=2)
            assert torch.equal(here(made), wanted), name
    assert tried > 8


def test_a_tensor_on_the_wrong_device_is_detected() -> None:
    model, (tokens, _) = build({"stack": "decoder"}), inputs({"stack": "decoder"})
    documents = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    with elsewhere():
        move(model)
        trained(model, [tokens[0].to(NAME)], {"documents": documents.to(NAME)})
        with pytest.raises(RuntimeError, match="tensors on two devices"):
            model(tokens[0].to(NAME), documents=documents)
