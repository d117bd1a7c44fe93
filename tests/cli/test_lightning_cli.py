"""Lightning's own command line trains attnkit's classes, given in Python or by class path."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch import LightningDataModule, Trainer

from attnkit.data import TextPairs
from attnkit.registry import ConfigurationError
from attnkit.task import Classification, Seq2Seq
from tests.cli.conftest import TINY, write_tiny_recipe
from tests.commands import run

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]
STACK = TINY["model"]["stack"]  # type: ignore[index]
TRAINER = TINY["trainer"]
GIVEN = """
from attnkit.data import TextPairs
from attnkit.task import Seq2Seq
from lightning.pytorch.cli import LightningCLI
if __name__ == "__main__": LightningCLI(Seq2Seq, TextPairs)
"""
NAMED = """
from lightning.pytorch.cli import LightningCLI
if __name__ == "__main__": LightningCLI()
"""


def ran(*words: str) -> str:
    done = run("main", *words, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    return done.stdout


def arguments(spec: Any) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "name"}


def test_lightning_cli_runs_a_task_that_takes_tokenizers_from_the_data(tmp_path: Path) -> None:
    write_tiny_recipe(tmp_path)
    Path("main.py").write_text(GIVEN)
    recipe = {"model": arguments(TINY["model"]), "data": arguments(TINY["data"]), "trainer": TRAINER}
    Path("lightning.yaml").write_text(yaml.safe_dump(recipe))
    assert "Step 1: sequence_error_rate" in ran("fit", "--config", "lightning.yaml")
    [path] = Path().glob("lightning_logs/version_0/checkpoints/*.ckpt")
    assert len(Seq2Seq.load(path).src_tokenizer) == len(Seq2Seq.load_from_checkpoint(path, weights_only=True).src_tokenizer) > 4
    assert "test/loss" in ran("test", "--config", "lightning.yaml", "--ckpt_path", str(path))


def test_lightning_cli_trains_class_paths(tmp_path: Path) -> None:
    write_tiny_recipe(tmp_path)
    Path("main.py").write_text(NAMED)
    model = {"class_path": "attnkit.task.Seq2Seq", "init_args": arguments(TINY["model"])}
    data = {"class_path": "attnkit.data.TextPairs", "init_args": arguments(TINY["data"])}
    Path("lightning.yaml").write_text(yaml.safe_dump({"model": model, "data": data, "trainer": TRAINER}))
    assert "Step 1: sequence_error_rate" in ran("fit", "--config", "lightning.yaml")


class Silent(LightningDataModule):
    """Has no tokenizers."""


def test_a_task_without_its_arguments_names_their_sources(tmp_path: Path) -> None:
    task = Seq2Seq(stack=STACK)
    needed = (
        r"task 'seq2seq' needs src_tokenizer and tgt_tokenizer and src_shape: pass them, or give .* "
        r"that has src_tokenizer_spec and tgt_tokenizer_spec and src_shape"
    )
    with pytest.raises(ConfigurationError, match=needed):
        task.generate(["a"])
    with pytest.raises(ConfigurationError, match=needed):
        _ = task.parameter_count
    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "max_steps": 1}
    with pytest.raises(ConfigurationError, match="src_shape, which Silent does not"):
        Trainer(**options).fit(task, datamodule=Silent())
    with pytest.raises(ConfigurationError, match=r"there is no tgt_tokenizer: pass the \.spec of a trained one"):
        Seq2Seq(stack=STACK, src_tokenizer={"name": "character", "tokens": ["a"]})
    with pytest.raises(ConfigurationError, match="task 'classification' needs tokenizer and image_shape and classes"):
        Classification(stack=STACK).configure_model()


def test_arguments_read_from_the_data_are_stored_in_the_checkpoint(tmp_path: Path) -> None:
    write_tiny_recipe(tmp_path)
    task = Seq2Seq(stack=STACK)
    assert task.hparams["src_tokenizer"] is None
    trainer = Trainer(accelerator="cpu", logger=False, max_steps=1, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(task, datamodule=TextPairs(corpus={"name": "files", "train": "words.tsv", "validation": "words.tsv"}))
    trainer.save_checkpoint("a.ckpt")
    assert task.hparams["src_tokenizer"]["tokens"] == ["a", "b", "c"]
    assert Seq2Seq.load("a.ckpt").generate(["abc"]) == task.generate(["abc"])
