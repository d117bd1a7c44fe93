"""Rules for positions: tables stay exact in any precision, and the values of a token do not depend on the rest of its batch."""

import copy

import torch
from torch import Tensor, nn

from attnkit.position import Position, QueryBias
from attnkit.registry import Registry, Spec, positions
from attnkit.testing.comparison import assert_close, assert_exact_gradients
from attnkit.testing.component import D_MODEL, HEAD_DIM, NUM_HEADS, build, complete, start_on_meta

LENGTH = 9
ROUNDING = 1e-6  # in fp32, matrix products of other sizes may round in another order


def outputs(position: Position, query_positions: Tensor, key_positions: Tensor) -> dict[str, Tensor]:
    """Return all outputs of a position encoding for these positions."""
    rotation = position.rotation(query_positions)
    tensors = {
        "embedding": position.embedding(query_positions),
        "cos": None if rotation is None else rotation.cos,
        "sin": None if rotation is None else rotation.sin,
        "scale": None if rotation is None else rotation.scale,
        "bias": position.bias(query_positions, key_positions),
        "query bias": query_bias(position, query_positions, key_positions) if position.reads_queries else None,
    }
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def query_bias(position: Position, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Return the bias for queries and causally masked logits that depend only on their positions."""
    steps = torch.arange(LENGTH, dtype=position.dtype)
    query = torch.sin(torch.arange(1, NUM_HEADS * HEAD_DIM + 1, dtype=position.dtype) * (1 + steps[:, None]))  # [T, H Dh]
    logits = 2 * torch.sin(3 * steps[:, None] + 5 * steps).masked_fill(steps > steps[:, None], float("-inf"))  # [Q, K]
    queries = query[query_positions].reshape(*query_positions.shape, NUM_HEADS, HEAD_DIM).transpose(1, 2)  # [B, H, Q, Dh]
    chosen = logits[query_positions[:, :, None], key_positions[:, None, :]][:, None].expand(-1, NUM_HEADS, -1, -1)
    return QueryBias(position, query_positions, key_positions)(queries, lambda: chosen)


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


def does_not_depend_on_other_tokens(registry: Registry, spec: Spec) -> None:
    """Positions 2, 3, ... have the same outputs alone, within a longer row, and in a batch with other rows."""
    for bidirectional in (False, True):
        position: Position = build(registry, spec, bidirectional=bidirectional)
        t = torch.arange(LENGTH)[None]
        whole = outputs(position, t, t)
        part = outputs(position, t[:, 2:5], t)
        shuffled = torch.stack([torch.randperm(LENGTH), torch.randperm(LENGTH)])
        batch = outputs(position, shuffled, t.expand(2, -1))
        for name, tensor in whole.items():
            assert_close(part[name], tensor[..., 2:5, :], ROUNDING, f"the {name} of a part, against that part of the whole")
            for row in range(2):
                expected = tensor[0].index_select(-2, shuffled[row])
                assert_close(batch[name][row], expected, ROUNDING, f"the {name} in a shuffled batch")


def fits_the_stream(registry: Registry, spec: Spec) -> None:
    """Shapes are [B or 1, T, D], [B or 1, 1, T, R] and [B or 1, H, Q, K]; all numbers are finite."""
    position: Position = build(registry, spec)
    t = torch.arange(LENGTH)[None]
    tensors = outputs(position, t, t)
    pairs = (1, NUM_HEADS, LENGTH, LENGTH)
    wanted = {"embedding": (1, LENGTH, D_MODEL), "bias": pairs, "query bias": pairs}
    for name, tensor in tensors.items():
        assert tuple(tensor.shape) == wanted.get(name, (1, 1, LENGTH, tensor.shape[-1])), f"{name} has shape {tuple(tensor.shape)}"
        assert torch.isfinite(tensor).all(), f"the {name} is not finite"
    assert not {"bias", "query bias"} <= set(tensors), "a layer reads only one bias: add `bias` to the result of `query_bias`"
    defined = type(position).query_bias is not Position.query_bias
    assert position.reads_queries == defined, "a class must set reads_queries if and only if it has `query_bias`"


def rotates_by_the_distance(registry: Registry, spec: Spec) -> None:
    """Inner products of rotated queries and keys depend only on the distance between their positions."""
    position: Position = build(registry, spec).double()
    if position.rotation(torch.zeros(1, 1, dtype=torch.long)) is None:
        return
    assert position.needs_inner_product, "a rotation is only correct for inner products: set needs_inner_product"
    query, key = torch.randn(2, 1, NUM_HEADS, LENGTH, HEAD_DIM, dtype=torch.float64)
    queries, keys = torch.randint(200, (2, 1, LENGTH))

    def products(shift: int) -> Tensor:
        rotations = position.rotation(queries + shift), position.rotation(keys + shift)
        assert rotations[0] is not None
        assert rotations[1] is not None
        return (rotations[0].query(query) * rotations[1].key(key)).sum(-1)

    for shift in (1, 100):
        assert_close(products(shift), products(0), 1e-10, f"inner products of tokens that are {shift} positions later")


def has_exact_gradients(registry: Registry, spec: Spec) -> None:
    """Gradients of learned parameters match finite differences, in float64."""
    position: Position = build(registry, spec).double()
    t = torch.arange(LENGTH)[None]
    if any(True for _ in position.parameters()):
        assert_exact_gradients(_Outputs(position), lambda call: tuple(output for output in call((t,)) if output.requires_grad))


class _Outputs(nn.Module):
    """All outputs of a position encoding, as a module's output."""

    def __init__(self, position: Position) -> None:
        super().__init__()
        self.position = position

    def forward(self, t: Tensor) -> list[Tensor]:
        return list(outputs(self.position, t, t).values())


RULES = (is_exact_in_any_precision, does_not_depend_on_other_tokens, fits_the_stream, rotates_by_the_distance, has_exact_gradients)


def obeys_the_rules_of_rotary(registry: Registry, spec: Spec) -> None:
    """Rotary positions with this scaling obey every rule of positions, and their spec survives the round trip."""
    rotary = {"name": "rotary", "scaling": complete(registry, spec)}
    resolved = positions.resolve(rotary)
    assert positions.resolve(resolved.plain()) == resolved, f"resolving the spec again changes it: {resolved.plain()}"
    for rule in RULES:
        rule(positions, rotary)


SCALING_RULES = (obeys_the_rules_of_rotary,)
