"""Pictures of pieces, and of a step of decoding."""

import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

import attnkit
from attnkit.cli import draw as pictures
from attnkit.cli.main import main
from attnkit.drawing import heatmaps
from attnkit.drawing.heatmaps import Panel, write_panels
from attnkit.registry import positions

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),  # Lightning 2.6 on torch 2.13
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[Panel]:
    """The figures that would be drawn."""
    found: list[Panel] = []
    monkeypatch.setattr(pictures, "write_panels", lambda shown, path, *, title: found.extend(shown) or [])
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"causal": True}, ["1000", "1100", "1110", "1111"]),
        ({"causal": True, "prefix": 2}, ["1100", "1100", "1110", "1111"]),
        ({"window": 2}, ["1100", "1110", "0111", "0011"]),
        ({"documents": [1, 3]}, ["1000", "0111", "0111", "0111"]),
        ({"causal": True, "window": 2, "documents": [2, 2]}, ["1000", "1100", "0010", "0011"]),
    ],
)
def test_a_drawn_mask_follows_its_options(options, expected, panels) -> None:
    pictures.draw_mask(out="m.svg", length=4, **options)
    assert ["".join(str(int(x)) for x in row) for row in panels[0].values.tolist()] == expected


def test_a_score_is_drawn_for_every_query_and_key(panels) -> None:
    pictures.draw_score("dot_product", out="s.svg", query=(1.0, 0.5))
    side = torch.linspace(-2, 2, 81)
    assert torch.allclose(panels[0].values, side[None] + 0.5 * side[:, None])  # rows are channel 1, columns channel 0


def test_random_weights_of_a_position_are_those_of_its_seed(panels) -> None:
    for seed in (0, 0, 1):
        torch.rand(1)  # a state that no picture depends on
        pictures.draw_position("learned", out="p.svg", length=4, d_model=8, seed=seed)
    first, again, other = (panel.values for panel in panels[::2])
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_picture_page_is_self_contained_and_escapes_its_title(tmp_path: Path) -> None:
    out = tmp_path / "picture.html"
    write_panels([Panel("a <b>", torch.ones(2, 2), "query", "key")], out, title='<script>"x"')
    page = out.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == page.count("</svg>") == 1
    assert "<script>" not in page
    assert "<title>&lt;script&gt;&quot;x&quot;</title>" in page
    write_panels([Panel("a", torch.ones(2, 2), "query", "key")], out, title="causal, window 4, prefix 2, documents 5+7")
    assert re.search(r">causal, window 4[^<]*</text>", figure := out.read_text(encoding="utf-8").partition("<svg")[2])
    assert "prefix 2, documents 5+7<" not in figure  # longer than a panel, so it takes two lines


def test_characters_missing_from_fonts_are_reported_except_in_html(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(heatmaps, "families", lambda characters: (["DejaVu Sans"], "한"))
    shown = [Panel("scores", torch.ones(1), "key", "logit", rows=["한"])]
    assert "no installed font has 한, drawn as boxes" in write_panels(shown, tmp_path / "step.png")[0]
    assert write_panels(shown, tmp_path / "step.html") == []
    assert ">한<" in (tmp_path / "step.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(positions.built_in()))
def test_every_position_is_drawn_or_asks_for_a_text(name: str, tmp_path: Path, capsys) -> None:
    status = main(["draw", "position", name, "--length", "8", "--d_model", "16", "--out", str(tmp_path / "p.svg")])
    shown = capsys.readouterr()
    if status == 0:
        assert "<svg" in (tmp_path / "p.svg").read_text(encoding="utf-8")
    else:
        assert f"the position {name!r} has nothing to draw" in shown.err


@pytest.fixture
def checkpoints(tmp_path: Path) -> list[str]:
    """Two new models, saved."""
    tokenizer = attnkit.tokenizers.build("word").train(["나는 학교에 간다"]).spec
    paths = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        stack = {"name": "decoder", "d_model": 8, "num_layers": 2, "num_heads": 2}
        task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": tokenizer, "max_length": 2})
        trainer = Trainer(
            max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False
        )
        trainer.fit(task, DataLoader([{"tokens": torch.tensor([[1, 4, 5, 6]])}], batch_size=None))
        paths.append(str(tmp_path / f"{seed}.ckpt"))
        trainer.save_checkpoint(paths[-1])
    return paths


def test_a_step_shows_scores_coefficients_context_and_candidates(checkpoints, panels) -> None:
    pictures.draw_step(checkpoints[0], "나는 학교에 간다", out="s.svg", step=2, head=1, candidates=3)
    scores, coefficients, context, candidates = panels
    assert list(scores.rows) == ["<bos>", "나는", "학교에"]
    assert torch.allclose(scores.values.softmax(0), coefficients.values)
    assert context.values.shape == (4,)
    assert len(candidates.rows) == 3
    assert candidates.values.sum() <= 1


@pytest.mark.parametrize(
    "options",
    [{"placement": "before"}, {"placement": "after", "input_feeding": True}, {"placement": "after"}],
    ids=["before", "fed", "after"],
)
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_drawn_step_shows_the_recurrent_decoders_context(options, step: int) -> None:
    tokenizer = attnkit.tokenizers.build("character").train(["abc"]).spec
    stack = {"name": "recurrent_encoder_decoder", "d_model": 8, "num_layers": 1, "cell": "gru", "attention": "dot_product", **options}
    task = attnkit.tasks.build({"name": "seq2seq", "stack": stack, "src_tokenizer": tokenizer, "tgt_tokenizer": tokenizer})
    task.configure_model()
    encoded: list[torch.Tensor] = []
    task.model.stack.encoder.register_forward_hook(lambda _, __, y: encoded.append(y[0]))
    (_, coefficients, context, _), _ = pictures.panels_of_step(task, "abc", target="cb", step=step)
    assert torch.allclose(context.values, coefficients.values @ encoded[0][0], atol=1e-6)


def test_two_models_are_shown_side_by_side(checkpoints, tmp_path: Path, capsys) -> None:
    assert main(["attention", *checkpoints, "--text", "나는", "--out", str(tmp_path / "two.html")]) == 0
    page = (tmp_path / "two.html").read_text(encoding="utf-8")
    assert page.count("<iframe") == 2
    assert all(f"{path}: 나는" in page for path in checkpoints)
    assert main(["attention", *checkpoints, "--text", "나는", "--out", str(tmp_path / "two.svg")]) == 2
    assert "--out must end in .html" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "least"), [("--head", 0), ("--candidates", 1)])
def test_a_step_needs_a_head_and_a_candidate(checkpoints, option: str, least: int, capsys) -> None:
    assert main(["draw", "step", checkpoints[0], "--text", "나는", "--out", "s.svg", option, str(least - 1)]) == 2
    assert f"{option} must be at least {least}, but is {least - 1}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mask", "--out", "m.pdf"], "must end in .svg, .html or .png"),
        (["mask", "--prefix", "20", "--out", "m.svg"], "--prefix must be from 0 to the length, 12, but is 20"),
        (["mask", "--window", "0", "--out", "m.svg"], "--window must be at least 1, but is 0"),
        (["mask", "--documents", "3", "0", "--out", "m.svg"], "--documents must be at least 1, but is 0"),
        (["mask", "--length", "4097", "--out", "m.svg"], "a picture has at most 4,096 positions, but --length is 4,097"),
        (["position", "alibi", "--length", "0", "--out", "m.svg"], "--length must be at least 1, but is 0"),
        (["position", "alibi", "--num_heads", "0", "--out", "m.svg"], "--num_heads must be at least 1, but is 0"),
        (["position", "rotary", "--d_model", "3", "--out", "m.svg"], "--d_model must be at least 4, but is 3"),
        (["position", "rotary", "--num_heads", "3", "--out", "m.svg"], "fraction 1.0 gives 21 (--d_model 64, --num_heads 3)"),
        (
            ["score", "additive", "--seed", str(2**70), "--out", "s.svg"],
            "--seed: must be from 0 to 4294967295, but is 1180591620717411303424",
        ),
        (["position", "learned", "--seed", "-1", "--out", "s.svg"], "--seed: must be from 0 to 4294967295, but is -1"),
        (["score", "additiv", "--out", "s.svg"], "Did you mean 'additive'"),
    ],
)
def test_a_wrong_command_is_explained(arguments, message, capsys) -> None:
    assert main(["draw", *arguments]) == 2
    assert message in capsys.readouterr().err
