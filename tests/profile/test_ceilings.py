"""All rates that `attnkit bench` measures are present and positive; their values depend on the machine."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attnkit.profile import ceilings
from attnkit.profile.machine import Machine


def test_bench_writes_a_file_that_plan_reads(attnkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "LONG", 0.0)  # the smallest product is large enough
    monkeypatch.setattr(ceilings, "SECONDS", 0.0)
    path = tmp_path / "machine.json"
    outcome = attnkit("bench", "--processes", 1, "--json", path)
    assert outcome.status == 0, outcome.err
    machine = Machine.read(str(path))
    assert all(rate > 0 for rate in machine.tflops.values())
    assert {"fp32", "bf16"} <= set(machine.tflops)
    assert machine.memory_bandwidth is not None
    assert machine.memory_bandwidth > 0
    assert machine.memory is not None
    assert machine.memory > 2**20
    assert machine.bandwidth is None
    assert "bf16 matrix products, TFLOP/s" in outcome.out
    assert attnkit("bench", "--processes", 0).status == 2


def test_the_all_reduce_rate_of_one_process_is_zero(tmp_path: Path) -> None:
    ceilings._sum(0, 1, str(tmp_path), 0.0)
    assert json.loads((tmp_path / "rate").read_text()) == 0  # a single process sends nothing
    assert not torch.distributed.is_initialized()
