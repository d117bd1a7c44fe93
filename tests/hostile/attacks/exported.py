"""Exported models."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.hostile.attacks.base import Attacks

EXPORTED = Attacks()


def exported(good: dict[str, Any], path: Path, **arguments: Any) -> None:
    described = {"attnkit": good["attnkit"], "hyper_parameters": good["hyper_parameters"] | arguments}
    save_file({k: v.clone() for k, v in good["state_dict"].items()}, path, metadata={"attnkit": json.dumps(described)})


def with_header(path: Path, header: bytes) -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header)


@EXPORTED
def claims_a_large_header(good: dict[str, Any], path: Path) -> None:
    """Says that its header has 2^62 bytes."""
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")


@EXPORTED
def has_a_large_header(good: dict[str, Any], path: Path) -> None:
    """Has a header of 60 MB."""
    with_header(path, b'{"__metadata__": {"a": "' + b"a" * 60_000_000 + b'"}}')


@EXPORTED
def nests_its_header(good: dict[str, Any], path: Path) -> None:
    """Has a header that is nested 900,000 deep."""
    with_header(path, b"[" * 900_000)


@EXPORTED
def has_many_tensors(good: dict[str, Any], path: Path) -> None:
    """Has 300,000 tensors without elements."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    with_header(path, json.dumps({str(i): entry for i in range(300_000)}).encode())


@EXPORTED
def has_tensors_that_overlap(good: dict[str, Any], path: Path) -> None:
    """Has two tensors of the same bytes."""
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"0000")


@EXPORTED
def nests_its_description(good: dict[str, Any], path: Path) -> None:
    """Has a description that is nested 100,000 deep."""
    save_file({"a": torch.ones(1)}, path, metadata={"attnkit": "[" * 100_000})


@EXPORTED
def describes_a_number(good: dict[str, Any], path: Path) -> None:
    """Has a description that is a number of 10,000 digits."""
    save_file({"a": torch.ones(1)}, path, metadata={"attnkit": "1" * 10_000})


@EXPORTED
def describes_many_layers(good: dict[str, Any], path: Path) -> None:
    """Describes a model of 10^9 layers."""
    exported(good, path, stack=good["hyper_parameters"]["stack"] | {"num_layers": 10**9})


@EXPORTED
def describes_a_module(good: dict[str, Any], path: Path) -> None:
    """Names a component by the path of a module."""
    exported(good, path, stack={"class_path": "evil.Evil"})
