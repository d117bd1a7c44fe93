"""A step that is not finite stops the run before it does harm, or is skipped, and its origin is named."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from attnkit.callback import FiniteCheck, LastCheckpoint, UnhealthyError, finite_check
from attnkit.checkpoint import load_checkpoint
from attnkit.registry import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
STACK = {"name": "encoder_decoder", "d_model": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.3}


class Break(Callback):
    """Multiplies by a number what a module puts out at one batch, forwards or backwards."""

    def __init__(self, path: str, batch: int, *, forward: bool, factor: float = float("inf"), again: int = 0) -> None:
        self.path, self.batches, self.forward, self.factor = path, range(batch, batch + again + 1), forward, factor
        self.now = -1
        self.before: list[Any] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.get_submodule(self.path).register_forward_hook(self._hook)
        objective = pl_module.objective

        def numbered(batch: Any) -> Any:
            self.now = batch["number"]
            return objective(batch)

        pl_module.objective = numbered

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx in self.batches:
            self.before.append([p.detach().clone() for p in pl_module.parameters()])

    def _hook(self, module: Any, args: Any, output: Any) -> Any:
        if self.now not in self.batches or not torch.is_grad_enabled():
            return output
        if isinstance(output, tuple):  # of a mixer, with its state
            return self._hook(module, args, output[0]), *output[1:]
        if self.forward:
            return output * self.factor
        output.register_hook(lambda gradient: gradient * self.factor)
        return output + 0


@pytest.fixture(params=[False, True], ids=["at_once", "later"])
def waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Read the answer at once, or one step later, as with a fused optimizer on a GPU."""
    if request.param:
        monkeypatch.setattr(finite_check, "can_wait", lambda trainer, optimizer: all(group["fused"] for group in optimizer.param_groups))
    return bool(request.param)


@pytest.fixture
def batches(words: Callable[..., list[str]], make_batch: Callable[..., Any]) -> list[Any]:
    return [{**make_batch(words(6)), "number": number} for number in range(6)]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("forward", [True, False])
def test_the_error_names_the_first_module_the_step_and_the_batch(
    rng: random.Random, make_task: Any, fit: Any, batches: list[Any], tmp_path: Path, forward: bool, accumulate: int, waits: bool
) -> None:
    path = rng.choice(["stack.encoder.layers.1.feed_forward", "stack.decoder.layers.0.cross_mixer", "stack.decoder.layers.1.feed_forward"])
    number = rng.randrange(2, 6)
    broken = Break(f"model.{path}", number, forward=forward)
    with pytest.raises(UnhealthyError) as error:
        fit(make_task(stack=STACK), batches, callbacks=[broken, FiniteCheck()], accumulate_grad_batches=accumulate)
    message = str(error.value)
    assert f"step {number // accumulate} is not finite" in message
    assert f"in batch {number}" in message
    if forward:
        assert f"First non-finite values: the output of model.{path} (" in message
        assert "loss not finite, gradient not finite" in message
    else:  # the gradient that the module hands on is the first that is seen, of a module in it
        assert "loss finite, gradient not finite" in message
        assert f"the gradient of the output of model.{path}" in message
    kept = torch.load(tmp_path / "not_finite.pt", weights_only=False)
    assert len(kept) == accumulate
    assert torch.equal(kept[number % accumulate]["src"], batches[number]["src"])


def test_a_run_that_stops_keeps_its_last_good_checkpoint(make_task: Any, fit: Any, batches: list[Any], tmp_path: Path, waits: bool) -> None:
    task = make_task(stack=STACK)
    broken = Break("model.stack.encoder.layers.0.feed_forward", 4, forward=True)
    with pytest.raises(UnhealthyError, match="step 4 is not finite"):
        fit(task, batches, callbacks=[broken, FiniteCheck(), LastCheckpoint(every_n_steps=2)], enable_checkpointing=True)
    checkpoint = load_checkpoint(tmp_path / "checkpoints/last.ckpt")
    assert checkpoint["global_step"] == 4
    for now, saved, before in zip(task.parameters(), checkpoint["state_dict"].values(), broken.before[0], strict=False):
        assert torch.equal(now, before)  # the step was not made
        assert saved.isfinite().all()


def test_no_checkpoint_contains_non_finite_parameters(make_task: Any, fit: Any, batches: list[Any], tmp_path: Path) -> None:
    wild = {"name": "sgd", "lr": 1e38}
    task = make_task(stack=STACK, optimizer=wild, schedule="constant")
    with pytest.raises(UnhealthyError, match="not finite"):
        fit(task, batches, callbacks=[FiniteCheck(), LastCheckpoint(every_n_steps=1)], enable_checkpointing=True)
    saved = [load_checkpoint(path) for path in (tmp_path / "checkpoints").glob("*.ckpt")]
    assert all(
        weight.isfinite().all() for checkpoint in saved for weight in checkpoint["state_dict"].values() if weight.is_floating_point()
    )


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_a_skipped_step_changes_nothing(make_task: Any, fit: Any, batches: list[Any], optimizer: str) -> None:
    states: list[Any] = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            states.append(
                {id(p): {k: v.clone() for k, v in s.items() if torch.is_tensor(v)} for p, s in trainer.optimizers[0].state.items()}
            )

    task = make_task(stack=STACK, optimizer={"name": optimizer, "lr": 0.01})
    broken, check = Break("model.stack.encoder.layers.0.feed_forward", 2, forward=True, again=1), FiniteCheck(policy="skip")
    with pytest.warns(
        UserWarning,
        match="is skipped, the (1st|2nd) of this run. First non-finite values: the output of model.stack.encoder.layers.0.feed_forward",
    ):
        trainer = fit(task, batches, callbacks=[broken, check, Watch()], gradient_clip_val=1.0)
    assert check.skipped == trainer.callback_metrics["train/skipped_steps"] == 2
    for one, other in zip(*broken.before, strict=True):
        assert torch.equal(one, other)
    for before, after in zip(states[2].values(), states[4].values(), strict=True):
        assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert not all(torch.equal(p, q) for p, q in zip(task.parameters(), broken.before[0], strict=True))  # the others were made
    assert all(p.isfinite().all() for p in task.parameters())


@pytest.mark.parametrize("number", [2, 5])  # a step before others, and the last
def test_a_deferred_check_leaves_parameters_and_step_counts_as_before_the_broken_step(
    make_task: Any, fit: Any, batches: list[Any], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite_check, "can_wait", lambda *_: True)
    task, counts = make_task(stack=STACK, optimizer={"name": "adamw", "lr": 0.01}), []

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            counts.append({float(state["step"]) for state in trainer.optimizers[0].state.values()})

    broken = Break("model.stack.encoder.layers.0.feed_forward", number, forward=True)
    with pytest.raises(UnhealthyError, match=f"step {number} is not finite"):
        fit(task, batches, callbacks=[broken, FiniteCheck(), Watch()], gradient_clip_val=1.0)
    assert counts == [{float(step + 1)} for step in range(number)] + [{float(number)}]  # also the optimizer's own count
    assert all(torch.equal(p, before) for p, before in zip(task.parameters(), broken.before[0], strict=True))


def test_leftovers_of_an_interrupted_run_do_not_affect_the_next(
    make_task: Any, fit: Any, batches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite_check, "can_wait", lambda *_: True)

    class Interrupt(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:
                raise RuntimeError("out of power")

    check, broken = FiniteCheck(), Break("model.stack.encoder.layers.0.feed_forward", 3, forward=False)
    with pytest.raises(RuntimeError, match="out of power"):
        fit(make_task(stack=STACK), batches, callbacks=[broken, check, Interrupt()])
    assert check._unread is not None
    trainer = fit(make_task(stack=STACK), batches, callbacks=[check], val=batches, num_sanity_val_steps=1)
    assert trainer.global_step == len(batches)


class Early(Callback):
    """Saves a checkpoint before the training, as `LearningRateFinder` does."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint(f"{trainer.default_root_dir}/early.ckpt")


def test_leftovers_of_an_interrupted_run_do_not_affect_an_early_checkpoint(make_task: Any, fit: Any, batches: list[Any]) -> None:
    check = FiniteCheck()
    check._unread = finite_check.Step(torch.optim.SGD([torch.ones(1)]), 0, 0, [], torch.tensor([False, False]), None)
    check._loss = torch.tensor(torch.inf)
    assert fit(make_task(stack=STACK), batches, callbacks=[check, Early()]).global_step == len(batches)


@pytest.mark.parametrize(
    "settings", [{"val_check_interval": 3}, {"limit_train_batches": 3}, {"max_steps": 3}, {"check_val_every_n_epoch": 2}]
)
def test_a_bad_step_before_validation_or_the_end_is_replayed_exactly(
    make_task: Any, fit: Any, batches: list[Any], settings: dict[str, Any], waits: bool
) -> None:
    broken = Break("model.stack.encoder.layers.0.feed_forward", 2, forward=False)
    with pytest.raises(UnhealthyError, match=r"gradient not finite; .*: the gradient of the output of model\.stack\.encoder\.layers\.0\."):
        fit(make_task(stack=STACK), batches, val=batches, callbacks=[broken, FiniteCheck()], **settings)


def test_a_checkpoint_from_a_forced_validation_does_not_replay_a_step(
    make_task: Any, fit: Any, batches: list[Any], tmp_path: Path, waits: bool
) -> None:
    class Enough(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            trainer.should_stop = batch_idx == 2

    broken = Break("model.stack.encoder.layers.0.feed_forward", 2, forward=False)
    save = ModelCheckpoint(tmp_path, save_on_train_epoch_end=False)
    with pytest.raises(UnhealthyError, match="step 2 is not finite"):
        fit(
            make_task(stack=STACK), batches, val=batches[3:], callbacks=[broken, FiniteCheck(), Enough(), save], enable_checkpointing=True,
            min_epochs=0,
        )  # fmt: skip


def test_a_step_that_logs_is_replayed_while_a_checkpoint_is_saved(make_task: Any, fit: Any, batches: list[Any], waits: bool) -> None:
    task = make_task(stack=STACK)
    step = task.training_step

    def training_step(batch: Any, batch_idx: int) -> Any:
        loss = step(batch, batch_idx)
        task.log("own", loss.detach(), on_step=True, batch_size=1)
        return loss

    task.training_step = training_step
    broken = Break("model.stack.encoder.layers.0.feed_forward", 3, forward=False)
    with pytest.raises(UnhealthyError, match="step 3 is not finite"):
        fit(task, batches, callbacks=[broken, FiniteCheck(), LastCheckpoint(every_n_steps=1)], enable_checkpointing=True)


def test_too_many_consecutive_skips_stop_the_run(make_task: Any, fit: Any, batches: list[Any]) -> None:
    broken = Break("model.stack.encoder.layers.0.feed_forward", 1, forward=False, again=9)
    with pytest.warns(UserWarning, match="is skipped"), pytest.raises(UnhealthyError, match=r"step 3 .*that is 3 in a row"):
        fit(make_task(stack=STACK), batches, callbacks=[broken, FiniteCheck(policy="skip", most_skips=2)])


def test_a_healthy_run_is_bit_identical(make_task: Any, fit: Any, batches: list[Any], waits: bool) -> None:
    weights = []
    for callbacks in ([], [FiniteCheck()]):
        torch.manual_seed(3)
        task = make_task(stack=STACK)
        trainer = fit(task, batches, callbacks=callbacks)
        weights.append(task.state_dict())
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())
    assert trainer.callback_metrics["train/gradient_norm"] > 0


class Amplify(Callback):
    """Multiplies gradients after those before it in the list have seen them."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        for parameter in pl_module.parameters():
            parameter.grad.data.mul_(7)


@pytest.mark.parametrize("later", [[], [Amplify()]])
def test_clipping_reuses_the_checked_norm_unless_gradients_may_change_later(
    make_task: Any, fit: Any, batches: list[Any], later: list[Callback], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *args: measured.append(clip(*args)))
    weights = []
    for own in ([], [FiniteCheck()]):
        torch.manual_seed(3)
        task = make_task(stack=STACK)
        trainer = fit(task, batches, callbacks=[*own, *later], gradient_clip_val=0.1)
        weights.append(task.state_dict())
        own_norms, measured[:] = len(measured), []
        assert own_norms == (len(batches) if later or not own else 0)
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())
    assert trainer.callback_metrics["train/gradient_norm"] > 0.1  # so that it was clipped


@pytest.mark.parametrize("settings", [{"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}, {"gradient_clip_val": 0.0}])
def test_other_clipping_is_left_to_lightning(make_task: Any, fit: Any, batches: list[Any], settings: dict[str, Any]) -> None:
    weights = []
    for callbacks in ([], [FiniteCheck()]):
        torch.manual_seed(3)
        task = make_task(stack=STACK)
        fit(task, batches, callbacks=callbacks, **settings)
        weights.append(task.state_dict())
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="policy must be stop or skip, but is 'ignore'"):
        FiniteCheck(policy="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="most_skips must be at least 0, but is -1"):
        FiniteCheck(most_skips=-1)


def test_an_optimizer_may_evaluate_a_step_several_times(make_task: Any, fit: Any, batches: list[Any]) -> None:
    task = make_task(optimizer={"name": "lbfgs", "lr": 1e30})
    with pytest.raises(UnhealthyError, match=r"step 0 is not finite .*batch 0\)"):
        fit(task, batches, callbacks=[FiniteCheck()])
