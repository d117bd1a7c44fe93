"""What made a run is recorded."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from attnkit.worker import provenance
from attnkit.worker.folder import read_json, read_record, write_json
from attnkit.worker.provenance import Provenance, changes, processor
from attnkit.worker.run import main
from tests.ablation.conftest import made as made_by
from tests.worker.conftest import run

pytestmark = pytest.mark.usefixtures("small_recipe")


def test_a_run_records_its_provenance() -> None:
    run("one", {"model": {"stack": {"attention": "cosine"}}})
    made = read_record(Provenance, Path("one/provenance.json"))
    assert made is not None
    assert made.data.keys() == {"words.tsv"}
    assert {"attnkit.worker.run", "attnkit.attention.cosine", "attnkit.data.text_pairs"} <= made.code.keys()
    assert "attnkit.attention.additive" not in made.code or "attnkit.attention.additive" in sys.modules
    assert made.packages["torch"] == version("torch")
    assert made.processor.threads == torch.get_num_threads()
    assert made.processor.capability == torch.backends.cpu.get_cpu_capability()
    assert changes(made, current=processor(torch.get_num_threads())) == []


def test_kernels_compiled_by_torch_are_not_recorded_as_sources(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    folder = Path(tempfile.mkdtemp(dir=cache_dir()))
    request.addfinalizer(lambda: shutil.rmtree(folder))
    file = folder / "cabc.py"
    file.write_text("answer = 42\n")
    for name in ("cabc.kernel", "torch._inductor.runtime.compile_tasks.cabc"):  # the two ways in which torch imports them
        spec = spec_from_file_location(name, file)
        assert spec is not None
        monkeypatch.setitem(sys.modules, name, module_from_spec(spec))
    run("one")
    made = read_record(Provenance, Path("one/provenance.json"))
    assert made is not None
    assert not [name for name in made.code if "cabc" in name]
    assert changes(made, current=None) == []


def test_a_run_resumed_by_different_code_records_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    run("one")
    file = Path("one/provenance.json")
    other = read_json(file) | {"code": read_json(file)["code"] | {"attnkit.worker.run": "0" * 16}}
    for name in ("status.json", "result.json"):
        Path("one", name).unlink()
    write_json(file, other)
    main(Path("one").absolute())
    made = read_record(Provenance, file)
    assert made is not None
    [before] = made.before
    assert before.code["attnkit.worker.run"] == "0" * 16
    assert changes(made, current=None)[0].startswith("attnkit.worker.run has changed (000000 -> ")


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program that names no GPU yet."""
    program = tmp_path / "nvidia-smi"
    program.touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    provenance._gpus.cache_clear()
    yield program
    provenance._gpus.cache_clear()


@pytest.mark.skipif(Path("/proc/driver/nvidia/gpus").exists(), reason="the driver's files name the GPUs")
@pytest.mark.parametrize(
    ("named", "device", "is_here"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", True),  # a partition, as torch calls it
        ("NVIDIA H200", "NVIDIA H100 80GB HBM3", False),
    ],
)
def test_gpus_are_found_by_nvidia_smi_without_driver_files(named: str, device: str, is_here: bool, nvidia_smi: Path) -> None:
    nvidia_smi.write_text(f"#!/bin/sh\necho '{named}'\n")
    here = processor(1)
    found = changes(made_by(processor=replace(here, device=device)), current=here)
    assert found == ([] if is_here else [f"made on {device}, which this machine lacks"])
