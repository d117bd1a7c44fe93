# https://kellerjordan.github.io/posts/muon/
"""Muon for hidden weight matrices, AdamW for all other parameters."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, overload

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from typing_extensions import override

from attnkit.half import products_in_float32
from attnkit.registry import optimizers

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The coefficients of the polynomial a x + b x^3 + c x^5, whose repetition moves singular values in (0, 1] close to 1."""
STEPS = 5
EPS = 1e-7
ELEMENTS = {"cpu": 2**20}
"""Maximum number of elements of matrices that are orthogonalised together, by type of device; on a CPU, they fit in its cache
(default: 2^25)."""


@optimizers.register("muon")
class Muon(torch.optim.Optimizer):
    r"""Muon for parameter groups marked `{"matrices": True}`, AdamW for all other parameters.

    `torch.optim.Muon` accepts only hidden weight matrices; its documentation recommends AdamW for embeddings, heads, norms and biases. But
    Lightning's automatic optimisation takes a single optimizer, so this one combines the two; both follow the schedule. Matrices of the
    same shape, or its transpose, are orthogonalised together, in bfloat16 as in torch (float64 matrices in float64). Matrices that are
    sharded or split over processes are gathered once for this, and each process computes all of them.

    Equation:
        $$M \leftarrow \mu M + (1 - \mu) G, \quad W \leftarrow (1 - \eta \lambda) W - 0.2 \, \eta \sqrt{\max(m, n)} \; U V^\top, \quad
        U \Sigma V^\top = (1 - \mu) G + \mu M$$

    Paper: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; Liu et al. 2025, https://arxiv.org/abs/2502.16982 (the factor)

    Args:
        params: Parameter groups; those with `"matrices": True` hold only matrices. (Tasks mark the weights of all linear maps except the
            head's. Recurrent cells stack several matrices in one weight, which uses AdamW. There may be no matrices at all.)
        lr: Learning rate eta of the matrices; the factor in the equation makes their updates as large as AdamW's.
        momentum: mu.
        weight_decay: lambda, for all parameters; a group may override it.
        adamw_lr: Learning rate of all other parameters (default: `lr`).
        betas: AdamW's decay rates for the two moments.

    Raises:
        ValueError: A group of matrices holds a parameter that is not a matrix, no group says whether it holds matrices, or a number is
            out of range.

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
        given = list(params)
        if not all(isinstance(group, Mapping) for group in given) or all("matrices" not in group for group in given):
            raise ValueError("muon needs parameter groups that say what they hold: {'matrices': True} or {'matrices': False}")
        if lr < 0 or not 0 <= momentum < 1:
            raise ValueError(f"muon needs an lr of at least 0 and a momentum in [0, 1), but they are {lr} and {momentum}")
        groups = [{**group, "params": _listed(group["params"])} for group in given]
        rest = [p for group in groups if not group.get("matrices") for p in group["params"]]
        self._adamw = torch.optim.AdamW(
            rest or [torch.empty(0)], lr=lr if adamw_lr is None else adamw_lr, betas=betas, weight_decay=weight_decay, fused=True
        )
        self._defaults = {True: {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}, False: self._adamw.defaults}
        super().__init__(groups, {})

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, marked like those of the constructor, whose settings it shares where it has none of its own."""
        matrices, params = bool(param_group.get("matrices")), _listed(param_group["params"])
        if matrices and any(p.ndim != 2 for p in params):
            raise ValueError("a parameter group of muon that is marked 'matrices' holds a parameter that is not a matrix")
        super().add_param_group({**self._defaults[matrices], **param_group, "params": params, "matrices": matrices})

    @override
    def __getstate__(self) -> dict[str, Any]:  # torch's has nothing else
        return {**super().__getstate__(), "_adamw": self._adamw, "_defaults": self._defaults}

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
        for group in self.param_groups:
            same_shape: dict[Any, list[Tensor]] = defaultdict(list)
            for p in group["params"] if group["matrices"] else ():
                if p.grad is not None:
                    same_shape[tuple(sorted(p.shape)), p.dtype, p.device].append(p)
            for ((rows, columns), _, device), params in same_shape.items():
                count = max(1, ELEMENTS.get(device.type, 2**25) // max(1, rows * columns))
                for first in range(0, len(params), count):
                    self._update(params[first : first + count], group)
        # AdamW shares our groups and state, so checkpoints contain them
        self._adamw.param_groups = [group for group in self.param_groups if not group["matrices"]]
        self._adamw.state = self.state
        self._adamw.step()
        return loss

    def _update(self, params: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Update matrices of the same shape or its transpose."""
        gradients = [_local(p.grad) for p in params if p.grad is not None]  # all have one
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        weights = [_local(p) for p in params]
        momenta = [_local(self.state[p]["momentum_buffer"]) for p in params]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        moves = torch._foreach_lerp(gradients, momenta, group["momentum"])
        exact = params[0].dtype == torch.float64
        wide = torch.stack([_wide(_whole(x, like=p)) for x, p in zip(moves, params, strict=True)])  # [N, m, n], m <= n
        with products_in_float32() if wide.is_cpu else nullcontext():
            orthogonal = orthogonalise(wide if exact else wide.bfloat16()).to(params[0].dtype).unbind()
        steps = [_part(x if x.shape == p.shape else x.mT, like=p) for x, p in zip(orthogonal, params, strict=True)]
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, steps, alpha=-0.2 * group["lr"] * math.sqrt(max(params[0].shape)))


def orthogonalise(x: Tensor) -> Tensor:
    r"""Return approximately $U V^\top$ for each matrix $U \Sigma V^\top$ in `x` [N, m, n], m <= n, by five Newton-Schulz steps.

    Equation:
        $$X \leftarrow (a + b G + c G^2) X, \quad G = X X^\top$$

    The resulting singular values are between about 0.7 and 1.2, except for tiny ones.

    Example:
        >>> x = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> values = torch.linalg.svdvals(orthogonalise(x))
        >>> bool((values > 0.6).all() and (values < 1.3).all())
        True
    """
    a, b, c = COEFFICIENTS
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=EPS)
    for _ in range(STEPS):
        gram = torch.bmm(x, x.mT)  # [N, m, m]
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _listed(params: Tensor | Iterable[Tensor]) -> Iterable[Tensor]:
    """Return one parameter, or those of an iterator such as `module.parameters()`, as a list, which can be read several times."""
    if isinstance(params, Tensor):
        return [params]
    return list(params) if isinstance(params, Iterator) else params  # torch rejects sets, which have no order


def _wide(x: Tensor) -> Tensor:
    return x if x.shape[0] <= x.shape[1] else x.mT


def _local(x: Tensor) -> Tensor:
    """Return this process's part of a tensor; writing to it writes to the tensor."""
    return x.to_local() if isinstance(x, DTensor) else x


def _whole(x: Tensor, *, like: Tensor) -> Tensor:
    """Return the whole matrix, of which `x` is this process's part if it is distributed like `like`."""
    if not isinstance(like, DTensor):
        return x
    return DTensor.from_local(x, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()).full_tensor()


def _part(x: Tensor, *, like: Tensor) -> Tensor:
    """Return this process's part of the whole matrix `x`, if it is distributed like `like`."""
    if not isinstance(like, DTensor):
        return x
    mesh = like.device_mesh
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim).redistribute(placements=like.placements).to_local()
