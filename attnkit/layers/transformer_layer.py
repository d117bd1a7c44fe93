# https://arxiv.org/abs/1706.03762
"""One layer of a Transformer: a mixer, an optional second mixer that reads a memory, and a feed-forward network."""

from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from attnkit.feed_forward import FeedForward
from attnkit.feed_forward.none import NoFeedForward
from attnkit.layers.compatibility import build_mixer, check_residual
from attnkit.layers.config import PlacedLayerConfig
from attnkit.mixer import Mixer, Tokens
from attnkit.mixer.none import NoMixer
from attnkit.registry import feed_forwards, layer_kinds, norms, residuals
from attnkit.registry.keywords import keywords_of
from attnkit.residual import Residual, Sublayer
from attnkit.state import State


@layer_kinds.register("transformer_layer")
class TransformerLayer(nn.Module):
    r"""A layer of an encoder, of a decoder-only stack, or of a decoder with a memory.

    If the mixer or the feed-forward network is `none`, that sublayer is omitted, with its norm and its residual connection.

    Equation:
        $$y = x + \mathrm{mixer}(\mathrm{norm}(x)), \quad z = y + \mathrm{feed\_forward}(\mathrm{norm}(y))$$
        for the residual `pre_norm`; other kinds define their own. A mixer that reads a memory is between the two.

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Raises:
        ConfigurationError: The mixer does not work in this direction or with these positions, or a spec is wrong.

    Example:
        >>> import torch
        >>> layer = TransformerLayer(d_model=8, num_heads=2)
        >>> y, state = layer(torch.randn(1, 3, 8), Tokens())
        >>> y.shape, state.key.shape
        (torch.Size([1, 3, 8]), torch.Size([1, 2, 3, 4]))
    """

    @keywords_of(PlacedLayerConfig)
    def __init__(self, config: PlacedLayerConfig) -> None:
        super().__init__()
        check_residual(config)
        make_norm = partial(norms.build, config.norm, d_model=config.d_model)

        def join(kind: Literal["mixer", "cross_mixer", "feed_forward"]) -> Residual:
            place = Sublayer(kind=kind, layer=config.layer, num_layers=config.depth, memory_layers=config.memory_depth)
            widths = {"d_model": config.d_model, "dropout": config.dropout}
            residual: Residual = residuals.build(config.residual, make_norm=make_norm, sublayer=place, **widths)
            return residual

        self.mixer: Mixer[Any] = build_mixer(config, config.direction)
        self.mixer_residual: Residual | None = None if isinstance(self.mixer, NoMixer) else join("mixer")
        self.cross_mixer: Mixer[Any] | None = None if config.cross_mixer is None else build_mixer(config.cross, "cross")
        self.cross_mixer_residual: Residual | None = None if self.cross_mixer is None else join("cross_mixer")
        self.feed_forward: FeedForward = feed_forwards.build(config.feed_forward, d_model=config.d_model)
        self.feed_forward_residual: Residual | None = None if isinstance(self.feed_forward, NoFeedForward) else join("feed_forward")

    @property
    def joins(self) -> list[Residual]:
        """The residual connections of the sublayers; a layer without sublayers leaves the stream unchanged."""
        parts = (self.mixer_residual, self.cross_mixer_residual, self.feed_forward_residual)
        return [part for part in parts if part is not None]

    def forward(
        self, x: Tensor, tokens: Tokens, state: State | None = None, *, memory: State | None = None, memory_tokens: Tokens | None = None
    ) -> tuple[Tensor, State | None]:
        """Run the layer.

        Args:
            x: The stream [B, T, D], or N streams [B, T, N, D].
            tokens: The properties of the tokens.
            state: The mixer's state after the earlier tokens.
            memory: The memory, from `remember`.
            memory_tokens: The properties of the memory's tokens: which are real, and their positions.

        Returns:
            The stream or streams, and the mixer's state after these tokens.
        """
        layer_input = mixer_input = x
        if (residual := self.mixer_residual) is not None:
            mixer_input = residual.before(x)
            mixed, state = self.mixer(mixer_input, tokens, state)
            x = residual.after(x, mixed)
        if (residual := self.cross_mixer_residual) is not None and self.cross_mixer is not None:
            if memory is None or memory_tokens is None:
                raise ValueError("a layer that reads a memory needs one: pass memory=layer.remember(encoder_output, tokens)")
            mixed, _ = self.cross_mixer(residual.before(x), memory_tokens, memory)
            x = residual.after(x, mixed)
        if (residual := self.feed_forward_residual) is not None:
            read = {"stream": x, "layer_input": layer_input, "mixer_input": mixer_input}[residual.reads]
            x = residual.after(x, self.feed_forward(residual.before(read), tokens.real))
        return x, state

    def remember(self, memory: Tensor, tokens: Tokens) -> State:
        """Project the encoder's output [B, S, D], at its positions, once for all steps of the mixer that reads it."""
        if self.cross_mixer is None:
            raise ValueError("this layer reads no memory: build it with cross_mixer=...")
        remembered: State = self.cross_mixer.remember(memory, tokens)
        return remembered
