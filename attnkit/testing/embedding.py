"""Rules for embeddings only: the table for tied outputs, and checkpoints that need no other file."""

import torch

from attnkit.registry import Registry, Spec
from attnkit.testing.comparison import assert_close
from attnkit.testing.component import D_MODEL, VOCAB_SIZE, build
from attnkit.testing.tokenwise import draw_input, make


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
    """`mask` says for each vector whether it is real, and padding, which is zero, leaves real vectors as they are."""
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
    assert mask.sum(1).eq(alone.shape[1]).all(), "the mask has another number of real vectors than the inputs without padding"
    assert_close(y[:, : alone.shape[1]], alone, 1e-10, "with padding")


RULES = (masks_its_vectors, offers_a_table_to_tie_or_none, is_restored_by_its_state_dict_alone)
