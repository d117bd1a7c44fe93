"""docs/results/speed.md shows the stored results of `attnkit bench` and of scripts."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "docs/_tools"))

import speed_tables
from speed_tables import BLOCK, FOLDER, PAGE, filled, table


def result(rows: list[tuple[str, str, float, float]], **changes: Any) -> dict[str, Any]:
    keys = ("work", "name", "milliseconds", "relative")
    found = [{**dict(zip(keys, row, strict=True)), "length": 16, "spread": 0.02} for row in rows]
    common = {"command": "attnkit bench g2p/transformer --work step --peers torch", "device": "CPU, 1 threads", "torch": "2.13"}
    return {**common, "batch": 8, "precision": "fp32", "compiled": False, "rounds": 9, "rows": found, **changes}


def test_the_page_shows_the_stored_numbers() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page) == page, "run python docs/_tools/speed_tables.py"
    shown = {f"{name}.{'json' if kind == 'bench' else 'txt'}" for _, kind, names, _ in BLOCK.findall(page) for name in names.split()}
    assert shown == {path.name for path in FOLDER.iterdir()}


def test_a_table_has_the_works_of_all_files_and_the_speeds_of_their_peers() -> None:
    full = result([("step", "recipe", 1234.5, 1.0), ("step", "torch", 100.0, 0.954), ("decode", "recipe", 2.0, 1.0)], compiled=True)
    other = result([("step", "recipe", 10.0, 1.0), ("step", "nn.Transformer", 5.0, 2.0)], precision="bf16")
    other["rows"][0]["spread"] = 0.1
    assert table([full, other]).splitlines() == [
        "| what | attnkit | by hand | `nn.Transformer` |",
        "|---|---|---|---|",
        "| training step, 8 x 16 tokens, fp32, compiled | 1,234.5 | 100.0 (.95) | - |",
        "| 32 new tokens after it, 8 x 16 tokens, fp32 | 2.0 | - | - |",
        "| training step, 8 x 16 tokens, bf16 | 10.0 | - | 5.0 (2.00) |",
        "",
        "CPU, 1 threads; torch 2.13; medians of 9 rounds; interquartile ranges 2% to 10%.",
        "",
        "```bash",
        "export OMP_NUM_THREADS=1",
        *2 * ["attnkit bench g2p/transformer --work step \\", "    --peers torch"],
        "```",
    ]


@pytest.mark.parametrize(
    ("task", "length", "size"),
    [
        ("tokens and target tokens -> tokens", 16, "8 x 16 tokens"),
        ("frames of 40 features -> class (35)", 16, "8 x 16 frames of 40 features"),
        ("images of 1 x 28 x 28 -> class (10)", None, "8 images of 1 x 28 x 28"),
        ("images of 1 x 28 x 28 and target tokens -> tokens", 16, "8 images of 1 x 28 x 28 and 16 target tokens"),
    ],
)
def test_a_row_of_images_or_sound_says_its_size(task: str, length: int | None, size: str) -> None:
    found = result([("step", "recipe", 1.0, 1.0)], task=task)
    found["rows"][0]["length"] = length
    assert table([found]).splitlines()[2] == f"| training step, {size}, fp32 | 1.0 |"


def test_a_spec_is_written_once() -> None:
    rows = [("step", "recipe", 1.0, 1.0)]
    spec = f"{{stack: decoder, {'d_model: 64, ' * 12}tie: output}}"
    both = [result(rows, command=f"attnkit bench '{spec}' --work {work}", device="H100") for work in ("step", "forward")]
    block = table(both).partition("```bash\n")[2]
    assert block.count("stack: decoder") == 1
    assert block.endswith('tie: output}\'\nattnkit bench "$SPEC" --work step\nattnkit bench "$SPEC" --work forward\n```\n')
    assert max(map(len, block.splitlines())) <= 140


def test_results_of_two_machines_do_not_share_a_table() -> None:
    rows = [("step", "recipe", 1.0, 1.0)]
    with pytest.raises(ValueError, match="unpack"):
        table([result(rows), result(rows, device="CPU, 2 threads")])


def test_the_text_around_a_table_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_tables, "read", lambda name: result([("step", name, 1.0, 1.0)]))
    begin, end = "<!-- begin: bench one two -->\n", "<!-- end -->"
    page = filled(f"before\n{begin}old\n{end}\nafter")
    assert page.startswith(f"before\n{begin}| what |")
    assert page.endswith(f"{end}\nafter")
    assert page.count("training step") == 2
    assert "old" not in page


def test_the_output_of_a_script_is_shown_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(speed_tables, "FOLDER", tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"$ python {name}.py\n1.00 x\n", encoding="utf-8")
    begin, end = "<!-- begin: output one two -->\n", "<!-- end -->"
    assert filled(f"{begin}old\n{end}") == f"{begin}```text\n$ python one.py\n1.00 x\n\n$ python two.py\n1.00 x\n```\n{end}"
