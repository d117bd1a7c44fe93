"""The mixer `convolution`, token by token and against LFM2."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.mixer import Mixer, Tokens
from attnkit.registry import ConfigurationError, mixers

WIDTH, LENGTH = 6, 40


def drawn(direction: str = "causal", **options: object) -> tuple[Mixer, Tensor]:
    torch.manual_seed(0)
    mixer = mixers.build({"name": "convolution", **options}, d_model=WIDTH, direction=direction, bias=True).double()
    for name, parameter in mixer.named_parameters():
        nn.init.normal_(parameter, mean=-2.0 if "rate" in name else 0.0, std=0.5)
    return mixer, torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)


def kernel_of(network: nn.Module) -> list[Tensor]:
    """The kernel at each lag, from its equation."""
    weights = dict(network.named_parameters())
    frequencies = 10 ** (-torch.arange(8, dtype=torch.float64) / 2)
    decay, kernel = torch.exp(-weights["log_rate"].exp()), []
    for lag in range(LENGTH):
        features = torch.cat([(lag * frequencies).cos(), (lag * frequencies).sin()])
        hidden = torch.sin(weights["hidden.weight"] @ features + weights["hidden.bias"])
        kernel.append((1 - decay**2).sqrt() * decay**lag * (weights["output.weight"] @ hidden))
    return kernel


@pytest.mark.parametrize("kernel_size", [5, None])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_each_channel_is_a_gated_sum_over_lags(direction: str, kernel_size: int | None) -> None:
    mixer, x = drawn(direction, kernel_size=kernel_size, activation="silu")
    before, after, u = mixer.input(x[0]).chunk(3, -1)
    u, convolution = before * u, mixer.convolution
    if kernel_size is None:
        kernel = dict(enumerate(kernel_of(convolution.kernel)))
        if direction == "bidirectional":
            kernel |= {-lag: weight for lag, weight in enumerate(kernel_of(convolution.later_kernel)) if lag}
    else:
        farthest = 4 if direction == "causal" else 2
        kernel = {farthest - place: weight for place, weight in enumerate(convolution.weight.unbind(1))}
    expected = []
    for t in range(LENGTH):
        y = convolution.bias + sum(weight * u[t - lag] for lag, weight in kernel.items() if 0 <= t - lag < LENGTH)
        expected.append(mixer.output(after[t] * F.silu(y)))
    torch.testing.assert_close(mixer(x, Tokens())[0][0], torch.stack(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_a_long_kernel_separates_documents_and_skips_padding(direction: str) -> None:
    mixer, x = drawn(direction, kernel_size=None)
    starts = (torch.arange(LENGTH) % 16 == 0)[None]
    real = (torch.arange(LENGTH) % 5 != 2)[None]
    y, _ = mixer(x, Tokens(starts=starts, real=real))
    for start in range(0, LENGTH, 16):
        chosen = real[0, start : start + 16]
        alone, _ = mixer(x[:, start : start + 16][:, chosen], Tokens())
        torch.testing.assert_close(y[:, start : start + 16][:, chosen], alone, rtol=1e-10, atol=1e-10)


def test_a_long_kernel_decodes_in_steps_from_a_state_of_all_tokens() -> None:
    mixer, x = drawn(kernel_size=None)
    whole, state = mixer(x, Tokens())[0], None
    for t in range(LENGTH):
        y, state = mixer(x[:, t : t + 1], Tokens(), state)
        torch.testing.assert_close(y[:, 0], whole[:, t], rtol=1e-10, atol=1e-10)
        assert state.recent.shape == (1, t + 1, WIDTH)
    assert mixer.growth == "linear"


def test_a_long_kernel_leaks_only_rounding_errors_from_later_tokens() -> None:
    mixer, x = drawn(kernel_size=None)
    changed = torch.cat([x[:, :20], 10 * x[:, 20:]], 1)
    torch.testing.assert_close(mixer(changed, Tokens())[0][:, :20], mixer(x, Tokens())[0][:, :20], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("direction", "size"), [("causal", 1), ("bidirectional", 4)])
def test_an_invalid_kernel_size_is_rejected(direction: str, size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"the kernel_size of the mixer 'convolution' must be .*, but is {size}"):
        drawn(direction, kernel_size=size)
