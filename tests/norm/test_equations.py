import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attnkit


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_equals_torchs(bias: bool, seed: int) -> None:
    ours = attnkit.norms.build({"name": "layer_norm", "eps": 0.1, "bias": bias}, d_model=6).double()
    torchs = nn.LayerNorm(6, eps=0.1, bias=bias).double()
    for parameter in torchs.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(torchs.state_dict())
    x = torch.randn(2, 3, 6).double()
    torch.testing.assert_close(ours(x), torchs(x), rtol=1e-12, atol=1e-12)


def test_rms_norm_equals_torchs_and_its_equation(seed: int) -> None:
    ours = attnkit.norms.build({"name": "rms_norm", "eps": 0.1}, d_model=6).double()
    torchs = nn.RMSNorm(6, eps=0.1).double()
    nn.init.normal_(torchs.weight)
    ours.load_state_dict(torchs.state_dict())
    x = torch.randn(2, 3, 6).double()
    torch.testing.assert_close(ours(x), torchs(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours(x), torchs.weight * x / (x.square().mean(-1, keepdim=True) + 0.1).sqrt(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_an_unlearned_norm_equals_a_fresh_learned_one(name: str, seed: int) -> None:
    x = torch.randn(2, 3, 6)
    plain = attnkit.norms.build({"name": name, "learned": False}, d_model=6)
    assert list(plain.parameters()) == []
    torch.testing.assert_close(plain(x), attnkit.norms.build(name, d_model=6)(x))


def test_defaults_match_torch_and_llama() -> None:
    assert attnkit.norms.build("layer_norm", d_model=4).eps == nn.LayerNorm(4).eps
    assert attnkit.norms.build("rms_norm", d_model=4).eps == 1e-6


def test_layer_norm_without_bias_has_none() -> None:
    assert set(attnkit.norms.build({"name": "layer_norm", "bias": False}, d_model=4).state_dict()) == {"weight"}
    assert F.layer_norm(torch.ones(4), (4,)).abs().max() == 0


@torch.no_grad()
def test_dynamic_tanh_follows_its_equation(seed: int) -> None:
    norm = attnkit.norms.build({"name": "dynamic_tanh", "alpha": 0.7}, d_model=6).double()
    assert norm.alpha.item() == pytest.approx(0.7)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 3, 6).double()
    expected = [
        [[norm.weight[c] * torch.tanh(norm.alpha[0] * x[b, t, c]) + norm.bias[c] for c in range(6)] for t in range(3)] for b in range(2)
    ]
    torch.testing.assert_close(norm(x), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_none_is_the_identity_without_parameters() -> None:
    norm, x = attnkit.norms.build("none", d_model=6), torch.randn(2, 3, 6)
    assert norm(x) is x
    assert not norm.state_dict()
