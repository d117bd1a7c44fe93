"""The loss when the input is shuffled."""

import pytest
import torch

from attnkit.probe.order import shuffle
from tests.probe.subjects import DECODER, ask, subject


def test_an_unshuffled_order_does_not_change_the_loss() -> None:
    task, data = subject(DECODER)
    first, last = ask({"name": "order", "kept": [0, 100]}, task, data)
    assert last["loss"] == last["loss_in_order"] == first["loss_in_order"]
    assert first["loss"] != first["loss_in_order"]


def test_only_the_last_token_of_each_running_text_window_is_scored(tmp_path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(f"{i * i % 19}" for i in range(400)), encoding="utf-8")
    corpus = {"name": str(tmp_path / "text.txt"), "validation_fraction": 0.5}
    task, data = subject(
        DECODER, data={"name": "text", "corpus": corpus, "tokenizer": "word", "context": 8, "stride": 4, "batch_tokens": 64}
    )
    [row] = ask({"name": "order", "kept": [0], "batches": 1}, task, data)
    batch = next(iter(data.val_dataloader()))
    last = (batch["tokens"] != 0).sum(1, keepdim=True) - 1
    assert (batch["targets"][1:, :4] == 0).all(), "the windows overlap"
    task.eval()
    with torch.no_grad():
        scores = task(batch["tokens"]).log_softmax(-1).gather(2, batch["targets"][..., None])[..., 0].gather(1, last)
    assert row["loss_in_order"] == pytest.approx(-float(scores.mean()), rel=1e-5)
    assert len(ask("free_running", task, data)) == 5  # the targets after half of a window


def test_a_shuffle_moves_only_permitted_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.cat([torch.ones(6, 1, dtype=torch.int64), torch.arange(10, 22).expand(6, -1), torch.zeros(6, 2, dtype=torch.int64)], 1)
    end = torch.tensor([0, 1, 2, 5, 9, 13])
    shuffled = shuffle(tokens, end, generator)
    for row in range(6):
        assert torch.equal(shuffled[row, end[row] :], tokens[row, end[row] :])
        assert shuffled[row, 0] == 1
        assert sorted(shuffled[row].tolist()) == sorted(tokens[row].tolist())
    assert not torch.equal(shuffled[5], tokens[5])
