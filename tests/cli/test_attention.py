from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from attnkit.task import Task

Command = Callable[..., Any]


def test_every_kind_of_file_is_written(attnkit: Command, trained: Path) -> None:
    output = Task.load(trained).generate(["abc"])[0]  # type: ignore[operator]
    for name in ("map.html", "map.png", "map.svg"):
        outcome = attnkit("attention", trained, "--text", "abc", "--out", name)
        assert outcome.status == 0, outcome.err
        assert outcome.out.splitlines() == [
            f"abc → {output}",
            f"Wrote {name}: 6 maps (encoder self-attention, decoder self-attention, cross-attention)",
        ]
        assert Path(name).stat().st_size > 1000
    assert "abc → " in Path("map.html").read_text(encoding="utf-8")


def test_layers_and_heads_to_draw_can_be_chosen(attnkit: Command, trained: Path) -> None:
    outcome = attnkit(
        "attention", trained, "--text", "abc", "--target", "CAB", "--kind", "cross", "--layer", 0, "--head", 1, "--out", "map.html"
    )
    assert outcome.out == "abc → CAB\nWrote map.html: 1 map (cross-attention)\n"
    assert '"heads": [1]' in Path("map.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "map.pdf"], "--out must end in .html, .png or .svg, but is 'map.pdf'"),
        (["--out", "map.html", "--layer", "3"], "there is no layer 3; numbers start at 0, and the model has: 0"),
        (["--out", "map.html", "--head", "0", "2"], "there is no head 2; numbers start at 0, and the model has: 0, 1"),
        (["--out", "map.html", "--beam_size", "0"], "beam_size must be at least 1, but is 0"),
        (["--out", "map.html", "--target", "CAB", "--beam_size", "2"], "with --target, nothing is generated: remove --beam_size"),
        (["--out", "map.html", "--kind", "crosses"], "invalid choice: 'crosses'"),
    ],
)
def test_a_mistake_gets_one_message(attnkit: Command, trained: Path, arguments: list[str], message: str) -> None:
    outcome = attnkit("attention", trained, "--text", "abc", *arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err
    assert not list(Path().iterdir())


def test_a_model_without_attention_is_refused(attnkit: Command, tiny: str) -> None:
    stack = {"name": "recurrent_encoder_decoder", "d_model": 8, "num_layers": 1, "attention": None}
    recipe = yaml.safe_load(Path(tiny).read_text())
    recipe["model"]["stack"] = stack
    Path(tiny).write_text(yaml.safe_dump(recipe))
    assert attnkit("fit", "--config", tiny, "--trainer.max_steps", 1).status == 0
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    outcome = attnkit("attention", checkpoint, "--text", "abc", "--out", "map.html")
    assert outcome.status == 2
    assert "this model has no attention to show" in outcome.err


def test_the_callback_in_a_recipe_leaves_weights_unchanged(attnkit: Command, tiny: str) -> None:
    pytest.importorskip("matplotlib")
    Path("maps.yaml").write_text("trainer: {callbacks: [{class_path: attnkit.callback.AttentionMaps, init_args: {every_n_steps: 1}}]}")
    longer = ["--trainer.max_epochs", 2, "--model.stack.dropout", 0.2]
    assert attnkit("fit", "--config", tiny, *longer).status == 0
    outcome = attnkit("fit", "--config", tiny, "--config", "maps.yaml", *longer)
    assert outcome.status == 0, outcome.err
    plain, watched = (torch.load(f"runs/tiny/version_{v}/checkpoints/last.ckpt", weights_only=True)["state_dict"] for v in (0, 1))
    assert plain.keys() == watched.keys()
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    assert "entropy/stack.decoder.layers.0.cross_mixer/head_1" in Path("runs/tiny/version_1/metrics.csv").read_text()
