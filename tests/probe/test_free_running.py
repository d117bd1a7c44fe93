"""Errors when a model reads its own output."""

import pytest
import torch

from tests.probe.subjects import DECODER, SUBJECTS, ask, subject

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),  # Lightning 2.6 on torch 2.13
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


def test_the_first_token_errs_equally_with_and_without_teacher_forcing() -> None:
    for kind in ("decoder", "encoder_decoder"):
        rows = ask("free_running", *SUBJECTS[kind]())
        assert len(rows) == 5  # four symbols and the end
        assert rows[0]["teacher_forced"] == rows[0]["free_running"]
        assert 0 < rows[0]["free_running"] <= 1


@pytest.mark.parametrize("document_mask", [False, True])
def test_free_running_stays_within_the_document_under_a_document_mask(tmp_path, document_mask) -> None:
    texts = [" ".join("abc"[(i * j) % 3] for j in range(1 + i % 4)) for i in range(40)]
    (tmp_path / "a.txt").write_text("|".join(texts))
    corpus = {"name": str(tmp_path / "a.txt"), "separator": "|", "validation_fraction": 0.4}
    text = {"name": "text", "corpus": corpus, "tokenizer": "word", "context": 8, "batch_tokens": 64, "document_mask": document_mask}
    task, data = subject({**DECODER, "position": "rotary"}, data=text)
    task.configure_model()
    torch.nn.init.normal_(task.model.embedding.weight, generator=torch.Generator().manual_seed(1))
    task.eval()
    expected: dict[int, list[tuple[bool, bool]]] = {}
    (batch,) = list(data.val_dataloader())[:1]
    for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
        place = max(4, int((targets != 0).int().argmax()) + 1)
        begins = int((tokens[:place] == 1).nonzero().max()) if document_mask and (tokens[:place] == 1).any() else 0
        read = tokens[begins:place].tolist()
        for t, truth in enumerate(targets[place - 1 :].tolist()):
            first = int((tokens[: place + t] == 1).nonzero().max()) if document_mask and (tokens[: place + t] == 1).any() else 0
            with torch.no_grad():
                forced = int(task.model(tokens[None, first : place + t])[0, -1].argmax())
                free = 0 if 2 in read else int(task.model(torch.tensor([read]))[0, -1].argmax())
            read.append(free)
            expected.setdefault(t, []).append((forced != truth, free != truth))
            if truth == 2:
                break
    rows = ask({"name": "free_running", "batches": 1}, task, data)
    assert len(rows) == len(expected) > 2
    for t, pairs in expected.items():
        assert [rows[t]["teacher_forced"], rows[t]["free_running"]] == pytest.approx(torch.tensor(pairs).double().mean(0).tolist())
