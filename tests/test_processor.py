from pathlib import Path

import pytest

from attnkit.processor import _cpu_info, _is_intel, _is_zen_4


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


@pytest.mark.parametrize(
    ("vendor", "family", "flags", "expected"),
    [
        ("AuthenticAMD", 25, "avx2 avx512f avx512dq", True),
        ("AuthenticAMD", 25, "avx2 sha_ni", False),
        ("AuthenticAMD", 26, "avx2 avx512f avx512dq", False),
        ("GenuineIntel", 25, "avx2 avx512f avx512dq", False),
    ],
)
def test_zen_4_is_distinguished_from_its_neighbours(vendor: str, family: int, flags: str, expected: bool) -> None:
    described = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 17\nflags\t\t: fpu {flags} sse\n"
    assert _is_zen_4(described) is expected
    assert not _is_zen_4("AMD64 Family 25 Model 97 Stepping 2, AuthenticAMD")
