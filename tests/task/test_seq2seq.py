from datetime import timedelta

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging, GradientAccumulationScheduler, ModelCheckpoint, Timer
from torch.utils.data import DataLoader

import attnkit
from attnkit.registry import ConfigurationError
from attnkit.task import Task, TaskConfig
from attnkit.task.seq2seq import Prediction
from tests.task.conftest import is_plain

# Lightning 2.6 on torch 2.13, and its hints on small runs
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]
STACK = {"name": "encoder_decoder", "d_model": 32, "num_layers": 1, "num_heads": 4, "dropout": 0.0, "position": "rotary"}


class EndOfEpoch(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        trainer.should_stop = True


def loader(batches):
    return DataLoader(batches, batch_size=None)


def test_a_seq2seq_learns_to_reverse_words(words, make_batch, make_task, fit, capsys):
    training = words(300, longest=4)
    batches = [make_batch(training[i::10]) for i in range(10)]
    asked = training[:60]
    task = make_task(stack=STACK, label_smoothing=0.05, schedule={"name": "linear", "warmup_steps": 20})
    trainer = fit(task, batches, val=[make_batch(asked)], max_epochs=30, check_val_every_n_epoch=30)
    logged = {k: v.item() for k, v in trainer.callback_metrics.items()}
    print(logged)
    assert logged["val/sequence_error_rate"] < 0.1
    assert logged["val/token_error_rate"] <= logged["val/sequence_error_rate"]
    assert logged["val/token_accuracy"] > 0.9
    assert logged["val/perplexity"] == pytest.approx(torch.tensor(logged["val/loss"]).exp().item(), rel=1e-4)
    shown = capsys.readouterr().out
    assert shown.count(" -> ") == 8
    rates = ", ".join(f"{name} {logged[f'val/{name}']:.4g}" for name in ("sequence_error_rate", "token_error_rate"))
    assert f"Step 300: {rates}\n" in shown
    right = sum(a == b[::-1] for a, b in zip(task.generate(asked), asked, strict=True))
    assert 1 - right / len(asked) == pytest.approx(logged["val/sequence_error_rate"])
    tested = trainer.test(task, loader([make_batch(asked)]), verbose=False)[0]
    assert tested == {k.replace("val", "test"): pytest.approx(v) for k, v in logged.items() if k.startswith("val")}
    predicted = trainer.predict(task, loader([make_batch(asked[:3]) | {"references": [[], [], []]}]))
    assert predicted == [[Prediction(w, g) for w, g in zip(asked[:3], task.generate(asked[:3]), strict=True)]]
    assert str(predicted[0][0]).split("\t")[0] == asked[0]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_batched_generation_equals_one_by_one_in_any_order(words, make_batch, make_task, fit, beam_size):
    task = make_task(beam_size=beam_size)
    fit(task, [make_batch(words(30)) for _ in range(20)])
    task.double()
    sources = [*words(90, longest=9), ""]
    outputs = task.generate(sources)
    assert len(set(outputs)) > 1
    assert outputs == [task.generate([source])[0] for source in sources]
    assert task.training
    assert task.generate([]) == []
    assert max(map(len, task.generate(sources, max_length=3))) <= 3


def test_generate_rejects_a_single_text(make_task):
    with pytest.raises(TypeError, match=r"as in \['word'\]"):
        make_task().generate("word")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1, but is 1.0"),
        ({"beam_size": 0}, "beam_size must be at least 1, but is 0"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"samples": -1}, "samples must be at least 0"),
        ({"metrics": "bleu"}, r"metrics must be a list of names, as in \[bleu\]"),
        ({"metrics": ["blue"]}, "unknown metric 'blue'. Did you mean 'bleu'"),
        ({"tie": "both"}, "tie must be .*'none', 'output', 'inputs', 'all'"),
        ({"tie": "all", "tgt_tokenizer": {"name": "character", "tokens": list("abcdeg")}}, "both sides need the same tokenizer"),
        ({"src_tokenizer": "character"}, "src_tokenizer is not trained; pass the .spec of a trained one"),
        ({"optimizer": "adamv"}, "unknown optimizer 'adamv'. Did you mean 'adam"),
        ({"optimizer": {"name": "sgd", "learning_rate": 1.0}}, "optimizer 'sgd' has no argument 'learning_rate'"),
        ({"schedule": {"name": "linear", "total_steps": 9}}, "schedule 'linear' receives 'total_steps' from its parent"),
        ({"stack": {**STACK, "attention": "aditive"}}, "unknown attention 'aditive'. Did you mean 'additive'"),
        (
            {"stack": {**STACK, "attention": {"name": "additive", "hidden_dim": torch.tensor(3)}}},
            r"attention 'additive': hidden_dim must be int \| None, but is tensor\(3\)",
        ),
        ({"stack": torch.nn.Identity()}, r"stack must be a name or a mapping with a name, but is Identity"),
        ({"optimizer": {"name": "adam", 3: 4}}, r"optimizer 'adam' has no argument '3'"),
    ],
)
def test_misuse_is_rejected_at_construction(make_task, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        make_task(**arguments)


def test_a_stack_of_the_wrong_kind_is_rejected(make_task):
    with pytest.raises(ConfigurationError, match="takes vocab_size"):
        make_task(stack={**STACK, "name": "decoder"}).configure_model()


def test_incompatible_components_are_rejected_without_consuming_random_numbers(make_task):
    before = torch.get_rng_state()
    with pytest.raises(ConfigurationError, match="position 'rotary' does not work with attention 'additive'"):
        _ = make_task(stack={**STACK, "attention": "additive"}).parameter_count
    with pytest.raises(ValueError, match=r"num_heads \(3\) must divide d_model \(32\)"):
        _ = make_task(stack={**STACK, "num_heads": 3}).parameter_count
    assert make_task(stack=STACK).parameter_count > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unregistered_task_is_refused(make_task):
    class Mine(Task):
        def __init__(self):
            super().__init__(TaskConfig(optimizer="sgd", schedule="constant"))

        build_model = objective = lambda self, *_: None

    with pytest.raises(ConfigurationError, match=r"Mine is not a registered task.*decorate it with"):
        Mine()


def test_a_schedule_with_an_end_rejects_an_open_ended_run(make_batch, make_task, fit):
    with pytest.raises(ConfigurationError, match=r"the run is open-ended: set trainer.max_steps"):
        fit(make_task(schedule="cosine"), [make_batch(["ab"])], max_epochs=-1)


@pytest.mark.parametrize(("name", "key"), [("adamw", "learning rate: -1.0"), ("muon", "an lr of at least 0")])
def test_an_argument_the_optimizer_rejects_is_named(make_batch, make_task, fit, name, key):
    with pytest.raises(ConfigurationError, match=rf"^model.optimizer: {name}: .*{key}"):
        fit(make_task(optimizer={"name": name, "lr": -1.0}), [make_batch(["ab"])])


def test_a_run_that_ends_within_its_warmup_is_reported(make_batch, make_task, fit, capsys):
    said = "note: the run of 2 steps ends within the warmup of 4, so the learning rate rises to 0.5 of its value"
    fit(make_task(schedule={"name": "constant", "warmup_steps": 4}), [make_batch(["ab"])], max_epochs=2)
    assert capsys.readouterr().out.count(said) == 1
    fit(make_task(schedule={"name": "constant", "warmup_steps": 4}), [make_batch(["ab"])] * 2, max_epochs=-1, callbacks=[EndOfEpoch()])
    assert capsys.readouterr().out.count(said) == 1
    fit(make_task(schedule={"name": "constant", "warmup_steps": 2}), [make_batch(["ab"])], max_epochs=2)
    assert "note:" not in capsys.readouterr().out


def test_a_run_whose_time_limit_cuts_its_schedule_is_reported(make_batch, make_task, fit, capsys):
    limit = Timer(timedelta(microseconds=1))
    fit(make_task(schedule={"name": "linear", "warmup_steps": 0}), [make_batch(["ab"])], max_epochs=4, callbacks=[limit])
    said = "note: the run ends after 1 of the 4 steps of the schedule, where the learning rate has fallen to 0.75 of its value"
    assert capsys.readouterr().out.count(said) == 1


@pytest.mark.parametrize(("metrics", "monitor"), [(["bleu", "chrf"], ("val/bleu", "max")), ([], ("val/loss", "min"))])
def test_monitor_is_the_first_metric(make_batch, make_task, fit, metrics, monitor, capsys):
    task = make_task(metrics=metrics)
    assert task.monitor == monitor
    assert make_task().monitor == ("val/sequence_error_rate", "min")
    trainer = fit(task, [make_batch(["ab"])], val=[make_batch(["ab", "bcde"])])
    assert {f"val/{m}" for m in metrics} <= set(trainer.callback_metrics)
    assert ("->" in capsys.readouterr().out) == bool(metrics)  # nothing is generated without metrics


def test_unknown_reference_tokens_count_as_errors(make_batch, make_task, fit):
    task = make_task()
    assert task.reference_tokens("ab") == [4, 5]
    assert task.reference_tokens("aX")[1] not in (*task.reference_tokens("aY"), 3)


def test_the_optimizer_decays_only_matrices(make_batch, make_task, fit):
    optimizer = {"name": "adamw", "lr": 0.5, "weight_decay": 0.3}
    task = make_task(tie="none", optimizer=optimizer, schedule={"name": "constant", "warmup_steps": 4})
    trainer = fit(task, [make_batch(["ab"])])
    matrices, others, undecayed = groups = trainer.optimizers[0].param_groups
    name_of = {p: n for n, p in task.named_parameters()}
    names = [{name_of[p] for p in g["params"]} for g in groups]
    assert [g["weight_decay"] for g in groups] == [0.3, 0.3, 0.0]
    assert [g["matrices"] for g in groups] == [True, False, False]
    assert names[1] == {"model.embeddings.src.weight", "model.embeddings.tgt.weight", "model.head.projection.weight"}
    assert all(p.ndim == 2 for p in matrices["params"])
    assert all(p.ndim == 1 for p in undecayed["params"])
    assert set.union(*names) == {n for n, _ in task.named_parameters()}
    assert others["lr"] == pytest.approx(0.5 * 2 / 4)  # after one step


@pytest.mark.parametrize("name", ["sgd", "rmsprop", "adafactor", "lbfgs", "muon"])
def test_any_optimizer_works(make_batch, make_task, fit, name):
    task = make_task(optimizer={"name": name, "lr": 1e-3})
    task.configure_model()
    before = {k: v.clone() for k, v in task.state_dict().items()}
    fit(task, [make_batch(["ab", "cde"])])
    assert any(not torch.equal(v, before[k]) for k, v in task.state_dict().items())


def test_arguments_are_stored_as_complete_plain_data(make_task):
    kept = dict(make_task().hparams)
    assert is_plain(kept)
    assert kept["stack"]["norm"]["eps"] > 0  # defaults are written out
    assert dict(attnkit.tasks.build({"name": "seq2seq", **kept}).hparams) == kept


@pytest.mark.filterwarnings("ignore:.*accumulate_grad_batches != 1")
@pytest.mark.parametrize(
    ("limits", "steps"), [({"max_epochs": 3}, 5 + 2 + 2), ({"max_epochs": 3, "max_steps": 6}, 6), ({"max_steps": 7}, 7)]
)
def test_a_schedule_ends_with_the_run_under_changing_accumulation(words, make_batch, make_task, fit, limits, steps):
    rates = []

    class Look(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            rates.append(optimizer.param_groups[0]["lr"] / 0.01)

    task = make_task(schedule={"name": "linear", "warmup_steps": 0})
    batches = [make_batch(words(2)) for _ in range(5)]
    accumulation = GradientAccumulationScheduler({0: 1, 1: 3})
    fit(task, batches, callbacks=[accumulation, Look()], **({"max_epochs": -1} | limits))
    assert rates == pytest.approx([1 - step / steps for step in range(steps)])


def test_weight_averaging_of_lightning_works(words, make_batch, make_task, fit, tmp_path):
    batches, val = [make_batch(words(9)) for _ in range(6)], [make_batch(words(9))]
    task = make_task()
    with pytest.warns(UserWarning, match="overrides the configure_model"):
        trainer = fit(task, batches, val=val, callbacks=[EMAWeightAveraging(decay=0.7)])
    averaged = {k: v.clone() for k, v in task.state_dict().items()}  # put in place when training ends
    trainer.save_checkpoint(tmp_path / "ema.ckpt")
    loaded = Task.load(tmp_path / "ema.ckpt")
    assert all(torch.equal(v, averaged[k]) for k, v in loaded.state_dict().items())
    assert trainer.validate(task, loader(val), verbose=False)[0]["val/loss"] == pytest.approx(trainer.callback_metrics["val/loss"].item())


@pytest.mark.filterwarnings("ignore:You're using the WeightAveraging callback:UserWarning")
def test_the_trainer_of_a_fit_tests_the_averaged_weights_of_a_checkpoint(words, make_batch, make_task, fit, tmp_path):
    batches, task = [make_batch(words(9)) for _ in range(3)], make_task()
    best = ModelCheckpoint(tmp_path)
    trainer = fit(task, batches, val=batches, callbacks=[EMAWeightAveraging(decay=0.7), best], enable_checkpointing=True)
    expected = trainer.validate(task, loader(batches), verbose=False)[0]["val/loss"]  # of the averages, put in place when training ends
    for evaluate in (trainer.validate, trainer.test):
        (found,) = evaluate(task, loader(batches), ckpt_path=best.best_model_path, weights_only=True, verbose=False)
        assert next(value for name, value in found.items() if name.endswith("/loss")) == expected


def test_a_printed_prediction_is_one_line_of_two_cells() -> None:
    assert str(Prediction("a\tb.png", "one,\ntwo\\")) == r"a\tb.png" + "\t" + r"one,\ntwo\\"


def test_targets_too_long_to_be_generated_are_reported(make_batch, make_task, fit, capsys):
    short, long = make_batch(["abc", "a"]), make_batch(["abcd", "a"])
    for arguments, val, expected in (({}, [short], False), ({}, [short, long], True), ({"metrics": []}, [long], False)):
        trainer = fit(make_task(max_length=4, **arguments), [short], val=val)
        assert trainer.global_step == 1
        assert ("note: a target has 5 tokens, but outputs end after max_length=4" in capsys.readouterr().out) is expected
