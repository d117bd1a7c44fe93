"""Skip-gram and CBOW against a slow loop over the paper's equation, and what they learn."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader

import attnkit
from attnkit import ConfigurationError, datasets, draws, tasks, tokenizers
from attnkit.cli.main import main
from attnkit.task.word_vectors import WordVectors, draw_noise, neighbourhoods

WORDS = ["king", "queen", "dog", "cat", "eats", "rules", "the", "land", "bone"]
TOKENIZER = tokenizers.build("word").train([" ".join(WORDS)])
COUNTS = [0, 0, 0, 0, *range(1, 10)]
KEYS = torch.tensor([5, 6])
TOKENS = torch.tensor([[1, 4, 5, 6, 4, 1, 7, 8, 3, 9], [5, 12, 11, 10, 9, 8, 7, 6, 5, 4]])


def new(**arguments: Any) -> WordVectors:
    torch.manual_seed(0)
    task: WordVectors = tasks.build(
        {"name": "word_vectors", "tokenizer": TOKENIZER.spec, "counts": COUNTS, "d_model": 4, "window": 3, "negatives": 6, **arguments}
    )
    task.configure_model()
    torch.nn.init.normal_(task.model.output.weight)  # zero at first
    return task.double()


@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_the_loss_follows_the_papers_equation(objective: str) -> None:
    task = new(objective=objective)
    v, u = task.model.embedding.weight.detach(), task.model.output.weight.detach()
    found = neighbourhoods(TOKENS, window=3, keep=task.everything, keys=KEYS)
    noise = draw_noise(task.noise, TOKENS.shape, 6, KEYS)
    total, predicted = 0.0, 0
    for row in range(2):
        for t, centre in enumerate(found.centres[row].tolist()):
            around = [int(w) for w, used in zip(found.contexts[row, t], found.used[row, t], strict=True) if used]
            pairs = [(v[centre], o) for o in around] if objective == "skip_gram" else [(v[around].mean(0), centre)] if around else []
            for h, o in pairs:
                total -= math.log(torch.sigmoid(u[o] @ h))
                total -= sum(math.log(torch.sigmoid(-u[n] @ h)) for n in noise[row, t].tolist() if n != o)
                predicted += 1
    sums = task.sums(TOKENS, KEYS, task.everything)
    assert int(sums.targets) == predicted > 0
    assert float(sums.nll) == pytest.approx(total, rel=1e-12)


def test_pairs_match_a_slow_loop_and_stay_within_documents() -> None:
    everything = torch.ones(13, dtype=torch.float64)
    found = neighbourhoods(TOKENS, window=3, keep=everything, keys=KEYS)
    assert found.centres[0].tolist() == [4, 5, 6, 4, 7, 8, 9, 0, 0, 0]  # bos and <unk> are gone
    document = [0, 0, 0, 0, 1, 1, 1]
    for t in range(7):
        reached = [i for i in range(7) if i != t and document[i] == document[t]]
        contexts = found.contexts[0, t][found.used[0, t]].tolist()
        reaches = {r: [int(found.centres[0, i]) for i in reached if abs(i - t) <= r] for r in (1, 2, 3)}
        assert contexts in reaches.values()
    assert not found.used[0, 7:].any()


def test_nearby_words_are_paired_more_often() -> None:
    tokens = torch.full((400, 9), 5)
    found = neighbourhoods(tokens, window=4, keep=torch.ones(13, dtype=torch.float64), keys=torch.arange(400))
    rate = found.used[:, 4].double().mean(0)  # of the middle word, by offset
    assert rate.tolist() == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25], abs=0.08)


def test_subsampling_drops_frequent_words_and_brings_others_closer() -> None:
    task = new(subsample=0.01)
    frequency = torch.tensor(COUNTS[4:]) / sum(COUNTS)
    assert torch.allclose(task.keep[4:], (0.01 / frequency).sqrt().double(), atol=1e-6)
    keep = torch.ones(13, dtype=torch.float64)
    keep[5] = 0
    found = neighbourhoods(torch.tensor([[4, 5, 5, 6]]), window=1, keep=keep, keys=KEYS[:1])
    assert found.contexts[found.used].tolist() == [6, 4]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_fillers_contribute_no_words(objective: str) -> None:
    """A process without a row of its own gets a copy of another one, with a negative number (`attnkit.data.loading.Share`)."""
    task = new(objective=objective, subsample=0)
    row, filler = ({"tokens": TOKENS[:1], "example": torch.tensor([number])} for number in (3, -1))
    with draws.using(KEYS[:1]):
        assert int(task.objective(row).targets) > 0
        assert int(task.objective(filler).targets) == 0
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    alone, both = (trainer.validate(task, DataLoader(batches, batch_size=None), verbose=False) for batches in ([row], [row, filler]))
    assert alone == both


def test_overlapping_windows_predict_each_word_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(WORDS * 3))
    data = datasets.build(
        {"name": "text", "corpus": {"name": str(path), "validation": str(path)}, "tokenizer": TOKENIZER.spec, "context": 8, "stride": 5}
    )
    task, counts = new(objective="cbow"), []
    monkeypatch.setattr(task, "log_metrics", lambda stage, updates, **_: counts.append(int(updates["loss"][1])))
    for i, batch in enumerate(data.val_dataloader()):
        task.evaluate(batch, i, "val")
    assert sum(counts) == len(WORDS) * 3


def test_noise_follows_a_power_of_the_counts() -> None:
    task = new()
    noise = draw_noise(task.noise, torch.Size([100, 10]), 20, torch.arange(100)).flatten()
    expected = torch.tensor(COUNTS, dtype=torch.float64) ** 0.75
    assert (noise.bincount(minlength=13) / len(noise)).tolist() == pytest.approx((expected / expected.sum()).tolist(), abs=0.01)
    assert int(noise.min()) >= 4


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Kings and queens rule, dogs and cats eat."""
    generator = torch.Generator().manual_seed(0)
    lines = []
    for _ in range(400):
        is_royal, second = torch.randint(2, (2,), generator=generator).tolist()
        lines.append(f"{('king', 'queen')[second]} rules land" if is_royal else f"{('dog', 'cat')[second]} eats bone")
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(lines))
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_words_used_alike_become_neighbours(objective: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed_everything(1)
    corpus = {"name": str(text), "separator": "\n\n", "validation_fraction": 0.1, "test_fraction": 0.1}
    data = datasets.build({"name": "text", "corpus": corpus, "tokenizer": "word", "context": 32, "batch_tokens": 256})
    arguments = {
        "d_model": 8,
        "window": 2,
        "subsample": 0.0,
        "optimizer": {"name": "adam", "lr": 0.05},
        "questions": ["king", "dog cow cat"],
    }
    task = tasks.build({"name": "word_vectors", "objective": objective, "samples": 1, **arguments})
    trainer = Trainer(max_epochs=12, logger=False, default_root_dir=tmp_path, accelerator="cpu", enable_progress_bar=False)
    trainer.fit(task, data)
    assert {w: task.answer(w, 1).words[0][0] for w in ("king", "queen", "dog", "cat")} == {
        "king": "queen", "queen": "king", "dog": "cat", "cat": "dog",
    }  # fmt: skip
    printed = capsys.readouterr().out
    assert "  king: queen" in printed
    assert "cow" not in printed  # outside the vocabulary
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = WordVectors.load(tmp_path / "a.ckpt")
    assert torch.equal(again.space.vectors, task.space.vectors)

    assert main(["export", str(tmp_path / "a.ckpt"), "--out", str(tmp_path / "v.txt")]) == 0
    embedding = attnkit.embeddings.build(
        {"name": "pretrained", "path": str(tmp_path / "v.txt"), "dim": 8, "scale": False}, vocab_size=len(task.tokenizer), d_model=8
    )
    assert embedding.load_vectors(task.tokenizer.tokens(range(len(task.tokenizer)))).exact == len(task.tokenizer) - 4
    assert torch.equal(embedding.vectors[4:], task.model.embedding.weight[4:])


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigurationError, match="one word, or three"):
        new(questions=["a b"])
    with pytest.raises(ConfigurationError, match=r"no vector for 'kingg'.*'king'"):
        new().answer("kingg")
    with pytest.raises(ConfigurationError, match="3 counts, but the tokenizer has 13"):
        new(counts=[1, 2, 3])
    with pytest.raises(ConfigurationError, match="window must be at least 1"):
        new(window=0)
    with draws.using(KEYS[:1]), pytest.raises(ConfigurationError, match=r"set data\.document_mask to false"):
        new().objective({"tokens": TOKENS[:1], "documents": TOKENS[:1]})
