"""Muon: torch's Muon for matrices and torch's AdamW for all other parameters, in one optimizer."""

import copy

import pytest
import torch
from torch import nn

import attnkit
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


def test_its_steps_equal_those_of_torchs_two_optimizers() -> None:
    ours = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    theirs = copy.deepcopy(ours)
    train(ours, [Muon(groups(ours), lr=0.01, adamw_lr=0.002, weight_decay=0.1)], 5)
    matrices, rest = groups(theirs)
    muon = torch.optim.Muon(matrices["params"], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest["params"], lr=0.002, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    train(theirs, [muon, adamw], 5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


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


def test_groups_that_do_not_say_whether_they_hold_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match="say what they hold"):
        Muon([{"params": [nn.Parameter(torch.zeros(3))]}])


def test_without_matrices_it_is_adamw() -> None:
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


def test_the_registry_has_our_muon_instead_of_torchs() -> None:
    assert attnkit.optimizers.get("muon") is Muon
    assert attnkit.optimizers.get("adamw") is torch.optim.AdamW
