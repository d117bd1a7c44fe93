import unicodedata

from libreoffice_help import paragraphs


def test_korean_is_composed_whatever_the_page_has() -> None:
    decomposed = unicodedata.normalize("NFD", "표 앞에 차트 넣기")
    assert len(decomposed) > 10
    assert paragraphs(f'<p id="a">{decomposed}</p>') == {"a": "표 앞에 차트 넣기"}


def test_a_variant_without_alternatives_stays_in_its_text() -> None:
    switch = '<span class="switchinline"><span hidden="true">only <span>one</span></span></span>'
    assert paragraphs(f'<p id="a">x &amp; y {switch} end</p><span hidden="true">z</span>') == {"a": "x & y only one end"}
