"""Every piece on a GPU: outputs, gradients, dropped elements and generated tokens are those of a CPU.

The model on the CPU, in float64, is exact. Float arithmetic may change its result by a few times as much as parameters that change by one
unit of the type. ATTNKIT_TEST_DEVICE=cpu tries these tests where there is no GPU.
"""

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnkit
from attnkit import ConfigurationError, draws
from attnkit.decoding.graph import MIN_STEPS
from attnkit.mixer.recurrence.recurrent_layer import RecurrentLayer
from tests.models.compositions import BATCH, SIZES, build, compositions, inputs

DEVICE = os.environ.get("ATTNKIT_TEST_DEVICE", "cuda")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

ROUNDINGS = 8
"""Times the effect of rounding all parameters once: each layer also rounds about ten results."""
CUDNN = 8
"""Times more for recurrent cells in cuDNN. On an H200 they are as inexact as if each tanh and sigmoid were off by about 2^-18 of its value:
by 2 to 3 times what is allowed otherwise. With TF32 it would be 150 to 250 times."""
KEYS = draws.make_keys(torch.arange(BATCH), 42)


def legal() -> dict[str, dict[str, Any]]:
    """Return the compositions that attnkit does not refuse, by name."""
    found = {}
    for name, options in compositions():
        try:
            build(options)
        except ConfigurationError:
            continue
        if DEVICE == "cuda" or "triton" not in name:
            found[name] = options
    return found


with torch.random.fork_rng(devices=[]):
    LEGAL = legal()
PAIRED = [name for name, options in LEGAL.items() if {"attention", "position"} <= options.keys() and "additive" not in name]
"""The pairs of an attention and a position, without `additive`: their outputs and gradients are compared, also in half precision, but
`scaled_dot_product` and `additive` show that caches and documents work with each position."""
CACHED = [name for name in LEGAL if name not in PAIRED or "-scaled_dot_product-" in name]
GENERATING = [name for name in CACHED if not LEGAL[name]["stack"].endswith("encoder")]
RECURRENT = [name for name in LEGAL if name.startswith("recurrent") or name.endswith(("-mixer-rnn", "-mixer-lstm", "-mixer-gru"))]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
every = pytest.mark.parametrize("name", LEGAL)


def test_nearly_all_compositions_are_covered() -> None:
    """The refused compositions are few: the pairs that are declared, and mixers where they cannot be."""
    refused = [name for name, _ in compositions() if name not in LEGAL and "triton" not in name]
    assert {name.split("-")[1] for name in refused} == {"mixer", "additive"}, refused
    assert len(refused) < 30, refused
    assert len(LEGAL) > 150


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """No TF32, and no keys that another test has left."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    draws.begin(None)


def moved(given: Any, device: str = DEVICE) -> Any:
    """Return tensors, or a collection of them, on the device."""
    if isinstance(given, Tensor):
        return given.to(device)
    return {k: moved(v, device) for k, v in given.items()} if isinstance(given, dict) else tuple(moved(v, device) for v in given)


def passed(model: nn.Module, given: tuple[tuple[Tensor, ...], dict[str, Tensor]], *, backward: bool = True) -> dict[str, Tensor]:
    """Return the logits of real tokens and the gradients of all parameters, in float64 on the CPU."""
    tokens, masks = given
    further = {"further": True} if getattr(model, "multi_token", None) is not None else {}
    made = model(*tokens, **masks, **further)
    real = masks.get("key_mask")
    outputs = made if isinstance(made, list) else [made]
    logits = [y if real is None or y.ndim < 3 or y.shape[:2] != real.shape else y[real] for y in outputs]
    found = {f"output {i}": y for i, y in enumerate(logits)}
    if backward:
        model.zero_grad()
        sum(y.float().square().mean() if y.dtype != torch.float64 else y.square().mean() for y in logits).backward()
        found |= {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: x.detach().double().cpu() for name, x in found.items()}


def size(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def changed(model: nn.Module, unit: float) -> nn.Module:
    """Return the model with each parameter changed by up to a unit, relative to itself."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1 + unit * (2 * torch.rand_like(p) - 1))
    return other


def on_a_cpu(model: nn.Module) -> nn.Module:
    """Return the model in float64, with a backend that a CPU has."""
    for module in model.modules():
        if getattr(module, "backend", None) == "additive_triton":
            module.backend = "auto"
    return model.double()


def assert_near(found: dict[str, Tensor], model: nn.Module, run: Callable[[nn.Module], dict[str, Tensor]], dtype: torch.dtype) -> None:
    """Compare with what `run` returns of the exact model, within what rounding to `dtype` explains."""
    cells = any(isinstance(module, RecurrentLayer) for module in model.modules())
    roundings = ROUNDINGS * (CUDNN if cells and dtype == torch.float32 and torch.backends.cudnn.enabled else 1)
    models = [changed(model, torch.finfo(dtype).eps) for _ in range(3)]
    exact, others = run(model), list(map(run, models))
    assert found.keys() == exact.keys(), found.keys() ^ exact.keys()
    whole = max((size(x) for name, x in exact.items() if name.startswith("gradient")), default=0.0)
    for name, x in found.items():
        assert x.shape == exact[name].shape, name
        assert x.isfinite().all(), f"{name} is not finite"
        floor = torch.finfo(dtype).eps * (whole if name.startswith("gradient") else size(exact[name]))
        allowed = roundings * (max(size(other[name] - exact[name]) for other in others) + floor)
        assert (error := size(x - exact[name])) <= allowed, f"{name}: off by {error:.3g}, where {allowed:.3g} is allowed"


TYPICAL: dict[str, dict[str, Any]] = {
    "llama": {"stack": "decoder", "position": "rotary", "norm": "rms_norm", "feed_forward": "glu", "num_kv_heads": 2},
    "translation": {"stack": "encoder_decoder", "attention": "additive", "position": "relative", "dropout": 0.1},
    "hybrid": {"stack": "decoder", "layers": [{"mixer": "gated_delta"}, {"mixer": "state_space"}, {}]},
    "lstm": {"stack": "recurrent_decoder", "d_model": 16, "num_layers": 2, "cell": "lstm"},
}


@pytest.mark.parametrize(("dtype", "name"), [*((torch.float32, name) for name in TYPICAL), (torch.bfloat16, "llama")], ids=str)
def test_compiled_layers_match_eager_ones(name: str, dtype: torch.dtype, seed: int) -> None:
    from attnkit.strategy.preparation import compile_layers

    options = {k: v for k, v in TYPICAL[name].items() if k != "num_layers"}
    sizes = {"num_layers": len(options["layers"])} if "layers" in options else {"num_layers": 2}
    model, given = build(options, **sizes), inputs(options)
    draws.name_sites(model)
    draws.begin(KEYS)
    there = copy.deepcopy(model).to(DEVICE).train()
    compile_layers(there)
    with torch.autocast(DEVICE, dtype) if dtype != torch.float32 else nullcontext():
        found = passed(there, moved(given), backward=dtype == torch.float32)
    assert_near(found, model.double().train(), lambda m: passed(m, given, backward=dtype == torch.float32), dtype)


@every
def test_outputs_and_gradients_with_dropout_match_the_cpu(name: str, seed: int) -> None:
    options = LEGAL[name]
    dropout = {"dropout": 0.2}
    if not options["stack"].startswith("recurrent"):
        dropout["attention_dropout"] = 0.2
    try:
        model = build(options, **dropout)
    except ConfigurationError:  # there is no attention
        model = build(options, dropout=0.2)
    draws.name_sites(model)
    given = inputs(options)
    draws.begin(KEYS)
    found = passed(copy.deepcopy(model).to(DEVICE).train(), moved(given))
    assert_near(found, on_a_cpu(model).train(), lambda model: passed(model, given), torch.float32)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_cells_are_exact_without_cudnn(name: str, seed: int) -> None:
    model, given = build(LEGAL[name]).train(), inputs(LEGAL[name])
    with torch.backends.cudnn.flags(enabled=False):
        found = passed(copy.deepcopy(model).to(DEVICE), moved(given))
        assert_near(found, model.double(), lambda model: passed(model, given), torch.float32)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(name, HALVES[half], id=f"{half}-{name}") for name, half in zip(LEGAL, cycle(HALVES))],  # in turn
)
def test_half_precision_is_close(name: str, dtype: torch.dtype, seed: int) -> None:
    model, given = build(LEGAL[name]).eval(), inputs(LEGAL[name])
    there = copy.deepcopy(model).to(DEVICE)
    with torch.autocast(DEVICE, dtype):
        found = passed(there, moved(given), backward=False)
    assert_near(found, on_a_cpu(model), lambda model: passed(model, given, backward=False), dtype)
    with torch.autocast(DEVICE, dtype):
        tokens, masks = moved(given)
        loss = there.train()(*tokens, **masks).float().square().mean()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in there.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", [name for name in CACHED if LEGAL[name]["stack"].endswith("decoder") and "_" not in LEGAL[name]["stack"]])
def test_documents_are_separated_as_on_the_cpu(name: str, seed: int) -> None:
    model, (tokens, _) = build(LEGAL[name]).eval(), inputs(LEGAL[name])
    documents = torch.tensor([[0] * 4 + [1] * 2 + [2] * 5]).expand(BATCH, -1)
    there = copy.deepcopy(model).to(DEVICE)
    try:
        found = passed(there, moved((tokens, {"documents": documents})))
    except ConfigurationError:
        pytest.skip("it cannot separate documents")
    assert_near(found, on_a_cpu(model), lambda model: passed(model, (tokens, {"documents": documents})), torch.float32)


@pytest.mark.parametrize("name", GENERATING)
def test_steps_and_generation_match_the_cpu(name: str, seed: int) -> None:
    options = LEGAL[name]
    model, (tokens, masks) = build(options).double().eval(), inputs(options)
    there = copy.deepcopy(model).float().to(DEVICE)
    exact = on_a_cpu(model)
    given, real = tokens[0], next(iter(masks.values()))
    with torch.no_grad():
        if len(tokens) == 2:
            state, target = there.encode(*moved((given, real))), tokens[1]
            whole = there(*moved(tokens), **moved(masks))
        else:
            state, target = None, given
            whole = there(moved(given))
        for t in range(target.shape[1]):
            step, state = there.step(moved(target[:, t : t + 1]), state)
            torch.testing.assert_close(step, whole[:, t], rtol=1e-4, atol=1e-4)
    for how in ({}, {"beam_size": 3}, {"temperature": 0.9, "seed": 3}):
        limits = {"min_length": MIN_STEPS, "max_length": MIN_STEPS + 2, **how}  # long enough for a GPU to record a step, and replay it
        wanted = exact.generate(given, real, **limits)
        assert torch.equal(there.generate(*moved((given, real)), **limits).cpu(), wanted), how


@pytest.mark.parametrize(("embedding", "options"), [("patch", {"image_shape": [1, 8, 8]}), ("frames", {})])
def test_signals_are_embedded_as_on_the_cpu(embedding: str, options: dict[str, Any], seed: int) -> None:
    x = torch.randn(BATCH, 1, 8, 8) if embedding == "patch" else torch.randn(BATCH, 12, 5)
    if embedding == "patch":
        own: dict[str, Any] = {"embedding": {"name": "patch", "patch_size": 4}, "num_classes": 7}
        model = attnkit.compose(stack="encoder", **SIZES, **own, **options)
        given: Any = ((x,), {})
    else:
        own = {"src_embedding": "frames", "src_shape": [5]}
        model = attnkit.compose(stack="encoder_decoder", **SIZES, tgt_vocab_size=18, **own)
        given = ((x, torch.randint(3, 18, (BATCH, 6))), {"src_mask": torch.arange(12) < torch.tensor([12, 4, 7])[:, None]})

    def run(model: nn.Module) -> dict[str, Tensor]:
        double = ((x.double(), *given[0][1:]), given[1])
        return passed(model, double)

    found = passed(copy.deepcopy(model).to(DEVICE).eval(), moved(given))
    assert_near(found, model.double().eval(), run, torch.float32)


def test_dropout_drops_the_same_elements_as_on_the_cpu() -> None:
    from attnkit.dropout import dropout

    for shape in ((BATCH, 5, 7), (BATCH, 2, 3, 4), (BATCH, 1)):
        with draws.using(KEYS):
            here, there = (dropout(torch.ones(shape, device=device), 0.3, site=9) for device in ("cpu", DEVICE))
        assert torch.equal(there.cpu(), here)
    assert torch.equal(draws.uniform(KEYS.to(DEVICE), 5, 9).cpu(), draws.uniform(KEYS, 5, 9))


def test_recorded_weights_match_the_cpu(seed: int) -> None:
    options = {"stack": "encoder_decoder", "position": "relative", "attention": "additive"}
    model, given = build(options).eval(), inputs(options)
    there = copy.deepcopy(model).to(DEVICE)
    with attnkit.record_attention(model) as maps:
        expected = model(*given[0], **given[1])
    tokens, masks = moved(given)
    with attnkit.record_attention(there) as others:
        torch.testing.assert_close(there(*tokens, **masks).cpu(), expected, rtol=1e-4, atol=1e-5)
    assert maps.keys() == others.keys()
    assert len(maps) == 6
    for path, weights in maps.items():
        torch.testing.assert_close(others[path].cpu(), weights, rtol=1e-4, atol=1e-5)
