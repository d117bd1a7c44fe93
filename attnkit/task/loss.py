"""Sums over tokens: a loss is divided only once, by the number of target tokens of the whole optimizer step."""

from typing import NamedTuple

import torch
from torch import Tensor


class Sums(NamedTuple):
    """The sums that a task computes of a batch, not divided by anything.

    Attributes:
        loss: Sum of the training objective over the targets, a scalar with a gradient.
        nll: Sum of the negative log-likelihood in nats, without label smoothing; for the log only.
        targets: Number of targets, an integer scalar.
    """

    loss: Tensor
    nll: Tensor
    targets: Tensor


def cross_entropy(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, z_loss: float = 0.0, pad_id: int | None = 0) -> Sums:
    r"""Return the summed cross-entropy of the targets that are not padding.

    With label smoothing $\epsilon$ and V classes, pad among them, the target distribution of a token y is

    $$q(c) = (1 - \epsilon) [c = y] + \frac{\epsilon}{V - 1} [c \neq pad]$$

    so the pad class gets no mass, and padded targets are ignored. (`torch.nn.functional.cross_entropy` gives the pad
    class its share.) Logits are raised to fp32 first.

    The z-loss $\lambda \log^2 \sum_c e^{z_c}$ of each target keeps logits near log-probabilities (PaLM: 1e-4; Chowdhery et al. 2022,
    https://arxiv.org/abs/2204.02311).

    Args:
        logits: [..., V].
        targets: [...] int64.
        label_smoothing: The mass $\epsilon$ that is spread evenly.
        z_loss: The coefficient $\lambda$.
        pad_id: The class of padding. None: there is no such class, as when whole texts are classified: every target counts, and
            smoothing spreads over all V classes.

    Example:
        >>> sums = cross_entropy(torch.zeros(2, 3, 5), torch.tensor([[4, 2, 0], [3, 0, 0]]), label_smoothing=0.1)
        >>> sums.targets
        tensor(3)
        >>> torch.allclose(sums.nll, 3 * torch.tensor(5.0).log())
        True
    """
    log_probabilities = logits.log_softmax(-1, torch.promote_types(logits.dtype, torch.float32))
    real = torch.ones_like(targets, dtype=torch.bool) if pad_id is None else targets != pad_id
    nll = -log_probabilities.gather(-1, targets[..., None])[..., 0].where(real, 0).sum()
    loss = nll
    if label_smoothing > 0:
        kept = log_probabilities  # of all classes but pad
        if pad_id is not None:
            kept = torch.cat([kept[..., :pad_id], kept[..., pad_id + 1 :]], -1)
        loss = (1 - label_smoothing) * nll - label_smoothing * kept.mean(-1).where(real, 0).sum()
    if z_loss > 0:
        z = logits.to(log_probabilities.dtype).logsumexp(-1)
        loss = loss + z_loss * z.square().where(real, 0).sum()
    return Sums(loss=loss, nll=nll.detach(), targets=real.sum())
