"""Running out of memory, for real: more than the address space of a process has is asked for, so it fails everywhere and at once."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from attnkit.train.out_of_memory import is_out_of_memory
from attnkit.worker import run
from attnkit.worker.folder import read_json, write_json
from tests.ablation.conftest import SEEDS

TOO_MUCH = {"name": "learned", "max_length": 10**13}  # 8 numbers of 4 bytes each: 320 TB


def test_out_of_memory_errors_are_distinguished_from_others() -> None:
    with pytest.raises(RuntimeError) as torchs:
        torch.empty(2**50)
    with pytest.raises(MemoryError) as pythons:
        bytearray(2**60)
    with pytest.raises(RuntimeError) as shapes:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert [is_out_of_memory(e.value) for e in (torchs, pythons, shapes)] == [True, True, False]
    assert [run.kind_of(e.value) for e in (torchs, pythons, shapes)] == ["out_of_memory", "out_of_memory", "error"]
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert is_out_of_memory(OSError(12, "Cannot allocate memory"))


def test_fit_names_the_setting_to_lower(attnkit: Any, tiny: str) -> None:
    recipe = yaml.safe_load(Path(tiny).read_text(encoding="utf-8"))
    recipe["model"]["stack"]["position"] = TOO_MUCH
    Path(tiny).write_text(yaml.safe_dump(recipe), encoding="utf-8")
    outcome = attnkit("fit", "--config", tiny)
    assert outcome.status == 1
    [message] = [line for line in outcome.err.splitlines() if "error" in line]
    assert "attnkit: error: out of memory (DefaultCPUAllocator: can't allocate memory: you tried to allocate" in message
    assert "Lower data.batch_tokens" in message


@pytest.mark.usefixtures("small_recipe")
def test_a_study_run_out_of_memory_is_recorded_as_such() -> None:
    recipe = yaml.safe_load(Path("tiny.yaml").read_text(encoding="utf-8"))
    recipe["model"]["stack"]["position"] = TOO_MUCH
    write_json(Path("run/job.json").absolute(), {"recipe": recipe, "seeds": SEEDS, "test": False})
    assert run.main(Path("run").absolute()) == 1
    status = read_json(Path("run/status.json"))
    assert status is not None
    assert (status["status"], status["kind"]) == ("failed", "out_of_memory")
    assert "DefaultCPUAllocator" in status["message"]
