"""How large logits are, and how sharp the weights."""

from types import SimpleNamespace

import pytest
import torch

from tests.probe.subjects import DECODER, PAIRS, ask, subject


def test_unscaled_logits_have_head_width_times_the_variance() -> None:
    for width in (8, 32):
        found = [ask("saturation", *subject({**DECODER, "attention": name}, width=width)) for name in ("dot_product", "scaled_dot_product")]
        assert found[0][0]["variance"] == pytest.approx(found[1][0]["variance"] * width / 2, rel=1e-4)
        assert found[0][0]["entropy"] < found[1][0]["entropy"]


def test_saturation_uses_the_weights_of_the_normalizer() -> None:
    soft, sparse, sigmoid = (
        ask("saturation", *subject({**DECODER, "mixer": {"name": "multi_head", "normalizer": normalizer}}))[0]
        for normalizer in ("softmax", {"name": "entmax", "alpha": 2.0}, {"name": "sigmoid", "bias": -9.0})
    )
    assert soft["variance"] == sparse["variance"] == sigmoid["variance"]
    assert sparse["entropy"] < 0.9 * soft["entropy"]
    assert sparse["largest_weight"] > soft["largest_weight"] > 100 * sigmoid["largest_weight"]
    assert 0 < sigmoid["entropy"] <= 1


def test_requested_widths_build_new_models_of_the_same_spec() -> None:
    task, data = subject({**DECODER, "attention": "dot_product"})
    rows = ask({"name": "saturation", "widths": [16, 256], "seed": 0}, task, data)
    assert [row["width"] for row in rows] == [16, 256]
    assert rows[0]["variance"] == pytest.approx(ask("saturation", task, data)[0]["variance"])  # the same seed as the subject's
    assert rows[1]["variance"] > 4 * rows[0]["variance"]
    assert rows[1]["largest_weight"] > rows[0]["largest_weight"]


@pytest.mark.parametrize("kind", ["causal_lm", "seq2seq"])
def test_saturation_averages_over_real_queries_of_all_batches(kind: str) -> None:
    if kind == "seq2seq":
        task, _ = subject({"name": "encoder_decoder", "num_heads": 2}, task=kind, data=PAIRS, metrics=[])
        rows = [
            {"src": torch.tensor([src]), "tgt": torch.tensor([tgt])} for src, tgt in (([4, 5, 6, 2], [1, 7, 2]), ([6, 2], [1, 7, 8, 5, 2]))
        ]
    else:
        task, _ = subject(DECODER)
        rows = [{"tokens": torch.tensor([ids]), "targets": torch.tensor([[*ids[1:], 2]])} for ids in ([1, 4, 5, 6, 7], [1, 6, 5])]
    together = {name: torch.nn.utils.rnn.pad_sequence([row[name][0] for row in rows], batch_first=True) for name in rows[0]}
    more = {name: x + (x == 6).long() for name, x in rows[0].items()}
    task.configure_model()

    def asked(batches):
        loader = torch.utils.data.DataLoader(batches, batch_size=None)
        return ask({"name": "saturation", "batches": len(batches)}, task, SimpleNamespace(val_dataloader=lambda: loader))

    alone = [asked([row]) for row in (*rows, more)]
    for found, *parts in zip(asked([together, more]), *alone, strict=True):
        counts = []
        for row in (*rows, more):  # the queries with at least two keys
            read = row["tgt"].shape[1] - 1 if kind == "seq2seq" else row["tokens"].shape[1]
            counts.append(row["src"].shape[1] if "encoder" in found["layer"] or "cross" in found["layer"] else read)
            if "cross" in found["layer"]:
                counts[-1] = read
            elif "encoder" not in found["layer"].split(".")[1]:
                counts[-1] = read - 1
        for name in ("variance", "entropy", "largest_weight"):
            expected = sum(n * part[name] for n, part in zip(counts, parts, strict=True)) / sum(counts)
            assert found[name] == pytest.approx(expected, rel=1e-5)
