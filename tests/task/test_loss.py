import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnkit.task import cross_entropy, loss
from attnkit.task.evaluation import scored


def by_loop(logits, targets, epsilon, pad_id):
    """The definition, class by class."""
    loss, classes = 0.0, logits.shape[-1]
    for row, target in zip(logits.flatten(0, -2).tolist(), targets.flatten().tolist(), strict=True):
        if target == pad_id:
            continue
        log_normaliser = math.log(sum(math.exp(z) for z in row))
        for c in range(classes):
            q = (1 - epsilon) * (c == target) + (epsilon / (classes - 1) if c != pad_id else 0)
            loss -= q * (row[c] - log_normaliser)
    return loss


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("pad_id", [0, 3])
def test_loss_is_the_cross_entropy_with_smoothed_targets(rng, epsilon, pad_id):
    logits = torch.randn(3, 5, 7, dtype=torch.float64)
    targets = torch.randint(7, (3, 5))
    targets[1, 2:] = pad_id
    sums = cross_entropy(logits, targets, label_smoothing=epsilon, pad_id=pad_id)
    torch.testing.assert_close(sums.loss.item(), by_loop(logits, targets, epsilon, pad_id), rtol=1e-12, atol=0)
    torch.testing.assert_close(sums.nll.item(), by_loop(logits, targets, 0.0, pad_id), rtol=1e-12, atol=0)
    assert sums.targets == (targets != pad_id).sum()


def test_padded_targets_have_no_effect_and_no_gradient(rng):
    logits = torch.randn(2, 4, 6, requires_grad=True)
    targets = torch.tensor([[3, 2, 0, 0], [5, 4, 2, 0]])
    loss = cross_entropy(logits, targets, label_smoothing=0.1).loss
    loss.backward()
    assert (logits.grad[targets == 0] == 0).all()
    other = torch.where((targets == 0)[..., None], torch.randn(2, 4, 6), logits.detach())
    assert cross_entropy(other, targets, label_smoothing=0.1).loss == loss


def test_a_pad_logit_of_minus_infinity_keeps_the_loss_finite(rng):
    logits = torch.randn(4, 6)
    logits[:, 0] = -torch.inf
    assert cross_entropy(logits, torch.tensor([1, 2, 3, 4]), label_smoothing=0.1).loss.isfinite()


def test_half_precision_logits_are_summed_in_single_precision(rng):
    logits = (torch.randn(64, 1000) * 100).half()
    sums = cross_entropy(logits, torch.randint(1, 1000, (64,)), label_smoothing=0.1)
    assert sums.loss.dtype == torch.float32
    assert sums.loss.isfinite()
    assert sums.loss > 2000


def test_the_z_loss_is_the_squared_logsumexp_of_each_real_target(seed: int) -> None:
    logits, targets = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True), torch.tensor([[4, 2, 0], [3, 0, 0]])
    plain, sums = cross_entropy(logits, targets), cross_entropy(logits, targets, z_loss=0.25)
    z = [logits[b, t].exp().sum().log() for b, t in ((0, 0), (0, 1), (1, 0))]
    torch.testing.assert_close(sums.loss, plain.loss + 0.25 * sum(x**2 for x in z), rtol=1e-12, atol=1e-12)
    assert torch.equal(sums.nll, plain.nll)


@pytest.mark.parametrize("part", [1, 14, 2**22])
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize("pad_id", [0, 3, None])
@pytest.mark.parametrize("excluded", [(), (3,), (6, 4)])
def test_the_gradient_matches_the_definition_for_any_chunk_size(seed, monkeypatch, part, epsilon, z_loss, pad_id, excluded):
    monkeypatch.setattr(loss, "PART", part)
    logits = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    allowed = torch.tensor([c for c in range(7) if c not in excluded])
    targets = allowed[torch.randint(len(allowed), (3, 5))]
    targets[1, 2:] = 0
    sums = cross_entropy(logits, targets, label_smoothing=epsilon, z_loss=z_loss, pad_id=pad_id, excluded=excluded)
    (gradient,) = torch.autograd.grad(2 * sums.loss, logits)
    log_probabilities = logits.log_softmax(-1)
    kept = [c for c in range(7) if c not in (pad_id, *excluded)]
    wanted = (1 - epsilon) * torch.eye(7, dtype=torch.float64)[targets]
    wanted[..., kept] += epsilon / len(kept)
    expected = -(wanted * log_probabilities).sum(-1) + z_loss * logits.logsumexp(-1).square()
    expected = expected[targets != pad_id].sum() if pad_id is not None else expected.sum()
    torch.testing.assert_close(sums.loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, torch.autograd.grad(2 * expected, logits)[0], rtol=1e-10, atol=1e-13)


def test_the_loss_allocates_only_the_gradient_of_all_logits(monkeypatch):
    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
            new = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given]
            sizes.extend(x.numel() for x in new)
            return out

    sizes: list[int] = []
    monkeypatch.setattr(loss, "PART", 200)
    logits = torch.randn(40, 50, dtype=torch.bfloat16, requires_grad=True)
    with Sizes():
        cross_entropy(logits, torch.randint(1, 50, (40,)), label_smoothing=0.1, z_loss=0.1).loss.backward()
    assert sorted(sizes)[-2:] == [200, 2000]  # a part, and the gradient


def test_the_loss_without_targets_is_zero():
    logits = torch.randn(0, 5, requires_grad=True)
    sums = cross_entropy(logits, torch.zeros(0, dtype=torch.long), label_smoothing=0.1, z_loss=0.1)
    sums.loss.backward()
    assert sums.loss == sums.targets == 0
    assert logits.grad.shape == (0, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_per_target_log_likelihoods_sum_exactly_to_the_total(rng, monkeypatch, dtype):
    """Of a batch, of some of its rows, and of parts: one pass over the logits serves every metric."""
    logits = 3 * torch.randn(9, 7, 31, dtype=dtype)
    targets = torch.randint(31, (9, 7))
    for part in (loss.PART, 100):
        monkeypatch.setattr(loss, "PART", part)
        nll = loss.target_nll(logits, targets, pad_id=0)
        assert nll.dtype == torch.promote_types(dtype, torch.float32)
        assert nll.sum() == cross_entropy(logits, targets).nll
        assert nll[2:5].sum() == cross_entropy(logits[2:5], targets[2:5]).nll
        assert (nll[targets == 0] == 0).all()


def test_scores_match_a_slow_loop(rng):
    logits, targets = torch.randn(4, 6, 5, dtype=torch.float64), torch.randint(5, (4, 6))
    sums = scored(logits, targets, pad_id=0).by_row()
    for row in range(4):
        real = [i for i in range(6) if targets[row, i] != 0]
        nll = -sum(math.log(logits[row, i].softmax(-1)[targets[row, i]]) for i in real)
        right = sum(int(logits[row, i].argmax() == targets[row, i]) for i in real)
        assert sums["loss"][0][row].item() == pytest.approx(nll)
        assert (sums["token_accuracy"][0][row], sums["loss"][1][row], sums["token_accuracy"][1][row]) == (right, len(real), len(real))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.1}, {"z_loss": 1e-2, "pad_id": None}])
def test_gpu_loss_and_gradient_match_float64(settings, dtype, rng):
    logits, targets = (5 * torch.randn(300, 1000)).to(dtype), torch.randint(0, 1000, (300,))
    targets[:30], logits[:10] = 0, torch.inf  # padding, with logits that nobody reads
    logits = logits if settings.get("pad_id", 0) == 0 else logits.nan_to_num(posinf=1.0)
    given = [logits.double().requires_grad_(), logits.cuda().requires_grad_()]
    sums = [cross_entropy(x, targets.to(x.device), **settings) for x in given]
    assert abs(sums[1].loss.item() / sums[0].loss.item() - 1) < 1e-5
    assert abs(sums[1].nll.item() / sums[0].nll.item() - 1) < 1e-5
    expected, found = (torch.autograd.grad(loss.loss, x)[0].double().cpu() for loss, x in zip(sums, given, strict=True))
    torch.testing.assert_close(found, expected, rtol=8e-3 if dtype == torch.bfloat16 else 1e-3, atol=1e-5)
