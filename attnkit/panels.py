"""Products of a few rows with a matrix, in compiled loops that read the matrix once, in memory order."""

import ctypes
import warnings
import zlib
from functools import cache

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from attnkit import cpp

MIN_CHECKED = 2**16
"""Checksums of tensors from this many bytes on are computed by the loops, which take a second to compile."""

SOURCE = r"""
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 12 };  // numbers in a register, and rows at a time
#else
enum { LANES = 8, ROWS = 6 };
#endif
#if defined(_OPENMP) && !defined(__clang__)  // clang's are not torch's
enum { HAS_THREADS = 1 };
#else
enum { HAS_THREADS = 0 };
#endif
enum { PARTS = 2, WIDTH = PARTS * LANES, STREAMS = LANES / 2, AHEAD = 1024, MIN_THREADED = 1 << 16 };
typedef std::ptrdiff_t size;
typedef std::uint16_t bf16;
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));  // may stand at any address
typedef bf16 half __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef std::uint32_t bits __attribute__((vector_size(4 * LANES)));

static inline vec at(const float *x) { return *(const loose *)x; }
static inline vec at(const bf16 *x) { return (vec)(__builtin_convertvector(*(const half *)x, bits) << 16); }

// weights in panels of WIDTH outputs, or zeros after the last one, input by input; the bias as long as all panels are wide
struct Matrix {
  const void *panels;
  const float *bias;
  size inputs, outputs, is_half;
};

// `rows` rows times `count` panels from `first` on: several at a time, since memory serves several streams faster
template <class T, int rows, int count> static void compute(const Matrix &matrix, const float *x, float *out, size first) {
  vec sums[count][rows][PARTS];
  for (int c = 0; c < count; c++)
    for (int r = 0; r < rows; r++)
      for (int p = 0; p < PARTS; p++) sums[c][r][p] = at(matrix.bias + (first + c) * WIDTH + p * LANES);
  const T *panel = (const T *)matrix.panels + first * matrix.inputs * WIDTH;
  for (size i = 0; i < matrix.inputs; i++)
    for (int c = 0; c < count; c++) {
      const T *from = panel + (c * matrix.inputs + i) * WIDTH;
      vec weights[PARTS];
      for (int p = 0; p < PARTS; p++) {
        weights[p] = at(from + p * LANES);
        if (rows > 3) __builtin_prefetch(from + AHEAD + p * LANES);  // with fewer, streams are enough, and this would take their time
      }
      for (int r = 0; r < rows; r++)
        for (int p = 0; p < PARTS; p++) sums[c][r][p] += x[r * matrix.inputs + i] * weights[p];
    }
  for (int c = 0; c < count; c++)
    for (int r = 0; r < rows; r++) {
      size o = (first + c) * WIDTH;
      std::memcpy(out + r * matrix.outputs + o, sums[c][r], sizeof(float) * std::min<size>(WIDTH, matrix.outputs - o));
    }
}

template <class T, int rows> static void given_rows(const Matrix &matrix, const float *x, float *out, size given, size first, size last) {
  if constexpr (rows > 0) {
    if (given < rows) return given_rows<T, rows - 1>(matrix, x, out, given, first, last);
    constexpr int count = rows < STREAMS ? STREAMS / rows : 1;
    for (; first + count <= last; first += count) compute<T, rows, count>(matrix, x, out, first);
    for (; first < last; first++) compute<T, rows, 1>(matrix, x, out, first);
  }
}

template <class T> static void all(const Matrix &matrix, const float *x, float *out, size rows, int threads) {
  size panels = (matrix.outputs + WIDTH - 1) / WIDTH;
#pragma omp parallel for num_threads(threads) if (HAS_THREADS && threads > 1 && rows * matrix.inputs * matrix.outputs >= MIN_THREADED)
  for (int thread = 0; thread < threads; thread++) {
    size end = panels * (thread + 1) / threads;
    for (size first = panels * thread / threads; first < end; first += STREAMS)
      for (size row = 0, parts = (rows + ROWS - 1) / ROWS; parts; parts--) {  // about equal parts of the rows
        size given = (rows - row + parts - 1) / parts;
        const float *from = x + row * matrix.inputs;
        given_rows<T, ROWS>(matrix, from, out + row * matrix.outputs, given, first, std::min<size>(first + STREAMS, end));
        row += given;
      }
  }
}

extern "C" {
void product(const Matrix *matrix, const float *x, float *out, size rows, int threads) {
  matrix->is_half ? all<bf16>(*matrix, x, out, rows, threads) : all<float>(*matrix, x, out, rows, threads);
}

// of several sequences of words: a change of one word always changes it, and the order of words matters
std::uint64_t checksum(const unsigned char *data, size bytes) {
  enum { SEQUENCES = 8 };
  typedef bits packed_bits __attribute__((aligned(1), may_alias));
  bits held[SEQUENCES] = {};
  auto add = [&](const unsigned char *from) {
    for (int s = 0; s < SEQUENCES; s++) held[s] = ((held[s] << 5 | held[s] >> 27) ^ ((const packed_bits *)from)[s]) * 0x9e3779b1u;
  };
  size done = 0;
  for (; done + (size)sizeof held <= bytes; done += sizeof held) add(data + done);
  unsigned char rest[sizeof held] = {};
  std::memcpy(rest, data + done, bytes - done);
  add(rest);
  std::uint64_t sum = bytes;
  for (int s = 0; s < SEQUENCES; s++)
    for (int i = 0; i < LANES; i++) sum = (sum ^ held[s][i]) * 0x9e3779b97f4a7c15u, sum ^= sum >> 32;
  return sum;
}

int width() { return WIDTH; }

int has_threads() { return HAS_THREADS; }
}
"""


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("panels", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("inputs", ctypes.c_ssize_t), ("outputs", ctypes.c_ssize_t),
        ("is_half", ctypes.c_ssize_t),
    )  # fmt: skip


@cache
def _loops() -> ctypes.CDLL | None:
    if torch.backends.cpu.get_cpu_capability() not in cpp.FLAGS or not cpp.compiler():
        return None
    try:
        try:
            found = cpp.load("panels", SOURCE, "-fopenmp")
        except OSError:  # some compilers have no OpenMP
            found = cpp.load("panels", SOURCE)
    except OSError as error:
        warnings.warn(f"generation multiplies without compiled loops, because compiling them failed: {error}", stacklevel=2)
        return None
    found.product.argtypes, found.product.restype = [ctypes.POINTER(_Matrix), *[ctypes.c_void_p] * 2, ctypes.c_ssize_t, ctypes.c_int], None
    found.checksum.argtypes, found.checksum.restype = [ctypes.c_void_p, ctypes.c_ssize_t], ctypes.c_uint64
    return found


def serve() -> bool:
    """Return whether the loops can be compiled for this processor and run on as many threads as torch."""
    found = _loops()
    return found is not None and (torch.get_num_threads() == 1 or bool(found.has_threads()))


def checksum(tensor: Tensor) -> int:
    """Return a checksum of a contiguous tensor's data: of 64 bits if loops can be compiled, which is faster, and a CRC-32 otherwise."""
    found = _loops() if tensor.nbytes >= MIN_CHECKED else None
    if found is None:
        # numpy() would keep FSDP2 from freeing the tensor's storage
        return zlib.crc32((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()))
    return int(found.checksum(tensor.data_ptr(), tensor.nbytes))


class Panels:
    """A copy of a weight [O, I] in fp32 or bf16, and of its bias [O], in the memory order of the loops.

    Example:
        >>> not serve() or Panels(torch.ones(3, 2), None).outputs == 3
        True
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        loops = _loops()
        assert loops is not None
        (outputs, inputs), width = weight.shape, loops.width()
        padded = nn.functional.pad(weight, (0, 0, 0, -outputs % width))
        self._panels = padded.view(-1, width, inputs).transpose(1, 2).contiguous()  # [P, I, width]
        self.outputs, self.bias = outputs, weight.new_zeros(len(padded), dtype=torch.float32)  # [P width]
        if bias is not None:
            self.bias[:outputs] = bias
        is_half = weight.dtype is torch.bfloat16
        self.described = _Matrix(self._panels.data_ptr(), self.bias.data_ptr(), inputs, outputs, is_half)


def product(x: Tensor, panels: Panels) -> Tensor:
    """Return the product of `x` [..., I] with a packed weight of its dtype, plus the bias: [..., O], summed in fp32.

    The result for a row does not depend on the other rows, nor on the number of threads.

    Raises:
        RuntimeError: `x` has another width than the weight.

    Example:
        >>> x, weight = torch.ones(2, 3), torch.arange(12.0).view(4, 3)
        >>> product(x, Panels(weight, None)) if serve() else x @ weight.T
        tensor([[ 3., 12., 21., 30.],
                [ 3., 12., 21., 30.]])
    """
    if has_torch_function_unary(x):  # for modes, such as the one that records a step
        return handle_torch_function(product, (x,), x, panels)
    loops, is_half, inputs = _loops(), x.dtype is torch.bfloat16, panels.described.inputs
    assert loops is not None
    if x.shape[-1] != inputs:  # the loops would read other memory
        raise RuntimeError(f"an input of width {x.shape[-1]} cannot be multiplied by a weight for inputs of width {inputs}")
    rows = (x.float() if is_half else x).contiguous()
    y = torch.empty(*x.shape[:-1], panels.outputs, dtype=torch.float32, device=x.device)
    loops.product(panels.described, rows.data_ptr(), y.data_ptr(), x.numel() // inputs, torch.get_num_threads())
    return y.to(x.dtype) if is_half else y
