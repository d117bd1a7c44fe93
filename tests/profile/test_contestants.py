"""Tasks are timed as they train, other models under torch's cross-entropy, and only models of one kind together."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnkit import compose, draws
from attnkit.cli.bench_models import timed_model
from attnkit.profile import bench, contestants
from attnkit.profile.contestants import Kind, common_kind, contestant, kind_of
from attnkit.profile.flops import as_written
from attnkit.registry import ConfigurationError
from attnkit.task.causal_lm import CausalLM
from attnkit.task.steps import UNIT

SIZES: Any = {"d_model": 16, "num_layers": 1, "num_heads": 2}
CPU = torch.device("cpu")


def task_of(recipe: str) -> Any:
    return timed_model(recipe, vocab=20, classes=3, shape=[1, 28, 28])


def test_a_tasks_loss_is_its_objective_and_its_forward_pass_computes_what_the_objective_scores(seed: int) -> None:
    task = task_of("g2p/transformer")  # label smoothing, no dropout
    batch = Kind(is_pair=True).batch(20, 2, 5)
    one = contestant(task, is_compiled=False)
    sums = task.objective(batch)
    torch.testing.assert_close(one.loss(batch), sums.loss * UNIT)
    assert sums.targets == 2 * 5
    assert abs(sums.loss - sums.nll) > 1e-3
    logits: Any = one.outputs(*(one.inputs(batch) or ()))
    torch.testing.assert_close(logits, task(batch["src"], batch["tgt"][:, :-1]))


def test_a_masked_language_model_computes_logits_of_hidden_tokens_only_and_all_their_flops_are_counted(seed: int) -> None:
    task = task_of("masked_lm/bert")
    kind = kind_of(task)
    assert kind == Kind(targets="hidden tokens", number=0.25)
    batch = kind.batch(20, 4, 30)
    chosen = task.hide(batch, 0, "fit").chosen
    one = contestant(task, is_compiled=False)
    rows: list[int] = []
    task.model.head.register_forward_hook(lambda _module, args, _output: rows.append(len(args[0])))
    one.loss(batch)
    one.outputs(*(one.inputs(batch) or ()))
    assert rows == 2 * [int(chosen.sum())]
    assert len(set(chosen.sum(1).tolist())) > 1  # rows differ
    with torch.no_grad(), as_written(task.model), FlopCounterMode(display=False) as counter:
        one.loss(batch)
    assert bench._flops(one, "step", batch) == 3 * counter.get_total_flops()


def test_a_timed_step_of_a_task_updates_every_parameter_and_leaves_no_keys(seed: int) -> None:
    task = task_of("image/vit")
    kind = kind_of(task)
    assert kind == Kind(shape=(1, 28, 28), targets="class", number=3)
    before = [p.clone() for p in task.parameters()]
    call = bench._call(contestant(task, is_compiled=False), "step", kind.batch(0, 4, 0), bench.Plan(), CPU)
    assert call is not None
    call()
    assert all(not torch.equal(old, new) for old, new in zip(before, task.parameters(), strict=True))
    assert draws.current() is None


@pytest.mark.parametrize(
    ("options", "targets"), [({}, "class"), ({"pooling": "none"}, "class of each token"), ({"pooling": "last"}, "class")]
)
def test_a_model_with_classes_is_timed_under_their_cross_entropy(options: Any, targets: str, seed: int) -> None:
    model = compose(stack={"name": "decoder", **SIZES}, vocab_size=20, num_classes=3, **options)
    kind = kind_of(model)
    assert kind == Kind(targets=targets, number=3)
    batch = kind.batch(20, 2, 5)
    logits = model(batch["tokens"])
    wanted = F.cross_entropy(logits.reshape(-1, 3), batch["label"].flatten())
    torch.testing.assert_close(contestant(model, is_compiled=False).loss(batch), wanted)


def test_models_of_different_inputs_or_targets_are_not_compared() -> None:
    decoder, encoder = (compose(stack=name, vocab_size=20, **SIZES) for name in ("decoder", "encoder"))
    assert common_kind({"a": decoder, "b": encoder, "c": nn.Linear(1, 1), "d": task_of("language_model/tiny")}) == Kind()
    with pytest.raises(ConfigurationError, match=r"a maps tokens -> tokens, but b maps tokens -> class \(3\): bench compares"):
        common_kind({"a": decoder, "b": task_of("classification/lstm")})


def test_a_task_of_unknown_batches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(contestants._TARGETS, CausalLM)
    with pytest.raises(ConfigurationError, match="bench knows no batch for the task 'causal_lm', which is none of Seq2Seq, MaskedLM"):
        kind_of(task_of("language_model/tiny"))
