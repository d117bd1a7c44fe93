import unicodedata
from pathlib import Path

import numpy as np
import pytest
from samples.framed import framed

from attnkit import ConfigurationError
from attnkit.data.text_pairs import TextPairs


def write(path: Path, pairs: list[tuple[str, str]]) -> str:
    path.write_text("".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")
    return str(path)


def random_pairs(rng: np.random.Generator, count: int) -> list[tuple[str, str]]:
    sources = ["".join(rng.choice(list("abcdef"), size=rng.integers(1, 9))) for _ in range(count)]
    return [(source, " ".join(source.upper()) + str(i % 3)) for i, source in enumerate(sources)]


def build(**arguments: object) -> TextPairs:
    data: TextPairs = framed("text_pairs", **arguments)
    return data


def test_each_split_is_read_from_its_own_file(tmp_path: Path, rng: np.random.Generator) -> None:
    parts = {part: random_pairs(rng, 20) for part in ("train", "validation", "test")}
    data = build(**{part: write(tmp_path / f"{part}.tsv", pairs) for part, pairs in parts.items()})
    assert data.corpus.pairs("train") == parts["train"]
    assert set(data.evaluation_set("validation")) == {source for source, _ in parts["validation"]}
    assert set(data.evaluation_set("test")) == {source for source, _ in parts["test"]}


def test_targets_of_one_source_become_references_of_one_example(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", [("b", "2"), ("a", "1"), ("b", "3"), ("b", "2")])
    (batch,) = build(train=path, test=path).test_dataloader()
    assert sorted(zip(batch["source"], batch["references"], strict=True)) == [("a", ["1"]), ("b", ["2", "3"])]


@pytest.mark.filterwarnings("ignore::attnkit.tokenizer.unknown.UnknownTokens")
def test_decomposed_references_are_normalised_like_model_output(tmp_path: Path) -> None:
    train = write(tmp_path / "a.tsv", [("a", "한국")])
    test = write(tmp_path / "t.tsv", [("a", unicodedata.normalize("NFD", "한국"))])
    (batch,) = build(train=train, test=test).test_dataloader()
    assert batch["references"] == [["한국"]]
    assert (batch["tgt"] != 3).all()
    (batch,) = build(train=train, test=test, tgt_tokenizer={"name": "character", "normalization": "none"}).test_dataloader()
    assert batch["references"] != [["한국"]]


def test_columns_are_chosen_by_name_or_position(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", [("word", "sound"), ("a", "A")])
    assert build(train=path, columns=["sound", "word"]).corpus.pairs("train") == [("A", "a")]
    assert build(train=path, columns=[1, 0]).corpus.pairs("train") == [("sound", "word"), ("A", "a")]


def test_prediction_sources_come_from_text_or_a_table(tmp_path: Path) -> None:
    pairs = write(tmp_path / "a.tsv", [("b", "2"), ("a", "1")])
    (tmp_path / "a.txt").write_text("b\na\nb\n")
    assert build(train=pairs, predict=str(tmp_path / "a.txt")).prediction_inputs("source") == ["b", "a", "b"]
    assert build(train=pairs, predict=pairs).prediction_inputs("source") == ["b", "a"]


def test_a_fraction_of_the_sources_is_held_out_for_validation(tmp_path: Path, rng: np.random.Generator) -> None:
    pairs = random_pairs(rng, 200)
    path = write(tmp_path / "a.tsv", pairs)
    data = build(train=path, validation_fraction=0.25, seed=3)
    aside = data.evaluation_set("validation")
    assert len(aside) == round(0.25 * len({source for source, _ in pairs}))
    assert not set(aside) & {source for source, _ in data.corpus.pairs("train")}
    assert set(aside) | {source for source, _ in data.corpus.pairs("train")} == {source for source, _ in pairs}
    assert build(train=path, validation_fraction=0.25, seed=3).evaluation_set("validation") == aside
    assert build(train=path, validation_fraction=0.25, seed=4).evaluation_set("validation") != aside


def test_without_validation_data_there_is_no_validation(tmp_path: Path) -> None:
    assert build(train=write(tmp_path / "a.tsv", [("a", "A")])).val_dataloader() == []


@pytest.mark.parametrize(
    ("part", "stage"), [("train", "fit"), ("validation", "fit"), ("validation", "validate"), ("test", "test"), ("predict", "predict")]
)
def test_a_missing_file_is_found_before_the_first_step(part: str, stage: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", [("a", "A")])
    files = dict.fromkeys(("train", "validation", "test", "predict"), path)
    build(**files).setup(stage)
    with pytest.raises(ConfigurationError, match=r"there is no data file"):
        build(**files | {part: str(tmp_path / "b.tsv")}).setup(stage)


def test_with_trained_tokenizers_prediction_needs_no_training_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", [("a", "A")])
    trained = build(train=path)
    data = build(
        train=str(tmp_path / "gone.tsv"), predict=path, src_tokenizer=trained.src_tokenizer_spec, tgt_tokenizer=trained.tgt_tokenizer_spec
    )
    data.setup("predict")
    assert [batch["source"] for batch in data.predict_dataloader()] == [["a"]]


def test_a_missing_split_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"there is no training data: set data\.corpus.train .*such as a tokenizer"):
        _ = build().src_tokenizer_spec
    with pytest.raises(ConfigurationError, match=r"there is no test data: set data\.corpus.test"):
        build().test_dataloader()
    with pytest.raises(ConfigurationError, match=r"there are no inputs for prediction: set data\.predict"):
        build().predict_dataloader()
    build().setup("predict")  # as before `trainer.predict(task, dataloaders=...)`


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 0.01])
def test_a_fraction_that_leaves_a_split_empty_is_rejected(fraction: float, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=f"validation_fraction.* {fraction}|validation_fraction={fraction} of 2 distinct sources is 0"
    ):
        build(train=write(tmp_path / "a.tsv", [("a", "A"), ("b", "B")]), validation_fraction=fraction).corpus.pairs("train")


def test_a_validation_file_and_a_fraction_exclude_each_other(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", [("a", "A")])
    with pytest.raises(ConfigurationError, match="are mutually exclusive"):
        build(train=path, validation=path, validation_fraction=0.5)
