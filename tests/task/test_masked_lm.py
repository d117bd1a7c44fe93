import math

import pytest
import torch
from lightning import Trainer
from torch.utils.data import DataLoader

import attnkit
from attnkit import datasets, draws
from attnkit.registry import ConfigurationError
from attnkit.task import Task
from attnkit.task.filling import Filled
from attnkit.task.masked_lm import MaskedLM, mask_tokens

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]
TEXTS = ["the cat sat on the mat .", "a dog ate the cat", "the dog sat on a log", "a bird sang in a tree"]
TOKENIZER = attnkit.tokenizers.build({"name": "word", "extra_tokens": ["<mask>"]}).train(TEXTS)
STACKS = {
    "encoder": {"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2},
    "recurrent_encoder": {"name": "recurrent_encoder", "d_model": 16, "num_layers": 1},
}
TINY = {"stack": STACKS["encoder"], "tokenizer": TOKENIZER.spec, "schedule": "constant"}
VOCABULARY = 1000
IDS = {"mask_id": 4, "first_id": 5, "vocab_size": VOCABULARY}


def tokens_of(texts):
    rows = [torch.tensor([1, *TOKENIZER.encode(text), 2]) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def random_tokens(rows=200, columns=100):
    """Rows of bos, tokens, eos and padding, with an unknown token and a mask here and there."""
    tokens = torch.randint(5, VOCABULARY, (rows, columns))
    tokens[torch.rand(rows, columns) < 0.05] = 3
    tokens[torch.rand(rows, columns) < 0.05] = 4
    lengths = torch.randint(2, columns, (rows, 1))
    tokens[:, 0] = 1
    tokens = tokens.where(torch.arange(columns) != lengths, 2)
    return tokens.where(torch.arange(columns) <= lengths, 0)


def within(count, total, probability):
    """Five standard deviations of a binomial count: a right sampler fails once in two million times."""
    return abs(count - total * probability) <= 5 * math.sqrt(total * probability * (1 - probability))


@pytest.mark.parametrize("probability", [0.15, 0.5])
def test_masked_tokens_match_the_papers_probabilities(seed, probability):
    tokens = random_tokens()
    masked = mask_tokens(tokens, probability=probability, **IDS, begins_word=None, keys=draws.make_keys(torch.arange(len(tokens)), seed))
    ordinary = tokens >= 5
    assert not (masked.chosen & ~ordinary).any()
    assert torch.equal(masked.tokens[~masked.chosen], tokens[~masked.chosen])
    chosen = int(masked.chosen.sum())
    assert within(chosen, int(ordinary.sum()), probability)
    before, after = tokens[masked.chosen], masked.tokens[masked.chosen]
    assert within(int((after == 4).sum()), chosen, 0.8)
    same = 1 / (VOCABULARY - 5)  # a random token may be the old one
    assert within(int((after == before).sum()), chosen, 0.1 + 0.1 * same)
    others = after[(after != 4) & (after != before)]
    assert within(len(others), chosen, 0.1 * (1 - same))
    assert int(others.min()) >= 5
    assert abs(others.double().mean() - (5 + VOCABULARY - 1) / 2) < 5 * VOCABULARY / math.sqrt(12 * len(others))


def test_whole_words_are_selected_entirely_and_with_equal_probability(seed):
    begins = torch.rand(VOCABULARY) < 0.4
    begins[:5] = True
    tokens = random_tokens()
    chosen = mask_tokens(tokens, probability=0.3, **IDS, begins_word=begins, keys=draws.make_keys(torch.arange(len(tokens)), seed)).chosen
    words = whole = first = 0
    for row, choice in zip(tokens.tolist(), chosen.tolist(), strict=True):
        word = []
        for token, is_chosen, before in zip(row[1:], choice[1:], row, strict=False):
            if token >= 5 and not begins[token] and before >= 5:
                word.append(is_chosen)
                assert is_chosen == word[0]
            elif token >= 5:
                word = [is_chosen]
                words, first = words + 1, first + is_chosen
                whole += before >= 5
            else:
                assert not is_chosen
    assert whole > 100
    assert within(first, words, 0.3)


def test_whole_word_masking_draws_the_replacement_per_token(seed):
    begins = torch.zeros(VOCABULARY, dtype=torch.bool)
    tokens = torch.randint(5, VOCABULARY, (200, 20))
    masked = mask_tokens(tokens, probability=0.5, **IDS, begins_word=begins, keys=draws.make_keys(torch.arange(len(tokens)), seed))
    hidden = (masked.tokens == 4)[masked.chosen.all(1)].sum(1)
    assert 0 < hidden.double().std() < 5  # of a binomial with 20 tokens: 1.8


def test_masking_depends_only_on_seed_epoch_and_example(seed, monkeypatch):
    tokens = random_tokens(20).clamp(max=len(TOKENIZER) - 1)
    examples = torch.randperm(1000)[:20]

    def hidden(stage="fit", rows=slice(None), columns=None, *, epoch=0, **arguments):
        monkeypatch.setattr(MaskedLM, "current_epoch", epoch)
        monkeypatch.setattr(MaskedLM, "data_rank", int(torch.randint(8, ())))
        batch = {"tokens": tokens[rows, :columns], "example": examples[rows]}
        return MaskedLM(**TINY, **arguments).hide(batch, int(torch.randint(100, ())), stage)

    found = [hidden(), hidden(epoch=1), hidden(seed=1), hidden("evaluation")]
    assert all(not torch.equal(a.chosen, b.chosen) for i, a in enumerate(found) for b in found[:i])
    for whole, again in ((found[0], hidden()), (found[3], hidden("evaluation", epoch=5, seed=7))):
        assert torch.equal(whole.tokens, again.tokens)
        assert torch.equal(whole.chosen, again.chosen)
    share = hidden(rows=slice(1, None, 3), columns=40)  # other rows and other padding beside them
    assert torch.equal(share.tokens, found[0].tokens[1::3, :40])
    assert torch.equal(share.chosen, found[0].chosen[1::3, :40])


def test_masking_without_example_ids_differs_by_batch_and_process(seed, monkeypatch):
    tokens = random_tokens(20).clamp(max=len(TOKENIZER) - 1)

    def hidden(batch_idx, rank):
        monkeypatch.setattr(MaskedLM, "data_rank", rank)
        return MaskedLM(**TINY).hide({"tokens": tokens}, batch_idx, "evaluation").chosen

    found = [hidden(3, 0), hidden(4, 0), hidden(3, 1)]
    assert all(not torch.equal(a, b) for i, a in enumerate(found) for b in found[:i])
    assert torch.equal(hidden(3, 0), found[0])


def test_fillers_are_not_masked():
    batch = {"tokens": tokens_of(TEXTS[:2]), "example": torch.tensor([7, -1])}
    chosen = MaskedLM(**TINY | {"mask_probability": 0.9}).hide(batch, 0, "fit").chosen
    assert chosen[0].any()
    assert not chosen[1].any()


@pytest.mark.parametrize("stride", [None, 3])
def test_overlapping_windows_score_each_token_once(tmp_path, stride):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(TEXTS))
    data = datasets.build(
        {
            "name": "text",
            "corpus": {"name": str(path), "validation": str(path)},
            "tokenizer": TOKENIZER.spec,
            "context": 8,
            "stride": stride,
        }
    )
    task = MaskedLM(**TINY | {"mask_probability": 1 - 1e-9})
    batches = list(data.val_dataloader())
    assert sum(len(batch["tokens"]) for batch in batches) == (4 if stride is None else 7)
    chosen = sum(int(task.hide(batch, i, "evaluation").chosen.sum()) for i, batch in enumerate(batches))
    assert chosen == len(TOKENIZER.encode(" ".join(TEXTS))) == 24


def test_a_document_mask_is_rejected():
    batch = {"tokens": tokens_of(TEXTS[:2]), "documents": torch.ones_like(tokens_of(TEXTS[:2]))}
    with pytest.raises(ConfigurationError, match=r"set data\.document_mask to false"):
        MaskedLM(**TINY).hide(batch, 0, "fit")


def test_prompts_and_answers_are_rejected(tmp_path):
    (tmp_path / "a.tsv").write_text("the cat\tsat\n")
    corpus = {"name": "files", "train": str(tmp_path / "a.tsv"), "validation": str(tmp_path / "a.tsv")}
    data = datasets.build({"name": "prompted_text", "corpus": corpus, "tokenizer": TOKENIZER.spec})
    with pytest.raises(ConfigurationError, match="use labelled_text"):
        MaskedLM(**TINY).hide(next(iter(data.loader("validation"))), 0, "evaluation")


@pytest.mark.parametrize("stack", STACKS)
def test_the_loss_covers_only_the_selected_tokens(seed, stack):
    task = MaskedLM(**TINY | {"stack": STACKS[stack], "mask_probability": 0.5})
    task.configure_model()
    tokens = tokens_of(TEXTS)
    masked = task.hide({"tokens": tokens}, 0, "fit")
    sums = task.objective({"masked": masked, "tokens": tokens})
    every = task(masked.tokens).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    assert sums.targets == masked.chosen.sum() > 0
    torch.testing.assert_close(sums.loss, -every[masked.chosen].sum())
    sums.loss.backward()
    gradients = [p.grad.clone() for p in task.parameters() if p.grad is not None]
    task.zero_grad()
    (-every[masked.chosen].sum()).backward()
    for chosen, full in zip(gradients, [p.grad for p in task.parameters() if p.grad is not None], strict=True):
        torch.testing.assert_close(chosen, full, atol=1e-5, rtol=1e-4)


def test_a_batch_without_selected_tokens_has_zero_loss():
    task = MaskedLM(**TINY)
    task.configure_model()
    tokens = torch.tensor([[1, 3, 2, 0]])
    sums = task.objective({"masked": task.hide({"tokens": tokens}, 0, "fit"), "tokens": tokens})
    sums.loss.backward()
    assert (sums.loss.item(), sums.targets.item()) == (0.0, 0)


def test_a_masked_lm_learns_to_fill_masks(seed, fit):
    stack = STACKS["encoder"] | {"d_model": 32, "num_heads": 4, "position": "rotary"}
    changes = {"stack": stack, "optimizer": {"name": "adam", "lr": 0.005}, "schedule": "linear"}
    task = MaskedLM(**TINY | changes)
    batch = {"tokens": tokens_of(TEXTS * 8)}
    trainer = fit(task, [batch] * 300, val=[batch])
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(logged)
    assert {"train/loss", "train/perplexity", "val/loss", "val/perplexity", "val/masked_accuracy"} <= set(logged)
    assert task.monitor == ("val/loss", "min")
    assert logged["val/perplexity"] == pytest.approx(math.exp(logged["val/loss"]), rel=1e-4)
    assert logged["val/masked_accuracy"] > 0.4
    assert task.generate(["a bird <mask> in a tree", "a dog ate the <mask>"]) == ["a bird sang in a tree", "a dog ate the cat"]
    (tested,) = trainer.test(task, DataLoader([batch], batch_size=None), verbose=False)
    assert tested == {name.replace("val", "test"): pytest.approx(value) for name, value in logged.items() if name.startswith("val")}
    texts = ["a bird sang in a <mask>", "no mask"]
    ((first, second),) = trainer.predict(task, DataLoader([{"tokens": tokens_of(texts), "text": texts}], batch_size=None))
    assert first == Filled(texts[0], "a bird sang in a tree", pytest.approx(task.fill(texts[:1])[0][0][0].probability))
    assert str(first) == f"a bird sang in a tree\t{first.probability:.4f}"
    assert second == Filled("no mask", "no mask", 1.0)  # though its words are unknown


def test_candidates_are_ordinary_tokens_whose_probabilities_sum_to_one(seed):
    task = MaskedLM(**TINY)
    texts = ["the <mask> sat on <mask>", "the cat", "<mask>"] + ["a <mask>"] * 70
    found = task.fill(texts, top=100)
    assert [len(masks) for masks in found] == [2, 0, 1] + [1] * 70
    for masks in found:
        for candidates in masks:
            assert sorted(c.token for c in candidates) == sorted(TOKENIZER.spec["tokens"])
            assert sum(c.probability for c in candidates) == pytest.approx(1, abs=1e-4)
            assert candidates == sorted(candidates, key=lambda c: -c.probability)
    assert [len(c) for c in task.fill(texts[:1], top=3)[0]] == [3, 3]


def test_the_best_fillings_maximise_the_product_of_probabilities(seed):
    task = MaskedLM(**TINY).double()
    text = "the <mask> sat on <mask>"
    first, second = task.fill([text], top=len(TOKENIZER))[0]
    every = sorted(
        ((math.log(a.probability) + math.log(b.probability), f"the {a.token} sat on {b.token}") for a in first for b in second),
        reverse=True,
    )
    found = task.n_best([text], 7)[0]
    assert [h.score for h in found] == pytest.approx([score for score, _ in every[:7]], abs=1e-5)
    assert found[0].text == task.generate([text])[0]
    assert task.training


def test_texts_without_masks_are_returned_unchanged():
    texts = ["The  cat!", "a <mask>", ""]
    task = MaskedLM(**TINY)
    with pytest.warns(UserWarning, match="unknown to the tokenizer"):
        first, second, third = task.n_best(texts, 2)
    assert (first, third) == ([("The  cat!", 0.0)], [("", 0.0)])
    assert len(second) == 2
    with pytest.warns(UserWarning, match="unknown to the tokenizer"):
        assert task.generate(texts)[::2] == texts[::2]


@pytest.mark.filterwarnings("ignore:Total length of `list`")
@pytest.mark.parametrize("length", [6, 8])
def test_texts_longer_than_the_positions_stop_a_fit_before_its_first_step(length, tmp_path):
    rows = "".join(f"{text}\tx\n" for text in ["a", *TEXTS])
    (tmp_path / "train.tsv").write_text(f"text\tlabel\n{rows}")
    data = datasets.build({
        "name": "labelled_text", "corpus": {"name": "files", "train": str(tmp_path / "train.tsv")}, "tokenizer": TOKENIZER.spec,
        "max_length": length,
    })  # fmt: skip
    position = {"name": "learned", "max_length": 6}
    task = MaskedLM(**TINY | {"stack": {**STACKS["encoder"], "position": position}})
    trainer = Trainer(
        max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu"
    )
    if length == 6:
        trainer.fit(task, data)
        assert trainer.global_step == 1
        return
    message = "the longest text has 8 tokens, but the model's positions end at 6: set data.max_length to 6"
    with pytest.raises(ConfigurationError, match=message):
        trainer.fit(task, data)
    assert trainer.global_step == 0


def test_filling_needs_only_a_checkpoint(seed, fit, tmp_path):
    task = MaskedLM(**TINY | {"masking": "whole_word"})
    fit(task, [{"tokens": tokens_of(TEXTS)}]).save_checkpoint(tmp_path / "a.ckpt")
    assert Task.load(tmp_path / "a.ckpt").fill(["the <mask>"]) == task.fill(["the <mask>"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_probability": 0.0}, "mask_probability must be above 0 and below 1, but is 0.0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"masking": "words"}, "masking must be .*'token', 'whole_word'"),
        ({"stack": {**STACKS["encoder"], "name": "decoder"}}, "so it needs an encoder stack, not 'decoder'"),
        ({"tokenizer": "word"}, "tokenizer is not trained; pass the .spec of a trained one"),
        ({"tokenizer": {"name": "word", "tokens": ["a"]}}, r"no token '<mask>'.*data.tokenizer.extra_tokens: \[<mask>\]"),
        ({"tokenizer": {"name": "word", "tokens": [], "extra_tokens": ["<mask>"]}}, "nothing to hide"),
    ],
)
def test_misuse_is_rejected_at_construction(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        MaskedLM(**TINY | arguments)


def test_misuse_of_filling_is_refused():
    task = MaskedLM(**TINY)
    with pytest.raises(TypeError, match="must be a list"):
        task.generate("the <mask>")
    with pytest.raises(ConfigurationError, match="top must be at least 1"):
        task.fill(["the <mask>"], top=0)
    with pytest.raises(ConfigurationError, match="n_best must be at least 1"):
        task.n_best(["the <mask>"], 0)
    with pytest.raises(ConfigurationError, match="nothing to stream"):
        task.stream("the <mask>")
    with pytest.raises(ConfigurationError, match="fills all masks at once, so it does not take beam_size"):
        task.generate(["the <mask>"], beam_size=3)
