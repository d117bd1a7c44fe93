"""Every task, in two processes: sharded, and split where its stack can be, it ends with the weights of one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnkit
from tests.strategy.conftest import TASK, TOKENIZER, fit_alone, largest_difference, make_batch, make_task, make_words

pytestmark = pytest.mark.slow

WITH_MASK = attnkit.tokenizers.build({"name": "character", "extra_tokens": ["<mask>"]}).train(["abcdef"])
ENCODER = {"name": "encoder", "d_model": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.0}
COMMON = {"optimizer": {"name": "adamw", "lr": 0.01}, "schedule": {"name": "constant"}}
TASKS: dict[str, dict[str, Any]] = {
    "causal_lm": {"name": "causal_lm", "stack": ENCODER | {"name": "decoder", "position": "rotary"}, "tokenizer": TOKENIZER.spec},
    "masked_lm": {"name": "masked_lm", "stack": ENCODER, "tokenizer": WITH_MASK.spec, "mask_probability": 0.5},
    "classification": {
        "name": "classification", "stack": ENCODER | {"position": {"name": "learned", "max_length": 5}}, "image_shape": [1, 8, 8],
        "classes": ["a", "b", "c"], "embedding": {"name": "patch", "patch_size": 4}, "pooling": "class_token", "label_smoothing": 0.1,
    },
    "regression": {
        "name": "regression", "stack": {"name": "recurrent_encoder", "d_model": 8, "num_layers": 1}, "tokenizer": TOKENIZER.spec,
    },
    "recurrent seq2seq": TASK | {
        "stack": {"name": "recurrent_encoder_decoder", "d_model": 8, "num_layers": 1, "attention": "additive", "dropout": 0.0},
    },
}  # fmt: skip
SPLIT = ["causal_lm", "masked_lm", "classification"]


def rows(task: str, number: int) -> dict[str, Any]:
    """Return as many ragged examples."""
    if task == "recurrent seq2seq":
        return make_batch(make_words(number))
    if task == "classification":
        names = [str(i) for i in range(number)]
        return {"image": torch.randn(number, 1, 8, 8, dtype=torch.double), "label": torch.randint(3, (number,)), "text": names}
    tokens = torch.randint(5, 10, (number, 9)) * (torch.arange(9) < torch.randint(4, 10, (number, 1)))
    return {"tokens": tokens, "label": torch.randn(number, dtype=torch.double), "text": [""] * number}


def cut(batch: dict[str, Any], part: slice) -> dict[str, Any]:
    """Return some rows, of token ids no more columns than these need: processes have batches of different lengths."""
    rows = {key: value[part] for key, value in batch.items()}
    for key in rows.keys() & {"src", "tgt", "tokens"}:
        rows[key] = rows[key][:, : int((rows[key] > 0).sum(1).max())]
    return rows


@pytest.fixture(scope="module")
def given(run_processes: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The final weights of one process and of two."""
    alone: dict[str, Any] = {}
    payload: dict[str, Any] = {}
    for name, arguments in TASKS.items():
        task = make_task(**COMMON | arguments)
        start = {key: value.clone() for key, value in task.state_dict().items()}
        whole = [rows(name, 5), rows(name, 3)]
        fit_alone(task, whole, max_epochs=1, val=[rows(name, 2)])
        alone[name] = start, dict(task.state_dict())
        fit = {"task": COMMON | arguments, "weights": start}
        ranks = [[cut(b, slice(0, 1)) for b in whole], [cut(b, slice(1, None)) for b in whole]]
        payload[f"fsdp2 {name}"] = "fit", fit | {"train": ranks, "strategy": "fsdp2", "val": [[rows(name, 2)], [rows(name, 1)]]}
        if name in SPLIT:
            payload[f"fsdp2_tp2 {name}"] = "fit", fit | {"train": [whole], "strategy": "fsdp2_tp2"}
    pretrained = tmp_path_factory.mktemp("pretrained") / "masked_lm.ckpt"
    writer = make_task(**COMMON | TASKS["masked_lm"])
    fit_alone(writer, [rows("masked_lm", 4)], max_epochs=1).save_checkpoint(pretrained)
    still = {"optimizer": {"name": "sgd", "lr": 0.0}, "schedule": {"name": "constant"}, "init_from": str(pretrained)}
    texts = {"name": "classification", "stack": ENCODER, "tokenizer": WITH_MASK.spec, "classes": ["a", "b"]}
    labelled = cut(rows("masked_lm", 2), slice(None)) | {"label": torch.tensor([0, 1])}
    for strategy in ("fsdp2", "fsdp2_tp2"):
        payload[f"{strategy} from"] = "fit", {"task": texts | still, "weights": None, "train": [[labelled]], "strategy": strategy}
    return {"alone": alone, "runs": run_processes(2, payload), "pretrained": dict(writer.state_dict())}


@pytest.mark.parametrize("name", TASKS)
def test_sharded_tasks_reach_the_weights_of_one_process(given: dict[str, Any], name: str) -> None:
    start, expected = given["alone"][name]
    found = given["runs"][f"fsdp2 {name}"]["weights"]
    assert largest_difference(start, found) > 1e-3
    if name != "masked_lm":  # each process hides tokens of its own
        assert largest_difference(expected, found) < 1e-9


@pytest.mark.parametrize("name", SPLIT)
def test_split_tasks_reach_the_weights_of_one_process(given: dict[str, Any], name: str) -> None:
    assert largest_difference(given["alone"][name][1], given["runs"][f"fsdp2_tp2 {name}"]["weights"]) < 1e-9


@pytest.mark.parametrize("strategy", ["fsdp2", "fsdp2_tp2"])
def test_pretrained_weights_are_loaded_before_sharding(given: dict[str, Any], strategy: str) -> None:
    found = given["runs"][f"{strategy} from"]["weights"]
    same = [key for key in found if key.startswith(("model.embedding", "model.stack"))]
    assert len(same) > 10
    assert all(torch.equal(found[key].double(), given["pretrained"][key]) for key in same)
