"""The code in the README and in the documentation runs."""

import csv
import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from latex2mathml.converter import convert

import attnkit
from attnkit.recipe import read_yaml
from attnkit.registry import FAMILIES, optimizers
from tests import commands

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def blocks(file: str, kind: str) -> list[str]:
    """Return the fenced blocks of a kind, such as `python` or `toml title="pyproject.toml"`."""
    return re.findall(rf"^```{re.escape(kind)}\n(.*?)^```", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run(code: str, folder: Path) -> str:
    """Run Python code in a new process in `folder`, and return what it prints."""
    (folder / "program.py").write_text(code, encoding="utf-8")
    return run_module("program", folder)


def run_module(words: str, folder: Path) -> str:
    """Run a module with its arguments in a new process in `folder`, and return what it prints."""
    done = commands.run(*words.split(), cwd=folder)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_readme_has_exactly_two_one_line_set_up_commands() -> None:
    commands = [block.splitlines() for block in blocks("README.md", "bash") if "pip install" in block]
    assert [len(lines) for lines in commands] == [1, 1]
    assert all(line.startswith("python3 -m venv ") and "-c constraints.txt" in line for [line] in commands)
    environments = {re.search(r"-m venv (\S+)", line)[1] for [line] in commands}
    assert len(environments) == 2


def test_equations_convert_to_mathml_without_leftover_latex() -> None:
    found: list[tuple[str, str]] = []
    for path in (*(ROOT / "attnkit").rglob("*.py"), *(ROOT / "docs").rglob("*.md")):
        text = re.sub(r"`[^`\n]*`", "", path.read_text(encoding="utf-8"))
        marks = r"\$\$(.+?)\$\$" if path.suffix == ".py" else r"\$\$(.+?)\$\$|\\\((.+?)\\\)|\\\[(.+?)\\\]"
        found += [(path.name, "".join(equation.groups(""))) for equation in re.finditer(marks, text, re.DOTALL)]
    found = [(name, equation) for name, equation in found if "{latex" not in equation]  # the catalogue's own template
    assert len(found) > 150
    for name, equation in found:
        assert "\\" not in re.sub(r"<[^>]+>", "", convert(equation)), f"{name}: {equation}"


def test_relative_links_in_the_readme_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert links
    assert not [link for link in links if "://" not in link and not (ROOT / link).is_file()]


def test_the_readme_names_every_component_but_torch_optimizers() -> None:
    table = re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = {family: set(re.findall(r"`(\w+)`", text)) for family, text in table}
    assert set(named) == {registry.attribute for registry in FAMILIES}
    for registry in FAMILIES:
        if registry is not optimizers:
            assert set(registry.built_in()) <= named[registry.attribute], registry.attribute


def test_the_python_in_the_readme_runs(tmp_path: Path) -> None:
    found = blocks("README.md", "python")
    assert len(found) == 2
    assert "cross_mixer" in run("\n".join(found), tmp_path)


@pytest.mark.slow
def test_every_layer_pattern_in_the_how_to_builds_a_stack() -> None:
    text = (ROOT / "docs/how-to/layers.md").read_text(encoding="utf-8")
    patterns = re.findall(r"\| `(\[.*?\])`", text)
    assert len(patterns) >= 7
    for pattern in patterns:
        layers = read_yaml(pattern, where="docs/how-to/layers.md")
        depth = {"num_layers": 8} if "share" in pattern else {}
        attnkit.compose(stack="decoder", d_model=16, num_heads=2, position="rotary", layers=layers, vocab_size=9, **depth)


def test_the_tutorial_runs(tmp_path: Path) -> None:
    code = "\n".join(blocks("docs/tutorial.md", "python"))
    assert "max_epochs=12" in code
    output = run(code.replace("max_epochs=12", "max_epochs=1, enable_progress_bar=False"), tmp_path)
    for expected in ("torch.Size([1, 3, 12])", "Did you mean 'additive'?", "stack.decoder.layers.0.cross_mixer (1, 2, 7, 7)"):
        assert expected in output


@pytest.mark.slow
def test_the_recipe_in_the_tutorial_trains(tmp_path: Path) -> None:
    [recipe] = blocks("docs/tutorial.md", "yaml")
    (tmp_path / "mirror.yaml").write_text(recipe, encoding="utf-8")
    for name in ("train", "validation"):
        (tmp_path / f"{name}.tsv").write_text("ab\tba\nabc\tcba\nhgfe\tefgh\n", encoding="utf-8")
    fit, swap, generate = (line for block in blocks("docs/tutorial.md", "bash") for line in block.splitlines() if "mirror" in line)
    short = " --trainer.max_epochs 1 --trainer.check_val_every_n_epoch 1 --trainer.accelerator cpu"
    for command in (fit + short, swap + " --print_config", generate):
        run_module(command, tmp_path)


@pytest.fixture(scope="module")
def gaussian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package of the how-to, as it is printed there; return the folder in which Python finds it."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    page = "docs/how-to/add-an-attention.md"
    for kind, file in (("python", "gaussian.py"), ("toml", "pyproject.toml")):
        [content] = blocks(page, f'{kind} title="{file}"')
        (source / file).write_text(content, encoding="utf-8")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True, capture_output=True)
    return site


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("list attentions", "gaussian"),
        ("describe gaussian", "width: float = 1.0"),
        ("fit --config g2p/transformer --model.stack.attention gaussian --model.stack.attention.width 2.0 --print_config", "width: 2.0"),
    ],
)
def test_the_how_tos_attention_works_on_the_command_line(gaussian: Path, command: str, expected: str) -> None:
    assert expected in run_module(f"attnkit {command}", gaussian)


@pytest.mark.slow
def test_the_how_tos_attention_conforms_and_rejects_illegal_pairs(gaussian: Path) -> None:
    """`test_plugin.py` runs all of `attnkit check` on an attention with the same equation; here are the rules without their products."""
    code = """
from contextlib import suppress
from unittest import SkipTest
import torch, attnkit
from attnkit.testing import checks_for
for check in checks_for("attentions", "gaussian") + checks_for("attentions", "gaussian", docs=True):
    if not any(word in check.name for word in ("compiles", "combined", "window")):
        with suppress(SkipTest):
            check()
sizes = dict(stack="decoder", d_model=16, num_layers=1, num_heads=2, vocab_size=9)
model = attnkit.compose(**sizes, attention={"name": "gaussian", "width": 0.5})
print(model.spec["attention"], model.generate(torch.tensor([[4, 5]]), max_length=3).shape[0])
try:
    attnkit.compose(**sizes, attention="gaussian", position="rotary")
except attnkit.ConfigurationError as error:
    print(error)
"""
    output = run(code, gaussian)
    assert "{'name': 'gaussian', 'width': 0.5} 1" in output
    assert "does not work with attention 'gaussian'" in output


@pytest.fixture(scope="module")
def min_gru(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the mixer of the how-to, as it is printed there; return its folder."""
    folder = tmp_path_factory.mktemp("mixer")
    [content] = blocks("docs/how-to/add-a-mixer.md", 'python title="min_gru.py"')
    assert sum(bool(line.strip()) for line in content.splitlines()) <= 40
    (folder / "min_gru.py").write_text(content, encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("check min_gru --imports min_gru", "checks passed"),
        (
            "fit --config synthetic/decoder --imports min_gru --model.stack.position none --model.stack.mixer min_gru "
            "--trainer.max_steps 3 --trainer.limit_val_batches 1",
            "",
        ),
    ],
)
def test_the_how_tos_mixer_conforms_and_trains(min_gru: Path, command: str, expected: str) -> None:
    assert expected in run_module(f"attnkit {command}", min_gru)


@pytest.mark.slow
def test_the_how_tos_module_is_trained_and_tested(tmp_path: Path) -> None:
    for file in ("main.py", "my_project.py"):
        [content] = blocks("docs/how-to/own-module.md", f'python title="{file}"')
        (tmp_path / file).write_text(content, encoding="utf-8")
    assert "best.ckpt" in run_module("main fit --model.d_model 16 --trainer.max_epochs 1 --trainer.accelerator cpu", tmp_path)
    tested = "main test --ckpt_path runs/my_project.MyModule/version_0/checkpoints/best.ckpt --trainer.accelerator cpu"
    assert "test/loss" in run_module(tested, tmp_path)


def test_the_table_of_mixers_matches_their_declarations() -> None:
    ways = {"rotation": "rotations", "bias": "biases", "query_bias": "biases by query"}
    expected = []
    for name in sorted(attnkit.mixers):
        kind = attnkit.mixers.get(name)
        directions = ", ".join(direction for direction in ("causal", "bidirectional", "cross") if direction in kind.directions)
        reads = ", ".join(word for way, word in ways.items() if way in kind.reads_positions) or "-"
        flags = " | ".join("yes" if flag else "no" for flag in (kind.reads_masks, kind.has_weights))
        splits = "splits heads" if kind.splits else "whole"
        expected.append(f"| `{name}` | {directions} | {kind.growth} | {reads} | {flags} | {splits} |")
    page = (ROOT / "docs/explanation/mixers.md").read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if line.startswith("| `")] == expected


def test_the_table_of_packages_matches_the_layers_that_are_checked() -> None:
    [layers] = [kind["layers"] for kind in PROJECT["tool"]["importlinter"]["contracts"] if kind["name"] == "Layers"]
    expected = [set(layer.split(" | ")) for layer in layers if layer != "__main__"]
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    rows: dict[int, set[str]] = {}
    for number, names in re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.MULTILINE):
        rows.setdefault(int(number), set()).update(re.findall(r"`(\w+)`", names))
    assert [rows[number] for number in sorted(rows, reverse=True)] == expected


def test_the_storys_table_matches_its_stored_numbers() -> None:
    page = (ROOT / "docs/results/story.md").read_text(encoding="utf-8")
    with (ROOT / "docs/results/story.csv").open(encoding="utf-8") as file:
        for model, parameters, *rates, speed, ratio in list(csv.reader(file))[1:]:
            wer, per, *by_length = map(float, rates)
            cells = [f"{int(parameters):,}", f"{wer:.1f}", f"{per:.1f}", *(f"{rate:.0f}" for rate in by_length)]
            assert f"| {' | '.join([model, *cells, f'{float(speed):,.0f}', f'{float(ratio):.2f}'])} |" in page


def test_the_scan_page_matches_its_stored_numbers() -> None:
    page = (ROOT / "docs/results/scan.md").read_text(encoding="utf-8")
    rows = read_rows("docs/results/scan_length.csv")
    for position in {row["position"] for row in rows}:
        cells = re.findall(rf"^\| `{position}` \| \S+ \| (.*) \|$", page, flags=re.M)[0].replace("**", "").split(" | ")
        assert cells == [right(rows, position, *ends) for ends in ((0, 99), (24, 24), (25, 26), (27, 28), (30, 33), (36, 48))]
    assert f"gets {right(read_rows('docs/results/scan_simple.csv'), 'sinusoidal', 0, 99)} % of 4,182 test" in page


def read_rows(file: str) -> list[dict[str, str]]:
    with (ROOT / file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def right(rows: list[dict[str, str]], position: str, low: int, high: int) -> str:
    """Return the percentage of commands with low to high actions that a kind of positions gets right."""
    found = [row for row in rows if row["position"] == position and low <= int(row["actions"]) <= high]
    return f"{100 * sum(int(row['right']) for row in found) / sum(int(row['commands']) for row in found):.1f}"


def test_the_page_of_mixers_by_length_matches_its_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs/_tools")
    tool = importlib.import_module("mixer_speed")
    found = json.loads((ROOT / "docs/results/mixers.json").read_text(encoding="utf-8"))
    message = "run: python docs/_tools/mixer_speed.py docs/results/mixers.json --page > docs/results/mixers.md"
    assert (ROOT / "docs/results/mixers.md").read_text(encoding="utf-8") == tool.page(found), message
