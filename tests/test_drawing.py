import base64
import json
import re
import sys
from array import array
from pathlib import Path

import pytest
import torch
from matplotlib.ft2font import FT2Font

from attnkit import fonts
from attnkit.drawing import AttentionMap, draw, draw_lines, page, write_figure, write_page
from attnkit.drawing import figure as figures
from attnkit.registry import ConfigurationError

KOREAN = "학교에 갔다"


def make(queries="abc", keys="abcd", *, heads: int = 2, name: tuple[str, str] = ("decoder", "cross"), layer: int = 0) -> AttentionMap:
    weights = torch.randn(heads, len(queries), len(keys)).softmax(-1)
    part, kind = name
    return AttentionMap(part, kind, layer, weights, list(queries), list(keys), "what is written", "what is read")


def data_of(path: Path) -> dict:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text(encoding="utf-8"), re.S)
    assert found is not None
    return json.loads(found[1])


def test_labels_must_match_the_weights(seed: int) -> None:
    with pytest.raises(ValueError, match=r"weights of size \[3, 4\] need as many labels, but got 2 and 4"):
        AttentionMap("encoder", "self", 0, torch.zeros(1, 3, 4), "ab", "abcd", "", "")


def test_selected_heads_keep_their_numbers(seed: int) -> None:
    whole = make(heads=4)
    some = whole.of_heads([3, 1])
    assert some.heads == (3, 1)
    assert torch.equal(some.weights, whole.weights[[3, 1]])
    assert some.of_heads([1]).heads == (1,)


def test_a_page_contains_all_weights_and_labels(seed: int, tmp_path: Path) -> None:
    maps = [make([" a", "</script>", KOREAN]), make(name=("encoder", "self"), keys="abc", layer=5)]
    write_page(maps, tmp_path / "new/map.html", title=f"<b>{KOREAN}</b>")
    data = data_of(tmp_path / "new/map.html")
    assert data["title"] == f"<b>{KOREAN}</b>"
    assert [m["name"] for m in data["maps"]] == ["cross-attention", "encoder self-attention"]
    assert data["maps"][0]["queries"] == ["␣a", "</script>", KOREAN.replace(" ", "␣")]
    assert data["maps"][1]["layer"] == 5
    for m, shown in zip(maps, data["maps"], strict=True):
        steps = array("H", base64.b64decode(shown["weights"]))
        if sys.byteorder == "big":
            steps.byteswap()
        read = torch.tensor(steps.tolist(), dtype=torch.float64).view(m.weights.shape) / 65535
        torch.testing.assert_close(read, m.weights.double(), atol=0.51 / 65535, rtol=0)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["map.html"]


def test_a_page_loads_no_external_resources(tmp_path: Path) -> None:
    write_page([make()], tmp_path / "map.html")
    text = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"https?:|\bsrc=|@import|\burl\(|<link", text)


def test_a_page_with_too_many_weights_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page, "LARGEST", 20)
    with pytest.raises(ConfigurationError, match="24 weights are too many for one page"):
        write_page([make()], tmp_path / "map.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_figure_is_written(seed: int, tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"map{suffix}"
    assert write_figure([make("a$^{x"), make(layer=1), make(name=("encoder", "self"), queries="abcd")], path, title="$a$ → b") == []
    assert path.read_bytes().startswith(start)


def test_a_figure_has_one_scale_and_a_label_for_each_token(seed: int) -> None:
    maps = [make(heads=3), make(heads=3, layer=1)]
    figure, _ = draw(maps)
    *axes, _bar = figure.axes
    assert len(axes) == 6
    most = max(float(m.weights.max()) for m in maps)
    for ax, weights in zip(axes, torch.cat([m.weights for m in maps]), strict=True):
        (image,) = ax.images
        assert image.get_clim() == pytest.approx((0, most))
        assert torch.equal(torch.tensor(image.get_array()), weights)
    assert [t.get_text() for t in axes[0].get_yticklabels()] == list("abc")
    assert [t.get_text() for t in axes[3].get_xticklabels()] == list("abcd")  # below the last layer
    assert not axes[1].get_yticklabels()
    assert {t.get_text() for t in figure.texts} >= {"head 0", "head 2", "layer 0", "layer 1"}


def test_longer_texts_enlarge_the_figure_lose_labels_and_are_finally_rejected(seed: int) -> None:
    small, _ = draw([make("a" * 10, "a" * 10)])
    large, notes = draw([make("a" * 60, "a" * 60)])
    assert large.get_figwidth() > small.get_figwidth()
    assert not notes
    huge, notes = draw([make("a" * 400, "a" * 400)])
    assert huge.get_figwidth() <= figures.LARGEST + 1
    assert "too long for labels" in notes[0]
    assert not huge.axes[0].get_yticklabels()
    with pytest.raises(ConfigurationError, match=r"3,000 tokens in 2 heads of 1 layer do not fit in one figure.*or write \.html"):
        draw([make("a", "a" * 3000)])


def test_without_matplotlib_one_message_gives_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"needs matplotlib: pip install 'attnkit\[plot\]'; `attnkit attention` writes \.html"):
        write_figure([make()], tmp_path / "map.png")


def test_korean_labels_get_a_font_that_has_them(tmp_path: Path) -> None:
    from matplotlib import font_manager

    families, missing = fonts.families(KOREAN)
    if missing:
        pytest.skip("no font with Korean letters is installed (apt-get install fonts-nanum)")
    assert families[0] == fonts.DEFAULT
    charmaps = [FT2Font(font_manager.findfont(f, fallback_to_default=False)).get_charmap() for f in families]
    assert all(any(ord(c) in charmap for charmap in charmaps) for c in KOREAN)
    figure, notes = draw([make([KOREAN, "ab", "c"])], title=KOREAN)
    assert not notes
    assert figure.axes[0].get_yticklabels()[0].get_fontfamily() == families
    assert write_figure([make([KOREAN, "ab", "c"])], tmp_path / "map.png") == []


def test_a_regular_font_face_is_preferred_over_bold_and_italic() -> None:
    files = ["/f/NotoSansCJK-Bold.ttc", "/f/NotoSansCJK-Regular.ttc", "/f/NanumGothicLight.ttf", "/f/NotoSerifCJK-Regular.ttc"]
    assert sorted(files, key=fonts._rank)[0] == "/f/NotoSansCJK-Regular.ttc"


def test_integer_axes_have_integer_ticks() -> None:
    svg = draw_lines([{"layer": i, "cosine": 100.0 * i} for i in range(3)], x="layer", y=["cosine"])
    assert ">1<" in svg
    assert not re.search(r">[01]\.\d+<", svg)


@pytest.mark.parametrize(
    ("values", "shown"), [((2, 7), "2 3 4 5 6 7"), ((3, 60), "5 10 20 50"), ((0.8, 300), "1 10 100"), ((1.02, 1.05), "1.02 1.03 1.04 1.05")]
)
def test_a_logarithmic_axis_has_numbers_also_within_one_power_of_ten(values: tuple[float, ...], shown: str) -> None:
    svg = draw_lines([{"x": 0.1, "time": value} for value in values], x="x", y=["time"], log="xy")
    labels = [float(text) for text in re.findall(r">([\d.]+)</text>", svg)]
    assert set(map(float, shown.split())) <= set(labels)
    assert len(labels) <= 12


def test_without_a_font_the_note_names_packages_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from matplotlib import font_manager

    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    (note,) = write_figure([make([KOREAN, "漢", "c"])], tmp_path / "map.png", title=KOREAN)
    assert "no installed font has" in note
    assert "apt-get install fonts-nanum (Korean) or fonts-noto-cjk" in note
    assert "write .html" in note
    assert (tmp_path / "map.png").exists()
