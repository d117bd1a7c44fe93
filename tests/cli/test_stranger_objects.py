"""Objects as arguments of a stranger's own class are built from their class paths, as by LightningCLI."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import attnkit as package
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import read_json, status_of, write_json
from attnkit.worker.inspection import Inspector, layered
from attnkit.worker.run import main
from tests.ablation.conftest import SEEDS

Command = Callable[..., Any]
pytestmark = [
    pytest.mark.usefixtures("repository"),
    pytest.mark.filterwarnings("ignore:Attribute 'net' is an instance of `nn.Module`:UserWarning"),
]
LINEAR = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 5, "out_features": 5}}
RECIPE: dict[str, Any] = {
    "model": {"class_path": "stranger_model.Holder", "init_args": {"net": LINEAR, "more": ["torch.nn.ReLU"]}},
    "data": "stranger_model.Numbers",
    "trainer": {"accelerator": "cpu", "max_epochs": 1, "enable_progress_bar": False, "log_every_n_steps": 1},
}
LAST = "runs/holder/version_0/checkpoints/last.ckpt"


def write(recipe: Any = RECIPE) -> str:
    Path("holder.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return "holder.yaml"


@pytest.mark.parametrize("ignores", [False, True])
def test_objects_are_built_trained_resumed_and_tested(attnkit: Command, ignores: bool) -> None:
    flags = ["--config", write(), "--model.ignores", str(ignores).lower(), "--model.net.init_args.bias", "false"]
    outcome = attnkit("fit", *flags)
    assert outcome.status == 0, outcome.err
    assert "net: torch.nn.Linear (in_features=5, out_features=5, bias=False)" in outcome.out
    checkpoint = torch.load(LAST, weights_only=True)
    assert checkpoint["attnkit"]["arguments"]["net"]["name"] == "torch.nn.Linear"
    assert set(checkpoint["state_dict"]) == {"net.weight", "head.weight", "head.bias"}
    assert "net" not in checkpoint["hyper_parameters"]
    assert attnkit("fit", *flags, "--trainer.max_epochs", 2, "--resume").status == 0
    assert torch.load(LAST, weights_only=True)["global_step"] == 8
    outcome = attnkit("test", "--ckpt_path", LAST)
    assert "test/loss" in outcome.out, outcome.err


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("net", "torch.optim.SGD", "model.net: 'torch.optim.SGD' cannot be used as Module: the class must inherit from Module"),
        ("net", "torch.nn.Linaer", "Did you mean 'Linear'"),
        ("net", "torch.nn.LayerNorm", "needs normalized_shape: add it"),
        ("net.in_faetures", "3", "Did you mean 'in_features'"),
    ],
)
def test_mistakes_in_object_arguments_are_explained(attnkit: Command, flag: str, value: str, message: str) -> None:
    outcome = attnkit("fit", "--config", write(), f"--model.{flag}", value)
    assert outcome.status == 2
    assert message in outcome.err


def test_a_study_swaps_objects() -> None:
    inspector = Inspector(write(), match=None, baseline=[])
    answer = inspector.answer(layered({"model.net": {"class_path": "torch.nn.LayerNorm", "init_args": {"normalized_shape": 5}}}))
    assert answer["parameters"] == 5 + 5 + 12
    folder = Path("run").absolute()
    write_json(folder / "job.json", {"recipe": answer["recipe"], "seeds": SEEDS, "test": False})
    main(folder)
    assert status_of(folder)["status"] == "ok", status_of(folder)
    assert read_json(folder / "result.json")["parameters"] == 22


def test_a_checkpoint_cannot_import_modules_through_object_arguments(attnkit: Command, repository: Path) -> None:
    assert attnkit("fit", "--config", write()).status == 0
    checkpoint = torch.load(LAST, weights_only=True)
    checkpoint["attnkit"]["arguments"]["net"] = {"name": "evil.Evil"}
    torch.save(checkpoint, "evil.ckpt")
    (repository / "evil.py").write_text("import pathlib\npathlib.Path('canary').touch()\n")
    outcome = attnkit("test", "--ckpt_path", "evil.ckpt")
    assert "'evil.Evil' is a class of a module that is not imported" in outcome.err
    assert not Path("canary").exists()
    assert "evil" not in sys.modules


def test_objects_from_the_data_are_passed_through_unchanged() -> None:
    import stranger_model  # type: ignore[import-not-found]

    net = torch.nn.Identity()
    spec = package.tasks.resolve({"name": "stranger_model.Holder"}).replace(net=net)
    built = package.tasks.build(spec)
    assert type(built) is stranger_model.Holder
    assert built.net is net
    with pytest.raises(ConfigurationError, match=r"net must be plain data"):
        spec.plain()
