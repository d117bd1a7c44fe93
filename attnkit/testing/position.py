"""Rules for positions: tables stay exact in any precision, and a token's values do not depend on the rest of its batch."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.position import Position, Rotation
from attnkit.registry import Registry, Spec
from attnkit.testing.component import D_MODEL, HEAD_DIM, NUM_HEADS, build, start_on_meta

LENGTH = 9


def outputs(position: Position, query_positions: Tensor, key_positions: Tensor) -> dict[str, Tensor]:
    """Return all outputs of a position encoding for these positions."""
    rotation = position.rotation(query_positions)
    said = {
        "embedding": position.embedding(query_positions),
        "cos": None if rotation is None else rotation.cos,
        "sin": None if rotation is None else rotation.sin,
        "bias": position.bias(query_positions, key_positions),
    }
    return {name: tensor for name, tensor in said.items() if tensor is not None}


def is_exact_in_any_precision(registry: Registry, spec: Spec) -> None:
    """Tables stay exact after `.to(bfloat16)` and construction on the meta device, and become float64 after `.double()`."""
    position: Position = build(registry, spec)
    t = torch.arange(LENGTH)[None]
    empty = start_on_meta(registry, spec)
    assert isinstance(empty, Position)
    empty.load_state_dict(position.state_dict())
    for how, other in (("construction on the meta device", empty), (".to(bfloat16)", copy.deepcopy(position).to(torch.bfloat16))):
        if how == ".to(bfloat16)":
            with torch.no_grad():
                for parameter in position.parameters():
                    parameter.copy_(parameter.bfloat16())
        for name, tensor in outputs(other, t, t).items():
            assert torch.equal(tensor.float(), outputs(position, t, t)[name].float()), f"the {name} is not the same after {how}"
    for name, tensor in outputs(copy.deepcopy(position).double(), t, t).items():
        assert tensor.dtype == torch.float64, f"the {name} of a float64 model is {tensor.dtype}: make tables in `self.dtype`"


def says_the_same_wherever_a_token_stands(registry: Registry, spec: Spec) -> None:
    """Positions 2, 3, ... have the same outputs alone, within a longer row, and in a batch with other rows."""
    for bidirectional in (False, True):
        position: Position = build(registry, spec, bidirectional=bidirectional)
        t = torch.arange(LENGTH)[None]
        whole = outputs(position, t, t)
        part = outputs(position, t[:, 2:5], t)
        shuffled = torch.stack([torch.randperm(LENGTH), torch.randperm(LENGTH)])
        batch = outputs(position, shuffled, t.expand(2, -1))
        for name, tensor in whole.items():
            assert torch.equal(part[name], tensor[..., 2:5, :]), f"the {name} of a part differs from that part of the whole {name}"
            for row in range(2):
                expected = tensor[0].index_select(-2, shuffled[row])
                assert torch.equal(batch[name][row], expected), f"the {name} depends on the column or on the batch"


def fits_the_stream(registry: Registry, spec: Spec) -> None:
    """Shapes are [B or 1, T, D], [B or 1, 1, T, R] and [B or 1, H, Q, K]; a rotation preserves norms."""
    position: Position = build(registry, spec)
    t = torch.arange(LENGTH)[None]
    said = outputs(position, t, t)
    wanted = {"embedding": (1, LENGTH, D_MODEL), "bias": (1, NUM_HEADS, LENGTH, LENGTH)}
    for name, tensor in said.items():
        assert tuple(tensor.shape) == wanted.get(name, (1, 1, LENGTH, tensor.shape[-1])), f"{name} has shape {tuple(tensor.shape)}"
        assert torch.isfinite(tensor).all(), f"the {name} is not finite"
    rotation = position.rotation(t)
    if isinstance(rotation, Rotation):
        assert position.needs_inner_product, "a rotation is only correct for inner products: set needs_inner_product"
        x = torch.randn(2, NUM_HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
        assert torch.allclose(rotation(x).norm(dim=-1), x.norm(dim=-1), rtol=1e-6), "the rotation changes a norm"


def has_exact_gradients(registry: Registry, spec: Spec) -> None:
    """Gradients of learned parameters match finite differences, in float64."""
    position: Position = build(registry, spec).double()
    parameters: dict[str, Any] = dict(position.named_parameters())
    t = torch.arange(LENGTH)[None]
    for name, parameter in parameters.items():

        def say(value: Tensor, name: str = name) -> tuple[Tensor, ...]:
            said = torch.func.functional_call(_Said(position), {f"position.{name}": value}, (t,))
            return tuple(s for s in said if s.requires_grad)

        assert torch.autograd.gradcheck(say, parameter, fast_mode=True)


class _Said(nn.Module):
    """All outputs of a position encoding, as a module's output."""

    def __init__(self, position: Position) -> None:
        super().__init__()
        self.position = position

    def forward(self, t: Tensor) -> list[Tensor]:
        return list(outputs(self.position, t, t).values())


RULES = (
    is_exact_in_any_precision,
    says_the_same_wherever_a_token_stands,
    fits_the_stream,
    has_exact_gradients,
)
