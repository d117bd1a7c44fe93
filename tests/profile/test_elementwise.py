"""The count of element-wise operations, against counts by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import attnkit
from attnkit.attention import Attention
from attnkit.profile.elementwise import ElementwiseCounter, elementwise_operations
from tests.profile.test_flops import BOTH, SIZE
from tests.task.conftest import TOKENIZER


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda x: x * 2 + 1, 2 * 24),
        (lambda x: x.sum(1), 24),
        (lambda x: x.cumsum(1), 24),
        (lambda x: x.softmax(-1), 5 * 24),  # maximum, difference, exponential, sum, quotient
        (lambda x: x @ x.T, 0),  # a matrix product is among the FLOPs
        (lambda x: x.T.reshape(4, 6).contiguous()[1:].clone(), 0),
        (lambda x: torch.fft.fft(torch.complex(x, x), dim=1), 5 * 24 * 2),
        (lambda x: torch.fft.rfft(x, dim=1), 2.5 * 24 * 2),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), dim=1), 2 * 2.5 * 24 * 2),
    ],
)
def test_operations_match_counts_by_hand(compute: Any, expected: int) -> None:
    with ElementwiseCounter() as counter:
        compute(torch.ones(6, 4))
    assert counter.total == expected


class L1(Attention):
    """A score without matrix products."""

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return -(query[:, :, :, None] - key[:, :, None]).abs().sum(-1)


class Dearer(L1):
    """One more operation for each channel of a pair."""

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return -(query[:, :, :, None] - key[:, :, None]).square().abs().sum(-1)


def test_a_custom_score_without_matrix_products_is_counted() -> None:
    counts = []
    for score in ("L1", "Dearer"):
        stack = {"name": "decoder", **SIZE, "num_heads": 4, "attention": {"class_path": f"{__name__}.{score}"}}
        task: Any = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": TOKENIZER.spec})
        counts.append(elementwise_operations(task, 7, 0))
    assert counts[1] - counts[0] == SIZE["num_layers"] * SIZE["d_model"] * 7 * 7


def test_a_pass_on_meta_tensors_counts_like_a_real_one() -> None:
    task: Any = attnkit.tasks.build({"name": "seq2seq", "stack": {"name": "recurrent_encoder_decoder", **SIZE, "cell": "gru"}, **BOTH})
    task.configure_model()
    with ElementwiseCounter() as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        task.double().train().model(torch.randint(5, 10, (1, 6)), torch.randint(5, 10, (1, 4)))
    assert elementwise_operations(task, 6, 4) == counter.total


def test_elementwise_operations_of_further_tokens_are_counted() -> None:
    task: dict[str, Any] = {"name": "causal_lm", "stack": {"name": "decoder", **SIZE, "num_heads": 2}, "tokenizer": TOKENIZER.spec}
    several = {**task, "multi_token": {"name": "independent", "num_tokens": 3}}
    assert elementwise_operations(attnkit.tasks.build(several), 5, 0) > elementwise_operations(attnkit.tasks.build(task), 5, 0)


def test_frames_are_rounded_up_to_the_stacking_factor() -> None:
    tokenizer = attnkit.tokenizers.build("character").train(["ab"]).spec
    embedding = {"name": "frames", "stacking": 3}
    task: Any = attnkit.tasks.build(
        {
            "name": "seq2seq",
            "stack": {"name": "encoder_decoder", **SIZE, "num_heads": 2},
            "src_embedding": embedding,
            "src_shape": [8],
            "tgt_tokenizer": tokenizer,
        }
    )
    assert elementwise_operations(task, 4, 2) == elementwise_operations(task, 6, 2) > elementwise_operations(task, 3, 2)
