import csv
import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

import attnkit
from attnkit.callback import AttentionMaps
from attnkit.callback.attention_maps import entropy
from attnkit.drawing import figure as figures
from attnkit.registry import ConfigurationError
from attnkit.task.attending import read_text

pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
STACK = {"name": "encoder_decoder", "d_model": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.3, "attention_dropout": 0.2}


def entropies(folder: Path) -> dict[int, dict[str, float]]:
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith(("entropy/", "largest_logit/")) and value:
                found.setdefault(int(row["step"]), {})[name] = float(value)
    return found


def test_training_with_attention_maps_is_bit_identical(words, make_batch, make_task, fit, tmp_path):
    batches, val = [make_batch(words(6)) for _ in range(4)], [make_batch(words(5))]
    states = []
    for number, callbacks in enumerate(([], [AttentionMaps(every_n_steps=1)], [AttentionMaps()])):
        torch.manual_seed(7)
        task = make_task(stack=STACK)
        fit(task, batches, val=val, callbacks=callbacks, logger=CSVLogger(tmp_path, version=number), max_epochs=2, num_sanity_val_steps=1)
        states.append((task.state_dict(), torch.get_rng_state()))
    for state, rng_state in states[1:]:
        assert torch.equal(rng_state, states[0][1])
        assert all(torch.equal(state[name], states[0][0][name]) for name in states[0][0])
    logs = [
        entropies(tmp_path / f"lightning_logs/version_{n}")
        for n in range(3)
        if (tmp_path / f"lightning_logs/version_{n}/metrics.csv").exists()
    ]
    assert [sorted(log) for log in logs] == [[], [1, 2, 3, 4, 5, 6, 7, 8], [4, 8]]
    assert logs[1][8] == logs[2][8]  # the same rows at the same step
    values = [(name, value) for log in logs for scalars in log.values() for name, value in scalars.items()]
    assert all(0 <= value <= 1 for name, value in values if name.startswith("entropy/"))
    paths = [f"stack.{p}.layers.0.{k}" for p, k in (("decoder", "cross_mixer"), ("decoder", "mixer"), ("encoder", "mixer"))]
    expected = [f"entropy/{path}/head_{head}" for path in paths for head in (0, 1)]
    assert sorted(logs[2][4]) == expected + [f"largest_logit/{path}" for path in paths]


def test_a_resumed_run_reads_the_same_rows(words, make_batch, make_task, fit, tmp_path):
    batches, val = [make_batch(words(6)) for _ in range(4)], [make_batch(words(5))]
    options = {"val": val, "accumulate_grad_batches": 2, "check_val_every_n_epoch": 9, "num_sanity_val_steps": 1}
    logs = []
    for number, (epochs, start) in enumerate(((2, None), (1, None), (2, tmp_path / "a.ckpt"))):
        torch.manual_seed(7)
        callbacks, logger = [AttentionMaps(every_n_steps=2)], CSVLogger(tmp_path, version=number)
        trainer = fit(make_task(stack=STACK), batches, callbacks=callbacks, logger=logger, max_epochs=epochs, ckpt_path=start, **options)
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        logs.append(entropies(tmp_path / f"lightning_logs/version_{number}"))
    assert [sorted(log) for log in logs] == [[2, 4], [2], [4]]
    assert logs[2][4] == logs[0][4]


@pytest.mark.filterwarnings("ignore:.*overrides the configure_model")
@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning")
def test_maps_after_validation_use_the_averaged_weights(words, make_batch, make_task, fit, tmp_path):
    batches, val = [make_batch(words(6)) for _ in range(6)], [make_batch(words(5))]
    task, (during, later) = make_task(stack=STACK), (CSVLogger(tmp_path, version=number) for number in range(2))
    trainer = fit(task, batches, val=val, callbacks=[AttentionMaps(), EMAWeightAveraging(decay=0.9)], logger=during)
    assert trainer.global_step == 6
    again = Trainer(accelerator="cpu", logger=later, callbacks=[AttentionMaps()], enable_progress_bar=False, enable_model_summary=False)
    again.validate(task, DataLoader(val, batch_size=None), verbose=False)  # at the end of a fit, the task has the averages
    later.save()
    found, expected = (entropies(tmp_path / f"lightning_logs/version_{number}") for number in range(2))
    assert found[6] == pytest.approx(expected[0], rel=1e-6)


@pytest.mark.parametrize("normalizer", ["softmax", {"name": "entmax", "alpha": 2.0}])
def test_entropies_exclude_padding(words, make_batch, make_task, fit, tmp_path, normalizer):
    asked = words(3)
    mixer = {"name": "multi_head", "normalizer": normalizer}
    task = make_task(stack={**STACK, "mixer": mixer, "cross_mixer": mixer})
    fit(task, [make_batch(words(6))], val=[make_batch(asked)], callbacks=[AttentionMaps(rows=2)], logger=CSVLogger(tmp_path, version=0))
    (logged,) = entropies(tmp_path / "lightning_logs/version_0").values()
    for part, kind in (("encoder", "self"), ("decoder", "self"), ("decoder", "cross")):
        values = []
        for word in asked[:2]:
            reading = read_text(task, word, word[::-1])
            (m,) = [m for m in reading.labelled(reading.maps()) if (m.part, m.kind) == (part, kind)]
            for q, row in enumerate(m.weights[1].tolist()):
                keys = q + 1 if (part, kind) == ("decoder", "self") else len(row)
                if keys > 1:
                    values.append(-sum(w * math.log(w) for w in row if w > 0) / math.log(keys))
        place = f"stack.{part}.layers.0.{'cross_mixer' if kind == 'cross' else 'mixer'}"
        assert logged[f"entropy/{place}/head_1"] == pytest.approx(sum(values) / len(values), abs=1e-4)


def test_the_largest_logit_excludes_padding(words, make_batch, make_task, fit, tmp_path):
    asked = words(3)
    task = make_task(stack={**STACK, "position": "none"})
    fit(task, [make_batch(words(6))], val=[make_batch(asked)], callbacks=[AttentionMaps(rows=3)], logger=CSVLogger(tmp_path, version=0))
    (logged,) = entropies(tmp_path / "lightning_logs/version_0").values()
    largest = []
    for word in asked:  # one by one, so without padding
        batch = make_batch([word])
        task.eval()
        with attnkit.record_attention(task.model, logits=True) as logits:
            task(batch["src"], batch["tgt"][:, :-1])
        largest.append({path: values.amax().item() for path, values in logits.items()})
    for path in largest[0]:
        assert logged[f"largest_logit/{path}"] == pytest.approx(max(row[path] for row in largest), rel=1e-4)


def test_tensorboard_gets_figures(words, make_batch, make_task, fit, tmp_path):
    logger = TensorBoardLogger(tmp_path, version=0)
    fit(make_task(), [make_batch(words(4))], val=[make_batch(words(4))], callbacks=[AttentionMaps()], logger=logger)
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    names = ("encoder self-attention", "decoder self-attention", "cross-attention")
    assert sorted(events.Tags()["images"]) == sorted(f"attention/{name}" for name in names)
    assert "entropy/stack.encoder.layers.0.mixer/head_0" in events.Tags()["scalars"]


def test_a_text_too_long_for_a_figure_does_not_stop_training(words, make_batch, make_task, fit, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "LARGEST", 1.0)
    callback = AttentionMaps()
    with pytest.warns(UserWarning, match="AttentionMaps draws no figures"):
        fit(make_task(), [make_batch(words(4))], val=[make_batch(words(4))], callbacks=[callback], logger=TensorBoardLogger(tmp_path))
    assert not callback.figures


@pytest.mark.parametrize("arguments", [{"every_n_steps": 0}, {"rows": 0}])
def test_numbers_out_of_range_are_refused(arguments):
    with pytest.raises(ConfigurationError, match=f"{next(iter(arguments))} must be at least 1, but is 0"):
        AttentionMaps(**arguments)


def test_entropy_ignores_queries_with_one_key(rng):
    weights = torch.tensor([[[1.0, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]]])[None]
    allowed = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 1, 1]]])[None].bool()
    assert entropy(weights, allowed, torch.tensor([[True, True, False]])).tolist() == pytest.approx([1.0])
    assert entropy(weights[:, :, :1], allowed[:, :, :1], torch.tensor([[True]])).tolist() == [0.0]


def test_scalars_may_be_logged_more_often_than_figures_are_drawn():
    often = AttentionMaps(every_n_steps=1, figures=False)
    assert Trainer(accelerator="cpu", logger=False, callbacks=[often, AttentionMaps(every_n_steps=9)]).callbacks[0] is often
