"""A toy task, toy data and toy components, to test the command line in isolation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pytest
import yaml

from attnkit import registry
from attnkit.cli.main import main
from attnkit.registry import AttentionSpec, StackSpec, TokenizerSpec
from tests.ablation.conftest import write_recipe
from tests.cli.stranger import ATTENTION, MAIN, MODEL, RECIPE, forget


class ToyAttention:
    """Toy attention.

    Equation:
        $$w = 1$$

    The cost is low.

    Paper: Nobody 2026, https://example.org

    Args:
        head_dim: Width of a head.
        hidden_dim: Width of the hidden layer.
        scale: How much.

    Example:
        >>> 1 + 1
        2
    """

    inner_product: ClassVar = False

    def __init__(self, *, head_dim: int, hidden_dim: int = 16, scale: float = 1.0) -> None: ...


class OtherAttention:
    """Another toy attention."""

    inner_product: ClassVar = False

    def __init__(self, *, bias: bool = True, label: str | None = None) -> None: ...


class ToyStack:
    """A toy stack."""

    def __init__(
        self,
        *,
        d_model: int,
        attention: AttentionSpec = "toy",
        cross_attention: AttentionSpec | None = None,
        mode: Literal["fast", "slow"] = "fast",
    ) -> None: ...


class ToyTokenizer:
    """A toy tokenizer."""

    def __init__(self, *, symbols: list[str] | None = None) -> None: ...


class ToyTask:
    """A toy task."""

    from_data: ClassVar[dict[str, str]] = {"src_tokenizer": "src_tokenizer_spec"}

    def __init__(self, *, stack: StackSpec, src_tokenizer: TokenizerSpec, lr: float = 0.1) -> None: ...


class ToyData:
    """Toy data."""

    def __init__(
        self, *, path: str = "train.tsv", size: int | None = None, files: dict[str, str] | None = None, src_tokenizer: TokenizerSpec = "toy"
    ) -> None: ...


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Register the toys for one test only, and run it in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for family, name, cls in (
        (registry.attentions, "toy", ToyAttention),
        (registry.attentions, "other", OtherAttention),
        (registry.stacks, "toy", ToyStack),
        (registry.tokenizers, "toy", ToyTokenizer),
        (registry.tasks, "toy_task", ToyTask),
        (registry.datasets, "toy_data", ToyData),
    ):
        monkeypatch.setitem(family._classes, name, cls)


@dataclass
class Outcome:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str


@pytest.fixture
def attnkit(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command in this process."""

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        status = main([str(a) for a in arguments])
        return Outcome(status, *capfd.readouterr())

    return run


TINY = {
    "model": {
        "name": "seq2seq",
        "stack": {
            "name": "encoder_decoder",
            "d_model": 8,
            "num_layers": 1,
            "num_heads": 2,
            "attention": {"name": "additive", "hidden_dim": 4},
        },
        "max_length": 6,
    },
    "data": {
        "name": "text_pairs",
        "corpus": {"name": "files", "train": "words.tsv", "validation": "words.tsv", "test": "words.tsv"},
        "predict": "words.tsv",
    },
    "trainer": {
        "max_epochs": 1,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    },
}


def write_tiny_recipe(folder: Path) -> str:
    """Write a recipe of a very small model, and its data, and return the name of its file."""
    (folder / "words.tsv").write_text("source\ttarget\nabc\tABC\nba\tBA\ncab\tCAB\n", encoding="utf-8")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY), encoding="utf-8")
    return "tiny.yaml"


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return write_tiny_recipe(tmp_path)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of one very short training."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", "--config", write_tiny_recipe(folder)]) == 0
    return folder / "runs/tiny/version_0/checkpoints/best.ckpt"


@pytest.fixture
def small_recipe(tmp_path: Path, toys: None) -> None:
    """The small recipe of the ablation tests and its data, in the current folder."""
    write_recipe(tmp_path)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toys: None) -> Iterator[Path]:
    """The user's repository as the current folder; its modules are unloaded afterwards."""
    for name, text in (("stranger_attention.py", ATTENTION), ("stranger_model.py", MODEL), ("main.py", MAIN), ("mine.yaml", RECIPE)):
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield tmp_path
    forget()
