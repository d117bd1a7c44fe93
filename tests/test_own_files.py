"""The line of each recipe on how to swap in one's own file: it works, also with Korean texts."""

import json
import re
import wave
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnkit.ablation import Study
from attnkit.cli.main import main
from attnkit.recipe import find_recipe, read_recipe, read_yaml, recipe_folder, recipe_names
from attnkit.registry import datasets

WORDS = ["하늘", "땅", "바다", "별", "나무", "강", "sky", "sea"]
ROWS = 40


def words(number: int, row: int) -> str:
    return " ".join(WORDS[(row + 3 * i * i) % len(WORDS)] for i in range(number))


def distinct(row: int) -> str:
    return f"{words(2, row)} {WORDS[row // len(WORDS)]}"


def write_table(path: Path, *columns: Callable[[int], str], header: str = "") -> None:
    path.write_text(header + "".join("\t".join(column(i) for column in columns) + "\n" for i in range(ROWS)), encoding="utf-8")


def write_texts(path: Path) -> None:
    path.with_name("책.txt").write_text(" ".join(words(5, i) for i in range(40 * ROWS)), encoding="utf-8")


def write_images(path: Path) -> None:
    np.savez(path, images=np.arange(ROWS * 784, dtype=np.uint8).reshape(ROWS, 28, 28), labels=np.arange(ROWS) % 3)


def write_captions(path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for i in range(ROWS):
        pillow.fromarray(np.full((28, 84), i, np.uint8)).save(path.with_name(f"그림{i}.png"))
    write_table(path, lambda i: f"그림{i}.png", lambda i: words(2, i))


def write_sounds(path: Path) -> None:
    for i in range(ROWS):
        with wave.open(str(path.with_name(f"소리{i}.wav")), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(np.arange(16 * 200, dtype=np.int16).tobytes())
    write_table(path, lambda i: f"소리{i}.wav", lambda i: words(2, i))


def write_questions(path: Path) -> None:
    rows = [{"question": distinct(i), "passage": words(4, i), "answer": words(1, i), "start": 0} for i in range(ROWS)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


WRITE: Mapping[str, Callable[[Path], None]] = {
    "mine/pairs.tsv": lambda path: write_table(path, distinct, lambda i: words(2, i)),
    "mine/task.tsv": lambda path: write_table(path, distinct, lambda i: words(2, i)),
    "mine/texts.tsv": lambda path: write_table(path, distinct, lambda i: ("좋음", "나쁨")[i % 2]),
    "mine/tags.tsv": lambda path: write_table(path, lambda i: words(3, i), lambda i: "A B A", header="words\ttags\n"),
    "mine/*.txt": write_texts,
    "mine/images.npz": write_images,
    "mine/captions.tsv": write_captions,
    "mine/sounds.tsv": write_sounds,
    "mine/questions.jsonl": write_questions,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of a test, with an empty folder `mine`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    return tmp_path


def own_data(path: Path) -> dict[str, Any]:
    """Return what the line on one's own file says in a recipe: arguments of `data`. The file is written."""
    [line] = re.findall(r"^# .*Your own.*\.$", path.read_text(encoding="utf-8"), re.MULTILINE)  # one line, so a sentence ends on it
    quoted = [re.sub(r"^\{", "corpus: {", text) for text in re.findall(r"`((?:\w+(?:\.\w+)*: |\{)[^`]+)`", line)]
    said = {key: value for text in quoted for key, value in read_yaml(text, where=line).items()}
    corpus = said.pop("corpus", None) or said.pop("data.corpus")
    WRITE[corpus["name"]](Path(corpus["name"]))
    return {**said, "corpus": corpus}


def for_each_task(name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Return one's own data of a recipe; of several tasks, the same file for each."""
    corpus = read_recipe(name)["data"]["corpus"]
    return {**own, "corpus": {**corpus, "corpora": [own["corpus"]] * 2}} if name == "seq2seq/t5_tasks" else own


def with_own_data(name: str) -> dict[str, Any]:
    """Return the data section of a recipe with one's own file in it."""
    return {**read_recipe(name)["data"], **for_each_task(name, own_data(find_recipe(name)))}


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_reads_custom_files_as_its_comment_describes(name: str) -> None:
    data = datasets.build(with_own_data(name))
    data.setup("fit")
    assert len(data.train_dataloader()) > 0
    assert len(data.val_dataloader()) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*could not find the monitored key:UserWarning")  # no validation within two steps
@pytest.mark.parametrize(
    "name",
    [
        "classification/lstm", "g2p/seq2seq_gru", "image/captions", "image/vit", "language_model/lstm", "masked_lm/bert", "questions/kjv",
        "seq2seq/t5_help", "seq2seq/t5_tasks", "speech/words", "synthetic/decoder", "tagging/kjv", "word_vectors/skip_gram",
    ],
)  # fmt: skip
def test_a_recipe_trains_on_custom_files(name: str) -> None:
    own = {key: json.dumps(value) for key, value in with_own_data(name).items() if value != read_recipe(name)["data"].get(key)}
    flags = [
        "--trainer.max_steps=2",
        "--trainer.limit_val_batches=1",
        "--trainer.logger=false",
        "--trainer.enable_progress_bar=false",
    ]
    start = ["--model.init_from", "null"] if read_recipe(name)["model"].get("init_from") else []
    assert main(["fit", "--config", name, *(word for key in own for word in (f"--data.{key}", own[key])), *start, *flags]) == 0


STUDIES = sorted((recipe_folder() / "ablations").glob("*.yaml"))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_reads_custom_files_as_its_comment_describes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    study, own = read_yaml(text, where=str(path)), own_data(path)
    name = (path.parent / study["recipe"]).resolve().relative_to(recipe_folder().resolve()).with_suffix("").as_posix()
    assert ("in place of data.corpus.*" in text) == any(key.startswith("data.corpus.") for key in study.get("set", {}))
    data = datasets.build({**read_recipe(name)["data"], **for_each_task(name, own)})
    assert len(data.train_dataloader()) > 0
    assert data.corpus.has("test") or study["metric"].startswith("val/")


def test_the_study_of_recall_accepts_custom_files_without_its_factor_of_data(folder: Path) -> None:
    """Its data are a factor, so the comment also says what to remove."""
    path = recipe_folder() / "ablations/mixers_recall.yaml"
    study, own = read_yaml(path.read_text(encoding="utf-8"), where=str(path)), own_data(path)
    [removed] = re.findall(r"^# Your own pairs: no `(\w+)`, no `(\w+)`;", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert removed == ("effects", "distance")
    del study["effects"], study["factors"]["distance"]
    recipe = str((path.parent / study["recipe"]).resolve())
    changed = {**study, "recipe": recipe, "set": {**study["set"], **{f"data.{key}": value for key, value in own.items()}}}
    (folder / "study.yaml").write_text(json.dumps(changed, ensure_ascii=False), encoding="utf-8")
    variants = Study.from_yaml(folder / "study.yaml").expanded()
    assert len(variants) == 1 + len(study["factors"]["pattern"]["levels"])
