"""`attnkit probe`."""

import json
import wave
from pathlib import Path

import pytest
import torch

from attnkit.checkpoint import export
from attnkit.cli.main import main
from attnkit.cli.probe import _subject
from attnkit.data import PromptedText
from attnkit.probe.cost import Cost

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),  # Lightning 2.6 on torch 2.13
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


def test_probe_prints_its_limits_and_a_table_and_writes_both_files(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--model.stack.num_layers=1", "--length", "5", "--out", "g.svg", "--out=g.json"]
    assert main(["probe", "gradient", "synthetic/decoder", *flags]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("gradient: It shows how strongly")
    rows = json.loads((tmp_path / "g.json").read_text())["rows"]
    assert [row["distance"] for row in rows] == [0, 1, 2, 4]
    assert f"{rows[-1]['gradient']:.4g}" in shown
    assert (tmp_path / "g.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(("flags", "device"), [([], "meta"), (["--clock", "cpu"], "cpu")])
def test_probe_uses_a_gpu_if_available(flags, device, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    devices = []
    monkeypatch.setattr(Cost, "rows", lambda self, task, data: (devices.extend(p.device.type for p in task.parameters()), [])[1])
    monkeypatch.setattr("attnkit.cli.probe.best_device", lambda: torch.device("meta"))
    assert main(["probe", "cost", "synthetic/decoder", *flags]) == 0
    assert {*devices} == {device}


def test_the_seed_also_governs_what_the_data_draw(monkeypatch) -> None:
    """The weights are the same, whether the data draw the task's arguments or not."""
    original, drawn, weights = PromptedText.tokenizer_spec, [], []

    def drawing(self) -> object:
        drawn.append(torch.rand(1).item())
        return original.__get__(self)

    for state, spec in enumerate((original, property(drawing), property(drawing))):
        torch.manual_seed(state)
        monkeypatch.setattr(PromptedText, "tokenizer_spec", spec)
        task, _ = _subject("synthetic/decoder", [], {"data": {"corpus": {"train_rows": 64}}}, 0, needs_data=True, command=[])
        task.configure_model()
        weights.append(next(task.parameters()))
    assert drawn
    assert drawn[: len(drawn) // 2] == drawn[len(drawn) // 2 :]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


TAGGED = {
    "model": {"name": "tagging", "stack": {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2}},
    "data": {"name": "tagged_text", "tokenizer": "word"},
}
SPOKEN = {
    "model": {
        "name": "seq2seq",
        "stack": {"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 2},
        "src_embedding": "frames",
        "max_length": 5,
        "metrics": [],
    },
    "data": {"name": "signal_text"},
}


@pytest.mark.parametrize(("recipe", "probe"), [(TAGGED, "layers"), (SPOKEN, "free_running")])
def test_probe_restores_the_data_state_of_a_checkpoint_or_export(recipe, probe, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    if recipe is TAGGED:
        Path("mine.jsonl").write_text('{"words": "a b", "tags": "X Y"}\n' * 4, encoding="utf-8")
        corpus = "mine.jsonl"
    else:
        with wave.open("a.wav", "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(bytes(2 * 16 * 60))
        Path("mine.tsv").write_text("a.wav\tno\n" * 4, encoding="utf-8")
        corpus = "mine.tsv"
    files = {"name": "files", "train": corpus, "validation": corpus}
    Path("mine.yaml").write_text(json.dumps({**recipe, "data": {**recipe["data"], "corpus": files}}), encoding="utf-8")
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    assert main(["fit", "--config", "mine.yaml", "--trainer.max_steps=1", *quiet]) == 0
    [checkpoint] = Path("runs").rglob("last.ckpt")
    capsys.readouterr()
    assert main(["probe", probe, str(checkpoint)]) == 0
    answer = capsys.readouterr().out
    assert f"{probe}: It shows" in answer
    export(checkpoint, "mine.safetensors")
    assert main(["probe", probe, "mine.safetensors", "--config", "mine.yaml"]) == 0
    assert capsys.readouterr().out == answer
    assert main(["probe", probe, "mine.safetensors"]) == 2
    assert "missing data: add --config RECIPE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gradiant", "synthetic/decoder"], "Did you mean 'gradient'"),
        (["gradient", "synthetic/decoder", "--length", "many"], "length must be int"),
        (["gradient", "synthetic/decoder", "--long", "5"], "has no argument 'long'"),
        (["gradient", "synthetic/decoder", "--out", "g.png"], "must end in .json or .svg"),
        (["word_map", "synthetic/decoder", "--words", "[1, 2]"], "words must be Sequence[str], but is [1, 2]"),
        (["gradient", "nothing.ckpt"], "nothing.ckpt"),
    ],
)
def test_a_wrong_command_is_explained(arguments, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["probe", *arguments]) == 2
    assert message in capsys.readouterr().err
