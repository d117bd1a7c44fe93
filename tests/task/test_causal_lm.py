import itertools
import math
import random

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch.utils.data import DataLoader

import attnkit
from attnkit.registry import ConfigurationError
from attnkit.task import Task
from attnkit.task.causal_lm import CausalLM, Continuation
from tests.task.conftest import is_plain

# Lightning 2.6 on torch 2.13, and its hints on small runs
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]
TOKENIZER = attnkit.tokenizers.build("character").train(["abcdef\n"])
STACKS = {
    "decoder": {"name": "decoder", "d_model": 32, "num_layers": 2, "num_heads": 2, "position": "rotary"},
    "recurrent_decoder": {"name": "recurrent_decoder", "d_model": 32, "num_layers": 1, "cell": "gru"},
}
CIRCLE = "abcdef" * 4 + "\n"


@pytest.fixture
def make_task():
    def make(**arguments):
        settings = {
            "stack": STACKS["decoder"],
            "tokenizer": TOKENIZER.spec,
            "optimizer": {"name": "adam", "lr": 0.01},
            "schedule": {"name": "constant", "warmup_steps": 2},
            "max_length": 8,
        }
        return CausalLM(**(settings | arguments))

    return make


@pytest.fixture
def make_batch(rng):
    def make(rows=8, length=20, **extra):
        """Windows of a text that goes round in a circle, so that all but the first token is known."""
        ids = TOKENIZER.encode(CIRCLE * 4)
        starts = [rng.randrange(len(CIRCLE)) for _ in range(rows)]
        windows = torch.tensor([ids[start : start + length + 1] for start in starts])
        return {"tokens": windows[:, :-1], "targets": windows[:, 1:], **extra}

    return make


def loader(batches):
    return DataLoader(batches, batch_size=None)


@pytest.mark.parametrize("stack", STACKS)
def test_a_causal_lm_learns_to_continue_text(make_batch, make_task, fit, capsys, stack, tmp_path):
    task = make_task(stack=STACKS[stack], prompts=["abc", ""])
    held_out = make_batch(characters=torch.tensor(160))
    trainer = fit(task, [make_batch() for _ in range(120)], val=[held_out])
    logged = {k: v.item() for k, v in trainer.callback_metrics.items()}
    print(logged)
    assert logged["val/token_accuracy"] > 0.8
    assert logged["val/perplexity"] == pytest.approx(math.exp(logged["val/loss"]), rel=1e-4)
    assert logged["val/bits_per_character"] == pytest.approx(logged["val/loss"] / math.log(2), rel=1e-4)  # a token is a character
    assert logged["train/perplexity"] == pytest.approx(math.exp(logged["train/loss"]), rel=1e-4)
    shown = capsys.readouterr().out
    assert "Step 120: loss " in shown
    assert "\n  abc|" in shown
    assert task.generate(["bcdefabc", "efabcdefab"], max_length=3) == ["def", "cde"]
    tested = trainer.test(task, loader([held_out]), verbose=False)[0]
    assert tested == {k.replace("val", "test"): pytest.approx(v) for k, v in logged.items() if k.startswith("val")}
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    loaded = Task.load(tmp_path / "a.ckpt")
    assert loaded.generate(["bcdefabc"], max_length=3) == ["def"]
    (predicted,) = trainer.predict(task, loader([{"tokens": torch.tensor([task.input_ids("bcdefabc")]), "text": ["bcdefabc"]}]))
    assert predicted == [Continuation("bcdefabc", task.generate(["bcdefabc"])[0])]
    assert str(Continuation("a", "b\nc")) == "a\tb\\nc"


@pytest.mark.filterwarnings("ignore:.*overrides the configure_model")
def test_printed_continuations_use_the_averaged_weights(make_batch, make_task, fit, capsys):
    task = make_task(prompts=["abc", "fab"])
    fit(task, [make_batch() for _ in range(9)], val=[make_batch()], callbacks=[EMAWeightAveraging(decay=0.9)])
    printed = capsys.readouterr().out.splitlines()[-2:]
    assert printed == [f"  {line}" for line in task.samples()]  # at the end of a fit, the task has the averages


def test_bits_per_character_divide_total_bits_by_total_characters(make_batch, make_task, fit, rng):
    task = make_task(prompts=[])
    batches = [make_batch(rows, characters=torch.tensor(rng.randint(30, 300))) for rows in (1, 5, 3)]
    trainer = fit(task, [make_batch()], val=batches)
    with torch.no_grad():
        bits = [-task(b["tokens"]).log_softmax(-1).gather(-1, b["targets"][..., None]).sum() / math.log(2) for b in batches]
    expected = sum(bits) / sum(b["characters"] for b in batches)
    assert trainer.callback_metrics["val/bits_per_character"] == pytest.approx(expected.item(), rel=1e-4)


def test_unscored_targets_are_ignored(make_batch, make_task):
    task = make_task()
    task.configure_model()
    batch = make_batch()
    unscored = {**batch, "targets": batch["targets"].clone()}
    unscored["targets"][:, :7] = 0
    sums, whole = task.objective(unscored), task.objective(batch)
    assert sums.targets == 8 * 13
    assert whole.targets == 8 * 20
    logits = task(batch["tokens"])[:, 7:]
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch["targets"][:, 7:], reduction="sum")
    assert sums.loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_a_batch_of_texts_without_targets_is_shifted(make_batch, make_task, fit):
    task = make_task(prompts=[])
    task.configure_model()
    tokens = torch.tensor([[1, 4, 5, 6, 2], [1, 4, 2, 0, 0]])
    shifted = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}
    assert task.objective({"tokens": tokens}).loss == task.objective(shifted).loss
    assert task.objective({"tokens": tokens}).targets == 6
    trainer = fit(task, [{"tokens": tokens}], val=[{"tokens": tokens, "label": torch.tensor([0, 1])}])
    assert "val/bits_per_character" not in trainer.callback_metrics


def test_a_filler_has_no_targets(make_task):
    task = make_task()
    task.configure_model()
    tokens = torch.tensor([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0]])
    row, both = ({"tokens": tokens[:n], "example": torch.tensor([3, -1][:n])} for n in (1, 2))
    found, expected = task.objective(both), task.objective(row)
    assert found.targets == expected.targets == 4
    torch.testing.assert_close(found.loss, expected.loss)


@pytest.mark.parametrize("position", ["rotary", "alibi", "relative", "none"])
def test_a_packed_row_equals_each_document_alone(make_task, seed, position):
    task = make_task(stack={**STACKS["decoder"], "position": position}).double()
    task.configure_model()
    task.double()
    lengths = [random.randint(1, 6) for _ in range(4)]
    tokens = torch.randint(4, 10, (2, sum(lengths)))
    documents = torch.tensor([i for i, n in enumerate(lengths) for _ in range(n)]).expand(2, -1)
    packed = task(tokens, documents)
    alone = [task(part) for part in tokens.split(lengths, 1)]
    # rotary's tables are float32, also here: a turn by the difference of two places is right to some 1e-7
    assert torch.allclose(packed, torch.cat(alone, 1), atol=1e-5 if position == "rotary" else 1e-9)
    assert not torch.allclose(packed, task(tokens), atol=1e-3)


def test_document_masks_apply_in_training_and_evaluation(make_batch, make_task, fit):
    task = make_task(prompts=[])
    batch = make_batch()
    documents = {**batch, "documents": (torch.arange(20) // 5).expand(8, -1)}
    task.configure_model()
    assert task.objective(documents).loss != task.objective(batch).loss
    fit(task, [documents], val=[documents])


def test_a_recurrent_stack_rejects_documents(make_batch, make_task):
    task = make_task(stack=STACKS["recurrent_decoder"])
    task.configure_model()
    with pytest.raises(ConfigurationError, match=r"carries its state from one document into the next.*document_mask to false"):
        task.objective(make_batch(documents=torch.zeros(8, 20, dtype=torch.long)))


@pytest.mark.parametrize("stack", STACKS)
def test_batched_generation_equals_one_by_one(make_batch, make_task, fit, words, stack):
    task = make_task(stack=STACKS[stack], prompts=[])
    fit(task, [make_batch() for _ in range(5)])
    task.double()
    prompts = [*words(20), ""]
    for options in ({}, {"beam_size": 3}, {"repetition_penalty": 1.3, "min_length": 2}):
        assert task.generate(prompts, **options) == [task.generate([prompt], **options)[0] for prompt in prompts]
    drawn = task.generate(prompts, temperature=0.9, top_p=0.9, seed=5)
    assert drawn == [task.generate([prompt], temperature=0.9, top_p=0.9, seed=5 + i)[0] for i, prompt in enumerate(prompts)]
    assert "".join(task.stream("ab", max_length=6)) == task.generate(["ab"], max_length=6)[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label_smoothing": -0.1}, "label_smoothing must be at least 0"),
        ({"beam_size": 0}, "beam_size must be at least 1"),
        ({"prompts": "ab"}, r"prompts must be a list of texts, as in \['ab'\]"),
        ({"tokenizer": "character"}, "tokenizer is not trained"),
        ({"tie": "all"}, "tie must be"),
        ({"stack": {**STACKS["decoder"], "name": "encoder"}}, "needs a decoder stack.*, not 'encoder'"),
        ({"stack": {**STACKS["decoder"], "name": "encoder_decoder"}}, "src_vocab_size"),
        ({"stack": {**STACKS["decoder"], "attention": "aditive"}}, "Did you mean 'additive'"),
        ({"head": {"name": "linear", "excluded": [0, 2]}}, "head: excluded has 2, the id of <eos>, which ends every text that the model"),
    ],
)
def test_misuse_is_rejected_before_training(make_task, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        make_task(**arguments).configure_model()


def test_arguments_are_stored_as_complete_plain_data(make_task):
    kept = dict(make_task().hparams)
    assert is_plain(kept)
    assert dict(attnkit.tasks.build({"name": "causal_lm", **kept}).hparams) == kept


@pytest.mark.parametrize("name", ["independent", "sequential"])
def test_further_tokens_add_their_weighted_loss(make_task, name, seed):
    """The sum over t and i of the loss of x_{t+i}, where x_{t+i} is scored and in the document of x_t; with all that losses have."""
    several = {"name": name, "num_tokens": 3, "weight": 0.25}
    head = {"name": "linear", "softcap": 2.0}
    task = make_task(multi_token=several, head=head, label_smoothing=0.1, z_loss=0.01).double()
    task.configure_model()
    task.double()
    tokens = torch.tensor([[1, 4, 5, 1, 6, 7, 8, 9], [1, 7, 6, 5, 4, 3, 2, 0]])
    targets = torch.tensor([[4, 5, 2, 6, 7, 8, 9, 4], [7, 0, 5, 4, 3, 2, 0, 0]])
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0] * 8])
    logits = task.model(tokens, documents=documents, further=True)
    expected, counted = 0.0, 0
    for row, t, i in itertools.product(range(2), range(8), (1, 2, 3)):
        place = t + i - 1  # the input before the target
        if place < 8 and documents[row, place] == documents[row, t] and targets[row, place] != 0:
            z = logits[i - 1][row, t].log_softmax(-1)
            others = (z.sum() - z[0]) / (z.numel() - 1)
            loss = -0.9 * z[targets[row, place]] - 0.1 * others + 0.01 * logits[i - 1][row, t].logsumexp(-1) ** 2
            expected += loss * (1 if i == 1 else 0.25)
            counted += i == 1
    sums = task.objective({"tokens": tokens, "targets": targets, "documents": documents})
    assert sums.targets == counted
    torch.testing.assert_close(sums.loss, expected, rtol=0, atol=1e-10)
    assert all(p is not None for p in torch.autograd.grad(sums.loss, list(task.model.parameters()), allow_unused=True))


@pytest.mark.parametrize("policy", ["none", "layer"])
def test_the_loss_of_each_offset_is_logged(make_batch, make_task, fit, policy):
    task = make_task(multi_token="sequential", prompts=[], optimizer={"name": "sgd", "lr": 0.0}, activation_checkpointing=policy)
    batches = [make_batch(3), make_batch(5, length=9)]
    trainer = fit(task, batches, val=batches, accumulate_grad_batches=2)
    logged = {key: value.item() for key, value in trainer.callback_metrics.items()}
    sums = []
    with torch.no_grad():
        for batch in batches:
            scores = task.model(batch["tokens"], further=True)[1][:, :-1]
            sums.append(torch.nn.functional.cross_entropy(scores.transpose(1, 2), batch["targets"][:, 1:], reduction="sum"))
    expected = sum(sums).item() / (3 * 19 + 5 * 8)
    assert logged["train/model.multi_token/loss_2"] == pytest.approx(expected, rel=1e-4)
    assert logged["val/loss_2"] == pytest.approx(expected, rel=1e-4)
    assert logged["val/loss"] == pytest.approx(logged["train/loss"], rel=1e-4)
    assert make_task().metrics("val").keys() == task.metrics("val").keys() - {"loss_2"}


def test_validation_data_lacking_targets_at_an_offset_are_rejected(make_batch, make_task, fit):
    task = make_task(multi_token={"name": "independent", "num_tokens": 3}, prompts=[])
    fit(task, [make_batch()], val=[make_batch(length=2), make_batch(length=3)])  # one row of three suffices
    task = make_task(multi_token={"name": "independent", "num_tokens": 3}, prompts=[])
    with pytest.raises(ConfigurationError, match="no row of the val data has a target 3 tokens ahead"):
        fit(task, [make_batch()], val=[make_batch(length=2)])
