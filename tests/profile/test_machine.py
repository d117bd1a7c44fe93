"""Machine files and memory sizes."""

from pathlib import Path

import pytest

from attnkit.profile.machine import Machine, read_size
from attnkit.registry import ConfigurationError


def test_a_machine_file_round_trips(tmp_path: Path) -> None:
    machine = Machine(device="Gerät", memory=8e10, shares_memory=True, tflops={"fp32": 0.1, "bf16": 9}, memory_bandwidth=3350.0)
    (tmp_path / "machine.json").write_text(machine.as_json(), encoding="utf-8")
    assert Machine.read(str(tmp_path / "machine.json")) == machine


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        "[" * 100_000,
        '{"tflops": 9}',
        '{"tflops": {"bf16": "9"}}',
        '{"tflops": {"bf16": -1}}',
        '{"tflops": {"bf16": NaN}}',
        '{"tflops": {"bf16": true}}',
        '{"tflops": {}, "memory": "80GB"}',
        '{"tflops": {}, "bandwidth": [1]}',
    ],
)
def test_a_file_that_is_not_a_machine_description_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "machine.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"attnkit bench --json"):
        Machine.read(str(tmp_path / "machine.json"))


@pytest.mark.parametrize("text", ["80", "GB", "-1GB", "0GB", "80 parsecs", "", "1e3GB"])
def test_a_size_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="a memory size needs a unit, as in 80GB"):
        read_size(text)


@pytest.mark.parametrize("text", ["fast", "0", "-3", "int8=5", "bf16=", "nan", "bf16=1,,"])
def test_an_invalid_peak_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--peak must be a number of TFLOP/s"):
        Machine().with_peak(text, "bf16")
