"""Muon for matrices, and torch's AdamW for all other parameters, in one optimizer."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import attnkit
from attnkit.optimizer import muon
from attnkit.optimizer.muon import Muon


def groups(model: nn.Sequential) -> list[dict[str, object]]:
    return [{"params": [model[0].weight, model[1].weight], "matrices": True}, {"params": [model[0].bias, model[1].bias]}]


def train(model: nn.Sequential, optimizers: list[torch.optim.Optimizer], steps: int, start: int = 0) -> None:
    for i in range(start, start + steps):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(i))
        model(x).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def orthogonal(gradient: torch.Tensor) -> torch.Tensor:
    """Return one matrix after the five Newton-Schulz steps."""
    x = gradient.T if gradient.shape[0] > gradient.shape[1] else gradient
    x = x / x.norm()
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
    return x.T if gradient.shape[0] > gradient.shape[1] else x


def test_steps_follow_the_equation_matrix_by_matrix() -> None:
    """In float64, for square, wide and tall matrices, some of them of one shape."""
    shapes = [(4, 4), (3, 9), (9, 3), (4, 4), (3, 9), (1, 7), (5, 6)]
    draw = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=draw)) for shape in shapes]
    expected, momenta = [w.detach().clone() for w in weights], [torch.zeros_like(w) for w in weights]
    optimizer = Muon([{"params": weights, "matrices": True}], lr=0.01, weight_decay=0.1, momentum=0.9)
    for _ in range(4):
        for i, weight in enumerate(weights):
            weight.grad = torch.randn(weight.shape, dtype=torch.float64, generator=draw)
            momenta[i] = 0.9 * momenta[i] + 0.1 * weight.grad
            update = orthogonal(0.1 * weight.grad + 0.9 * momenta[i])
            expected[i] = (1 - 0.01 * 0.1) * expected[i] - 0.01 * 0.2 * max(weight.shape) ** 0.5 * update
        optimizer.step()
    for found, right in zip(weights, expected, strict=True):
        torch.testing.assert_close(found.detach(), right, rtol=0, atol=1e-11)


@pytest.mark.parametrize("shape", [(48, 48), (32, 128)])
def test_bfloat16_steps_are_as_accurate_as_torchs(shape: tuple[int, int]) -> None:
    """Another order of the products rounds differently; the error against float64 must not grow beyond twice that of torch."""
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    moved = {}
    for name, kind in (("ours", Muon), ("torch", torch.optim.Muon)):
        weight = nn.Parameter(torch.zeros(shape))
        weight.grad = gradient
        group = [{"params": [weight], "matrices": True}]
        arguments = {} if name == "ours" else {"weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"}
        kind(group, lr=1.0, **arguments).step()  # type: ignore[arg-type]
        moved[name] = -weight.detach().double() / (0.2 * max(shape) ** 0.5)
    right = orthogonal(gradient.double())
    assert (moved["torch"] - right).norm() > 1e-3 * right.norm()  # so that the comparison says something
    assert (moved["ours"] - right).norm() < 2 * (moved["torch"] - right).norm()


def test_many_matrices_are_processed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(0))
    ends = []
    for most in (2**20, 2 * 4 * 6):
        monkeypatch.setitem(muon.ELEMENTS, "cpu", most)
        weights = [nn.Parameter(torch.zeros(4, 6)) for _ in gradients]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        Muon([{"params": weights, "matrices": True}], lr=0.1).step()
        ends.append(torch.stack([*weights]).detach())
    assert ends[0].abs().min() > 0
    torch.testing.assert_close(*ends, rtol=2**-6, atol=2**-9 * 0.1)


def test_a_matrix_without_a_gradient_stays_unchanged() -> None:
    used, unused = (nn.Parameter(torch.ones(2, 3)) for _ in range(2))
    used.grad = torch.ones(2, 3)
    Muon([{"params": [used, unused], "matrices": True}], lr=0.1, weight_decay=0.1).step()
    assert torch.equal(unused, torch.ones(2, 3))
    assert not torch.equal(used, torch.ones(2, 3))


def test_a_loaded_state_continues_where_it_was_saved() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    optimizer = Muon(groups(model), lr=0.01)
    train(model, [optimizer], 3)
    twin = copy.deepcopy(model)
    resumed = Muon(groups(twin), lr=1.0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, [optimizer], 3, start=3)
    train(twin, [resumed], 3, start=3)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_continues_like_the_original(copied: Callable[[Any], Any]) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    optimizer = Muon(groups(model), lr=0.01)
    train(model, [optimizer], 2)
    twin, resumed = copied((model, optimizer))
    train(model, [optimizer], 2, start=2)
    train(twin, [resumed], 2, start=2)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_group_that_is_added_later_has_the_same_settings() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    twin, settings = copy.deepcopy(model), {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1, "adamw_lr": 0.02}
    whole, grown = Muon(groups(model), **settings), Muon(groups(twin)[:1], **settings)
    grown.add_param_group({"params": [twin[0].bias, twin[1].bias]})
    train(model, [whole], 2)
    train(twin, [grown], 2)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_parameters_may_come_from_iterators() -> None:
    layer, head = nn.Linear(3, 5, bias=False), nn.Linear(5, 2)
    optimizer = Muon([{"params": layer.parameters(), "matrices": True}, {"params": head.parameters(), "matrices": False}])
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2]


def test_schedulers_reach_both_parts() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    optimizer = Muon(groups(model), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
    train(model, [optimizer], 1)
    scheduler.step()
    before = copy.deepcopy(model)
    train(model, [optimizer], 1)
    for a, b in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(a, b)


def test_sets_are_rejected_because_they_have_no_order() -> None:
    with pytest.raises(TypeError, match="ordered"):
        Muon([{"params": set(nn.Linear(3, 2).parameters()), "matrices": False}])


@pytest.mark.parametrize("params", [[{"params": [nn.Parameter(torch.zeros(3))]}], nn.Linear(3, 2).parameters()])
def test_groups_must_declare_whether_they_hold_matrices(params: Any) -> None:
    with pytest.raises(ValueError, match="say what they hold"):
        Muon(params)


@pytest.mark.parametrize(
    ("arguments", "message"), [({"lr": -1.0}, "lr of at least 0"), ({"momentum": 1.0}, "momentum in"), ({}, "not a matrix")]
)
def test_unsupported_arguments_are_rejected(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Muon([{"params": [nn.Parameter(torch.zeros(3))], "matrices": True}], **arguments)  # type: ignore[arg-type]


def test_without_matrices_muon_equals_adamw() -> None:
    bias = nn.Parameter(torch.randn(3))
    same = nn.Parameter(bias.detach().clone())
    ours = Muon([{"params": [bias], "matrices": False}], lr=0.1, adamw_lr=0.01, weight_decay=0.1)
    theirs = torch.optim.AdamW([same], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for optimizer, parameter in ((ours, bias), (theirs, same)):
        for _ in range(3):
            optimizer.zero_grad()
            parameter.square().sum().backward()
            optimizer.step()
    assert not torch.equal(bias, torch.zeros(3))
    torch.testing.assert_close(bias, same)


def test_the_registry_resolves_muon_to_ours_not_torchs() -> None:
    assert attnkit.optimizers.get("muon") is Muon
    assert attnkit.optimizers.get("adamw") is torch.optim.AdamW
