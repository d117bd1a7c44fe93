"""Rules for token-wise components: norms, feed-forward networks, residuals and embeddings, which have further rules."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.embedding import Embedding
from attnkit.feed_forward import FeedForward
from attnkit.registry import Registry, Spec
from attnkit.residual import Residual
from attnkit.testing.comparison import assert_close, assert_exact_gradients, assert_finite
from attnkit.testing.component import D_MODEL, IMAGE_SHAPE, NUM_FEATURES, VOCAB_SIZE, WORDS, build

BATCH, LENGTH = 2, 5
LARGE = 80.0  # the sum of squares of 16 such channels overflows fp16


class _Joined(nn.Module):
    """A residual around a sublayer that doubles its input."""

    def __init__(self, residual: Residual) -> None:
        super().__init__()
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        streams = self.residual.streams
        x = x if streams == 1 else torch.stack([x * (i + 1) for i in range(streams)], -2)
        y: Tensor = self.residual.after(x, 2 * self.residual.before(x))
        return y if streams == 1 else y.sum(-2)


def make(registry: Registry, spec: Spec) -> Any:
    """Build the component, ready for use: a residual with a sublayer, an embedding with its vectors."""
    piece: nn.Module = build(registry, spec)
    if isinstance(piece, Embedding):
        piece.load_vectors(WORDS)
    return _Joined(piece) if isinstance(piece, Residual) else piece


def draw_input(module: nn.Module) -> Tensor:
    """Draw an input: tokens [B, T], an image [B, C, H, W], frames [B, S, F], or vectors [B, T, D]."""
    if isinstance(module, Embedding) and module.reads == "tokens":
        return torch.randint(VOCAB_SIZE, (BATCH, LENGTH))
    read = module.reads if isinstance(module, Embedding) else None
    shape = {"image": IMAGE_SHAPE, "frames": [LENGTH, NUM_FEATURES]}.get(str(read), [LENGTH, D_MODEL])
    return torch.randn(BATCH, *shape, dtype=torch.float64, requires_grad=True)


def treats_each_token_on_its_own(registry: Registry, spec: Spec) -> None:
    """A token has the same output, of width D, alone and in a batch; in an image or in frames, each number affects exactly one vector."""
    module = make(registry, spec).double().eval()
    x = draw_input(module)
    y = module(x)
    is_signal = isinstance(module, Embedding) and module.reads != "tokens"
    assert y.ndim == 3, f"the output has shape {tuple(y.shape)}"
    assert (len(y), y.shape[2]) == (BATCH, D_MODEL), f"the output has shape {tuple(y.shape)}"
    assert is_signal or y.shape[1] == LENGTH, f"the output has shape {tuple(y.shape)}"
    for b in range(BATCH):
        for t in range(LENGTH) if not is_signal else ():
            assert_close(module(x[b : b + 1, t : t + 1]), y[b : b + 1, t : t + 1], 1e-10, "a token alone")
        assert_close(module(x[b : b + 1]), y[b : b + 1], 1e-10, "a row alone")
    for place in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist() if is_signal else ():
        other = x.detach().clone()
        other[tuple(place)] += 1
        changed = (module(other) - y).abs().amax(-1) > 1e-10  # [B, T]
        assert changed.sum() == changed[place[0]].sum() == 1, f"the number at {place} changes {int(changed.sum())} tokens"


def has_exact_gradients(registry: Registry, spec: Spec) -> None:
    """Gradients of the input and of every parameter match finite differences, in float64."""
    module = make(registry, spec).double().eval()
    x = draw_input(module)
    assert_exact_gradients(module, lambda call, x: call((x,)), x)
    module(x).sum().backward()
    unused = [name for name, p in module.named_parameters() if p.grad is None]
    assert not unused, f"{', '.join(unused)} has no gradient: a component must use every parameter that it owns"


def does_not_overflow_in_half_precision(registry: Registry, spec: Spec) -> None:
    """Inputs whose sum of squares overflows fp16 give finite outputs and gradients in autocast."""
    for dtype in (torch.float16, torch.bfloat16):
        module = make(registry, spec)
        x = draw_input(module)
        if x.is_floating_point():
            x = (x.detach() * LARGE).to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            y = module(x)
        y.float().mean().backward()
        found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        if x.grad is not None:
            found["input"] = x.grad
        assert_finite({"output": y, **found}, str(dtype))


def compiles_without_graph_breaks(registry: Registry, spec: Spec) -> None:
    """`torch.compile(fullgraph=True)` gives the same values; with graph breaks, if a feed-forward network declares them."""
    module = make(registry, spec).double().eval()
    x = draw_input(module)
    torch._dynamo.reset()
    fullgraph = not (isinstance(module, FeedForward) and module.breaks_graphs)
    compiled: Callable[[Tensor], Tensor] = torch.compile(module, fullgraph=fullgraph, backend="eager")
    assert_close(compiled(x), module(x), 1e-10, "compiled output")


RULES = (treats_each_token_on_its_own, has_exact_gradients, does_not_overflow_in_half_precision, compiles_without_graph_breaks)


def offers_a_table_to_tie_or_none(registry: Registry, spec: Spec) -> None:
    """`weight` is a parameter [V, D], or None."""
    embedding = build(registry, spec)
    assert hasattr(embedding, "weight"), "there is no attribute `weight`: call super().__init__(), which sets it to None"
    if embedding.weight is not None:
        assert isinstance(embedding.weight, torch.nn.Parameter), f"`weight` is a {type(embedding.weight).__name__}"
        assert embedding.weight.shape == (VOCAB_SIZE, D_MODEL), f"`weight` has shape {tuple(embedding.weight.shape)}"


def is_restored_by_its_state_dict_alone(registry: Registry, spec: Spec) -> None:
    """A new embedding with the state dict of another gives the same vectors, without loading any other file."""
    first, second = make(registry, spec), build(registry, spec)
    second.load_state_dict(first.state_dict())
    x = draw_input(first).to(torch.get_default_dtype() if first.reads != "tokens" else torch.long)
    assert_close(second(x), first(x), 0.0, "after load_state_dict")


def masks_its_vectors(registry: Registry, spec: Spec) -> None:
    """`mask` says which vectors are real, and padding, which is zero, does not change real vectors."""
    embedding = make(registry, spec).double()
    if embedding.reads == "image":
        return
    x = draw_input(embedding).detach()
    length = x.shape[1] - 1
    real = (torch.arange(x.shape[1]) < length).expand(len(x), -1)
    padded = x * real.reshape(*real.shape, *(1,) * (x.ndim - 2))
    mask, y = embedding.mask(real), embedding(padded)
    assert mask.shape == y.shape[:2], f"the mask has shape {tuple(mask.shape)}, and the vectors {tuple(y.shape)}"
    alone = embedding(x[:, :length])
    assert mask.sum(1).eq(alone.shape[1]).all(), "the mask has a different number of real vectors than the inputs without padding"
    assert_close(y[:, : alone.shape[1]], alone, 1e-10, "with padding")


EMBEDDING_RULES = (masks_its_vectors, offers_a_table_to_tie_or_none, is_restored_by_its_state_dict_alone)
