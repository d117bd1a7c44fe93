# https://arxiv.org/abs/2507.22448
"""Several mixers in parallel."""

from dataclasses import dataclass, field, fields
from typing import Any, get_args

from torch import Tensor, nn

from attnkit.mixer.base import Growth, Mixer, Tokens
from attnkit.mixer.config import AttentionConfig, MixerConfig
from attnkit.registry import ConfigurationError, MixerSpec, mixers
from attnkit.registry.keywords import keywords_of
from attnkit.state import State


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(MixerConfig):
    """The options of the mixer `parallel`.

    Args:
        mixers: The specs of the mixers.
        dropout: The dropout of the layer, for mixers that read it.

    Raises:
        ConfigurationError: There are no mixers, or a window is set, which only some mixers could respect.
    """

    mixers: list[MixerSpec] = field(default_factory=lambda: ["multi_head", "convolution"])
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mixers:
            raise ConfigurationError("the mixer 'parallel' needs at least one entry in mixers")
        if self.window is not None:
            raise ConfigurationError("the mixer 'parallel' takes no window, because not all mixers in it could respect one; remove it")


@dataclass(frozen=True)
class ParallelState(State):
    """The state of each mixer."""

    states: tuple[State | None, ...]

    def with_slots(self, count: int, index: Tensor) -> "ParallelState":
        """Return the states with room for `count` more tokens; see `State.with_slots`."""
        return ParallelState(tuple(None if state is None else state.with_slots(count, index) for state in self.states))


@mixers.register("parallel")
class ParallelMixers(Mixer[ParallelState]):
    r"""Several mixers that read the same input and whose outputs are added: attention and a state-space model in Falcon-H1.

    Equation:
        $$y = \sum_i \mathrm{mixer}_i(x)$$

    Paper: Zuo et al. 2025, https://arxiv.org/abs/2507.22448

    Cost and state: the sums over the mixers.

    Example:
        >>> import torch
        >>> y, state = ParallelMixers(d_model=8, num_heads=2)(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, [type(part).__name__ for part in state.states]
        (torch.Size([1, 5, 8]), ['KeyValues', 'ConvolutionState'])
    """

    directions = frozenset({"causal", "bidirectional"})
    reads_positions = frozenset({"rotation", "bias", "query_bias"})
    has_weights = True
    growth: Growth = "linear"

    @keywords_of(ParallelConfig)
    def __init__(self, config: ParallelConfig) -> None:
        super().__init__()
        options = {f.name: getattr(config, f.name) for f in fields(AttentionConfig)} | {"dropout": config.dropout}
        built: list[Mixer[Any]] = [mixers.build(spec, **options, direction=config.direction) for spec in config.mixers]
        self.growth = max((mixer.growth for mixer in built), key=get_args(Growth).index)
        self.mixers = nn.ModuleList(built)

    def forward(self, x: Tensor, tokens: Tokens, state: ParallelState | None = None) -> tuple[Tensor, ParallelState]:
        """Add the outputs of all mixers; each gets the positions only if it applies them. See `Mixer.forward`."""
        earlier = (None,) * len(self.mixers) if state is None else state.states
        parts: list[Any] = [*self.mixers]
        read = [tokens.read_with(mixer.reads_positions) for mixer in parts]
        outputs, states = zip(*(mixer(x, *given) for mixer, *given in zip(parts, read, earlier, strict=True)), strict=True)
        return sum(outputs[1:], outputs[0]), ParallelState(states)
