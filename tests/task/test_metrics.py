import functools

import pytest
import sacrebleu
import torch

from attnkit.registry import ConfigurationError
from attnkit.task.metrics import GENERATION_METRICS, Mean, Perplexity, edit_distance, generation_metric


def test_edit_distance_is_the_recursive_definition(rng):
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


def test_sequence_error_rate_takes_any_reference_and_ignores_white_space():
    assert value("sequence_error_rate", ["A B", "A  B ", "A", ""], [["X", "A B"], ["A B"], ["A B"], ["A"]]) == 0.5
    assert value("sequence_error_rate", ["AB"], [["A B"]]) == 1


def test_token_error_rate_divides_summed_distances_by_summed_lengths_of_the_closest():
    assert value("token_error_rate", ["A B C", "", "Q"], [["X X X X", "A B D E"], ["A"], ["Q"]]) == pytest.approx(3 / 6)


def test_bleu_and_chrf_equal_sacrebleu():
    hypotheses = ["the cat sat on the mat today", "a dog runs in the big park", "it rains"]
    references = [["the cat sat on a mat today"], ["the dog runs in the park"], ["it is raining"]]
    streams = [[r[0] for r in references]]
    assert value("bleu", hypotheses, references) == pytest.approx(sacrebleu.corpus_bleu(hypotheses, streams).score, rel=1e-5)
    assert value("chrf", hypotheses, references) == pytest.approx(sacrebleu.corpus_chrf(hypotheses, streams).score, rel=1e-5)


def test_perplexity_weighs_by_tokens():
    metric = Perplexity()
    metric.update(torch.tensor(1.0), torch.tensor(1))
    metric.update(torch.tensor(9.0), torch.tensor(3))
    torch.testing.assert_close(metric.compute(), torch.tensor(2.5).exp())


def test_a_loss_of_nan_is_seen():
    metric = Mean()
    metric.update(torch.tensor(1.0), torch.tensor(1))
    metric.update(torch.tensor(torch.nan), torch.tensor(3))
    assert metric.compute().isnan()


def test_metrics_know_their_direction():
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
def test_rouge_is_that_of_torchmetrics_in_any_batches(key: str) -> None:
    from torchmetrics.text import ROUGEScore

    hypotheses = ["The cat sat on the mat.", "a dog", "nothing shared", "one, two three"]
    references = [["the cat is on the mat", "A cat sat."], ["the dog", "a dog barks"], ["other words"], ["three two one"]]
    metric, reference = generation_metric(key, tokenize=str.split), ROUGEScore(rouge_keys=key, accumulate="best")
    reference.update(hypotheses, references)
    for start, stop in ((0, 1), (1, 1), (1, 4)):
        metric.update(hypotheses[start:stop], references[start:stop])
    assert float(metric.compute()) == pytest.approx(100 * float(reference.compute()[f"{key}_fmeasure"]), rel=1e-6)


def test_rouge_reads_korean() -> None:
    metric = generation_metric("rouge2", tokenize=str.split)
    metric.update(["왕이 왔다, 오늘"], [["왕이 왔다 어제"]])
    assert float(metric.compute()) == pytest.approx(50)
