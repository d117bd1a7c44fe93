# https://gcc.gnu.org/onlinedocs/gcc/x86-Options.html
"""Loops in C++, compiled at first use and cached."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import torch

from attnkit.files import atomic, cache_folder

BASE = "-march=x86-64"  # overrides -march=native in CXX: other processors may load the kept code
FLAGS = {"AVX512": ("-mavx512f", "-mfma"), "AVX2": ("-mavx2", "-mfma")}
"""The compiler's flags by what torch found the processor to be capable of."""

PATIENCE = 60  # seconds that a compiler may take
HASH = hashlib.sha256().digest_size


def compiler() -> tuple[str, ...]:
    """Return the command of a C++ compiler: CXX, which may have arguments, otherwise g++ or clang++; empty if there is none."""
    own = os.environ.get("CXX", "")
    commands = ([own], own.split()) if own.strip() else (["g++"], ["clang++"])  # a path may contain spaces
    return next(((found, *arguments) for name, *arguments in commands if (found := shutil.which(name))), ())


def load(name: str, source: str, *flags: str) -> ctypes.CDLL:
    """Return the library of this source, compiled for this processor, from the cache if it is there.

    Args:
        name: Beginning of the file's name in the cache.
        source: C++ code, whose functions are `extern "C"`.
        flags: More flags of the compiler.

    Raises:
        OSError: There is no compiler, it fails or takes over a minute, or its code cannot be loaded.
    """
    found, is_x86 = compiler(), platform.machine().lower() in ("x86_64", "amd64")
    if not found:
        raise OSError("there is no C++ compiler")
    own = (BASE, *FLAGS.get(torch.backends.cpu.get_cpu_capability(), ())) if is_x86 else ()
    command = (*found, "-std=c++17", "-O3", "-ffp-contract=fast", *own, *flags)
    key = hashlib.sha256("\n".join((source, platform.machine(), *command)).encode()).hexdigest()
    file = f"{name}-{key[:16]}.so"
    with suppress(OSError, RuntimeError):  # missing, or where nothing may be executed; or no home is known
        kept = (cache_folder() / file).absolute()  # a name alone would be searched for in the system's folders
        code, written = (content := kept.read_bytes())[:-HASH], content[-HASH:]
        if hashlib.sha256(code).digest() == written:  # loading a part of it would crash
            return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / file
        _compile((*command, "-x", "c++", "-shared", "-fPIC", "-o", str(built), "-"), source)
        with suppress(OSError, RuntimeError), atomic(cache_folder() / file) as draft:  # otherwise the next process compiles, too
            code = built.read_bytes()
            draft.write_bytes(code + hashlib.sha256(code).digest())
        return ctypes.CDLL(str(built))


def _compile(command: tuple[str, ...], source: str) -> None:
    try:
        ended = subprocess.run(command, input=source, capture_output=True, encoding="utf-8", errors="replace", timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} takes over {PATIENCE} s") from error
    if ended.returncode:
        raise OSError(next(iter(ended.stderr.strip().splitlines()), f"{command[0]} ended with status {ended.returncode}"))
