"""The tokens that a short convolution reads, against a loop over the tokens of a document."""

import pytest
import torch
import torch.nn.functional as F

from attnkit.mixer.base import Tokens
from attnkit.mixer.recurrence.short_convolution import ShortConvolution
from attnkit.mixer.recurrence.tokens import lagged

T, F_ = True, False
REAL = {
    "all": None,
    "left": [[F_, F_, T, T, T, T], [T] * 6],
    "right": [[T, T, T, F_, F_, F_], [T] * 6],
    "holes": [[F_, T, F_, T, T, F_], [F_] * 6],
}
STARTS = {"one": None, "two": [[T, F_, F_, T, F_, F_], [F_, F_, F_, F_, T, F_]], "many": [[T, F_, F_, T, T, F_], [T] * 6]}


@pytest.mark.parametrize("lags", [1, 3, 8])
@pytest.mark.parametrize("real", REAL)
@pytest.mark.parametrize("starts", STARTS)
def test_lagged_tokens_stay_within_the_document_and_skip_padding(starts: str, real: str, lags: int) -> None:
    torch.manual_seed(0)
    x, past = torch.randn(2, 6, 3), torch.randn(2, lags, 3)
    marks = [None if table is None else torch.tensor(table) for table in (REAL[real], STARTS[starts])]
    found, last = lagged(x, lags, Tokens(real=marks[0], starts=marks[1]), past)
    for b in range(2):
        seen = list(past[b])
        for t in range(6):
            if marks[1] is not None and marks[1][b, t]:
                seen = []
            if marks[0] is None or marks[0][b, t]:
                for lag in range(1, lags + 1):
                    assert torch.equal(found[lag - 1][b, t], seen[-lag] if lag <= len(seen) else torch.zeros(3))
                seen.append(x[b, t])
        for lag in range(1, lags + 1):
            assert torch.equal(last[b, -lag], seen[-lag] if lag <= len(seen) else torch.zeros(3))


def test_a_short_convolution_matches_torch() -> None:
    torch.manual_seed(0)
    module = ShortConvolution(channels=3, kernel_size=4, bias=True, activation="silu").double()
    torch.nn.init.normal_(module.bias)
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    expected = F.silu(F.conv1d(F.pad(x.mT, (3, 0)), module.weight[:, None], module.bias, groups=3)).mT
    torch.testing.assert_close(module(x, Tokens())[0], expected, rtol=1e-12, atol=1e-12)
    start, recent = module(x[:, :5], Tokens())
    torch.testing.assert_close(torch.cat([start, module(x[:, 5:], Tokens(), recent)[0]], 1), expected, rtol=1e-12, atol=1e-12)
