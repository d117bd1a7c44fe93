"""Each position encoding against its paper's equation."""

import math
from fractions import Fraction

import pytest
import torch

import attnkit
import attnkit.layers
from attnkit.position import Rotation


def test_sinusoidal(seed: int) -> None:
    d, base = 10, 10_000.0
    t = torch.randint(100_000, (2, 7))
    table = attnkit.positions.build("sinusoidal", d_model=d).embedding(t)
    for b in range(2):
        for i in range(7):
            for c in range(d):
                angle = int(t[b, i]) / base ** (2 * (c // 2) / d)
                expected = math.sin(angle) if c % 2 == 0 else math.cos(angle)
                assert table[b, i, c].item() == pytest.approx(expected, abs=1e-7)


def test_sinusoidal_needs_an_even_width() -> None:
    with pytest.raises(ValueError, match="even d_model, but it is 7"):
        attnkit.positions.build("sinusoidal", d_model=7)


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (8, [2.0**-h for h in range(1, 9)]),  # the paper, section 3
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (1, [2**-8]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),  # the paper's code: get_slopes(6)
        (12, [*(2.0**-h for h in range(1, 9)), *(2 ** -(h + 0.5) for h in range(4))]),  # the paper's code: get_slopes(12)
    ],
)
def test_alibi_slopes(heads: int, slopes: list[float]) -> None:
    alibi = attnkit.positions.build("alibi", num_heads=heads)
    query, key = torch.tensor([[5]]), torch.arange(9)[None]
    expected = -torch.tensor(slopes, dtype=torch.float64)[:, None] * (5 - key).abs()
    torch.testing.assert_close(alibi.bias(query, key)[0, :, 0].double(), expected, rtol=1e-6, atol=0)


def slow_bucket(offset: int, *, bidirectional: bool, buckets: int, max_distance: int) -> int:
    """T5's definition in exact arithmetic: the floor of a logarithm is the largest power that fits."""
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if offset > 0 else 0
        distance = abs(offset)
    else:
        distance = max(-offset, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    rest = buckets - exact  # the bucket is exact + floor(rest * log(distance / exact) / log(max_distance / exact))
    bucket = 0
    while bucket < rest - 1 and Fraction(distance, exact) ** rest >= Fraction(max_distance, exact) ** (bucket + 1):
        bucket += 1
    return first + exact + bucket


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (4, 3), (6, 9), (16, 300)])
def test_relative_buckets(bidirectional: bool, buckets: int, max_distance: int) -> None:
    relative = attnkit.positions.build(
        {"name": "relative", "num_buckets": buckets, "max_distance": max_distance}, num_heads=2, bidirectional=bidirectional
    )
    offsets = range(-2 * max_distance, 2 * max_distance + 1)
    expected = [slow_bucket(o, bidirectional=bidirectional, buckets=buckets, max_distance=max_distance) for o in offsets]
    assert relative.buckets(torch.tensor(offsets)).tolist() == expected
    assert set(expected) <= set(range(buckets))


def test_relative_bias_depends_on_the_bucket_of_key_minus_query_position(seed: int) -> None:
    relative = attnkit.positions.build("relative", num_heads=3, bidirectional=True)
    query, key = torch.randint(300, (2, 4)), torch.randint(300, (2, 5))
    bias = relative.bias(query, key)
    for b in range(2):
        for i in range(4):
            for j in range(5):
                bucket = slow_bucket(int(key[b, j] - query[b, i]), bidirectional=True, buckets=32, max_distance=128)
                assert torch.equal(bias[b, :, i, j], relative.weight[bucket])


@pytest.mark.parametrize("wrong", [{"num_buckets": 3}, {"num_buckets": 2}, {"max_distance": 8}, {"num_buckets": 0}])
def test_impossible_buckets_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        attnkit.positions.build({"name": "relative", **wrong}, num_heads=2, bidirectional=True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rotary_is_a_rotation_of_pairs_by_the_papers_angles(interleaved: bool, fraction: float, seed: int) -> None:
    d, base = 8, 100.0
    rotary = attnkit.positions.build({"name": "rotary", "base": base, "fraction": fraction, "interleaved": interleaved}, head_dim=d)
    t, x = torch.randint(5000, (2, 3)), torch.randn(2, 4, 3, d).double()
    y = rotary.rotation(t)(x)
    width = int(d * fraction)
    expected = x.clone()
    for b in range(2):
        for i in range(3):
            for pair in range(width // 2):
                first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + width // 2)
                angle = int(t[b, i]) * base ** (-2 * pair / width)
                c, s = math.cos(angle), math.sin(angle)
                expected[b, :, i, first] = c * x[b, :, i, first] - s * x[b, :, i, second]
                expected[b, :, i, second] = s * x[b, :, i, first] + c * x[b, :, i, second]
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_inner_products_depend_only_on_the_distance(interleaved: bool, seed: int) -> None:
    rotary = attnkit.positions.build({"name": "rotary", "interleaved": interleaved}, head_dim=8)
    q, k = torch.randn(2, 1, 1, 1, 8).double()

    def turned(x: torch.Tensor, t: int) -> torch.Tensor:
        rotation = rotary.rotation(torch.tensor([[t]]))
        assert isinstance(rotation, Rotation)
        return rotation(x)

    products = [float((turned(q, 3 + shift) * turned(k, 11 + shift)).sum()) for shift in (0, 1, 40, 10_000)]
    assert products == pytest.approx([products[0]] * 4, abs=1e-5)
    assert float((turned(q, 3) * turned(k, 12)).sum()) != pytest.approx(products[0], abs=1e-6)


@pytest.mark.parametrize(("head_dim", "fraction"), [(7, 1.0), (4, 0.25), (8, 0.0), (8, 1.5)])
def test_rotary_refuses_odd_or_zero_widths(head_dim: int, fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        attnkit.positions.build({"name": "rotary", "fraction": fraction}, head_dim=head_dim)


@pytest.mark.parametrize("name", ["rotary", "sinusoidal", "alibi"])
def test_tables_of_a_float64_model_are_exact_and_others_fp32(name: str) -> None:
    d, t = 8, torch.arange(30)[None]
    position = attnkit.positions.build(name, **{"rotary": {"head_dim": d}, "sinusoidal": {"d_model": d}, "alibi": {"num_heads": 12}}[name])

    def table() -> torch.Tensor:
        if name == "alibi":
            return position.bias(t, t)[0, 8]  # slope 2^-0.5, which fp32 rounds
        rotation = position.rotation(t)
        return position.embedding(t)[0] if rotation is None else torch.stack([rotation.sin, rotation.cos], -1)[0, 0].flatten(-2)

    angles = [[i * 10_000.0 ** (-2 * (c // 2) / d) for c in range(d)] for i in range(30)]
    waves = [[math.cos(x) if c % 2 else math.sin(x) for c, x in enumerate(row)] for row in angles]
    falls = [[-abs(i - j) * 2**-0.5 for j in range(30)] for i in range(30)]
    exact = torch.tensor(falls if name == "alibi" else waves, dtype=torch.float64)
    single = table()
    torch.testing.assert_close(position.double() and table(), exact, rtol=0, atol=1e-14)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.equal(position.to(dtype) and table(), single)
        assert single.dtype == torch.float32
    assert not position.state_dict()


def test_rotations_of_a_float64_model_keep_fourteen_digits(seed: int) -> None:
    config = attnkit.layers.TransformerConfig(d_model=8, num_layers=1, num_heads=1, position="rotary")
    body = attnkit.layers.Transformer(config, causal=True).double()
    q, k = torch.randn(2, 1, 1, 30, 8).double()
    rotation = body.position.rotation(torch.arange(30)[None])
    products = (rotation(q[:, :, :1].expand_as(q)) * rotation(k[:, :, :1].expand_as(k))).sum(-1)
    torch.testing.assert_close(products, products[..., :1].expand_as(products), rtol=0, atol=1e-13)


def test_learned_returns_its_rows_and_knows_its_length(seed: int) -> None:
    learned = attnkit.positions.build({"name": "learned", "max_length": 5}, d_model=4)
    t = torch.tensor([[4, 0, 2]])
    assert torch.equal(learned.embedding(t)[0], learned.weight[t[0]])
    assert learned.max_length == 5
    with pytest.raises(ValueError, match="max_length must be positive"):
        attnkit.positions.build({"name": "learned", "max_length": 0}, d_model=4)


def test_none_does_nothing() -> None:
    none = attnkit.positions.build("none")
    t = torch.arange(3)[None]
    assert none.embedding(t) is None
    assert none.rotation(t) is None
    assert none.bias(t, t) is None
