"""A mesh of 2 x 2: layers are split over two processes, and what is left is sharded over two such pairs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnkit.task import Task
from tests.strategy.conftest import TASK, fit_alone, largest_difference, make_batch, make_task, make_words
from tests.strategy.test_parallel_models import SPLIT, check, inputs, model

pytestmark = pytest.mark.slow

CLIP = 0.2  # much below the norm of the gradients


def test_a_two_by_two_mesh_reaches_the_weights_of_one_process(run_processes: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    words = [[make_words(n) for n in sizes] for sizes in ((3, 5), (1, 4))]  # [step][pair of processes]
    whole = [make_batch([w for part in step for w in part]) for step in words]
    pairs = [[make_batch(step[pair]) for step in words] for pair in range(2)]
    alone, unclipped = make_task(), make_task()
    start = {name: weight.clone() for name, weight in alone.state_dict().items()}
    unclipped.load_state_dict(start)
    fit_alone(alone, whole, max_epochs=1, gradient_clip_val=CLIP)
    fit_alone(unclipped, whole, max_epochs=1)
    strategy = {"tensor_parallel_size": 2, "save_distributed_checkpoint": True}
    fit = {"task": TASK, "weights": start, "train": pairs, "trainer": {"gradient_clip_val": CLIP}, "strategy": strategy}
    given = {"model": model("encoder_decoder", **SPLIT["encoder_decoder"]), "inputs": inputs("encoder_decoder", 2), "tensor_parallel": 2}
    results = run_processes(4, {"mesh": ("gradients", given), "fit": ("fit", fit | {"save": str(tmp_path / "mesh.ckpt")})})
    check(results["mesh"], smaller=0.35)
    weights = dict(Task.load(tmp_path / "mesh.ckpt").state_dict())
    assert results["fit"]["steps"] == 2
    assert largest_difference(weights, dict(alone.state_dict())) < 1e-9
    assert largest_difference(weights, dict(unclipped.state_dict())) > 1e-5, "clipping changes nothing, so that it proves nothing"
