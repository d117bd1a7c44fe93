"""One product with joined weights gives what separate products give, and leaves maps that are not plain to themselves."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import attnkit
from attnkit import linear
from attnkit.linear import Linear, is_plain, joined
from attnkit.mixer import Tokens
from attnkit.mixer.multi_head import MultiHeadAttention

SIZES = {"stack": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
PIECES: list[dict[str, object]] = [
    {"feed_forward": "mixture_of_experts"},
    {"position": "fire"},
    {"mixer": {"name": "convolution", "kernel_size": None}},
    {"mixer": {"name": "latent_attention", "content_dim": 2}},
]


@pytest.fixture
def pays(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Join as on a GPU."""
    monkeypatch.setattr(linear, "pays", lambda x: True)


@pytest.mark.parametrize("bias", [True, False])
def test_joined_products_and_gradients_match_separate_maps(bias: bool, pays: None) -> None:
    maps, x = [Linear(6, outputs, bias=bias).double() for outputs in (4, 2, 8)], torch.randn(2, 5, 6).double().requires_grad_()
    leaves = [x, *(p for one in maps for p in one.parameters())]
    found, wanted = joined(x, *maps), [one(x) for one in maps]
    assert found is not None
    gradients = [torch.autograd.grad(sum(y.sin().sum() for y in ys), leaves) for ys in (found, wanted)]  # type: ignore[arg-type]
    for a, b in zip((*found, *gradients[0]), (*wanted, *gradients[1]), strict=True):
        torch.testing.assert_close(a, b)


def frozen(one: nn.Module) -> None:
    nn.utils.parametrizations.weight_norm(one)


def hooked(one: nn.Module) -> None:
    one.register_forward_hook(lambda *_: None)


def patched(one: nn.Module) -> None:
    one.forward = torch.nn.functional.relu  # type: ignore[assignment]  # as libraries that move weights do


class Adapted(Linear):
    """A map with a change of its own, such as LoRA."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


@pytest.mark.parametrize(
    "change", [frozen, hooked, patched, lambda one: setattr(one, "__class__", Adapted), lambda one: setattr(one, "bias", None)]
)
def test_maps_that_are_not_plain_are_not_joined(change: Callable[[nn.Module], None], pays: None) -> None:
    maps, x = [Linear(4, 4), Linear(4, 4)], torch.randn(3, 4)
    assert joined(x, *maps) is not None
    change(maps[1])
    assert joined(x, *maps) is None


@pytest.mark.parametrize("piece", PIECES, ids=str)
def test_no_linear_map_is_read_past_its_hooks(piece: dict[str, object], seed: int) -> None:
    """The hook of pruning computes `weight` from `weight_orig`; a forward hook changes the output, in decoding as in a full pass."""
    model = attnkit.compose(**{**SIZES, **piece}).double().eval()
    pruned, tokens = copy.deepcopy(model), torch.randint(3, 9, (2, 5))
    with torch.no_grad():
        for path, one in model.named_modules():
            if isinstance(one, nn.Linear):
                other = pruned.get_submodule(path)
                nn.utils.prune.identity(other, "weight")
                other.weight_orig *= 1.5  # type: ignore[operator]
                one.weight *= 1.5
        torch.testing.assert_close(pruned(tokens), model(tokens))
        for one in model.modules():
            if isinstance(one, nn.Linear):
                one.register_forward_hook(lambda _, __, y: 1.5 * y)
        whole, state = model(tokens), None
        for t in range(tokens.shape[1]):
            logits, state = model.step(tokens[:, t : t + 1], state)
            torch.testing.assert_close(logits, whole[:, t])


def test_global_hooks_disable_joining(pays: None) -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert joined(torch.randn(3, 4), Linear(4, 4), Linear(4, 4)) is None
    finally:
        handle.remove()


@pytest.mark.parametrize("piece", PIECES, ids=str)
def test_hooks_that_only_look_change_nothing_in_half_precision(piece: dict[str, object], seed: int) -> None:
    model = attnkit.compose(**{**SIZES, **piece}).eval().bfloat16()
    tokens = torch.randint(3, 9, (2, 5))
    wanted = model(tokens)
    for one in model.modules():
        if isinstance(one, nn.Linear):
            one.register_forward_hook(lambda *_: None)
    assert torch.equal(model(tokens), wanted)


class Quantised(nn.Module):
    """A linear map with weights in 8 bits."""

    def __init__(self, one: nn.Linear) -> None:
        super().__init__()
        scale = one.weight.detach().abs().max() / 127
        self.weight = nn.Parameter((one.weight / scale).round().to(torch.int8), requires_grad=False)
        self.scale = nn.Parameter(scale)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight * self.scale).T


def test_the_router_of_experts_may_be_quantised(seed: int) -> None:
    layer, x = attnkit.feed_forwards.build("mixture_of_experts", d_model=8).eval(), torch.randn(2, 5, 8)
    wanted = layer(x)
    layer.router = Quantised(layer.router)
    torch.testing.assert_close(layer(x), wanted, atol=0.02, rtol=0.0)


def test_fake_weights_are_plain() -> None:
    with FakeTensorMode():
        assert is_plain(Linear(2, 3))


def test_a_cpu_does_not_join() -> None:
    assert joined(torch.randn(3, 4), Linear(4, 4), Linear(4, 4)) is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_kv_heads": 2, "query_key_norm": "rms_norm"},
        {"biases": ["query"], "gate": "channel"},
        {"differential": 0.8},
        {"attention": "general", "window": 3},
    ],
)
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_attention_with_joined_products_is_unchanged(options: dict[str, object], direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = MultiHeadAttention(d_model=16, num_heads=4, direction=direction, **options).double()  # type: ignore[arg-type]
    x, calls = torch.randn(2, 7, 16).double(), []
    wanted, state = mixer(x, Tokens())
    monkeypatch.setattr(linear, "pays", lambda x: calls.append(x) or True)
    found, after = mixer(x, Tokens())
    assert len(calls) == 1
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(after.key, state.key)
    more = torch.randn(2, 1, 16).double()
    continued = mixer(more, Tokens(), after)[0]
    monkeypatch.undo()
    torch.testing.assert_close(continued, mixer(more, Tokens(), state)[0])


@pytest.mark.parametrize("is_rotated", [False, True])
def test_the_joint_product_is_not_saved_just_for_the_values(is_rotated: bool, pays: None) -> None:
    mixer = MultiHeadAttention(d_model=16, num_heads=4, direction="causal")
    rotary = attnkit.positions.build("rotary", head_dim=4)
    tokens = Tokens(rotation=rotary.rotation(torch.arange(7)[None]) if is_rotated else None)
    joint = 3 * 2 * 7 * 16 * 4  # bytes
    sizes: set[int] = set()

    def keep(x: Tensor) -> Tensor:
        sizes.add(x.untyped_storage().nbytes())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        mixer(torch.randn(2, 7, 16), tokens)
    assert (joint in sizes) is not is_rotated
