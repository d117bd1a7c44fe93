"""Losses and statistics that modules report, as a mixture of experts does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

import attnkit
from attnkit.reports import reporters, take_reports
from attnkit.task import cross_entropy
from tests.commands import run_ranks
from tests.task.conftest import TOKENIZER

EXPERTS = {"name": "mixture_of_experts", "num_experts": 4, "expert": {"name": "mlp", "ffn_dim": 8}}
STACK = {"name": "encoder_decoder", "d_model": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0, "position": "rotary"}


@pytest.fixture
def make_experts(make_task):
    def make(**arguments: Any) -> Any:
        others = {k: arguments.pop(k) for k in ("optimizer", "activation_checkpointing") if k in arguments}
        task = make_task(stack={**STACK, "feed_forward": EXPERTS | arguments}, label_smoothing=0.0, metrics=[], **others)
        task.configure_model()
        return task

    return make


@pytest.mark.parametrize("policy", ["none", "layer", "feed_forward"])
def test_reported_losses_are_weighted_by_micro_batch_targets(policy, words, make_batch, make_experts, fit):
    task = make_experts(balance_loss=0.5, z_loss=0.25, optimizer={"name": "sgd", "lr": 0.0}, activation_checkpointing=policy)
    seen = []

    class Look(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            seen.append([p.grad.clone() for p in pl_module.parameters()])

    pool = words(9)
    batches = [make_batch(pool[:2]), make_batch(pool[2:])]
    trainer = fit(task, batches, precision="64-true", accumulate_grad_batches=2, callbacks=[Look()])
    task.double().train()
    total, targets = 0, 0
    for batch in batches:
        sums = cross_entropy(task(batch["src"], batch["tgt"][:, :-1]), batch["tgt"][:, 1:])
        reports = take_reports(reporters(task))
        assert set(reports) == {"model.stack.encoder.layers.0.feed_forward", "model.stack.decoder.layers.0.feed_forward"}
        total = total + sums.loss + sums.targets * sum(report.loss for report in reports.values())
        targets = targets + sums.targets
    expected = torch.autograd.grad(total / targets, list(task.parameters()))
    for a, b in zip(seen[0], expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    nothing = {k: v for k, v in trainer.callback_metrics.items() if "share" not in k and "/stack" not in k}
    assert {"train/loss", "train/perplexity"} <= set(nothing)


def test_step_statistics_are_logged_and_update_the_bias(words, make_batch, make_experts, fit):
    task = make_experts(bias_rate=0.125, balance_loss=0.0)
    pool = words(9)
    trainer = fit(task, [make_batch(pool[:2]), make_batch(pool[2:])], accumulate_grad_batches=2)
    for path, layer in reporters(task).items():
        logged = {
            name: trainer.callback_metrics[f"train/{path}/{name}"].item()
            for name in ("balance", "entropy", *(f"share_{e}" for e in range(4)))
        }
        shares = [logged[f"share_{e}"] for e in range(4)]
        assert sum(shares) == pytest.approx(1)
        assert layer.bias.tolist() == [0.125 if s < 0.25 else -0.125 if s > 0.25 else 0 for s in shares]
        assert 0 < logged["entropy"] <= 1
        assert layer.report is None


def test_padding_is_not_counted(words, make_batch, make_experts, fit):
    task = make_experts()
    batch = make_batch(words(5))
    counted = []

    class Look(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            task(batch["src"], batch["tgt"][:, :-1])
            reports = take_reports(reporters(task))
            counted.extend(reports[f"model.stack.{part}.layers.0.feed_forward"].sums[-1] for part in ("encoder", "decoder"))

    fit(task, [batch], callbacks=[Look()])
    assert counted[0] == (batch["src"] != 0).sum() < batch["src"].numel()
    assert counted[1] == (batch["tgt"][:, 1:] != 0).sum() < batch["tgt"][:, 1:].numel()


def test_fillers_are_not_counted(words, make_batch, make_experts, fit):
    """A process without a row of its own computes a copy of another one, whose sources are real, but which must not count."""
    batch = make_batch(words(5)) | {"example": torch.arange(5)}
    nothing = torch.cat([batch["tgt"][:1, :1], torch.zeros_like(batch["tgt"][:1, 1:])], 1)
    filler = {"src": batch["src"][:1], "tgt": nothing, "example": torch.tensor([-1])}
    logged = []
    for batches in ([batch], [batch, filler]):
        torch.manual_seed(0)
        task = make_experts(bias_rate=0.125)
        trainer = fit(task, batches, accumulate_grad_batches=len(batches))
        logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})
        logged[-1] |= {f"{path} {e}": float(b) for path, layer in reporters(task).items() for e, b in enumerate(layer.bias)}
    assert len(logged[0]) > 16
    assert logged[1] == pytest.approx(logged[0], rel=1e-6)


@pytest.mark.parametrize("multi_token", [None, "sequential"])
def test_padding_of_a_single_text_is_not_counted(multi_token):
    stack = {**STACK, "name": "decoder", "feed_forward": EXPERTS}
    task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": TOKENIZER.spec, "multi_token": multi_token})
    task.configure_model()
    task.train().objective({"tokens": torch.tensor([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0]])})
    counted = {path: report.sums[-1].item() for path, report in take_reports(reporters(task)).items() if path.endswith("feed_forward")}
    assert set(counted.values()) == {4 + 3}
    assert len(counted) == (1 if multi_token is None else 2)


@pytest.mark.slow
def test_two_ranks_reach_the_same_bias_as_one_process(words, make_batch, make_experts, fit, tmp_path):
    one = make_experts(bias_rate=0.125, balance_loss=0.0)
    one.double()
    pool = words(8)
    batches = [make_batch(pool[:3]), make_batch(pool[3:])]
    payload = {
        "task": {"name": "seq2seq", **one.hparams}, "weights": one.state_dict(), "train": [[batches[0]], [batches[1]]], "clip": None,
        "accumulate": 1, "val": [[], []],
    }  # fmt: skip
    torch.save(payload, tmp_path / "payload")
    run_ranks("ddp_fit", tmp_path / "payload", tmp_path / "out", cwd=Path(__file__).parent)
    two = torch.load(tmp_path / "out", weights_only=True)
    trainer = fit(one, [make_batch(pool)], precision="64-true")
    assert any("experts" in name for name in two["weights"])
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=0, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
    for name, value in trainer.callback_metrics.items():
        if "balance" not in name:  # it is the mean over the micro-batches of each process
            torch.testing.assert_close(two["logged"][name], value, rtol=1e-6, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
