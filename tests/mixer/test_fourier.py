"""The mixer `fourier`: its sums, and the mixing of FNet."""

import cmath
import math

import pytest
import torch

from attnkit.mixer import Tokens
from attnkit.mixer.fourier import Fourier


def test_the_transform_covers_the_real_tokens_of_each_document(seed: int) -> None:
    x = torch.randn(1, 9, 4).double()
    real = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0, 1]]).bool()
    starts = torch.tensor([[1, 0, 0, 0, 1, 0, 0, 0, 0]]).bool()
    y, _ = Fourier()(x, Tokens(real=real, starts=starts))
    for columns in ([1, 2], [4, 5, 6, 8]):
        n = len(columns)
        for t in range(n):
            for c in range(4):
                terms = [
                    cmath.exp(-2j * math.pi * (t * s / n + c * d / 4)) * x[0, columns[s], d].item() for s in range(n) for d in range(4)
                ]
                assert y[0, columns[t], c].item() == pytest.approx(sum(terms).real, abs=1e-12)
    assert not y[~real].any()


def test_a_batch_without_padding_uses_the_fast_transform_with_equal_results(seed: int) -> None:
    x = torch.randn(2, 300, 6).double()
    slow, _ = Fourier()(x, Tokens(real=torch.ones(2, 300, dtype=torch.bool)))
    torch.testing.assert_close(Fourier()(x, Tokens())[0], slow, rtol=1e-11, atol=1e-11)


def test_mixing_matches_fnet(seed: int) -> None:
    pytest.importorskip("transformers")
    from transformers.models.fnet.configuration_fnet import FNetConfig
    from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform

    x = torch.randn(2, 11, 6).double()
    theirs = FNetBasicFourierTransform(FNetConfig(hidden_size=6))
    torch.testing.assert_close(Fourier()(x, Tokens())[0], theirs(x)[0], rtol=1e-12, atol=1e-12)
