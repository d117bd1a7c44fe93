"""Recognises out-of-memory errors, with advice for the user."""

import errno

_SIGNS = (
    "DefaultCPUAllocator",  # torch on a CPU: "can't allocate memory", on Windows "not enough memory"
    "out of memory",  # CUDA, HIP, MPS and oneDNN
    "std::bad_alloc",  # a library in C++
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cannot allocate memory",
)
ADVICE = (
    "Lower data.batch_tokens (trainer.accumulate_grad_batches compensates for it), set model.activation_checkpointing to layer, or lower "
    "trainer.precision to bf16-mixed. `attnkit plan --config RECIPE --memory SIZE` shows what would fit"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory could not be allocated, on any device. Does not import torch.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
        (True, True)
        >>> is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
        False
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def what_failed(error: BaseException) -> str:
    """Return a one-line description of an out-of-memory error, for a message.

    Example:
        >>> text = "[enforce fail at alloc_cpu.cpp:130] err == 0. DefaultCPUAllocator: can't allocate memory: tried to allocate 8 bytes."
        >>> what_failed(RuntimeError(text))
        "out of memory (DefaultCPUAllocator: can't allocate memory: tried to allocate 8 bytes)"
    """
    first = (str(error).splitlines() or [""])[0].rpartition("err == 0. ")[2].rstrip(". ")
    return f"out of memory ({first})" if first else "out of memory"
