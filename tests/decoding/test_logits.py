"""Each transformation of the logits against a slow loop over its definition."""

import math
import random

import pytest
import torch

from attnkit.decoding.logits import forbid, keep_top_k, keep_top_p, penalise_repetition

NEVER = -math.inf


@pytest.mark.parametrize("penalty", [1.0, 1.2, 3.0, 0.5])
def test_repetition_penalty(penalty: float, seed: int) -> None:
    logits, seen = torch.randn(5, 9, dtype=torch.float64), torch.rand(5, 9) < 0.4
    logits[0, 0], seen[0, 0] = NEVER, True
    changed = penalise_repetition(logits, seen, penalty)
    for n in range(5):
        for i in range(9):
            z = logits[n, i].item()
            expected = z if not seen[n, i] else z / penalty if z > 0 else z * penalty
            assert changed[n, i].item() == pytest.approx(expected, rel=1e-12)
    if penalty > 1:
        assert (changed.softmax(-1) <= logits.softmax(-1) + 1e-12)[seen & seen.sum(-1, keepdim=True).eq(1)].all()


def test_forbidden_tokens_are_impossible_and_others_unchanged(seed: int) -> None:
    logits = torch.randn(3, 6)
    tokens = random.sample(range(6), 2)
    changed = forbid(logits, tokens)
    for i in range(6):
        assert torch.equal(changed[:, i], torch.full((3,), NEVER) if i in tokens else logits[:, i])


@pytest.mark.parametrize("k", [1, 3, 8, 20])
def test_top_k(k: int, seed: int) -> None:
    logits = torch.randn(4, 8)
    changed = keep_top_k(logits, k)
    for n in range(4):
        row = logits[n].tolist()
        best = sorted(range(8), key=lambda i: -row[i])[:k]
        assert changed[n].tolist() == [z if i in best else NEVER for i, z in enumerate(row)]


def test_top_k_keeps_k_tokens_when_all_are_equal() -> None:
    assert keep_top_k(torch.zeros(1, 6), 2).isfinite().sum() == 2


@pytest.mark.parametrize("p", [1e-6, 0.3, 0.5, 0.9, 0.999, 1.0])
def test_top_p(p: float, seed: int) -> None:
    logits = 2 * torch.randn(6, 8, dtype=torch.float64)
    logits[0, 3] = NEVER
    changed = keep_top_p(logits, p)
    for n in range(6):
        probabilities = logits[n].softmax(-1).tolist()
        kept: set[int] = set()
        for i in sorted(range(8), key=lambda i: -probabilities[i]):
            if sum(probabilities[j] for j in kept) >= p:
                break
            kept.add(i)
        assert changed[n].tolist() == [z if i in kept else NEVER for i, z in enumerate(logits[n].tolist())]
        assert kept


def test_ties_keep_the_tokens_with_lower_ids() -> None:
    logits = torch.tensor([0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 0.1]).log().tile(2, 1)
    for changed, kept in (
        (keep_top_p(logits, 0.3), [1, 3]),
        (keep_top_p(logits, 0.65), [0, 1, 3, 5]),
        (keep_top_k(logits, 2), [1, 3]),
        (keep_top_k(logits, 5), [0, 1, 2, 3, 5]),
        (keep_top_k(torch.zeros(2, 200), 3), [0, 1, 2]),
    ):
        for row in changed:
            assert row.isfinite().nonzero()[:, 0].tolist() == kept


def test_nothing_is_modified_in_place(seed: int) -> None:
    logits = torch.randn(2, 5)
    before = logits.clone()
    penalise_repetition(logits, torch.ones(2, 5, dtype=torch.bool), 2.0)
    forbid(logits, [1])
    keep_top_k(logits, 2)
    keep_top_p(logits, 0.5)
    assert torch.equal(logits, before)
