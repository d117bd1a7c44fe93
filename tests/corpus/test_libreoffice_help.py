import pytest
from samples import libreoffice_help

from attnkit import ConfigurationError
from attnkit.corpus.libreoffice_help import Language, LibreOfficeHelp


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("packages")
    libreoffice_help.write(root)
    return str(root)


def all_pairs(data: LibreOfficeHelp) -> list[tuple[str, str]]:
    return [*data.pairs("train"), *data.pairs("validation"), *data.pairs("test")]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("en", "ko", ("The table beside the chart", "차트 옆에 있는 표")),
        ("ko", "en", ("표 앞에 차트 넣기.", "Puts the table in front of the chart.")),
        ("de", "en", ("Stellt die Tabelle vor die Grafik.", "Puts the table in front of the chart.")),
    ],
)
def test_paragraphs_with_the_same_id_are_paired_in_either_direction(
    folder: str, source: Language, target: Language, expected: tuple[str, str]
) -> None:
    assert expected in all_pairs(LibreOfficeHelp(source=source, target=target, folder=folder))


def test_the_last_variant_is_read_and_line_breaks_become_spaces(folder: str) -> None:
    pairs = dict(all_pairs(LibreOfficeHelp(folder=folder)))
    assert pairs["Hold Control and drag the table over the chart. Then let go."] == (
        "컨트롤 키를 누르고 표 끌어서 차트 위에 놓습니다. 그리고 놓습니다."
    )
    assert not [text for text in pairs if "Command" in text]


def test_untranslated_code_numeric_and_unidentified_paragraphs_are_skipped(folder: str) -> None:
    for target in ("ko", "de"):
        texts = [text for pair in all_pairs(LibreOfficeHelp(target=target, folder=folder)) for text in pair]
        for start in ("Nobody", "Print", "1", "No id", "Help"):
            assert not [text for text in texts if text.startswith(start)]


def test_held_out_texts_are_in_no_other_split(folder: str) -> None:
    data = LibreOfficeHelp(folder=folder)
    parts = [{text for pair in data.pairs(part) for text in pair} for part in ("train", "validation", "test")]
    assert all(parts)
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    everything = all_pairs(data)
    assert len(set(everything)) == len(everything)
    assert [en for en, _ in data.pairs("train")].count("This one is the same on each page.") == 1


def test_each_page_is_in_one_split(folder: str) -> None:
    """Three paragraphs of each page are its own, and stay together; no other page has the same two things in this order."""
    data = LibreOfficeHelp(folder=folder)
    for part in ("train", "validation", "test"):
        own = [en for en, _ in data.pairs(part) if not en.startswith("This")]
        headings = [en for en in own if en.startswith("The ")]
        assert len(own) == 3 * len(headings)


@pytest.mark.parametrize(("source", "target"), [("en", "en"), ("ko", "de")])
def test_one_language_must_be_english(source: Language, target: Language) -> None:
    with pytest.raises(ConfigurationError, match="set one of them to en, and the other to ko or de"):
        LibreOfficeHelp(source=source, target=target)
