"""The channel mixing of RWKV-4 and RWKV-7."""

import pytest
import torch

from attnkit.mixer import Tokens
from attnkit.registry import mixers


@pytest.mark.parametrize("gated", [True, False])
def test_each_token_is_mixed_with_the_last_one(gated: bool, seed: int) -> None:
    mixer = mixers.build({"name": "rwkv_channel", "inner_dim": 6, "receptance": gated}, d_model=4).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for t in range(7):
        before = x[:, t - 1] if t else torch.zeros(2, 4, dtype=torch.float64)
        key = mixer.mix_key * x[:, t] + (1 - mixer.mix_key) * before
        expected[:, t] = torch.relu(key @ mixer.key.weight.T) ** 2 @ mixer.value.weight.T
        if gated:
            receptance = mixer.mix_receptance * x[:, t] + (1 - mixer.mix_receptance) * before
            expected[:, t] *= torch.sigmoid(receptance @ mixer.receptance.weight.T)
    torch.testing.assert_close(mixer(x, Tokens())[0], expected, rtol=1e-12, atol=1e-12)
