"""Learning rates that an initialisation asks for, and arguments that models and losses take."""

import pytest
import torch
from lightning.pytorch import Callback

import attnkit
from attnkit.task import cross_entropy

MUP = {"name": "mup", "base_width": 4}


def test_mup_scales_the_learning_rates_of_a_fit(words, make_batch, make_task, fit):
    task = make_task(init=MUP, tie="none", optimizer={"name": "adamw", "lr": 0.08}, schedule="constant")
    rates = {}

    class Look(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            names = {id(p): n for n, p in pl_module.named_parameters()}
            rates.update({names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]})

    fit(task, [make_batch(words(4))] * 2, callbacks=[Look()])
    assert rates["model.stack.encoder.layers.0.feed_forward.input.weight"] == pytest.approx(0.02)
    assert rates["model.head.projection.weight"] == pytest.approx(0.02)
    assert rates["model.embeddings.src.weight"] == pytest.approx(0.04)
    assert rates["model.stack.encoder.layers.0.feed_forward.input.bias"] == pytest.approx(0.08)


def test_mup_rejects_optimizers_other_than_adam(words, make_batch, make_task, fit):
    task = make_task(init=MUP, tie="none", optimizer={"name": "sgd", "lr": 0.1})
    with pytest.raises(attnkit.ConfigurationError, match="scales learning rates for adam and adamw, not for 'sgd'"):
        fit(task, [make_batch(words(2))])


def test_head_and_z_loss_options_reach_the_model_and_the_objective(words, make_batch, make_task):
    task = make_task(head={"name": "linear", "softcap": 2.0}, tie="inputs", z_loss=0.5, label_smoothing=0.0)
    task.configure_model()
    batch = make_batch(words(3))
    logits = task(batch["src"], batch["tgt"][:, :-1])
    assert task.model.head.softcap == 2.0
    assert "shared" in task.model.embeddings
    expected = cross_entropy(logits, batch["tgt"][:, 1:], z_loss=0.5)
    torch.testing.assert_close(task.objective(batch).loss, expected.loss)
    with pytest.raises(attnkit.ConfigurationError, match="z_loss must be at least 0, but is -1"):
        make_task(z_loss=-1.0)
