from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from attnkit.mixer.recurrence.repeated import Repeated

STEPS, BATCH, WIDTH = 4, 3, 5


def recurrence(product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    for step in range(STEPS):
        x = torch.tanh(product(x) + step)
    return x.square().sum()


@pytest.fixture
def weight(seed: int) -> Tensor:
    return torch.randn(WIDTH, WIDTH, dtype=torch.float64, requires_grad=True)


def repeated(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return Repeated(weight, batch=BATCH, steps=STEPS)


def test_values_and_gradients_match_torch(weight: Tensor) -> None:
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64, requires_grad=True)
    expected = recurrence(lambda y: linear(y, weight), x)
    found = recurrence(repeated(weight), x)
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad(expected, [x, weight])
    for _ in range(2):  # a graph that is kept has them again
        torch.testing.assert_close(torch.autograd.grad(found, [x, weight], retain_graph=True), gradients)
    torch.testing.assert_close(torch.autograd.grad(found, [x], retain_graph=True), gradients[:1])
    torch.testing.assert_close(torch.autograd.grad(found, [weight]), gradients[1:])


def test_steps_without_a_loss_contribute_no_gradient(weight: Tensor) -> None:
    product, x = repeated(weight), torch.randn(BATCH, WIDTH, dtype=torch.float64)
    kept, *_ = [product(x * (step + 1)) for step in range(STEPS)]
    (found,) = torch.autograd.grad(kept.sum(), [weight])
    torch.testing.assert_close(found, x.sum(0).expand(WIDTH, -1))


def test_second_derivatives_are_refused(weight: Tensor) -> None:
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(recurrence(repeated(weight), x), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


def test_a_repeated_product_is_traced_and_transformed_like_a_linear_map(weight: Tensor) -> None:
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    expected = torch.autograd.grad(recurrence(lambda y: linear(y, weight), x), [weight])[0]

    def loss(w: Tensor) -> Tensor:
        return recurrence(repeated(w), x)

    torch.testing.assert_close(torch.func.grad(loss)(weight.detach()), expected)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(weight), [weight])[0], expected)


def test_products_use_the_autocast_dtype(weight: Tensor) -> None:
    single = weight.detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = repeated(single)(torch.randn(BATCH, WIDTH))
    y.sum().backward()
    assert (y.dtype, single.grad is not None and single.grad.dtype) == (torch.bfloat16, torch.float32)
