"""Loss sums over tokens, which are divided only once, by the number of target tokens of the whole optimizer step."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from attnkit.registry import ConfigurationError

PART, PART_ON_GPU = 2**22, 2**25
"""Number of logits that the cross-entropy converts to fp32 at a time; a GPU needs more work per kernel launch."""


class Sums(NamedTuple):
    """The sums that a task computes for a batch, undivided."""

    loss: Tensor  # sum of the training objective over the targets, a scalar with gradient
    nll: Tensor  # sum of the negative log-likelihood in nats, without label smoothing; only logged
    targets: Tensor  # number of targets, an integer scalar


def cross_entropy(
    logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, z_loss: float = 0.0, pad_id: int | None = 0,
    excluded: Sequence[int] = (),
) -> Sums:  # fmt: skip
    r"""Return the summed cross-entropy of the targets that are not padding.

    With label smoothing $\epsilon$ and the set C of all classes except pad and the excluded ones, the target distribution of a token y is

    $$q(c) = (1 - \epsilon) [c = y] + \frac{\epsilon}{|C|} [c \in C]$$

    so the pad class gets no mass, and padded targets are ignored. (`torch.nn.functional.cross_entropy` gives the pad
    class its share.) Logits are converted to fp32 first. A target whose logit is -inf has an infinite loss; on a GPU, with
    label smoothing or a z-loss, it is NaN.

    The z-loss $\lambda \log^2 \sum_c e^{z_c}$ of each target keeps logits near log-probabilities (PaLM: 1e-4; Chowdhery et al. 2022,
    https://arxiv.org/abs/2204.02311).

    Args:
        logits: [..., V].
        targets: [...] int64.
        label_smoothing: The probability mass $\epsilon$ to spread evenly.
        z_loss: The coefficient $\lambda$.
        pad_id: The padding class. None if there is none, as in the classification of whole texts: every target counts, and smoothing
            spreads over all V classes.
        excluded: Classes that, like pad, get no mass.

    Raises:
        ConfigurationError: A target is excluded.

    Example:
        >>> sums = cross_entropy(torch.zeros(2, 3, 5), torch.tensor([[4, 2, 0], [3, 0, 0]]), label_smoothing=0.1)
        >>> sums.targets
        tensor(3)
        >>> torch.allclose(sums.nll, 3 * torch.tensor(5.0).log())
        True
    """
    real = torch.ones_like(targets, dtype=torch.bool) if pad_id is None else targets != pad_id
    if excluded and not isinstance(targets, FakeTensor):
        wrong = targets[real & torch.isin(targets, torch.tensor(excluded, device=targets.device))]
        if len(wrong) > 0:
            raise ConfigurationError(f"the id {int(wrong[0])} is a target, but the head excludes it: no probability can be learned for it")
    rows = logits.reshape(-1, logits.shape[-1])
    unspread = sorted({*excluded} if pad_id is None else {pad_id, *excluded})
    loss, nll = _CrossEntropy.apply(rows, targets.reshape(-1), real.reshape(-1), label_smoothing, z_loss, unspread)  # type: ignore[no-untyped-call]
    return Sums(loss=loss, nll=nll, targets=real.sum())


def target_nll(logits: Tensor, targets: Tensor, *, pad_id: int) -> Tensor:
    """Return the negative log-likelihood of each target [...] under logits [..., V], without a gradient; 0 for padding.

    Their sum equals that of `cross_entropy`, bit for bit.

    Example:
        >>> target_nll(torch.zeros(2, 3, 5), torch.tensor([[4, 2, 0], [3, 0, 0]]), pad_id=0).count_nonzero(-1)
        tensor([2, 1])
    """
    with torch.no_grad():
        parts = zip(*_parts(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)), strict=True)
        nll = torch.cat([_norm_and_nll(rows, wanted)[1] for rows, wanted in parts])
        return nll.view_as(targets).where(targets != pad_id, 0)


class _CrossEntropy(torch.autograd.Function):
    r"""The sums of loss and negative log-likelihood, computed a few rows at a time; only the logits and their gradient are kept whole.

    With $s = \log \sum_c e^{z_c}$, a row's loss is $s - (1 - \epsilon) z_y - \epsilon \, \mathrm{mean}_{c \in C} z_c + \lambda s^2$.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, real: Tensor, smoothing: float, z_loss: float, unspread: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Return both sums for `logits` [N, V], `targets` [N] and `real` [N]."""
        others = logits.shape[-1] - len(unspread)
        spread = list(pairwise([-1, *unspread, logits.shape[-1]]))
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for rows, wanted in zip(*_parts(logits, targets), strict=True):
            norm, nll = _norm_and_nll(rows, wanted)
            loss = nll
            if smoothing > 0:
                z = rows.to(_wide(logits))
                total = sum(z[:, before + 1 : after].sum(-1) for before, after in spread)
                loss = (1 - smoothing) * nll + smoothing * (norm - total / others)
            if z_loss > 0:
                loss = loss + z_loss * norm.square()
            found.append((norm, loss, nll))
        norms, losses, nlls = (torch.cat(parts) for parts in zip(*found, strict=True))  # [N]
        ctx.save_for_backward(logits, targets, real, norms)
        ctx.settings = smoothing, z_loss, unspread, others
        loss, nll = losses.where(real, 0).sum(), nlls.where(real, 0).sum()
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the logits."""
        logits, targets, real, norms = ctx.saved_tensors
        smoothing, z_loss, unspread, others = ctx.settings
        gradient = torch.empty_like(logits)
        for rows, out, wanted, counts, norm in zip(*_parts(logits, gradient, targets, real, norms), strict=True):
            g = rows.softmax(-1, dtype=norm.dtype) if rows.is_cuda else (rows.to(norm.dtype) - norm[:, None]).exp_()
            if z_loss > 0:
                g *= (1 + 2 * z_loss * norm)[:, None]
            if smoothing > 0:
                g -= smoothing / others
                for column in unspread:
                    g[:, column] += smoothing / others
            g.scatter_add_(-1, wanted[:, None], g.new_full((len(g), 1), smoothing - 1))
            torch.mul(g, upstream[0], out=out).masked_fill_(~counts[:, None], 0)
        return gradient, None, None, None, None, None


def _norm_and_nll(rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logsumexp of rows of logits [N, V] and the negative log-likelihood of the targets, [N] each, in fp32 or float64."""
    wide, targets = _wide(rows), targets[:, None]
    if rows.is_cuda:  # one kernel, whereas `logsumexp` reads and writes all logits several times
        nll = -rows.log_softmax(-1, dtype=wide).gather(-1, targets)[:, 0]
        return nll + rows.gather(-1, targets)[:, 0], nll
    z = rows.to(wide)
    norm = z.logsumexp(-1)
    return norm, norm - z.gather(-1, targets)[:, 0]


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _parts(logits: Tensor, *others: Tensor) -> Iterator[Sequence[Tensor]]:
    """Split these tensors [N, ...] into parts of some rows each."""
    count = max(1, (PART_ON_GPU if logits.is_cuda else PART) // logits.shape[-1])
    return (torch.split(x, count) for x in (logits, *others))
