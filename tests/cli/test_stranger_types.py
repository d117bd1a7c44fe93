"""Enums, dataclasses, paths and tuples are arguments of a stranger's own class: plain data in specs, objects in the constructor."""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import attnkit as package
from attnkit.cli import AttnkitCLI
from attnkit.cli.schema import component_schema
from attnkit.recipe import read_yaml
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import read_json, status_of, write_json
from attnkit.worker.inspection import Inspector, layered
from attnkit.worker.run import main
from tests.ablation.conftest import SEEDS
from tests.commands import run

TYPES = """
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Optional, Union

from lightning.pytorch import LightningModule

from stranger_model import Net, Numbers


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"


@dataclass(frozen=True)
class Clip:
    mode: Mode = Mode.FAST
    value: float = 1.0


@dataclass
class Opt:
    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    name: str = "adam"
    clip: Clip = field(default_factory=Clip)


class Typed(Net):
    def __init__(
        self, num_classes: int, *, mode: Mode = Mode.FAST, opt: Opt = Opt(lr=0.2), path: Path = Path("x"), pair: tuple[int, int] = (1, 2),
        many: tuple[Mode, ...] = (), folder: Optional[Path] = None, either: Union[Mode, int] = 3, opts: list[Opt] = [],
        modes: dict[str, Mode] = {},
    ) -> None:
        super().__init__(num_classes)
        self.taken = dict(mode=mode, opt=opt, path=path, pair=pair, many=many, folder=folder, either=either, opts=opts, modes=modes)
"""

MAIN = """
from attnkit.cli import AttnkitCLI
from attnkit.cli.schema import component_schema
from stranger_types import Numbers, Typed
if __name__ == "__main__": print(AttnkitCLI(Typed, Numbers).model.taken)
"""

FLAGS = [
    *("--model.mode", "SLOW", "--model.opt.lr=0.5", "--model.opt.name", "sgd", "--model.opt.clip.mode", "SLOW", "--model.path", "12"),
    *("--model.pair=[3, 4]", "--model.many=[SLOW, FAST]", "--model.folder", "a/b", "--model.either", "SLOW"),
    *("--model.opts=[{lr: 3.0}]", "--model.modes={a: SLOW}"),
]
TRAINER = [
    *("--trainer.accelerator", "cpu", "--trainer.max_epochs", "1", "--trainer.enable_progress_bar", "false"),
    *("--trainer.log_every_n_steps", "1"),
]
LAST = "runs/typed/version_0/checkpoints/last.ckpt"


@pytest.fixture(autouse=True)
def types(repository: Path) -> Iterator[Any]:
    (repository / "stranger_types.py").write_text(TYPES)
    sys.modules.pop("stranger_types", None)
    yield import_module("stranger_types")
    sys.modules.pop("stranger_types", None)


def typed(*args: str, **options: Any) -> AttnkitCLI:
    module = import_module("stranger_types")
    return AttnkitCLI(module.Typed, module.Numbers, args=args, **options)


def taken(*args: str) -> dict[str, Any]:
    """Return what the constructor is given."""
    return dict(typed(*args, "--trainer.logger", "false", run=False).model.taken)


def expected(types: Any) -> dict[str, Any]:
    """Return the objects that `FLAGS` describe."""
    fast, slow = types.Mode
    return {
        "mode": slow,
        "opt": types.Opt(lr=0.5, name="sgd", clip=types.Clip(mode=slow)),
        "path": Path("12"),
        "pair": (3, 4),
        "many": (slow, fast),
        "folder": Path("a/b"),
        "either": slow,
        "opts": [types.Opt(lr=3.0)],
        "modes": {"a": slow},
    }


def test_main_py_accepts_typed_arguments_and_explains_mistakes(repository: Path) -> None:
    (repository / "main.py").write_text(MAIN)
    done = run("main", "fit", *TRAINER, "--model.mode", "SLOW", "--model.opt.lr=0.5", cwd=repository)
    assert done.returncode == 0, done.stderr
    assert "'mode': <Mode.SLOW: 'slow'>, 'opt': Opt(lr=0.5, betas=(0.9, 0.99), name='adam'" in done.stdout
    wrong = run("main", "fit", *TRAINER, "--model.mode", "SLO", cwd=repository)
    assert wrong.returncode == 2
    assert "mode must be Literal['FAST', 'SLOW'], but is 'SLO' (str). Did you mean 'SLOW'?" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_defaults_and_values_reach_the_constructor_with_their_types(types: Any) -> None:
    assert taken() == {
        "mode": types.Mode.FAST,
        "opt": types.Opt(lr=0.2),
        "path": Path("x"),
        "pair": (1, 2),
        "many": (),
        "folder": None,
        "either": 3,
        "opts": [],
        "modes": {},
    }
    assert taken(*FLAGS) == expected(types)
    assert taken("--model.folder", "null", "--model.opt.betas=[0.1, 0.2]")["opt"] == types.Opt(lr=0.2, betas=(0.1, 0.2))


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("mode=NOPE", r"mode must be Literal\['FAST', 'SLOW'\], but is 'NOPE'"),
        ("mode=slow", "Did you mean 'SLOW'"),
        ("mode=3", "mode must be Literal"),
        ("opt.lrr=1", r"model.opt: Opt has no field 'lrr'. Did you mean 'lr'\? Its fields: lr, betas, name, clip"),
        ("opt.lr=abc", "model.opt: .*lr must be float, but is 'abc'"),
        ("opt.clip.mode=SLO", "model.opt.clip: .*mode must be .*Did you mean 'SLOW'"),
        ("opt.betas=[1, 2, 3]", r"betas must be tuple\[float, float\]"),
        ("opt=fast", "opt must be Opt, but is 'fast'"),
        ("opt=null", "opt must be Opt, but is None"),
        ("pair=[3, 4, 5]", r"pair must be tuple\[int, int\], but is \[3, 4, 5\]"),
        ("pair=[3, a]", r"pair must be tuple\[int, int\]"),
        ("pair=3", r"pair must be tuple\[int, int\], but is 3"),
        ("many=[FAST, NOPE]", "many must be tuple"),
        ("path=[a]", r"path must be pathlib.Path, but is \['a'\]"),
        ("either=NOPE", r"either must be Literal\['FAST', 'SLOW'\] \| int, but is 'NOPE'"),
        ("opts=[{lrr: 1}]", r"model.opts\[0\]: Opt has no field 'lrr'"),
        ("modes={a: NOPE}", "modes must be dict"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_built(flag: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        taken(f"--model.{flag}")


def test_recipes_and_checkpoints_store_plain_data_that_rebuilds_equal_objects(types: Any) -> None:
    Path("typed.yaml").write_text("model: {mode: FAST}\n")
    fit = ["fit", "--config", "typed.yaml", *TRAINER, *FLAGS]
    typed(*fit)
    saved = read_yaml(Path(LAST).parents[1].joinpath("config.yaml").read_text(), where="")["model"]
    assert saved["mode"] == "SLOW"
    assert saved["opt"] == {"lr": 0.5, "betas": [0.9, 0.99], "name": "sgd", "clip": {"mode": "SLOW", "value": 1.0}}
    checkpoint = torch.load(LAST, weights_only=True)
    for kept in (checkpoint["hyper_parameters"], checkpoint["attnkit"]["arguments"]):
        assert json.loads(json.dumps({key: kept[key] for key in expected(types)})) == {key: saved[key] for key in expected(types)}
    assert typed("test", "--ckpt_path", LAST).model.taken == expected(types)
    resumed = typed(*fit, "--resume", "--trainer.max_epochs", "2")
    assert resumed.model.taken == expected(types)
    assert resumed.trainer.global_step == 8
    Path("again.yaml").write_text(yaml.safe_dump({"model": saved}))
    assert taken("--config", "again.yaml") == expected(types)
    assert taken("--config", "again.yaml", "--model.opt.lr", "2")["opt"] == types.Opt(lr=2, name="sgd", clip=types.Clip(types.Mode.SLOW))


def test_objects_passed_from_python_are_serialised(types: Any) -> None:
    given = expected(types)
    spec = package.tasks.resolve({"name": "stranger_types.Typed", "num_classes": 2, **given})
    assert json.loads(json.dumps(spec.plain())) == spec
    assert package.tasks.build(spec.plain()).taken == given
    other = types.Opt(name="other")
    assert package.tasks.build(spec.replace(opt=other)).taken["opt"] == other


def test_a_study_varies_typed_arguments(types: Any) -> None:
    recipe = {"model": "stranger_types.Typed", "data": "stranger_model.Numbers", "trainer": {"accelerator": "cpu", "max_epochs": 1}}
    Path("typed.yaml").write_text(yaml.safe_dump(recipe))
    answer = Inspector("typed.yaml", match=None, baseline=[]).answer(layered({"model.mode": "SLOW", "model.opt.lr": 0.5}))
    assert answer["recipe"]["model"]["opt"]["lr"] == 0.5
    folder = Path("run").absolute()
    write_json(folder / "job.json", {"recipe": answer["recipe"], "seeds": SEEDS, "test": False})
    main(folder)
    assert status_of(folder)["status"] == "ok", status_of(folder)
    assert read_json(folder / "result.json")["parameters"]
    wrong = Inspector("typed.yaml", match=None, baseline=[]).answer(layered({"model.mode": "SLO"}))
    assert "Did you mean 'SLOW'" in wrong["error"]


def test_the_help_shows_members_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        typed("fit", "--model.help")
    shown = capsys.readouterr().out
    assert "mode: Literal['FAST', 'SLOW'] = 'FAST'" in shown
    assert "opt.betas: tuple[float, float] = (0.9, 0.99)" in shown
    assert "opt.clip.mode: Literal['FAST', 'SLOW'] = 'FAST'" in shown


def test_the_help_of_a_dataclass_and_the_schema_show_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        typed("fit", "--model.opt.help")
    assert "clip.mode: Literal['FAST', 'SLOW'] = 'FAST'" in capsys.readouterr().out
    properties = json.loads(json.dumps(component_schema(package.tasks, "stranger_types.Typed")))["properties"]
    assert properties["mode"] == {"enum": ["FAST", "SLOW"], "default": "FAST"}
    fields = properties["opt"]["anyOf"][0]["properties"]
    assert fields["lr"] == {"type": "number"}
    assert fields["clip"]["anyOf"][0]["properties"]["mode"] == {"enum": ["FAST", "SLOW"]}
    assert properties["opt"]["default"]["lr"] == 0.2
