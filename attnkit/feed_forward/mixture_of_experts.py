# https://arxiv.org/abs/1701.06538
"""Mixtures of experts."""

from contextlib import nullcontext
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from attnkit import draws
from attnkit.feed_forward.base import FeedForward
from attnkit.linear import Linear, called, is_plain
from attnkit.registry import ConfigurationError, FeedForwardSpec, feed_forwards, refuse_unread
from attnkit.reports import Reporter
from attnkit.transforms import traced, transformed


@feed_forwards.register("mixture_of_experts")
class MixtureOfExperts(FeedForward, Reporter):
    r"""Several feed-forward networks (experts), of which a router chooses a few for each token. No token is dropped.

    | | `scores` | `normalize` | others |
    |---|---|---|---|
    | Switch | `softmax` | no | `top_k: 1`, `balance_loss: .01` |
    | Mixtral, Qwen3, gpt-oss (its router has a bias) | `softmax` | yes: as the softmax of the chosen logits | |
    | OLMoE, Qwen2 (with `shared_gate`) | `softmax` | no | |
    | DeepSeek-V3 | `sigmoid` | yes | `bias_rate: .001`, `num_groups: 8`, `top_groups: 4`, `scale: 2.5`, `shared` |

    Training adds the loss `balance_loss` $\cdot E \sum_e f_e \bar{p}_e$, where f_e is the share of choices that expert e gets, and p the
    scores divided by their sum, averaged over the tokens of a micro-batch on one process. With even shares, the factor after `balance_loss`
    is 1. (Mixtral's and Switch's losses count choices per token, so theirs is `top_k` times as large.) This loss and that of `z_loss`, a
    mean over the same tokens, are weighted by the targets of the micro-batch, so they depend on how the rows of a step are split over
    micro-batches and processes. With `bias_rate`, the scores by which experts are chosen, but not their weights, have a bias. After each
    optimizer step, it grows by that number for experts with fewer choices than the mean, and falls by it for those with more.

    Logged in each step, per layer: `balance` (that factor, averaged over the tokens of all micro-batches and processes), and for the whole
    step `entropy` (of the shares, divided by its maximum) and `share_0`, ...

    Equation:
        $$y = \mathrm{shared}(x) + \sum_{e \in \mathrm{top}(s + b)} g_e \, \mathrm{expert}_e(x), \quad s = \sigma(W_r x), \quad
        g_e = \lambda \frac{s_e}{\epsilon + \sum_{j \in \mathrm{top}} s_j}$$
        with softmax or sigmoid as $\sigma$, and $g_e = \lambda s_e$ without `normalize`

    Paper: Shazeer et al. 2017, https://arxiv.org/abs/1701.06538; Fedus et al. 2021, https://arxiv.org/abs/2101.03961 (balance loss);
    Zoph et al. 2022, https://arxiv.org/abs/2202.08906 (z-loss); Dai et al. 2024, https://arxiv.org/abs/2401.06066 (shared experts); Wang et
    al. 2024, https://arxiv.org/abs/2408.15664 (bias); DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437 (groups)

    Initialisation: the router like all linear maps (Switch draws all maps with a tenth of the usual variance).

    The router computes in fp32. Tokens are sorted by expert, so each expert computes once, for its own tokens only.

    Args:
        d_model: Width of input and output D.
        num_experts: Number of experts E.
        top_k: Number of experts per token.
        expert: The feed-forward network of each expert.
        shared: A feed-forward network for all tokens, in addition to the experts (default: none).
        shared_gate: Whether to scale the output of `shared` by the sigmoid of a linear map of the token.
        scores: Whether scores are the `softmax` over all experts, or the `sigmoid` of each logit.
        normalize: Whether to divide the weights of the chosen experts by their sum.
        eps: Epsilon, which is added to that sum (LFM2: 1e-6).
        scale: Factor lambda of the weights.
        router_bias: Whether the router's logits have a learned bias.
        num_groups: Number of groups of consecutive experts.
        top_groups: Number of groups from which a token may choose: those with the largest sums of their `group_best` highest scores
            (default: all).
        group_best: Number of experts whose scores rank a group (DeepSeek-V3: 2; DeepSeek-V2: 1).
        balance_loss: Coefficient of the balance loss.
        z_loss: Coefficient of the mean square of the logsumexp of the router's logits.
        bias_rate: The change of an expert's bias per step (default: no bias).
        bias_to: Whether that bias is added to the `scores`, or to the `logits` from which they are computed (Kolibri).

    Raises:
        ConfigurationError: A number does not fit the number of experts or groups, or an option has no effect.

    Example:
        >>> experts = MixtureOfExperts(d_model=8, num_experts=4, top_k=2, expert={"name": "mlp", "ffn_dim": 16})
        >>> experts(torch.randn(2, 3, 8)).shape
        torch.Size([2, 3, 8])
    """

    breaks_graphs = True  # the numbers of tokens per expert depend on data
    site: int = 0

    def __init__(
        self,
        *,
        d_model: int,
        num_experts: int = 8,
        top_k: int = 2,
        expert: FeedForwardSpec = "glu",
        shared: FeedForwardSpec | None = None,
        shared_gate: bool = False,
        scores: Literal["softmax", "sigmoid"] = "softmax",
        normalize: bool = True,
        eps: float = 1e-20,
        scale: float = 1.0,
        router_bias: bool = False,
        num_groups: int = 1,
        top_groups: int | None = None,
        group_best: int = 2,
        balance_loss: float = 0.01,
        z_loss: float = 0.0,
        bias_rate: float = 0.0,
        bias_to: Literal["scores", "logits"] = "scores",
    ) -> None:
        super().__init__()
        if shared_gate and (shared is None or feed_forwards.resolve(shared).name == "none"):
            raise ConfigurationError("shared_gate scales the output of shared: set shared to a feed-forward network, or remove shared_gate")
        self.top_groups = num_groups if top_groups is None else top_groups
        if num_groups < 1 or num_experts % num_groups or not 1 <= self.top_groups <= num_groups:
            raise ConfigurationError(
                f"num_groups ({num_groups}) must divide num_experts ({num_experts}), and top_groups ({self.top_groups}) must be in "
                f"[1, {num_groups}]"
            )
        size = num_experts // num_groups
        if not 1 <= top_k <= self.top_groups * size or not (num_groups == 1 or 1 <= group_best <= size):
            raise ConfigurationError(
                f"top_k ({top_k}) must be in [1, {self.top_groups * size}], the experts of {self.top_groups} groups, "
                f"and group_best ({group_best}) must be in [1, {size}]"
            )
        if num_groups > 1 and self.top_groups == num_groups:
            raise ConfigurationError("num_groups has no effect while all groups are open: lower top_groups, or remove num_groups")
        if num_groups == 1:
            refuse_unread(MixtureOfExperts, "without num_groups", top_groups=top_groups, group_best=group_best)
        if feed_forwards.resolve(expert).name == "none":
            raise ConfigurationError("the expert 'none' computes nothing, so no other option has an effect: use another expert")
        if top_k == 1 and normalize and num_experts > 1:
            raise ConfigurationError("top_k 1 with normalize: each weight is 1, so the router cannot learn; set normalize to false")
        if min(balance_loss, z_loss, bias_rate) < 0 or min(scale, eps) <= 0:
            raise ConfigurationError("balance_loss, z_loss and bias_rate must not be negative, and scale and eps must be positive")
        if not normalize:
            refuse_unread(MixtureOfExperts, "without normalize", eps=eps)
        if bias_rate == 0:
            refuse_unread(MixtureOfExperts, "without bias_rate", bias_to=bias_to)
        self.bias_to, self.top_k, self.scores, self.normalize, self.eps, self.scale = bias_to, top_k, scores, normalize, eps, scale
        self.num_groups, self.group_best = num_groups, group_best
        self.balance_loss, self.z_loss, self.bias_rate = balance_loss, z_loss, bias_rate
        self.router = Linear(d_model, num_experts, bias=router_bias)
        self.experts = nn.ModuleList(feed_forwards.build(expert, d_model=d_model) for _ in range(num_experts))
        self.shared: FeedForward | None = None if shared is None else feed_forwards.build(shared, d_model=d_model)
        self.shared_gate = Linear(d_model, 1, bias=False) if shared_gate else None
        self.register_buffer("bias", torch.empty(num_experts) if bias_rate else None)
        self.bias: Tensor | None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the score biases to zero."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Transform `x` [..., D]; tokens that are not `real` [...] do not count in losses and statistics."""
        tokens = x.reshape(-1, x.shape[-1])  # [N, D]
        logits, scores = self._score(tokens)  # [N, E]
        chosen = self._choose(scores if self.bias_to == "scores" else logits)  # [N, k]
        weights = scores.gather(1, chosen)
        if self.normalize:
            weights = weights / (weights.sum(1, keepdim=True) + self.eps)
        outputs = self._compute(tokens, chosen, self._keys(x))  # [N, k, D]
        y = (outputs * (self.scale * weights).to(outputs.dtype)[..., None]).sum(1)
        if self.shared is not None:
            common = self.shared(tokens)
            y = y + (common if self.shared_gate is None else self.shared_gate(tokens).sigmoid() * common)
        if self.training:
            self._report(logits, scores, chosen, None if real is None else real.reshape(-1))
        return y.view(x.shape)

    def end_step(self, sums: Tensor) -> dict[str, Tensor]:
        """Update the score biases and return the statistics of a step; see `Reporter`."""
        counts, balance, tokens = sums[:-2], sums[-2], sums[-1].clamp(min=1)
        if self.bias is not None:
            self.bias += self.bias_rate * torch.sign(counts.mean() - counts).to(self.bias)
        shares = counts / counts.sum().clamp(min=1)
        entropy = torch.special.entr(shares).sum() / torch.tensor(max(2, len(shares))).log()
        return {"balance": balance / tokens, "entropy": entropy, **{f"share_{e}": share for e, share in enumerate(shares)}}

    def _score(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the router's logits and scores, [N, E], in fp32 or float64."""
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        with torch.autocast(tokens.device.type, enabled=False):
            if is_plain(self.router):
                bias = None if self.router.bias is None else self.router.bias.to(dtype)
                logits = F.linear(tokens.to(dtype), self.router.weight.to(dtype), bias)
            else:  # its hooks, such as those of pruning, must run
                logits = called(self.router, tokens.to(dtype))
            return logits, logits.softmax(-1) if self.scores == "softmax" else logits.sigmoid()

    def _choose(self, scores: Tensor) -> Tensor:
        """Return the experts of each token, [N, k], by scores or logits [N, E]."""
        scores = scores if self.bias is None else scores + self.bias
        if self.top_groups < self.num_groups:
            groups = torch.unflatten(scores, 1, (self.num_groups, -1))  # [N, G, E / G]
            best = groups.topk(self.group_best).values.sum(-1).topk(self.top_groups).indices  # [N, top groups]
            excluded = torch.ones(groups.shape[:2], dtype=torch.bool, device=scores.device).scatter(1, best, False)
            scores = groups.masked_fill(excluded[..., None], float("-inf")).flatten(1)
        return scores.topk(self.top_k).indices

    def _compute(self, tokens: Tensor, chosen: Tensor, keys: Tensor | None) -> Tensor:
        """Return the chosen experts' outputs [N, k, D]. Experts without tokens run on an empty batch: their gradient is zero, not None."""
        if traced() or transformed():  # neither graphs nor vmap rows may depend on the choice: run all experts, then choose
            with nullcontext() if keys is None else draws.using(keys):
                everything = torch.stack([expert(tokens) for expert in self.experts], 1)  # [N, E, D]
            return everything.gather(1, chosen[..., None].expand(-1, -1, tokens.shape[-1]))
        order = chosen.flatten().argsort(stable=True)  # (token, choice) pairs, sorted by expert
        pairs = tokens[:, None].expand(-1, self.top_k, -1).flatten(0, 1)[order]  # [N k, D]
        sizes = _sizes(chosen, len(self.experts))
        keys_by_expert = [None] * len(sizes) if keys is None else keys.repeat_interleave(self.top_k)[order].split_with_sizes(sizes)
        outputs = []
        for expert, expert_tokens, expert_keys in zip(self.experts, pairs.split_with_sizes(sizes), keys_by_expert, strict=True):
            with nullcontext() if expert_keys is None else draws.using(expert_keys):
                outputs.append(expert(expert_tokens))
        return torch.cat(outputs)[order.argsort()].view(*chosen.shape, tokens.shape[-1])

    def _keys(self, x: Tensor) -> Tensor | None:
        """Return a dropout key per token, so that what an expert drops does not depend on its other tokens; None outside a task."""
        keys = draws.current()
        if not self.training or keys is None or x.ndim != 3 or len(keys) != len(x):
            return None
        return draws.words(keys.to(x.device), self.site, torch.arange(x.shape[1], device=x.device), 1).flatten()

    def _report(self, logits: Tensor, scores: Tensor, chosen: Tensor, real: Tensor | None) -> None:
        counted = (torch.ones_like(logits[:, 0]) if real is None else real.to(logits.dtype))[:, None]  # [N, 1]
        tokens = counted.sum()
        counts = torch.zeros_like(logits).scatter(1, chosen, counted.expand(chosen.shape)).sum(0)  # [E]
        mean = (scores / scores.sum(1, keepdim=True) * counted).sum(0) / tokens.clamp(min=1)
        balance = len(counts) * (counts / (self.top_k * tokens).clamp(min=1) * mean).sum()
        z = (logits.logsumexp(-1, keepdim=True).square() * counted).sum() / tokens.clamp(min=1)
        self.leave(self.balance_loss * balance + self.z_loss * z, torch.cat([counts, torch.stack([balance * tokens, tokens])]).detach())


def _sizes(chosen: Tensor, experts: int) -> list[int]:
    """Return the number of pairs per expert. Fake tensors have no data: even shares stand in for it, at the same total cost."""
    if isinstance(chosen, FakeTensor):
        return [(chosen.numel() + e) // experts for e in range(experts)]
    sizes: list[int] = chosen.flatten().bincount(minlength=experts).tolist()
    return sizes
