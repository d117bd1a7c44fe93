import functools
import pickle
from itertools import zip_longest

import pytest
import sacrebleu
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader
from torchmetrics.regression import MeanAbsoluteError

from attnkit.registry import ConfigurationError
from attnkit.task.metrics import GENERATION_METRICS, Mean, Metrics, Perplexity, edit_distance, generation_metric


def test_edit_distance_matches_the_recursive_definition(rng):
    @functools.cache
    def slow(a, b):
        if not a or not b:
            return len(a) + len(b)
        return min(slow(a[1:], b) + 1, slow(a, b[1:]) + 1, slow(a[1:], b[1:]) + (a[0] != b[0]))

    for _ in range(50):
        a, b = ("".join(rng.choices("xyz", k=rng.randint(0, 7))) for _ in range(2))
        assert edit_distance(a, b) == slow(a, b)


def value(name, hypotheses, references):
    metric = generation_metric(name, tokenize=str.split)
    for hypothesis, acceptable in zip(hypotheses, references, strict=True):  # one by one, as over batches or ranks
        metric.update([hypothesis], [acceptable])
    return metric.compute().item()


def test_sequence_error_rate_accepts_any_reference_and_ignores_outer_white_space():
    assert value("sequence_error_rate", ["A B", "A  B ", "A", ""], [["X", "A B"], ["A B"], ["A B"], ["A"]]) == 0.5
    assert value("sequence_error_rate", ["AB"], [["A B"]]) == 1


def test_token_error_rate_divides_summed_distances_by_summed_lengths_of_the_closest():
    assert value("token_error_rate", ["A B C", "", "Q"], [["X X X X", "A B D E"], ["A"], ["Q"]]) == pytest.approx(3 / 6)


def scored_by(scorer, hypotheses, references):
    streams = [list(stream) for stream in zip_longest(*references)]  # None where a text has fewer references
    return scorer.corpus_score(hypotheses, streams).score


def test_bleu_and_chrf_equal_sacrebleu():
    hypotheses = ["the cat sat on the mat today", "a dog runs in the big park", "it rains"]
    references = [["the cat sat on a mat today"], ["the dog runs in the park"], ["it is raining"]]
    streams = [[r[0] for r in references]]
    assert value("bleu", hypotheses, references) == pytest.approx(sacrebleu.corpus_bleu(hypotheses, streams).score, rel=1e-5)
    assert value("chrf", hypotheses, references) == pytest.approx(sacrebleu.corpus_chrf(hypotheses, streams).score, rel=1e-5)


# sacrebleu 2.6.0: CHRF().corpus_score(hypotheses, streams).score and BLEU().corpus_score(hypotheses, streams).score, where stream i has
# the i-th reference of each text, or None
PRINTED = [
    (["영"], [["영"]], 100.0, 0.0),
    (["일 이 삼"], [["일 이 삼"]], 100.0, 0.0),
    (["good"], [["good"]], 100.0, 0.0),
    (["K AE T"], [["K AE T"]], 100.0, 0.0),
    (["일 이", "오"], [["일 이 삼"], ["오"]], 67.56756756756756, 0.0),
    (["육 일 육 일 일", "오"], [["육"], ["오 영"]], 55.55555555555555, 12.137294292683087),
    (
        ["the cat is on a mat here", "dogs run around a park"],
        [["the cat sat on the mat"], ["the dogs ran in the park"]],
        32.32257326007326,
        10.682175159905853,
    ),
    (["", "b"], [["a b c"], ["b"]], 29.411764705882355, 0.0),
    (["a dog 🐶 runs", "🐱"], [["the dog 🐶 ran", "a dog runs 🐶"], ["🐱🐶", "🐱", "cat"]], 44.24603174603175, 45.18010018049227),
    (
        ["Hello, world! It's 3.5 o'clock."],
        [["Hello world, it's 3.5 o’clock.", "Hello, world! It is 3.5 o'clock."]],
        85.15424403830202,
        50.000000000000014,
    ),
]


@pytest.mark.parametrize(("hypotheses", "references", "chrf", "bleu"), PRINTED)
def test_chrf_and_bleu_match_recorded_sacrebleu_scores(hypotheses, references, chrf, bleu):
    assert value("chrf", hypotheses, references) == pytest.approx(chrf, rel=1e-6)
    assert value("bleu", hypotheses, references) == pytest.approx(bleu, rel=1e-6)


@pytest.mark.parametrize(("name", "scorer"), [("chrf", sacrebleu.CHRF()), ("bleu", sacrebleu.BLEU(force=True))])
def test_chrf_and_bleu_equal_sacrebleu_across_batches_and_ranks(name, scorer, rng):
    words = ["the", "cat", "sat", "on", "The", "cat.", "3.5", "<unk>", "-", "&amp;"]
    words += ["영", "일 이", "한국어를", "🐶", "👨\u200d👩\u200d👧", "e\u0301", "\u3000"]
    for _ in range(60):
        texts, longest = rng.randint(1, 6), rng.choice([1, 2, 12])
        draw = [" ".join(rng.choices(words, k=rng.randint(0, longest))) for _ in range(6 * texts)]
        hypotheses = draw[:texts]
        references = [draw[texts * (i % 5 + 1) :][: rng.randint(1, 3)] or ["a"] for i in range(texts)]
        hypotheses = [rng.choice([hypothesis, own[0]]) for hypothesis, own in zip(hypotheses, references, strict=True)]
        expected = pytest.approx(scored_by(scorer, hypotheses, references), rel=1e-6)
        assert value(name, hypotheses, references) == expected
        ranks = [pickle.loads(pickle.dumps(generation_metric(name, tokenize=str.split))) for _ in range(3)]  # the last one has no texts
        for rank, cut in zip(ranks, (slice(texts // 2), slice(texts // 2, None), slice(0)), strict=True):
            rank.update(hypotheses[cut], references[cut])
        for state in ("counts", "texts"):  # what the reduction `sum` does
            setattr(ranks[0], state, sum(getattr(rank, state) for rank in ranks))
        assert ranks[0].compute().item() == expected


@pytest.mark.parametrize("name", ["chrf", "bleu"])
def test_chrf_and_bleu_use_integer_counts_and_reject_missing_references(name):
    metric = generation_metric(name, tokenize=str.split)
    assert metric.counts.dtype == torch.int64
    with pytest.raises(ValueError, match="shorter"):
        metric.update(["a", "b"], [["a"]])


def test_perplexity_weighs_by_tokens():
    metric = Perplexity()
    metric.update(torch.tensor(1.0), torch.tensor(1))
    metric.update(torch.tensor(9.0), torch.tensor(3))
    torch.testing.assert_close(metric.compute(), torch.tensor(2.5).exp())


@pytest.mark.parametrize("metric", [Mean(), MeanAbsoluteError()], ids=["ours", "torchmetrics"])
def test_sums_of_a_model_in_half_precision_stay_in_fp32(metric):
    Metrics({"val": torch.nn.ModuleDict({"metric": metric})}).to(torch.bfloat16)
    for _ in range(2000):
        metric.update(torch.tensor(4.25), torch.tensor(1 if isinstance(metric, Mean) else 0.0))
    torch.testing.assert_close(metric.compute(), torch.tensor(4.25))
    metric.reset()
    assert {getattr(metric, state).dtype for state in metric.metric_state} == {torch.float32, torch.int64}


def test_a_nan_loss_propagates():
    metric = Mean()
    metric.update(torch.tensor(1.0), torch.tensor(1))
    metric.update(torch.tensor(torch.nan), torch.tensor(3))
    assert metric.compute().isnan()


def test_metrics_declare_their_direction():
    assert {n: generation_metric(n, tokenize=str.split).higher_is_better for n in GENERATION_METRICS} == {
        "sequence_error_rate": False, "token_error_rate": False, "bleu": True, "chrf": True,
        "rouge1": True, "rouge2": True, "rougeL": True,
    }  # fmt: skip


def test_word_error_rate_is_explained():
    with pytest.raises(
        ConfigurationError, match=r"unknown metric 'word_error_rate'.*WER is sequence_error_rate and PER is token_error_rate"
    ):
        generation_metric("word_error_rate", tokenize=str.split)
    with pytest.raises(ConfigurationError, match="Did you mean 'bleu'"):
        generation_metric("bleo", tokenize=str.split)


@pytest.mark.parametrize("key", ["rouge1", "rouge2", "rougeL"])
def test_rouge_matches_torchmetrics_in_any_batching(key: str) -> None:
    from torchmetrics.text import ROUGEScore

    hypotheses = ["The cat sat on the mat.", "a dog", "nothing shared", "one, two three"]
    references = [["the cat is on the mat", "A cat sat."], ["the dog", "a dog barks"], ["other words"], ["three two one"]]
    metric, reference = generation_metric(key, tokenize=str.split), ROUGEScore(rouge_keys=key, accumulate="best")
    reference.update(hypotheses, references)
    for start, stop in ((0, 1), (1, 1), (1, 4)):
        metric.update(hypotheses[start:stop], references[start:stop])
    assert float(metric.compute()) == pytest.approx(100 * float(reference.compute()[f"{key}_fmeasure"]), rel=1e-6)


def test_rouge_supports_korean() -> None:
    metric = generation_metric("rouge2", tokenize=str.split)
    metric.update(["왕이 왔다, 오늘"], [["왕이 왔다 어제"]])
    assert float(metric.compute()) == pytest.approx(50)


@pytest.mark.parametrize("name", GENERATION_METRICS)
def test_the_score_without_texts_is_nan(name):
    metric = generation_metric(name, tokenize=str.split)
    metric.update([], [])  # as of a corpus of a mixture, of which a limited validation has no row
    assert metric.compute().isnan()
    metric.update([""], [["A"]])
    assert not metric.compute().isnan()


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning")
@pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")
def test_a_fit_may_follow_an_evaluation(make_task, make_batch, fit):
    batches = [make_batch(["ab", "c"])]
    trainers = []
    for evaluates in (False, True):
        torch.manual_seed(1)
        task = make_task(metrics=list(GENERATION_METRICS))
        if evaluates:  # in inference mode
            evaluator = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
            evaluator.validate(task, DataLoader(batches, batch_size=None), verbose=False)
        trainers.append(fit(task, batches, val=batches, num_sanity_val_steps=1))
    fitted, both = (trainer.callback_metrics for trainer in trainers)
    assert fitted.keys() == both.keys() > {f"val/{name}" for name in GENERATION_METRICS}
    assert all(torch.equal(fitted[name], both[name]) for name in fitted)
