import pytest
import torch
from torch import Tensor, nn

import attnkit

EQUATIONS = {
    "none": lambda x, f, r: f(x),
    "post_norm": lambda x, f, r: r.norm(x + f(x)),
    "pre_norm": lambda x, f, r: x + f(r.norm(x)),
    "sandwich_norm": lambda x, f, r: x + r.output_norm(f(r.input_norm(x))),
    "rezero": lambda x, f, r: x + r.gate * f(x),
}
NORMS = {"none": 0, "post_norm": 1, "pre_norm": 1, "sandwich_norm": 2, "rezero": 0}


def test_every_built_in_residual_has_its_equation_here() -> None:
    assert set(EQUATIONS) == attnkit.residuals.built_in()


@pytest.mark.parametrize("name", EQUATIONS)
def test_equation(name: str, seed: int) -> None:
    residual = attnkit.residuals.build(name, make_norm=lambda: nn.LayerNorm(4)).double()
    for parameter in residual.parameters():
        nn.init.normal_(parameter)
    x, matrix = torch.randn(2, 3, 4).double(), torch.randn(4, 4).double()

    def f(x: Tensor) -> Tensor:
        return torch.tanh(x @ matrix)

    y = residual.after(x, f(residual.before(x)))
    torch.testing.assert_close(y, EQUATIONS[name](x, f, residual), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", EQUATIONS)
def test_norms_are_created_only_if_needed(name: str) -> None:
    made: list[nn.Module] = []

    def make_norm() -> nn.Module:
        made.append(nn.LayerNorm(4))
        return made[-1]

    attnkit.residuals.build(name, make_norm=make_norm)
    assert len(made) == NORMS[name]


@pytest.mark.parametrize("name", EQUATIONS)
def test_dropout_acts_on_the_branch_and_never_on_the_stream(name: str) -> None:
    residual = attnkit.residuals.build(name, make_norm=nn.Identity, dropout=1.0).train()
    x = torch.ones(1, 2, 4)
    expected = torch.zeros_like(x) if name == "none" else x
    assert torch.equal(residual.after(x, 5 * residual.before(x)), expected)


def test_a_rezero_layer_starts_as_the_identity(seed: int) -> None:
    residual = attnkit.residuals.build("rezero", make_norm=nn.Identity)
    x = torch.randn(1, 2, 4)
    assert torch.equal(residual.after(x, torch.randn(1, 2, 4)), x)
