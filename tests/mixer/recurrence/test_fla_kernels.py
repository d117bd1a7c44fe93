"""fla's kernels on a GPU against the same recurrences in float64 on a CPU; FLA_ERRORS=FILE collects their errors.

FLA_TUNED=1 tests the configurations that fla chooses, which takes minutes, in place of the first of each kernel.

The tolerance of each tensor is what cutting the inputs as the kernels do (to 11 significant bits for TF32, which truncates, and 8 for
bfloat16, which rounds) changes in it, times `ROUNDINGS`: a factor is cut as an input, once decayed, and as a weight within a chunk or as a
state. Truncations go the same way, so their errors add up. So a tolerance depends on how the recurrence responds to errors, not on what the
kernels compute. Measured on an H200, the errors are at most two of these three.
"""

import gc
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.mixer import Mixer, Tokens
from attnkit.mixer.recurrence import fla_kernels
from attnkit.mixer.recurrence.delta_rule import delta_rule
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.mixer.recurrence.tokens import WithKernel
from attnkit.registry import ConfigurationError, mixers

DEVICE = "cuda"
MISSING = None if torch.cuda.is_available() and find_spec("fla") is not None else "needs a CUDA GPU and fla (pip install 'attnkit[fla]')"


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Skip a test without a GPU, and allow warnings of fla and triton."""
    return pytest.mark.filterwarnings("ignore")(pytest.mark.skipif(MISSING is not None, reason=str(MISSING))(test))


NEWEST = fla_kernels.NEWEST


@pytest.fixture(autouse=True)
def any_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests say whether a newer triton is right."""
    monkeypatch.setattr(fla_kernels, "NEWEST", (99, 0))


BATCH, HEADS, KEY, VALUE, CHUNK = 2, 4, 32, 48, 64
ROUNDINGS = 3
BITS = {"tf32": 11, "bf16": 8}
NAMES = ["query", "key", "value", "beta", "log_decay", "state"]
DECAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "slow": lambda u: -0.1 * u,
    "one": torch.zeros_like,
    "fast": lambda u: -30 * u,
    "both": lambda u: torch.where(u < 0.1, -1e4 * u, -1e-3 * u),
    "starts": lambda u: torch.where(u < 0.05, -math.inf, -0.1 * u),
}
WITH_KERNEL = ["delta_rule", "gated_delta", "gated_linear_attention", "linear_attention", "retention", "state_space"]
Form = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def errors() -> Iterator[list[tuple[str, str, float, float, float]]]:
    """Collect (case, tensor, largest error, its root mean square, tolerance), and append them to the file FLA_ERRORS."""
    _untuned()
    found: list[tuple[str, str, float, float, float]] = []
    yield found
    if file := os.environ.get("FLA_ERRORS"):
        with open(file, "a") as table:
            table.writelines(" ".join(x if isinstance(x, str) else f"{x:.1e}" for x in row) + "\n" for row in found)


def _untuned() -> None:
    """Have each kernel compile one configuration, to save time: errors that a compiler makes in the others are not seen."""
    if os.environ.get("FLA_TUNED"):
        return
    import fla.ops.gla
    import fla.ops.kda  # noqa: F401
    from triton.runtime.autotuner import Autotuner

    for kernel in [x for x in gc.get_objects() if issubclass(type(x), Autotuner)]:
        kernel.configs = [c for c in kernel.configs if c.num_warps == 4][:1] or kernel.configs[:1]


def sample(form: str, decay: str, length: int, width: int = KEY, value: int = VALUE) -> dict[str, Tensor]:
    torch.manual_seed(length)
    heads = HEADS // 2 if form == "grouped" else HEADS
    query, key = (F.normalize(torch.randn(BATCH, heads, length, width, dtype=torch.double), dim=-1) for _ in range(2))
    found = {"query": query, "key": key, "value": torch.randn(BATCH, HEADS, length, value, dtype=torch.double)}
    if form == "delta_rule":
        found["beta"] = 2 * torch.rand(BATCH, HEADS, length, 1, dtype=torch.double)
    shape = (BATCH, HEADS, length, width) if form == "by_channel" else (1, 1, length, 1) if form == "grouped" else (BATCH, HEADS, length, 1)
    found["log_decay"] = DECAYS[decay](torch.rand(shape, dtype=torch.double))
    if decay == "starts":  # in all channels, and twice in a row
        first = torch.rand(shape[0], 1, length, 1) < 0.05
        first[:, :, length // 2 : length // 2 + 2] = True
        found["log_decay"] = found["log_decay"].clamp(min=-0.1).masked_fill(first, -math.inf)
    found["state"] = torch.randn(BATCH, HEADS, width, value, dtype=torch.double)
    return {name: x.float().double() for name, x in found.items()}


def gradients(form: str, inputs: dict[str, Tensor], **options: str) -> dict[str, Tensor]:
    """Return the outputs, and the gradients of a product with fixed numbers, in float64 on the CPU."""
    function: Form = delta_rule if form == "delta_rule" else outer_product
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    y, last = function(**leaves, **options)
    draw = torch.Generator().manual_seed(1)
    ((y * _like(y, draw)).sum() + (last * _like(last, draw)).sum()).backward()
    found = {"output": y, "last": last, **{f"d {name}": x.grad for name, x in leaves.items()}}
    return {name: x.detach().cpu().double() for name, x in found.items()}


def _like(x: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=draw).to(x)


def cut(x: Tensor, precision: str) -> Tensor:
    """Truncate to the significant bits of TF32, or round to those of bfloat16."""
    bits = BITS[precision]
    mantissa, exponent = torch.frexp(x)
    mantissa = mantissa * 2**bits
    return torch.ldexp(mantissa.trunc() if precision == "tf32" else mantissa.round(), exponent - bits)


def tolerances(form: str, inputs: dict[str, Tensor], exact: dict[str, Tensor], precision: str) -> dict[str, float]:
    """Return the root mean square that the errors of each tensor may have."""
    decays, length = inputs["log_decay"], inputs["value"].shape[2]
    exponent = min(-fla_kernels.SMALLEST, float(-decays.amin())) * CHUNK * 2.0**-23  # error of a sum of logarithms in fp32
    noise = exponent * (2 * torch.rand(decays.shape, generator=torch.Generator().manual_seed(2), dtype=torch.double) - 1)
    moved = [
        {name: cut(x, precision) for name, x in inputs.items()} | {"log_decay": decays},
        {**inputs, "log_decay": (decays + noise).clamp(max=0)},
    ]
    effects = [{name: rms(x - exact[name]) for name, x in gradients(form, each).items()} for each in moved]
    found = {name: ROUNDINGS * sum(effect[name] for effect in effects) for name in exact}
    # the gradient of a channel's decay is a sum over the rest of the chunk of what each token adds and takes away, each cut for itself
    channels = gradient_by_channel(form, inputs)
    added = channels.numel() / decays.numel()
    found["d log_decay"] += ROUNDINGS * error_of_one(inputs["query"], precision) * math.sqrt(min(CHUNK, length) * added) * rms(channels)
    # fp32: some inputs are cut nowhere, and numbers below 2^-126 may become zero
    return {name: x + ROUNDINGS * 2.0**-24 * rms(exact[name]) + length * 2.0**-126 for name, x in found.items()}


def error_of_one(x: Tensor, precision: str) -> float:
    """Return how large the error of one cut is, relative to the numbers."""
    return rms(cut(x, precision) - x) / rms(x)


def gradient_by_channel(form: str, inputs: dict[str, Tensor]) -> Tensor:
    """Return the gradient of a decay per channel, token by token."""
    query, key = (inputs[name].repeat_interleave(HEADS // inputs[name].shape[1], 1) for name in ("query", "key"))
    log_decay = inputs["log_decay"].expand(key.shape).clone().requires_grad_()
    state, outputs = inputs["state"], []
    for t in range(key.shape[2]):
        state = log_decay[:, :, t, :, None].exp() * state
        value = inputs["value"][:, :, t, None]
        if form == "delta_rule":
            value = inputs["beta"][:, :, t, None] * (value - key[:, :, t, None] @ state)
        state = state + key[:, :, t, :, None] * value
        outputs.append(query[:, :, t, None] @ state)
    y, draw = torch.cat(outputs, 2), torch.Generator().manual_seed(1)
    ((y * _like(y, draw)).sum() + (state * _like(state, draw)).sum()).backward()
    found = log_decay.grad
    assert found is not None
    return found


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def compare(case: str, form: str, inputs: dict[str, Tensor], precision: str, errors: list[tuple[str, str, float, float, float]]) -> None:
    exact = gradients(form, inputs)
    allowed = tolerances(form, inputs, exact, precision)
    on_device = {name: x.float().to(DEVICE) for name, x in inputs.items()}
    with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16"):
        found = gradients(form, on_device, kernel="fla")
    wrong = []
    for name, expected in exact.items():
        assert found[name].shape == expected.shape, name
        error = rms(found[name] - expected)
        size = max(rms(expected), 1e-30)
        errors.append((case, name, float((found[name] - expected).abs().max()) / size, error / size, allowed[name] / size))
        if not error <= allowed[name]:
            wrong.append(f"{name}: {error / size:.1e} > {allowed[name] / size:.1e}")
    assert not wrong, wrong


@on_gpu
@pytest.mark.parametrize("precision", BITS)
@pytest.mark.parametrize("length", [5, 64, 100, 300])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("form", ["outer_product", "by_channel", "grouped", "delta_rule"])
def test_the_kernel_agrees_with_float64(
    form: str, decay: str, length: int, precision: str, errors: list[tuple[str, str, float, float, float]]
) -> None:
    compare(f"{form} {decay} {length} {precision}", form, sample(form, decay, length), precision, errors)


@on_gpu
@pytest.mark.parametrize("precision", BITS)
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("form", ["by_channel", "delta_rule"])
def test_the_kernel_agrees_with_float64_at_common_widths(
    form: str, width: int, precision: str, errors: list[tuple[str, str, float, float, float]]
) -> None:
    compare(f"{form} {width} wide {precision}", form, sample(form, "slow", 130, width, width), precision, errors)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("form", ["outer_product", "by_channel", "grouped", "delta_rule"])
def test_tolerances_detect_a_ten_percent_error(form: str, decay: str) -> None:
    inputs = sample(form, decay, 100)
    exact = gradients(form, inputs)
    allowed = tolerances(form, inputs, exact, "bf16")
    assert all(allowed[name] < 0.1 * rms(x) for name, x in exact.items() if rms(x) > 1e-30)


@on_gpu
@pytest.mark.usefixtures("errors")
@pytest.mark.parametrize(("form", "function"), [("outer_product", outer_product), ("delta_rule", delta_rule)])
def test_single_token_steps_are_identical_with_and_without_the_kernel(form: str, function: Form) -> None:
    inputs = {name: x.float().to(DEVICE) for name, x in sample(form, "slow", 1).items()}
    for x, y in zip(function(**inputs), function(**inputs, kernel="fla"), strict=True):
        assert torch.equal(x, y)


@on_gpu
@pytest.mark.usefixtures("errors")
@pytest.mark.parametrize(
    ("form", "function"), [("outer_product", outer_product), ("by_channel", outer_product), ("delta_rule", delta_rule)]
)
def test_tokens_before_a_document_start_have_no_influence(form: str, function: Form) -> None:
    inputs = {name: x.float().to(DEVICE) for name, x in sample(form, "slow", 20).items()}
    inputs["log_decay"][:, :, 10] = -math.inf
    (y, last), (large_y, large_last) = (function(**{**inputs, "state": size * inputs["state"]}, kernel="fla") for size in (1, 1e6))
    torch.testing.assert_close(large_y[:, :, 10:], y[:, :, 10:], rtol=0, atol=1e-6)
    torch.testing.assert_close(large_last, last, rtol=0, atol=1e-6)
    assert rms(large_y[:, :, :10]) > 1e4 * rms(y[:, :, :10])


@on_gpu
@pytest.mark.usefixtures("errors")
@pytest.mark.parametrize("width", [1, 5, 65])
@pytest.mark.parametrize(("form", "function"), [("outer_product", outer_product), ("delta_rule", delta_rule)])
def test_the_kernel_supports_any_head_width_without_a_state(form: str, function: Form, width: int) -> None:
    inputs = sample(form, "slow", 20)
    inputs = {name: x[..., :width] if name in ("query", "key", "value") else x for name, x in inputs.items() if name != "state"}
    exact = function(**inputs)
    moved = function(**{name: cut(x, "tf32") if name != "log_decay" else x for name, x in inputs.items()})
    found = function(**{name: x.float().to(DEVICE) for name, x in inputs.items()}, kernel="fla")
    for x, y, z in zip(found, exact, moved, strict=True):
        assert rms(x.cpu().double() - y) <= ROUNDINGS * rms(z - y)


def with_cuts(function: Form) -> Form:
    """Return a recurrence that cuts its inputs and the gradients of its outputs, with the noise of `tolerances` in gradients of decays."""

    def computed(*tensors: Tensor | None, **options: str) -> tuple[Tensor, Tensor]:
        at = 4 if function is delta_rule else 3
        inputs = [x if x is None or i == at else x + (cut(x, "tf32") - x).detach() for i, x in enumerate(tensors)]
        decay = inputs[at]
        assert decay is not None
        if decay.requires_grad:
            inputs[at] = decay = decay.clone()
            decay.register_hook(with_noise)
        found = function(*inputs, **options)
        for x in found:
            if x.requires_grad:
                x.register_hook(lambda grad: cut(grad, "tf32"))
        return found

    return computed


def with_noise(grad: Tensor) -> Tensor:
    noise = _like(grad, torch.Generator().manual_seed(2))
    return grad + error_of_one(noise, "tf32") * math.sqrt(min(CHUNK, grad.shape[2])) * rms(grad) * noise


def run_with_padding_documents_and_a_state(mixer: Mixer) -> list[Tensor]:
    """Return the outputs at tokens, the state, and the gradients of the parameters."""
    torch.manual_seed(1)
    place = next(mixer.parameters())
    x = torch.randn(2, 91, 64).to(place)
    real = torch.ones(2, 91, dtype=torch.bool, device=place.device)
    real[0, 60:90], real[1, :7], real[1, 30:33] = False, False, False
    starts = torch.zeros_like(real)
    starts[:, 0] = starts[0, [20, 21]] = starts[1, [7, 37]] = True
    state, outputs = None, []
    for at in (slice(40), slice(40, 90), slice(90, 91)):  # with documents, after a state, and a single token
        y, state = mixer(x[:, at], Tokens(real=real[:, at], starts=starts[:, at] if at.start is None else None), state)
        outputs.append(y[real[:, at]])
    (sum(y.square().mean() for y in outputs) + state.memory.square().mean()).backward()
    return [x.detach().cpu().double() for x in (*outputs, state.memory, *(p.grad for p in mixer.parameters()))]


@on_gpu
@pytest.mark.usefixtures("errors")
@pytest.mark.parametrize("name", WITH_KERNEL)
def test_mixers_agree_with_padding_documents_and_a_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    spec = {"name": name, "state_dim": 16} if name == "state_space" else {"name": name}
    exact, inexact = (mixers.build(spec, d_model=64, num_heads=4).double() for _ in range(2))
    fast = mixers.build({**spec, "kernel": "fla"}, d_model=64, num_heads=4)
    exact.load_state_dict(fast.state_dict())  # a checkpoint of one kernel is one of the other
    inexact.load_state_dict(fast.state_dict())
    wanted = run_with_padding_documents_and_a_state(exact)
    found = run_with_padding_documents_and_a_state(fast.to(DEVICE))
    function = "delta_rule" if "delta" in name else "outer_product"
    module = sys.modules[type(exact).__module__]
    monkeypatch.setattr(module, function, with_cuts(getattr(module, function)))
    moved = run_with_padding_documents_and_a_state(inexact)
    names = ["with documents", "after a state", "one token", "state", *(name for name, _ in exact.named_parameters())]
    wrong = []
    for name, x, y, z in zip(names, wanted, found, moved, strict=True):
        allowed = ROUNDINGS * rms(z - x) + 2.0**-13 * rms(x)  # the other operations are in fp32
        if not rms(y - x) <= allowed:
            wrong.append(f"{name}: {rms(y - x) / rms(x):.1e} > {allowed / rms(x):.1e}")
    assert not wrong, wrong


@pytest.mark.parametrize("name", WITH_KERNEL)
def test_the_kernel_is_used_only_by_name_and_only_on_cuda(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, calls = torch.randn(1, 5, 8), []
    for function in ("fla_outer_product", "fla_delta_rule"):
        own = getattr(fla_kernels, function)

        def counted(*tensors: Tensor, own: Form = own) -> tuple[Tensor, Tensor]:
            calls.append(own)
            return own(*tensors)

        module = outer_product if "outer" in function else delta_rule
        monkeypatch.setitem(module.__globals__, function, counted)
    plain, fast = (mixers.build({"name": name, **kernel}, d_model=8, num_heads=2) for kernel in ({}, {"kernel": "fla"}))
    fast.load_state_dict(plain.state_dict())
    expected = plain(x, Tokens())[0]
    assert not calls
    with pytest.raises(ConfigurationError, match="needs a CUDA GPU, and the inputs are on 'cpu'"):
        fast(x, Tokens())
    assert len(calls) == 1
    assert torch.equal(fast(x[:, :1], Tokens())[0], plain(x[:, :1], Tokens())[0])  # a single token
    assert isinstance(fast, WithKernel)
    fast.as_written = True  # as FLOPs are counted
    assert torch.equal(fast(x, Tokens())[0], expected)
    assert len(calls) == 1


class OnCuda(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(("dtype", "installed", "message"), [(torch.float, False, "pip install"), (torch.double, True, "float64")])
def test_missing_requirements_are_named(dtype: torch.dtype, installed: bool, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla_kernels, "find_spec", lambda name: object() if installed else None)
    with pytest.raises(ConfigurationError, match=message):
        fla_kernels._refuse(torch.ones(1, dtype=dtype).as_subclass(OnCuda))


def test_the_delta_rule_refuses_keys_that_are_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla_kernels, "_refuse", lambda value: None)
    key, value, scalar = torch.ones(1, 1, 2, 257), torch.ones(1, 1, 2, 1), torch.zeros(1, 1, 2, 1)
    with pytest.raises(ConfigurationError, match="at most 256 channels, not 257"):
        delta_rule(key, key, value, scalar, scalar, kernel="fla")


@pytest.mark.parametrize(("version", "capability", "is_refused"), [("3.6.0", 9, False), ("3.7.1", 9, True), ("3.7.1", 8, False)])
def test_the_delta_rule_refuses_an_untested_triton_on_hopper(
    version: str, capability: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fla_kernels, "NEWEST", NEWEST)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (capability, 0))
    error = pytest.raises(ConfigurationError, match=r"triton 3\.7\.1 on Hopper.* use triton 3\.6, or kernel 'torch'")
    with error if is_refused else nullcontext():
        fla_kernels._refuse_untested()


def test_an_unknown_kernel_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="kernel"):
        mixers.build({"name": "retention", "kernel": "cuda"}, d_model=8, num_heads=2)
