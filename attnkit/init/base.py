"""The interface of initialisations, which draw each module of a built model from its own generator."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attnkit import draws
from attnkit.embedding import Embedding
from attnkit.head import Head
from attnkit.linear import Linear
from attnkit.mixer.recurrence.long_convolution import ImplicitKernel
from attnkit.position import Position
from attnkit.residual import Residual

Role = Literal["table", "head", "branch", "hidden", "other"]


@dataclass(frozen=True)
class Part:
    """A module with its own parameters, and its role in the model.

    Attributes:
        path: Its path in the model.
        module: The module.
        role: `table`: an embedding with a table; `head`: the linear map to the logits; `branch`: the last linear map of a sublayer, called
            `output`, or as its module says in `last_map`; `hidden`: any other linear map; `other`: everything else, such as norms, scores,
            recurrent cells, the networks that map distances to biases (`fire`) and lags to kernels, and linear maps with a
            `reset_parameters` of their own, as those that begin at zero.
        parent: The module that contains it.
        d_model: Width of the stack.
        branches: Number of sublayers that add to the same stream, at least 1: two for each layer of an encoder.
        seed: The seed of its generator.
    """

    path: str
    module: nn.Module
    role: Role
    parent: nn.Module
    d_model: int
    branches: int
    seed: int

    @property
    def weight(self) -> Tensor:
        """The weight of a part whose role is not `other`."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight

    def reset(self) -> None:
        """Draw all parameters of the module with its own `reset_parameters`."""
        if callable(reset := getattr(self.module, "reset_parameters", None)):
            reset()


class Init(ABC):
    """Draws the parameters of a model.

    Each module draws from a generator that depends only on the seed and on the module's path. So in two models with equal seeds, parameters
    of equal name and shape start equal, whatever else differs.
    """

    def __call__(self, model: nn.Module, seed: int) -> None:
        """Draw all parameters. torch's global generators do not change."""
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        with torch.random.fork_rng(devices):
            for part in parts(model, seed):
                draws.seed_generators(part.seed)
                self.draw(part)

    @abstractmethod
    def draw(self, part: Part) -> None:
        """Draw the parameters of one module from the global generator, which is seeded for it."""

    def learning_rates(self, model: nn.Module) -> dict[str, float]:
        """Return the factor that scales each parameter's learning rate, by name, if it is not 1."""
        return {}


def parts(model: nn.Module, seed: int = 0) -> Iterator[Part]:
    """Yield the modules with their own parameters or buffers to draw, in the order of the model.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="encoder", d_model=8, num_layers=3, num_heads=2, vocab_size=9, feed_forward="glu")
        >>> [(part.path, part.branches) for part in parts(model) if part.role == "branch"][:2]
        [('stack.encoder.layers.0.mixer.output', 6), ('stack.encoder.layers.0.feed_forward.output', 6)]
    """
    d_model = getattr(getattr(model, "stack", None), "d_model", 0)
    joins = [path.split(".layers.") for path, module in model.named_modules() if isinstance(module, Residual)]
    streams = [path for path, layer in joins for _ in range(_places(model.get_submodule(path), int(layer.split(".")[0])))]
    for path, module in model.named_modules():
        parent = model.get_submodule(path.rpartition(".")[0])
        branches = max(1, streams.count(path.partition(".layers.")[0]))
        if callable(getattr(module, "reset_parameters", None)):
            yield Part(path, module, _role(path, module, parent), parent, d_model, branches, draws.site(f"{seed}/{path}") % 2**62)


def _places(stack: nn.Module, layer: int) -> int:
    """Return how often a layer occurs in its stack: a shared layer occurs several times."""
    order: list[int] = getattr(stack, "order", [layer])
    return order.count(layer)


def _role(path: str, module: nn.Module, parent: nn.Module) -> Role:
    if isinstance(module, nn.Linear) and not isinstance(parent, Position | ImplicitKernel):
        if type(module).reset_parameters not in (nn.Linear.reset_parameters, Linear.reset_parameters):
            return "other"
        is_head = isinstance(parent, Head) and parent.projection is module
        return "head" if is_head else "branch" if path.rpartition(".")[2] == getattr(parent, "last_map", "output") else "hidden"
    return "table" if isinstance(module, Embedding) and module.weight is not None else "other"


def set_normal(part: Part, *, std: float, truncated: bool = False) -> None:
    """Draw a part's weight from a normal distribution, cut off at two standard deviations if `truncated`; the module draws all else."""
    part.reset()
    draws.seed_generators(part.seed + 1)  # independent of what else the module has drawn
    if truncated:
        nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
    else:
        nn.init.normal_(part.weight, std=std)
