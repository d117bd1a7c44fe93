"""A real third-party package, one module and one entry-point line, installed by pip: it works wherever a built-in name does."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands

PLUGIN = Path(__file__).with_name("plugin")
DATA = "source\ttarget\nabc\tABC\nba\tBA\ncab\tCAB\n"
RECIPE = """
model:
  name: seq2seq
  stack:
    name: encoder_decoder
    d_model: 8
    num_layers: 1
    num_heads: 2
    attention: {name: gaussian, width: 2.0}
  max_length: 6
data: {name: text_pairs, corpus: {name: words.tsv, validation: words.tsv}}
trainer: {max_steps: 2, accelerator: cpu, default_root_dir: runs}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip installed the package."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(PLUGIN)], check=True, capture_output=True)
    return target


def run(installed: Path, *words: str) -> str:
    """Run a module where Python finds the package: in its folder. Return what it prints."""
    done = commands.run(*words, cwd=installed)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(installed: Path, code: str) -> str:
    (installed / "program.py").write_text(code, encoding="utf-8")
    return run(installed, "program")


def attnkit(installed: Path, *arguments: str) -> str:
    return run(installed, "attnkit", *arguments)


def test_the_plugin_is_one_short_module() -> None:
    (module,) = PLUGIN.glob("*.py")
    assert len(module.read_text().splitlines()) < 50
    assert (PLUGIN / "pyproject.toml").read_text().count("attnkit_gaussian:Gaussian") == 1


def test_the_plugin_is_composed_trained_and_recorded(installed: Path) -> None:
    code = """
import torch, attnkit
assert "gaussian" in attnkit.attentions
model = attnkit.compose(stack="encoder_decoder", d_model=8, num_layers=1, num_heads=2, num_kv_heads=1, position="alibi",
                        attention={"name": "gaussian", "width": 2.0}, src_vocab_size=9, tgt_vocab_size=9)
src = torch.randint(3, 9, (2, 4))
with attnkit.record_attention(model) as maps:
    model(src, src, src_mask=src != 3).sum().backward()
assert len(maps) == 3
assert model.generate(src, max_length=3, beam_size=2).shape[0] == 2
assert attnkit.compose(**model.spec).spec == model.spec
try:
    attnkit.compose(stack="encoder", d_model=8, num_layers=1, num_heads=2, vocab_size=9, attention="gaussian", position="rotary")
except attnkit.ConfigurationError as error:
    print(error)
"""
    assert "position 'rotary' does not work with attention 'gaussian'" in python(installed, code)


def test_a_wrong_plugin_argument_is_rejected(installed: Path) -> None:
    code = """
import attnkit
try:
    attnkit.attentions.build({"name": "gaussian", "widht": 2.0}, head_dim=2)
except attnkit.ConfigurationError as error:
    print(error)
"""
    assert "attention 'gaussian' has no argument 'widht'. Did you mean 'width'?" in python(installed, code)


def test_the_plugin_passes_the_conformance_kit_under_pytest(installed: Path) -> None:
    (installed / "test_gaussian.py").write_text(
        "import attnkit.testing\n\n\n"
        '@attnkit.testing.parametrize("attentions", {"name": "gaussian", "width": 0.5})\n'
        "def test_conformance(check):\n    check()\n"
    )
    selected = "agrees_with_the_reference"  # the command line below runs all rules, with another width
    output = run(installed, "pytest", "-q", "-p", "no:cacheprovider", "-k", selected, "test_gaussian.py")
    assert " passed" in output
    assert "failed" not in output


def test_the_plugin_passes_the_conformance_kit_on_the_command_line(installed: Path) -> None:
    """All but that it is compiled with each position, which `test_testing.py` tries with one attention each."""
    code = """
from attnkit.cli import check
from attnkit.cli.main import main
rules = check.checks_for
check.checks_for = lambda *words, **options: [rule for rule in rules(*words, **options) if "breaks[" not in rule.name]
main(["check", "gaussian"])
"""
    output = python(installed, code)
    assert "ok      attention.gaussian: agrees_with_the_reference_on_every_backend" in output
    assert "ok      attention.gaussian: decodes_in_steps[relative-combined]" in output
    assert "ok      attention.gaussian: is_refused[rotary-none]" in output
    assert "FAILED" not in output


def test_the_plugin_is_listed_and_described(installed: Path) -> None:
    assert "gaussian" in attnkit(installed, "list")
    described = attnkit(installed, "describe", "gaussian")
    for part in (r"\lVert q - k \rVert^2", "Tsai et al. 2019", "width", "1.0", "attnkit_gaussian.py"):
        assert part in described


def test_the_plugin_appears_in_help_recipes_and_checkpoints(installed: Path) -> None:
    (installed / "words.tsv").write_text(DATA)
    (installed / "tiny.yaml").write_text(RECIPE)
    command = ("fit", "--config", "tiny.yaml")
    assert "width" in attnkit(installed, *command, "--model.stack.attention.help", "gaussian")
    printed = attnkit(installed, *command, "--model.stack.attention.width", "3.0", "--print_config")
    assert "gaussian" in printed
    assert "width: 3.0" in printed
    attnkit(installed, *command)
    checkpoint = next(installed.rglob("*.ckpt"))
    assert attnkit(installed, "generate", str(checkpoint), "abc") is not None
    code = f"""
from attnkit.task import Task
print(Task.load({str(checkpoint)!r}).hparams["stack"]["attention"])
"""
    assert "{'name': 'gaussian', 'width': 2.0}" in python(installed, code)
