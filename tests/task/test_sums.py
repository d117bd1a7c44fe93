"""k micro-batches x n ranks = one batch."""

import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins import MixedPrecision

from attnkit.task import cross_entropy
from attnkit.task.steps import UNIT
from tests.commands import run_ranks


@pytest.fixture
def parts(rng, words, make_batch):
    """Words in 7 ragged parts: batch i of the whole is parts 3i to 3i + 2, the last batch is part 6."""
    pool = words(40)
    sizes = [3, 1, 5, 2, 7, 4, 6]
    assert len({len(w) for w in pool}) > 3
    return [[pool.pop() for _ in range(n)] for n in sizes]


@pytest.fixture
def wholes(parts):
    return [parts[0] + parts[1] + parts[2], parts[3] + parts[4] + parts[5], parts[6]]


def assert_equal_weights(a, b):
    for name, weight in a.items():
        torch.testing.assert_close(weight, b[name], rtol=0, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("clip", [None, 0.5])
def test_micro_batches_equal_one_batch_even_in_a_short_last_window(parts, wholes, make_batch, make_task, fit, clip):
    one, many = make_task(), make_task()
    one.configure_model()
    many.configure_model()
    many.load_state_dict(one.state_dict())
    start = {k: v.clone() for k, v in one.state_dict().items()}
    settings = {"precision": "64-true", "gradient_clip_val": clip}
    whole = fit(one, map(make_batch, wholes), **settings)
    split = fit(many, map(make_batch, parts), accumulate_grad_batches=3, **settings)
    assert whole.global_step == split.global_step == 3
    assert max((one.state_dict()[k] - v).abs().max() for k, v in start.items()) > 1e-3
    assert_equal_weights(one.state_dict(), many.state_dict())
    torch.testing.assert_close(whole.callback_metrics["train/loss"], split.callback_metrics["train/loss"])


def test_a_step_without_targets_has_no_loss_and_no_perplexity(words, make_batch, make_task, fit):
    batch = make_batch(words(3))
    task, tgt = make_task(), batch["tgt"]
    trainer = fit(task, [batch | {"tgt": torch.cat([tgt[:, :1], torch.zeros_like(tgt[:, 1:])], 1)}])
    assert trainer.global_step == 1
    assert math.isnan(trainer.callback_metrics["train/loss"])
    assert math.isnan(trainer.callback_metrics["train/perplexity"])
    assert all(p.isfinite().all() for p in task.parameters())


def test_callbacks_see_the_gradient_of_the_mean_over_tokens(wholes, make_batch, make_task, fit):
    task = make_task(label_smoothing=0.2, optimizer={"name": "sgd", "lr": 0.0})
    seen = []

    class Look(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            seen.append([p.grad.clone() for p in pl_module.parameters()])

    batch = make_batch(wholes[0])
    trainer = fit(task, [batch], precision="64-true", callbacks=[Look()])
    task.double()
    logits = task(batch["src"], batch["tgt"][:, :-1])
    sums = cross_entropy(logits, batch["tgt"][:, 1:], label_smoothing=0.2)
    expected = torch.autograd.grad(sums.loss / sums.targets, list(task.parameters()))
    for a, b in zip(seen[0], expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    logged = trainer.callback_metrics["train/loss"].item()  # without label smoothing
    assert logged == pytest.approx((sums.nll / sums.targets).item(), rel=1e-6)
    assert trainer.callback_metrics["train/perplexity"].log().item() == pytest.approx(logged, rel=1e-5)


@pytest.mark.slow
def test_two_ranks_equal_one_process(parts, wholes, make_batch, make_task, fit, words, tmp_path):
    one = make_task()
    one.configure_model()
    one.double()
    pool = words(9)
    # a rank's window is two micro-batches; rank 1 has nothing but padding in the last one
    nothing = {k: torch.zeros_like(v) for k, v in make_batch(["ab"]).items() if k in ("src", "tgt")} | {"src": torch.tensor([[4, 2]])}
    batches = [make_batch(p) for p in parts]
    ranks = [[batches[0], batches[1], batches[3], batches[4]], [batches[2], nothing, batches[5], nothing]]
    payload = {
        "task": {"name": "seq2seq", **one.hparams}, "weights": one.state_dict(), "train": ranks, "clip": 0.5, "accumulate": 2,
        "val": [[make_batch(pool[:2])], [make_batch(pool[2:])]],
    }  # fmt: skip
    torch.save(payload, tmp_path / "payload")
    run_ranks("ddp_fit", tmp_path / "payload", tmp_path / "out", cwd=Path(__file__).parent)
    two = torch.load(tmp_path / "out", weights_only=True)
    trainer = fit(one, map(make_batch, wholes[:2]), val=[make_batch(pool)], precision="64-true", gradient_clip_val=0.5)
    assert_equal_weights(one.state_dict(), two["weights"])
    assert (
        set(two["logged"]) == set(trainer.callback_metrics) >= {"train/loss", "val/loss", "val/sequence_error_rate", "val/token_accuracy"}
    )
    for name, value in trainer.callback_metrics.items():
        torch.testing.assert_close(two["logged"][name], value, rtol=1e-6, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_a_loss_scaler_changes_nothing(wholes, make_batch, make_task, fit):
    """In fp16 the gradients are unscaled, and steps that overflow are skipped; here with a scaler on the CPU."""
    steps = []

    class Look(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            steps.append(sum(p.grad.norm() ** 2 for p in pl_module.parameters()).sqrt())

    tasks = [make_task(), make_task()]
    tasks[0].configure_model()
    tasks[1].configure_model()
    tasks[1].load_state_dict(tasks[0].state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    fit(tasks[0], map(make_batch, wholes[:1]), callbacks=[Look()])
    fit(tasks[1], map(make_batch, wholes[:1]), callbacks=[Look()], plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    assert scaler.get_scale() == 2.0**16  # no overflow
    torch.testing.assert_close(steps[1], steps[0], rtol=0.02, atol=0)


def test_half_precision_gradients_are_rounded_once(wholes, make_batch, make_task, fit):
    seen = []

    class Watch(Callback):
        def on_after_backward(self, trainer, task):
            seen.append((float(task._tally[0]), [p.grad.clone() for p in task.parameters() if p.grad is not None]))

        def on_before_optimizer_step(self, trainer, task, optimizer):
            count, raw = seen[-1]
            for before, after in zip(raw, (p.grad for p in task.parameters() if p.grad is not None), strict=True):
                torch.testing.assert_close(after, (before.float() * (1 / UNIT / count)).bfloat16(), rtol=0, atol=0)

    fit(make_task(), [make_batch(words) for words in wholes], precision="bf16-true", callbacks=[Watch()])
    assert len(seen) == len(wholes)
    assert any(count != 2.0 ** round(math.log2(count)) for count, _ in seen)  # a power of two would not be rounded
