# https://kellerjordan.github.io/posts/muon/
"""Muon for hidden weight matrices, AdamW for all other parameters."""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch

from attnkit.registry import optimizers


@optimizers.register("muon")
class Muon(torch.optim.Optimizer):
    r"""Muon for parameter groups marked `{"matrices": True}`, AdamW for all other parameters.

    `torch.optim.Muon` accepts hidden weight matrices only; its documentation recommends AdamW for embeddings, heads, norms and biases. But
    Lightning's automatic optimisation takes one optimizer, so this one combines both; both follow the schedule.

    Equation:
        $$M \leftarrow \mu M + (1 - \mu) G, \quad W \leftarrow (1 - \eta \lambda) W - 0.2 \, \eta \sqrt{\max(m, n)} \; U V^\top, \quad
        U \Sigma V^\top = (1 - \mu) G + \mu M$$

    Paper: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; Liu et al. 2025, https://arxiv.org/abs/2502.16982 (the factor)

    Args:
        params: Parameter groups; those with `"matrices": True` hold only matrices. (Tasks mark the weights of all linear maps except the
            head's. Recurrent cells stack several matrices in one weight, which uses AdamW. There may be no matrices at all.)
        lr: Learning rate eta of the matrices; with the factor above, their updates are as large as AdamW's.
        momentum: mu.
        weight_decay: lambda, for all parameters; a group may override it.
        adamw_lr: Learning rate of all other parameters (default: `lr`).
        betas: AdamW's decay rates of the two moments.

    Raises:
        ValueError: A group of matrices holds a parameter that is not a matrix, or no group says whether it holds matrices.

    Example:
        >>> layer = torch.nn.Linear(3, 2)
        >>> optimizer = Muon([{"params": [layer.weight], "matrices": True}, {"params": [layer.bias]}], lr=0.01)
        >>> layer(torch.ones(3)).sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float = 3e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        adamw_lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.95),
    ) -> None:
        groups = [dict(group) for group in params]
        matrices = [p for group in groups if group.get("matrices") for p in group["params"]]
        if all("matrices" not in group for group in groups):
            raise ValueError("muon needs parameter groups that say what they hold: {'matrices': True} or {'matrices': False}")
        rest = [p for group in groups if not group.get("matrices") for p in group["params"]]
        muon = torch.optim.Muon(
            matrices or [torch.empty(0, 0)], lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        adamw = torch.optim.AdamW(
            rest or [torch.empty(0)], lr=lr if adamw_lr is None else adamw_lr, betas=betas, weight_decay=weight_decay, fused=True
        )
        self._parts = {True: muon, False: adamw}
        for group in groups:
            group["matrices"] = bool(group.get("matrices"))
            for key, value in self._parts[group["matrices"]].defaults.items():
                group.setdefault(key, value)
        super().__init__(groups, {})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter once; `closure` computes the loss first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for matrices, part in self._parts.items():  # the parts share our groups and state, so that checkpoints hold them
            part.param_groups = [group for group in self.param_groups if group["matrices"] is matrices]
            part.state = self.state
            part.step()
        return loss
