import pytest
import torch

import attnkit
from attnkit import draws
from attnkit.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_has_the_requested_rate_and_scale(p: float, dtype: torch.dtype, seed: int) -> None:
    n = 200_000
    y = dropout(torch.ones(n, dtype=dtype), p)
    assert y.dtype == dtype
    rate = (y == 0).double().mean().item()
    assert abs(rate - p) < 6 * (p * (1 - p) / n) ** 0.5 + 2**-16
    assert y.double().max().item() == pytest.approx(1 / (1 - p), rel=0.01 if dtype == torch.bfloat16 else 1e-3)


def test_elements_are_dropped_independently(seed: int) -> None:
    y = dropout(torch.ones(100_000), 0.5).view(-1, 4)  # four masks share one random number
    correlation = torch.corrcoef((y == 0).double().T) - torch.eye(4)
    assert correlation.abs().max() < 0.03


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (3, 5, 7)])
def test_dropout_accepts_any_shape(shape: tuple[int, ...], seed: int) -> None:
    assert dropout(torch.ones(shape), 0.3).shape == shape


def test_probabilities_zero_and_one_are_exact(seed: int) -> None:
    x = torch.randn(1000)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros(1000))
    assert torch.isfinite(dropout(x, 1 - 1e-9)).all()


def test_only_kept_elements_have_gradients(seed: int) -> None:
    x = torch.randn(1000, requires_grad=True)
    y = dropout(x, 0.4)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, y)


def test_the_seed_determines_the_dropped_elements(seed: int) -> None:
    x = torch.ones(100)
    torch.manual_seed(seed)
    first = dropout(x, 0.5)
    torch.manual_seed(seed)
    assert torch.equal(first, dropout(x, 0.5))
    assert not torch.equal(first, dropout(x, 0.5))


def test_the_module_acts_only_in_training(seed: int) -> None:
    module, x = Dropout(0.5), torch.ones(100)
    assert not torch.equal(module(x), x)
    assert torch.equal(module.eval()(x), x)


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_probabilities_outside_0_and_1_are_refused(p: float) -> None:
    with pytest.raises(ValueError, match=f"must be in \\[0, 1\\], but is {p}"):
        Dropout(p)


def test_column_slices_drop_the_same_elements_as_whole_rows() -> None:
    drop = Dropout(0.5)
    with draws.using(torch.tensor([7, 8])):
        whole = drop(torch.ones(2, 3, 10))
        parts = [drop(torch.ones(2, 3, 6)), drop(torch.ones(2, 3, 4), first=6)]
    assert torch.equal(torch.cat(parts, -1), whole)
    assert 0 < (whole == 0).sum() < whole.numel()


def test_each_use_of_a_shared_layer_drops_different_elements(seed: int) -> None:
    options = {"stack": "decoder", "d_model": 32, "num_heads": 2, "vocab_size": 20, "dropout": 0.5, "attention_dropout": 0.5}
    dropped = []
    for share in (True, False):
        model = attnkit.compose(**options, num_layers=3, layers=[{"share": share}]).train()
        draws.name_sites(model)
        masks: dict[str, list[torch.Tensor]] = {}
        for path, module in model.named_modules():
            if isinstance(module, Dropout) and module.p and "layers.0" in path:
                module.register_forward_hook(lambda _, __, y, path=path, masks=masks: masks.setdefault(path, []).append(y == 0))
        with draws.using(draws.make_keys(torch.tensor([3, 4]), seed)):
            model(torch.full((2, 50), 7))
        dropped.append(masks)
    shared, own = dropped
    assert shared.keys() == own.keys()
    for path, uses in shared.items():
        assert len(uses) == 3
        assert torch.equal(uses[0], own[path][0])  # as of a layer that is used once
        for a, b in ((0, 1), (1, 2), (0, 2)):
            assert (uses[a] == uses[b]).double().mean().item() == pytest.approx(0.5, abs=0.06)
