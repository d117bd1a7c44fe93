"""A fit that starts from the checkpoint of another, by the command line; and tasks that meet data that do not suit them."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnkit import ConfigurationError, convert, datasets
from attnkit.cli.main import main
from attnkit.task import Task
from attnkit.train.inheritance import inherited_data, task_and_data, without_replaced
from tests.convert.test_masked import written
from tests.train.conftest import printed_recipe

Command = Callable[..., Any]
STACK = {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2}
TRAINER = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False, "log_every_n_steps": 1}
START = "runs/start/version_0/checkpoints/best.ckpt"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two recipes, `start` and `next`, of which the first was run."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "mine.tsv").write_text("so good\tpraise\nso bad\tblame\nno\tblame\nyes\tpraise\n")
    (folder / "mine.txt").write_text("so\nno\n")
    data = {"name": "labelled_text", "corpus": {"name": "mine.tsv", "validation": "mine.tsv", "test": "mine.tsv"}}
    model = {"name": "classification", "stack": STACK, "embedding": {"name": "token", "scale": False}}
    start = {"model": model, "data": {**data, "tokenizer": "word"}, "trainer": TRAINER}
    follower = {"model": {"name": "classification", "init_from": START, "pooler": True}, "data": data, "trainer": TRAINER}
    for name, recipe in (("start", start), ("next", follower)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", "--config", "start.yaml"]) == 0
    return folder


@pytest.fixture
def recipes(begun: Path, tmp_path: Path) -> None:
    """The two recipes, and the run of the first, in the current folder."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)


def test_sizes_tokenizer_and_weights_come_from_the_checkpoint(attnkit: Command, recipes: None) -> None:
    outcome = attnkit("fit", "--config", "next.yaml")
    assert outcome.status == 0, outcome.err
    assert "  stack: encoder (d_model=8, num_heads=2, num_layers=1)\n" in outcome.out
    assert f"note: data.tokenizer comes from {START}" in outcome.err
    assert "taken for stack" in outcome.out
    assert "embedding (" in outcome.out
    start, follower = Task.load(START), Task.load("runs/next/version_0/checkpoints/best.ckpt")
    for argument in ("stack", "embedding", "tokenizer"):
        assert start.hparams[argument] == follower.hparams[argument]
    written = Path("runs/next/version_0/config.yaml")
    assert "tokenizer" not in yaml.safe_load(written.read_text())["data"], "the default, which was not used"
    assert "tokenizer:" not in outcome.out
    assert "tokenizer" not in printed_recipe(attnkit, "fit", "--config", written)["data"], "a run of what was written is another one"


@pytest.mark.parametrize("origin", [["--config", "next.yaml"], ["--ckpt_path", START, "--trainer.max_epochs", "2"]])
def test_a_flag_cannot_replace_the_pretrained_tokenizer(attnkit: Command, recipes: None, origin: list[str]) -> None:
    for flags in (["--data.tokenizer", "character"], ["--data.tokenizer.lowercase", "true"]):
        outcome = attnkit("fit", *origin, *flags)
        assert outcome.status == 2, outcome.out
        assert (
            f"data.tokenizer: the weights in {START} belong to its own tokenizer (word), so the run would ignore this setting"
            in outcome.err
        )
    assert attnkit("fit", *origin, "--data.tokenizer", "word").status == 0


@pytest.mark.parametrize("command", ["fit", "test"])
def test_files_and_flags_cannot_replace_settings_bound_to_the_weights(attnkit: Command, recipes: None, command: str) -> None:
    Path("other.yaml").write_text("data: {tokenizer: {name: word, min_count: 2}}")
    Path("same.yaml").write_text("data: {tokenizer: {name: word, min_count: 1}, classes: [blame, praise]}")
    own = f"the weights in {START} belong to its own"
    for given, message in (
        (["--config", "other.yaml"], f"data.tokenizer: {own} tokenizer (word), so the run would ignore this setting. Remove it"),
        (["--data.classes", "[praise, blame]"], f"data.classes: {own} classes (blame, praise), so the run would ignore this"),
    ):
        outcome = attnkit(command, "--ckpt_path", START, *given)
        assert (outcome.status, message in outcome.err) == (2, True), outcome.err
    same = printed_recipe(attnkit, command, "--ckpt_path", START, "--config", "same.yaml")
    assert (same["data"]["tokenizer"]["name"], same["data"]["classes"]) == ("word", ["blame", "praise"])
    assert printed_recipe(attnkit, command, "--ckpt_path", START, "--config", "start.yaml")["data"]["tokenizer"]["name"] == "word"


def test_rows_set_aside_differently_than_in_the_fit_are_reported(attnkit: Command, recipes: None) -> None:
    """They may be rows on which the model was trained."""
    told = "the rows set aside from the training data are not those of this checkpoint's run"
    corpus = ["--data.corpus.test", "null", "--data.corpus.test_fraction", "0.25"]
    assert attnkit("fit", "--config", "start.yaml", *corpus).status == 0
    command = ["test", "--ckpt_path", "runs/start/version_1/checkpoints/last.ckpt"]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{told}")
        assert attnkit(*command).status == 0
    for changes in (["--data.seed", 1], ["--data.corpus.test_fraction", 0.5]):
        with pytest.warns(UserWarning, match=f"test: {told}"):
            assert attnkit(*command, *changes).status == 0
    with Path("mine.tsv").open("a") as file:
        file.write("so so\tblame\n")
    for again in (command, ["test", "--ckpt_path", START, *corpus]):  # the fit of the latter was on all rows
        with pytest.warns(UserWarning, match=told):
            assert attnkit(*again).status == 0


def test_a_recipe_cannot_replace_the_tokenizer_of_init_from(attnkit: Command, recipes: None) -> None:
    Path("other.yaml").write_text("data: {tokenizer: character}")
    outcome = attnkit("fit", "--config", "next.yaml", "--config", "other.yaml")
    assert outcome.status == 2
    assert f"data.tokenizer: the weights in {START} belong to its own tokenizer (word)" in outcome.err


@pytest.mark.parametrize(("kind", "separators"), [("bert", 1), ("roberta", 2), ("modernbert", 1)])
def test_questions_get_the_separators_that_a_published_encoder_has_read(kind: str, separators: int, tmp_path: Path) -> None:
    written(tmp_path, kind)
    found = dict(convert.load_task(tmp_path).hparams)
    kept = inherited_data({"hyper_parameters": found}, "questions")
    assert (kept["tokenizer"]["name"], kept["separators"]) == (found["tokenizer"]["name"], separators)
    assert "separators" not in inherited_data({"hyper_parameters": found}, "labelled_text")
    assert inherited_data({"hyper_parameters": {**found, "separators": 3}}, "questions")["separators"] == 3  # it was tuned with these
    spec = datasets.resolve({"name": "questions", "corpus": "mine.tsv"})
    assert without_replaced(spec, kept, {}, "in").replace(**kept)["separators"] == separators
    with pytest.raises(ConfigurationError, match=rf"data\.separators: the weights in in belong to its own separators \({separators}\)"):
        without_replaced(spec.replace(separators=4), kept, {"separators": 4}, "in")


def test_a_resumed_run_keeps_its_initial_checkpoint(attnkit: Command, recipes: None) -> None:
    resumed = ["fit", "--ckpt_path", "runs/start/version_1/checkpoints/last.ckpt"]
    assert attnkit("fit", "--config", "start.yaml", "--seed_everything", 7).status == 0
    assert printed_recipe(attnkit, *resumed)["seed_everything"] == 7
    for key, own, other in (("seed_everything", "7", "8"), ("model.init_from", "null", START)):
        outcome = attnkit(*resumed, f"--{key}", other)
        assert outcome.status == 2
        assert f"{key}: the run in {resumed[-1]} started with {own} and continues from its checkpoint, so it would ignore" in outcome.err
        assert printed_recipe(attnkit, *resumed, f"--{key}", own)["seed_everything"] == 7


def test_a_fine_tuned_checkpoint_is_self_contained(attnkit: Command, recipes: None) -> None:
    attnkit("fit", "--config", "next.yaml")
    Path(START).unlink()
    Path("runs/next/version_0/config.yaml").unlink()
    own = "runs/next/version_0/checkpoints/last.ckpt"
    for command in (["test"], ["fit", "--trainer.max_epochs=2"], ["predict", "--data.predict=mine.txt"]):
        outcome = attnkit(*command, "--ckpt_path", own)
        assert outcome.status == 0, outcome.err
    lines = outcome.out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["so", "no"]
    assert all(line.split("\t")[1] in ("praise", "blame") and 0.5 <= float(line.split("\t")[2]) <= 1 for line in lines)


def test_a_different_stack_is_reinitialised_with_a_note(attnkit: Command, recipes: None) -> None:
    outcome = attnkit("fit", "--config", "next.yaml", "--model.stack=recurrent_encoder")
    assert outcome.status == 0, outcome.err
    assert "stack: recurrent_encoder (d_model=8, num_layers=1)" in outcome.out
    assert "note: stack is newly initialised" in outcome.out


def test_a_missing_initial_checkpoint_names_the_command_to_train_it(attnkit: Command, recipes: None) -> None:
    made = "runs/g2p/transformer/version_0/checkpoints/best.ckpt"
    outcome = attnkit("fit", "--config", "next.yaml", f"--model.init_from={made}")
    assert outcome.status == 2
    assert f"model.init_from: no checkpoint at {made}" in outcome.err
    assert "best.ckpt. Train it with: attnkit fit --config g2p/transformer" in outcome.err
    foreign = attnkit("fit", "--config", "next.yaml", "--model.init_from=mine.tsv")
    assert foreign.status == 2
    assert "model.init_from: mine.tsv is not an attnkit checkpoint" in foreign.err


def test_a_fit_suggests_next_commands_for_its_task(attnkit: Command, recipes: None) -> None:
    outcome = attnkit("fit", "--config", "start.yaml")
    path = "runs/start/version_1/checkpoints/best.ckpt"
    assert f"  attnkit test --ckpt_path {path}\n  attnkit predict --ckpt_path {path} --data.predict FILE\n" in outcome.out
    assert "attnkit generate" not in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--data=text_pairs", "--data.corpus=mine.tsv"],
            "the task 'classification' needs data with tokenizer_spec and classes, which 'text_pairs'",
        ),
        (
            ["--data=text_pairs", "--data.corpus=mine.tsv"],
            "does not provide. Data modules that do: labelled_images, labelled_text, tagged_text.",
        ),
        (
            ["--model=seq2seq", "--model.stack={name: encoder_decoder, d_model: 8, num_layers: 1, num_heads: 2}"],
            "'labelled_text' does not provide. Data modules that do: signal_text, span_corruption, text_pairs.",
        ),
    ],
)
def test_data_unsuitable_for_the_task_raise_one_error(attnkit: Command, recipes: None, arguments: list[str], message: str) -> None:
    outcome = attnkit("fit", "--config", "start.yaml", *arguments)
    assert outcome.status == 2
    assert message in outcome.err, outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("data", [{}, {"data": {"name": "text_pairs", "corpus": "copy"}}], ids=["own_dataloaders", "data_module"])
def test_plans_and_probes_refuse_a_model_that_is_no_task(data: dict[str, Any]) -> None:
    name = "lightning.pytorch.demos.boring_classes.BoringModel"
    with pytest.raises(ConfigurationError, match=f"^attnkit plan needs an attnkit task with a data module, which {name} is not$"):
        task_and_data({"model": {"name": name}, **data}, needed_by="attnkit plan")
