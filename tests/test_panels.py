import ctypes
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnkit import panels
from attnkit.cpp import compiler
from attnkit.panels import MIN_CHECKED, Panels, product, serve
from tests.test_cpp import compile_for, failing


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a process that has not compiled the loops yet."""
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    panels._loops.cache_clear()
    yield tmp_path / "cache"
    panels._loops.cache_clear()


@pytest.fixture
def served() -> None:
    if not serve():
        pytest.skip("there is no C++ compiler, or the processor has no AVX2")


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_products_are_exact_to_rounding_with_every_instruction_set(
    capability: str, seed: int, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_for(capability, monkeypatch)
    if not serve():
        pytest.skip("there is no C++ compiler")
    for outputs, inputs in ((1, 1), (31, 7), (32, 64), (33, 5), (300, 40)):
        for dtype, rounding in ((torch.float32, 0.0), (torch.bfloat16, 2.0**-8)):
            weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
            for given in (bias, None):
                packed = Panels(weight, given)
                for rows in (*range(1, 15), 30):
                    x = torch.randn(rows, inputs).to(dtype)
                    found, added = product(x, packed).double(), 0 if given is None else given.double()
                    exact = x.double() @ weight.double().T + added
                    size = x.double().abs() @ weight.double().abs().T + abs(added)
                    assert found.shape == exact.shape
                    assert ((found - exact).abs() <= (inputs + 1) * 2.0**-24 * size + rounding * exact.abs() * 1.01).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rows_product_depends_neither_on_other_rows_nor_on_threads(dtype: torch.dtype, seed: int, served: None) -> None:
    packed = Panels(torch.randn(200, 64).to(dtype), torch.randn(200).to(dtype))
    x, threads = torch.randn(30, 64).to(dtype), torch.get_num_threads()
    alone = torch.cat([product(row, packed)[None] for row in x])
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal(product(x, packed), alone)
    finally:
        torch.set_num_threads(threads)
    x[3, 5] = torch.nan
    assert product(x, packed).isnan().any(-1).nonzero().flatten().tolist() == [3]


def test_inputs_may_have_any_strides_and_leading_dimensions(seed: int, served: None) -> None:
    weight, x = torch.randn(40, 6), torch.randn(6, 2, 3).movedim(0, -1)
    torch.testing.assert_close(product(x, Panels(weight.T.contiguous().T, None)), x @ weight.T)
    torch.testing.assert_close(product(x[0, 0], Panels(weight, None)), weight @ x[0, 0])
    assert product(x[:0], Panels(weight, None)).shape == (0, 3, 40)


def test_another_default_dtype_changes_nothing(seed: int, served: None) -> None:
    weight, x = torch.randn(40, 6), torch.randn(2, 6)
    torch.set_default_dtype(torch.float64)
    try:
        found = product(x, Panels(weight, None))
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, x @ weight.T)


def edited(x: Tensor) -> Iterator[Tensor]:
    """Yield tensors that a weak checksum takes for `x`."""
    yield x[:-1]
    yield torch.cat([x, torch.zeros(1, dtype=x.dtype)])
    for shift in (1, 8, 128):
        yield x.roll(shift)
    for step in (1, 2, 64):
        yield torch.where(torch.arange(len(x)) % step == 0, -x, x)
    for i in (0, len(x) // 2, len(x) - 1):
        yield torch.where(torch.arange(len(x)) == i, x + 1, x)
    half = len(x) // 512 * 256
    yield torch.cat([x[half : 2 * half], x[:half], x[2 * half :]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 777, MIN_CHECKED // 2, MIN_CHECKED // 2 + 1, 4 * MIN_CHECKED + 3])
def test_a_checksum_changes_with_any_part_of_the_data(size: int, dtype: torch.dtype, seed: int) -> None:
    x = 1 + torch.rand(size).to(dtype)
    different = [other.contiguous() for other in edited(x) if other.shape != x.shape or not torch.equal(other, x)]
    assert len({panels.checksum(other) for other in (x, *different)}) == 1 + len({tuple(other.tolist()) for other in different})
    assert panels.checksum(x.clone()) == panels.checksum(x)


def test_small_tensors_and_processes_without_loops_take_a_crc(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    small, large = torch.randn(MIN_CHECKED // 4 - 1), torch.randn(MIN_CHECKED)
    expected = [zlib.crc32((ctypes.c_ubyte * x.nbytes).from_address(x.data_ptr())) for x in (small, large)]
    assert panels.checksum(small) == expected[0]
    assert (panels.checksum(large) == expected[1]) is (panels._loops() is None)
    monkeypatch.setattr(panels, "_loops", lambda: None)
    assert panels.checksum(large) == expected[1]


def test_a_failing_compiler_is_reported_once(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_for("AVX2", monkeypatch)
    monkeypatch.setenv("CXX", failing(tmp_path))
    with pytest.warns(UserWarning, match="generation multiplies without compiled loops, because compiling them failed: no such header"):
        assert not serve()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not serve()


def test_without_a_compiler_or_avx2_nothing_is_compiled(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setenv("CXX", "no-such-compiler")
        assert not serve()
    panels._loops.cache_clear()
    compile_for("DEFAULT", monkeypatch)
    assert not serve()
    assert not own_cache.exists()


def test_without_openmp_the_loops_have_no_threads(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: None) -> None:
    script = tmp_path / "plain"
    script.write_text(f'#!/bin/sh\ncase "$*" in *-fopenmp*) exit 1;; esac\nexec {" ".join(compiler())} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    panels._loops.cache_clear()
    loops = panels._loops()
    assert loops is not None
    assert not loops.has_threads()
    torch.testing.assert_close(product(torch.ones(2, 3), Panels(torch.ones(4, 3), None)), torch.full((2, 4), 3.0))
