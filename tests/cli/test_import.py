"""`attnkit import` writes a file that the other commands read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attnkit.checkpoint import load_exported
from attnkit.convert.vocabulary import SPECIAL
from attnkit.task import Task
from tests.convert.models import edit
from tests.convert.test_round_trip import compare
from tests.convert.test_vocabulary import written

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(("kind", "split"), [("llama", "llama3"), ("gpt2", "gpt2")])  # one of them stores fused weights
def test_an_imported_model_generates_the_same_texts(kind: str, split: str, attnkit: Any, tmp_path: Path) -> None:
    model, tokenizer = written(tmp_path / "model", split, kind)
    file = tmp_path / "an imported.safetensors"
    outcome = attnkit("import", tmp_path / "model", "--out", file)
    assert outcome.status == 0, outcome.err
    assert "causal_lm" in outcome.out
    assert f"attnkit generate '{file}'" in outcome.out
    end = tokenizer.get_vocab_size() - 1
    start = torch.tensor([[end - 1, *tokenizer.encode("in the").ids]])
    written_ids = model.generate(start, attention_mask=torch.ones_like(start), do_sample=False, max_new_tokens=12, pad_token_id=0)[0]
    new = [SPECIAL + i - 2 * (i > end) for i in written_ids[start.shape[1] :].tolist() if i not in (end - 1, end)]
    task = load_exported(file)
    assert task.generate(["in the"], max_length=12) == [task.tokenizer.decode(new)]
    outcome = attnkit("generate", file, "in the", "--max_length", 12)
    assert outcome.status == 0, outcome.err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "is not the folder of a published model"),
        ("{", "cannot be read"),
        ({"model_type": "lama"}, "attnkit cannot import model_type 'lama'. Did you mean 'llama'?"),
        ({"model_type": "t5"}, "It can import gpt2, gpt_neox, llama"),
        ({"model_type": "llama"}, "has no field hidden_size"),
    ],
)
def test_an_impossible_import_is_reported(attnkit: Any, config: Any, message: str, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    outcome = attnkit("import", tmp_path, "--out", tmp_path / "imported.safetensors")
    assert outcome.status == 2
    assert message in outcome.err
    assert not (tmp_path / "imported.safetensors").exists()


def test_the_output_file_name_is_checked_first(attnkit: Any, tmp_path: Path) -> None:
    outcome = attnkit("import", tmp_path / "none", "--out", tmp_path / "imported.pt")
    assert outcome.status == 2
    assert "ends in .safetensors" in outcome.err
    (folder := tmp_path / "a.safetensors").mkdir()
    outcome = attnkit("import", tmp_path / "none", "--out", folder)
    assert outcome.status == 2
    assert "a.safetensors is a folder: choose the name of a file" in outcome.err


def test_files_of_the_published_model_are_not_overwritten(attnkit: Any, tmp_path: Path) -> None:
    written(tmp_path, "llama3")
    before = (tmp_path / "model.safetensors").read_bytes()
    outcome = attnkit("import", tmp_path, "--out", tmp_path / "model.safetensors")
    assert outcome.status == 2
    assert "is a file of the published model: choose another name" in outcome.err
    assert (tmp_path / "model.safetensors").read_bytes() == before


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no folder that cannot be written, even by root")
def test_an_unwritable_output_file_is_reported(attnkit: Any, tmp_path: Path) -> None:
    written(tmp_path, "llama3")
    outcome = attnkit("import", tmp_path, "--out", "/proc/model.safetensors")
    assert outcome.status == 2
    assert "/proc/model.safetensors cannot be written" in outcome.err


def test_a_run_can_start_from_an_imported_model_and_its_tokenizer(attnkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "model", "llama3")
    assert attnkit("import", "model", "--out", "imported.safetensors").status == 0
    Path("text.txt").write_text("in the beginning God created the heaven and the earth\n" * 100)
    recipe = {
        "model": {"name": "causal_lm", "init_from": "imported.safetensors", "optimizer": {"name": "sgd", "lr": 0.0}},
        "data": {"name": "text", "corpus": {"name": "text.txt", "validation_fraction": 0.1}, "context": 32, "batch_tokens": 512},
        "trainer": {"max_steps": 1, "limit_val_batches": 0},
    }
    Path("recipe.yaml").write_text(json.dumps(recipe))
    outcome = attnkit("fit", "--config", "recipe.yaml")
    assert outcome.status == 0, outcome.err
    assert "newly initialised" not in outcome.out + outcome.err
    imported, trained = (load_exported("imported.safetensors"), Task.load("runs/recipe/version_0/checkpoints/last.ckpt"))
    assert trained.tokenizer.spec == imported.tokenizer.spec
    for name, weight in imported.state_dict().items():
        assert torch.equal(trained.state_dict()[name], weight), name


@pytest.mark.parametrize("same_ends", [False, True])
def test_a_model_is_imported_trained_and_exported(attnkit: Any, same_ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, tokenizer = written(tmp_path / "model", "gpt2", "gpt2")
    if same_ends:
        edit(tmp_path / "model", bos_token_id=tokenizer.get_vocab_size() - 1)
    assert attnkit("import", "model", "--out", "imported.safetensors").status == 0
    Path("text.jsonl").write_text('{"text": "in the beginning God created the heaven"}\n' * 200)
    recipe = {
        "model": {"name": "causal_lm", "init_from": "imported.safetensors", "optimizer": {"name": "adamw", "lr": 1e-2}},
        "data": {"name": "text", "corpus": {"name": "text.jsonl", "validation_fraction": 0.1}, "context": 32, "batch_tokens": 512},
        "trainer": {"max_steps": 150, "limit_val_batches": 0},
    }
    Path("recipe.yaml").write_text(json.dumps(recipe))
    outcome = attnkit("fit", "--config", "recipe.yaml")
    assert outcome.status == 0, outcome.err
    checkpoint = "runs/recipe/version_0/checkpoints/last.ckpt"
    outcome = attnkit("export", checkpoint, "--out", "out", "--format", "transformers")
    assert outcome.status == 0, outcome.err
    assert outcome.out.splitlines()[0] == "Wrote out: gpt2"
    assert ("note: tie_word_embeddings is false" in outcome.out) is same_ends
    task, imported = Task.load(checkpoint).eval(), load_exported("imported.safetensors")
    assert all(not torch.equal(task.state_dict()[name], x) for name, x in imported.state_dict().items())
    compare(task, tmp_path / "out", same_ends=same_ends)
