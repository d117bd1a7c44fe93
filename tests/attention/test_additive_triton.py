"""The Triton kernels give what the equation gives: interpreted on a CPU, in a process of its own, and as they are on a GPU.

The rules of backends are kept, too (half a minute): TRITON_INTERPRET=1 attnkit check additive_triton
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit import draws
from attnkit.attention import LazyBias
from attnkit.attention.additive import Additive
from attnkit.attention.backend import Refused, additive_eager, additive_triton, blocks, online
from attnkit.attention.backend.base import ordered
from attnkit.masks import Mask

B, H, A, D = 2, 2, 3, 5
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"
DTYPE = torch.float64 if INTERPRETED else torch.float32
CLOSE = {"rtol": 1e-10, "atol": 1e-10} if INTERPRETED else {"rtol": 1e-4, "atol": 2e-5}

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
runs_kernels = pytest.mark.skipif(not INTERPRETED and DEVICE == "cpu", reason="no GPU: another process interprets the kernels")


@needs_triton
@pytest.mark.skipif(INTERPRETED or DEVICE == "cuda", reason="the other tests run in this process")
def test_the_kernels_keep_every_rule_in_the_interpreter() -> None:
    """triton decides at its import, so the other tests of this file run in a process where the variable is set."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "not compile_for_gpus", __file__]
    run = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed, 1 skipped, " in run.stdout.splitlines()[-1], run.stdout  # this test


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(additive_triton, "LOGITS", (4, 8, 1))
    monkeypatch.setattr(additive_triton, "SLOPES", (4, 2, 1))
    monkeypatch.setattr(additive_triton, "AT_ONCE", 2)
    for name, size in (("ROWS", 6), ("COLUMNS", 11), ("PAIRS", 6 * 11 * 3), ("ON_GPU", (6, 11, 6 * 11 * 3))):
        monkeypatch.setattr(blocks, name, size)


def build(kv_heads: int = H) -> Additive:
    sizes = {"head_dim": D, "num_heads": H, "num_kv_heads": kv_heads}
    built: Additive = attnkit.attentions.build({"name": "additive", "hidden_dim": A}, **sizes).to(DEVICE, DTYPE)
    return built


def draw(queries: int, keys: int, kv_heads: int = H) -> list[Tensor]:
    shapes = ((H, queries), (kv_heads, keys), (kv_heads, keys))
    return [torch.randn(B, heads, length, D, device=DEVICE, dtype=DTYPE, requires_grad=True) for heads, length in shapes]


def compare(attention: Additive, given: list[Tensor], *others: Tensor, **how: object) -> None:
    """Compare values, and gradients of everything, with the reference."""
    with draws.using(torch.tensor([1, 2])):
        expected, output = (attention(*given, **how, backend=name) for name in ("reference", "additive_triton"))
    torch.testing.assert_close(output, expected, **CLOSE)
    leaves = [*given, *others, *attention.parameters()]
    for found, want in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (output, expected)), strict=True):
        torch.testing.assert_close(found, want, **CLOSE)


@runs_kernels
@pytest.mark.parametrize("kind", ["none", "causal", "window", "both", "random", "padded"])
def test_every_mask_matches_the_reference(kind: str) -> None:
    t = 19
    full, key = torch.rand(B, H, t, t, device=DEVICE) < 0.4, torch.arange(t) >= torch.tensor([t, 2])[:, None, None, None]
    full[0, 0, 4] = False  # a row without keys; in "padded" a whole example
    masks = {"causal": Mask(causal=True), "window": Mask(window=4), "both": Mask(causal=True, window=3)}
    mask = {**masks, "none": None, "random": full, "padded": key.to(DEVICE)}[kind]
    compare(build(), draw(t, t), mask=mask)


@runs_kernels
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_dropout_drops_what_the_reference_drops(kv_heads: int) -> None:
    compare(build(kv_heads), draw(17, 17, kv_heads), mask=Mask(causal=True), dropout=0.3, first_query=3)


@runs_kernels
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 18), (18, 1), (5, 33)])
def test_key_and_query_lengths_may_differ(queries: int, keys: int) -> None:
    compare(build(1), draw(queries, keys, 1))


@runs_kernels
@pytest.mark.parametrize("shape", [(7,), (9, 1), (H, 1, 7), (B, 1, 9, 7), (B, H, 9, 7)])
def test_every_bias_has_its_gradient(shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape, device=DEVICE, dtype=DTYPE, requires_grad=True)
    compare(build(), draw(9, 7), bias, attn_bias=bias, mask=torch.rand(9, 7, device=DEVICE) < 0.7, dropout=0.2)


@runs_kernels
def test_a_bias_broadcast_over_examples_and_heads_has_its_gradient() -> None:
    bias = torch.randn(9, 7, device=DEVICE, dtype=DTYPE, requires_grad=True)
    compare(build(), draw(9, 7), bias, attn_bias=bias.expand(B, H, 9, 7).mT.contiguous().mT)


@runs_kernels
@pytest.mark.parametrize("name", ["relative", "fire"])
def test_the_biases_of_positions_have_the_gradients_of_their_parameters(name: str) -> None:
    t = torch.arange(18, device=DEVICE)[None]
    position = attnkit.positions.build(name, num_heads=H, bidirectional=False).to(DEVICE, DTYPE)
    bias = LazyBias(position.bias, t, t, position.by_offset)
    compare(build(), draw(18, 18), *position.parameters(), attn_bias=bias, mask=Mask(causal=True))


@runs_kernels
def test_a_row_at_the_lowest_finite_bias_keeps_its_weights() -> None:
    bias = torch.zeros(6, 6, device=DEVICE)
    bias[3], bias[4, 2:] = torch.finfo(torch.float32).min, torch.finfo(torch.float32).min
    given = [x.detach().float() for x in draw(6, 6)]
    outputs = [build_float()(*given, attn_bias=bias, backend=name) for name in ("reference", "additive_triton")]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=1e-5)


def build_float() -> Additive:
    torch.manual_seed(0)
    return build().float()


@runs_kernels
def test_out_of_range_rows_add_nothing_even_with_huge_logits() -> None:
    attention, given = build(), draw(3, 5)
    attention.score_weight.data.fill_(-1e4)
    output = attention(*given, backend="additive_triton")
    for found in torch.autograd.grad(output.sum(), [*given, *attention.parameters()]):
        assert found.isfinite().all()


@runs_kernels
@pytest.mark.filterwarnings("ignore:overflow encountered")  # infinite exponentials are meant: r is zero
@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_inputs_of_any_size_are_exact_to_rounding(size: float) -> None:
    """In fp32, against the equation in float64; half of the sums are near zero."""
    attention = build().float()
    query, value = size * torch.randn(B, H, 17, A, device=DEVICE), torch.randn(B, H, 9, D, device=DEVICE)
    near = torch.randn(B, H, 9, A, device=DEVICE) - query[:, :, :9]
    key = torch.where(torch.rand(B, H, 9, A, device=DEVICE) < 0.5, near, size * torch.randn(B, H, 9, A, device=DEVICE))
    leaves = [query.requires_grad_(), key.requires_grad_(), attention.score_weight]
    output = attention(query, key, value, projected=True, backend="additive_triton")
    hidden = torch.tanh(query.double()[:, :, :, None] + key.double()[:, :, None])
    expected = (hidden * attention.score_weight.double()[:, None, None]).sum(-1).softmax(-1) @ value.double()
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-5)
    for found, want in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (output, expected)), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=2e-5)


@runs_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_errors_stay_within_those_of_the_inputs(dtype: torch.dtype) -> None:
    attention, given = build().to(dtype), [x.detach().to(dtype).requires_grad_() for x in draw(17, 9)]
    query, key = attention.project_query(given[0]), attention.project_key(given[1])
    output = attention(query, key, given[2], projected=True, backend="additive_triton")
    exact = attention.double()(query.double(), key.double(), given[2].double(), projected=True, backend="reference")
    assert output.dtype == dtype
    close = {"rtol": 0, "atol": 8 * torch.finfo(dtype).eps}
    torch.testing.assert_close(output.double(), exact, **close)
    leaves = [query, key, given[2]]
    for found, want in zip(*(torch.autograd.grad(y.sum(), leaves, retain_graph=True) for y in (output, exact)), strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, want, **close)


@runs_kernels
def test_no_tensor_of_all_pairs_is_created() -> None:
    from tests.attention.largest import LargestTensor

    attention, given = build(), draw(48, 48)
    with LargestTensor() as largest:
        attention(*given, backend="additive_triton").sum().backward()
    assert 0 < largest.numel <= B * H * 48 * D * DTYPE.itemsize // 4 + 127  # a GPU allocates multiples of 512 bytes


@runs_kernels
def test_sums_are_deterministic() -> None:
    attention, given = build(1).float(), [x.detach().float().requires_grad_() for x in draw(40, 33, 1)]
    bias = torch.randn(40, 33, device=DEVICE, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        found = []
        for _ in range(3):
            output = attention(*given, attn_bias=bias, backend="additive_triton")
            found.append(torch.autograd.grad(output.square().sum(), [*given, bias, *attention.parameters()]))
        assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@runs_kernels
def test_the_operator_passes_opcheck() -> None:
    weight, bias = (torch.randn(shape, device=DEVICE, dtype=DTYPE, requires_grad=True) for shape in ((H, D), (1, H, 1, 3)))
    settings = (True, True, 0, 0.5, 0.0, [0, 0, 0], "additive_triton")
    torch.library.opcheck(online._attend, (*draw(2, 2, 1), weight, bias, None, None, *settings))


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_auto_chooses_triton_for_large_inputs_on_a_gpu(is_deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, calls = ordered()["additive_triton"], []
    monkeypatch.setattr(additive_eager, "MIN_ON_GPU", 2**14)
    compute = type(backend).compute
    monkeypatch.setattr(type(backend), "compute", lambda *given: (calls.append(0), compute(*given))[1])
    attention = build()
    torch.use_deterministic_algorithms(is_deterministic, warn_only=True)
    try:
        for length in (4, 40):  # 2 x 2 heads with 3 channels
            x = torch.randn(B, H, length, D, device=DEVICE, dtype=DTYPE)
            attention(x, x, x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(calls) == (DEVICE == "cuda")


def test_missing_requirements_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, attention, x = ordered()["additive_triton"], build().cpu().float(), torch.randn(1, H, 3, D)
    monkeypatch.setattr(backend, "interprets", False)
    monkeypatch.setattr(backend, "has_triton", True)
    with pytest.raises(Refused, match="its kernels are for CUDA, and the inputs are on 'cpu'; choose 'auto'"):
        attention(x, x, x, backend="additive_triton")
    assert "additive_triton" not in attention.backends
    monkeypatch.setattr(backend, "has_triton", False)
    with pytest.raises(Refused, match=r"triton is not installed \(pip install 'attnkit\[triton\]'\)"):
        attention(x, x, x, backend="additive_triton")
    attention.check_backend("additive_triton")  # a recipe may be read on a machine without a GPU
    with pytest.raises(Refused, match="ScaledDotProduct has no backend 'additive_triton': its score is not additive"):
        attnkit.attentions.build("scaled_dot_product", head_dim=D).check_backend("additive_triton")
    monkeypatch.setattr(backend, "has_triton", True)
    assert backend.refuses_device(torch.device("cuda")) is None


@needs_triton
@pytest.mark.skipif(INTERPRETED, reason="this process interprets")
@pytest.mark.parametrize("name", ["logits", "slopes"])
@pytest.mark.parametrize("has_all", [False, True])
def test_the_kernels_compile_for_gpus_without_float64(name: str, has_all: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: the interpreter takes what the compiler refuses, and constants may turn fp32 into float64."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_kernel

    from attnkit.attention.backend import additive_kernels

    kernel = getattr(additive_kernels, name)
    constants: dict[str, int | None] = {"CHANNELS": 7, "ROWS": 16, "COLUMNS": 16, "PART": 8, "UNROLL": 2}
    if not has_all:
        constants["to_weight"] = None
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    sizes = ("queries", "keys", "ones", "others", "head_step", "one_step", "other_step")
    types = {"exact": "*i32", **dict.fromkeys(sizes, "i32"), **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "*fp32") for name in kernel.arg_names},
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    for capability in (80, 90):
        made = compile_kernel(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})
        assert ".f64" not in made.asm["ptx"]
