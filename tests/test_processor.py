from pathlib import Path

import pytest

from attnkit.processor import _cpu_info, _is_intel


@pytest.mark.parametrize(("vendor", "expected"), [("GenuineIntel", True), ("AuthenticAMD", False), (None, False)])
def test_the_processor_vendor_is_read_from_the_system(
    vendor: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "cpuinfo"
    if vendor is not None:
        path.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    monkeypatch.setattr("attnkit.processor.Path", lambda _: path)
    monkeypatch.setattr("platform.processor", lambda: "AMD64 Family 25 Model 97 Stepping 2, AuthenticAMD")
    assert _is_intel(_cpu_info()) is expected
    monkeypatch.setattr("platform.processor", lambda: "Intel64 Family 6 Model 143 Stepping 8, GenuineIntel")
    assert _is_intel(_cpu_info()) is (expected or vendor is None)
