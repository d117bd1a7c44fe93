"""The count of element-wise operations, against counts by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import attnkit
from attnkit.attention import Attention
from attnkit.profile.elementwise import ElementwiseCounter, elementwise_operations, register_elementwise_formula
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


@torch.library.custom_op("attnkit_tests::distance", mutates_args=())
def distance(query: Tensor, key: Tensor, exponent: float = 1.0) -> Tensor:
    return torch.cdist(query, key, p=exponent)


@distance.register_fake
def _(query: Tensor, key: Tensor, exponent: float = 1.0) -> Tensor:
    return query.new_empty(*query.shape[:-1], key.shape[-2])


class Fused(Attention):
    """A score that one operator computes."""

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        logits: Tensor = -distance(query, key, exponent=1.0)
        return logits


def test_an_operator_declares_its_element_wise_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.profile.elementwise.FORMULAS", {})
    stack = {"name": "decoder", **SIZE, "num_heads": 4, "attention": {"class_path": f"{__name__}.Fused"}}
    task: Any = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": TOKENIZER.spec})
    before = elementwise_operations(task, 7, 0)

    @register_elementwise_formula(torch.ops.attnkit_tests.distance)
    def _(query: torch.Size, key: torch.Size, exponent: float = 1.0, *, out_shape: torch.Size) -> int:
        assert key == query  # [1, 4, 7, A]
        assert exponent == 1.0
        return 3 * out_shape.numel() * query[-1]

    assert elementwise_operations(task, 7, 0) - before == 3 * SIZE["num_layers"] * SIZE["d_model"] * 7 * 7


def test_a_formula_of_something_else_is_refused() -> None:
    for other in (distance, torch.ops.attnkit_tests.distance.default):
        with pytest.raises(TypeError, match=r"such as torch\.ops\.mine\.distance, without its overload"):
            register_elementwise_formula(other)  # type: ignore[arg-type]


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
