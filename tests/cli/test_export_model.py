"""`attnkit export --format transformers` writes a trained language model as a folder that transformers reads."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attnkit.checkpoint import load_exported
from attnkit.task import Task

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
STACK = {
    "name": "decoder", "d_model": 16, "num_layers": 2, "num_heads": 2, "attention": "scaled_dot_product", "position": "rotary",
    "norm": "rms_norm", "feed_forward": "glu", "bias": False, "dropout": 0.1,
}  # fmt: skip
TEXT = "In the beginning God created the heaven and the earth.\nIt's  안녕 🙂 (1,000)\n" * 60


@pytest.fixture
def trained(attnkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that trains a language model, and returns its checkpoint."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT)

    def train(tokenizer: Any = None, callbacks: Any = None, **stack: Any) -> str:
        recipe = {
            "model": {"name": "causal_lm", "stack": {**STACK, **stack}, "tie": "none", "optimizer": {"name": "adamw", "lr": 1e-2}},
            "data": {
                "name": "text", "corpus": {"name": "text.txt", "validation_fraction": 0.2}, "context": 32, "batch_tokens": 512,
                "tokenizer": tokenizer or {"name": "bpe", "vocab_size": 300},
            },
            "trainer": {"max_steps": 12, "limit_val_batches": 1, **({} if callbacks is None else {"callbacks": callbacks})},
        }  # fmt: skip
        Path("recipe.yaml").write_text(json.dumps(recipe))
        outcome = attnkit("fit", "--config", "recipe.yaml")
        assert outcome.status == 0, outcome.err
        return "runs/recipe/version_0/checkpoints/last.ckpt"

    return train


def read(folder: str) -> tuple[Any, Any]:
    """Return the model and the tokenizer that transformers makes of a folder."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval(), transformers.AutoTokenizer.from_pretrained(folder)


def continued(folder: str, texts: list[str], length: int) -> list[str]:
    """Return the continuations of transformers."""
    model, tokenizer = read(folder)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    tokens = model.generate(**batch, do_sample=False, max_new_tokens=length)
    return tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def test_a_trained_model_generates_the_same_texts_in_transformers(attnkit: Any, trained: Any) -> None:
    checkpoint = trained()
    outcome = attnkit("export", checkpoint, "--out", "out", "--format", "transformers")
    assert outcome.status == 0, outcome.err
    assert outcome.out.splitlines() == ["Wrote out: llama", "  note: the embeddings are stored multiplied by 4"]
    task, texts = Task.load(checkpoint), ["In the", "", "It's  안녕 🙂", "God created the heaven"]
    assert continued("out", texts, 12) == task.generate(texts, max_length=12)
    model, tokenizer = read("out")
    assert (model.config.max_position_embeddings, tokenizer.model_max_length) == (32, 32)
    ids = torch.tensor([tokenizer("It's  안녕 🙂 (1,000)")["input_ids"]])
    assert ids[0].tolist() == task.input_ids("It's  안녕 🙂 (1,000)")
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, task.eval()(ids), rtol=1e-4, atol=1e-5)


def test_an_exported_file_is_exported_too(attnkit: Any, trained: Any) -> None:
    checkpoint = trained()
    assert attnkit("export", checkpoint, "--out", "model.safetensors").status == 0
    outcome = attnkit(
        "export", "model.safetensors", "--out", "deep/out", "--format", "transformers", "--model_type", "granite", "--context", 77
    )
    assert outcome.status == 0, outcome.err
    assert outcome.out == "Wrote deep/out: granite\n"
    assert read("deep/out")[0].config.max_position_embeddings == 77
    assert continued("deep/out", ["In the"], 9) == load_exported("model.safetensors").generate(["In the"], max_length=9)
    outcome = attnkit("export", "model.safetensors", "--out", "other", "--format", "transformers")
    assert "note: max_position_embeddings is 2048, because the model does not limit how many tokens it reads" in outcome.out


def test_averaged_weights_are_exported(attnkit: Any, trained: Any) -> None:
    checkpoint = trained(callbacks=[{"class_path": "EMAWeightAveraging", "init_args": {"decay": 0.5}}])
    outcome = attnkit("export", checkpoint, "--out", "out", "--format", "transformers")
    assert "Wrote out: llama (averaged weights)" in outcome.out
    saved = torch.load(checkpoint, weights_only=True)
    averages = Task.load(checkpoint).state_dict()["model.embedding.weight"]
    table = read("out")[0].model.embed_tokens.weight
    assert table.equal(averages * 4)
    assert "averaging_state" in saved


def test_an_unsupported_tokenizer_is_reported(attnkit: Any, trained: Any) -> None:
    checkpoint = trained(tokenizer={"name": "word", "punctuation": "apart"})
    outcome = attnkit("export", checkpoint, "--out", "out", "--format", "transformers")
    assert outcome.status == 0
    assert "note: written without a tokenizer, because the model's, 'word', cannot be expressed: the library cannot split" in outcome.out
    assert {path.name for path in Path("out").iterdir()} == {"config.json", "generation_config.json", "model.safetensors"}


def test_an_impossible_export_is_reported_and_writes_nothing(attnkit: Any, trained: Any) -> None:
    checkpoint = trained(position="alibi")
    before = set(Path().iterdir())
    outcome = attnkit("export", checkpoint, "--out", "out", "--format", "transformers")
    assert outcome.status == 2
    assert "llama cannot express position: alibi, and no other family" in outcome.err
    outcome = attnkit("export", checkpoint, "--out", "out", "--model_type", "llama")
    assert outcome.status == 2
    assert "--model_type and --context need --format transformers" in outcome.err
    assert set(Path().iterdir()) == before


def test_a_folder_with_files_is_not_overwritten(attnkit: Any, trained: Any) -> None:
    checkpoint = trained()
    Path("out").mkdir()
    Path("out/mine.txt").write_text("mine")
    Path("file").write_text("mine")
    for name in ("out", "file"):
        outcome = attnkit("export", checkpoint, "--out", name, "--format", "transformers")
        assert outcome.status == 2
        assert f"{name} exists and is not an empty folder" in outcome.err
    assert [path.name for path in Path("out").iterdir()] == ["mine.txt"]
    Path("empty").mkdir()
    Path(checkpoint).chmod(0o600)
    assert attnkit("export", checkpoint, "--out", "empty", "--format", "transformers").status == 0
    assert {path.stat().st_mode & 0o777 for path in Path("empty").iterdir()} == {0o600}


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals")
def test_a_killed_export_leaves_no_folder(trained: Any) -> None:
    checkpoint = trained()
    code = (
        "import os, signal\nfrom attnkit.convert import exporting\nfrom attnkit.cli.main import main\n"
        "save = exporting.save_file\n"
        "exporting.save_file = lambda *a, **k: (save(*a, **k), os.kill(os.getpid(), signal.SIGKILL))\n"
        f"main(['export', {checkpoint!r}, '--out', 'out', '--format', 'transformers'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, env=os.environ)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not Path("out").exists()
    assert list(Path().glob(".out.*.tmp/model.safetensors"))
