import pytest
import torch

from attnkit import masks
from attnkit.masks import Mask


def test_combine_is_the_elementwise_and(seed: int) -> None:
    b, t, window = 2, 6, 3
    real = torch.rand(b, t) < 0.7
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 2, 2, 2]])
    here = torch.arange(t)[None]
    parts = {
        "key": masks.key(real),
        "causal": masks.causal(here, here),
        "window": masks.sliding_window(here, here, window),
        "document": masks.document(documents, documents),
    }
    for chosen in range(2 ** len(parts)):
        names = [name for i, name in enumerate(parts) if chosen >> i & 1]
        combined = masks.combine(None, *(parts[n] for n in names))
        if not names:
            assert combined is None
            continue
        assert combined is not None
        combined = combined.expand(b, 1, t, t)
        for row in range(b):
            for q in range(t):
                for k in range(t):
                    rules = {
                        "key": bool(real[row, k]),
                        "causal": k <= q,
                        "window": abs(q - k) < window,
                        "document": bool(documents[row, q] == documents[row, k]),
                    }
                    assert bool(combined[row, 0, q, k]) == all(rules[n] for n in names)


def test_positions_count_the_real_tokens() -> None:
    real = torch.tensor([[0, 0, 1, 0, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    assert masks.positions(real).tolist() == [[0, 0, 0, 0, 1], [0, 1, 2, 2, 2], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
def test_non_boolean_masks_are_rejected(dtype: torch.dtype) -> None:
    mask = torch.ones(2, 3, dtype=dtype)
    for use in (masks.key, masks.combine, masks.from_torch, Mask.of):
        with pytest.raises(TypeError, match="True = attend"):
            use(mask)


def test_from_torch_inverts_the_polarity() -> None:
    assert masks.from_torch(torch.tensor([True, False])).tolist() == [False, True]


def test_an_empty_window_is_refused() -> None:
    t = torch.arange(2)[None]
    with pytest.raises(ValueError, match="window must be at least 1, but is 0"):
        masks.sliding_window(t, t, 0)


def test_empty_rows_of_the_combined_mask_are_opened_and_marked() -> None:
    t = torch.arange(3)[None]
    only_last = masks.key(torch.tensor([[False, False, True]]))
    mask = Mask.of(masks.combine(only_last, masks.causal(t, t)))
    assert mask is not None
    assert mask.alive is not None
    assert mask.allowed is not None
    assert mask.alive.flatten().tolist() == [False, False, True]
    assert mask.allowed[0, 0].tolist() == [[True] * 3, [True] * 3, [False, False, True]]


def test_rows_select_the_rows_of_a_mask(seed: int) -> None:
    allowed = torch.rand(2, 1, 5, 5) < 0.5
    for mask in (Mask.of(allowed), Mask(causal=True), Mask.of(allowed[:, :, :1]), Mask.of(allowed[0, 0, 0])):
        assert mask is not None
        whole = mask.dense(5, 5, allowed.device)
        assert whole is not None
        rows = mask.rows(1, 3, 5, 5, allowed.device)
        assert rows.allowed is not None
        assert torch.equal(rows.allowed.expand(2, 1, 2, 5), whole.expand(2, 1, 5, 5)[:, :, 1:3])
