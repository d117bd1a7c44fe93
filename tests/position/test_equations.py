"""Each position encoding against its paper's equation."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch

import attnkit
import attnkit.layers
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.position import QueryBias, Rotation
from attnkit.position.alibi import Alibi
from attnkit.registry import ConfigurationError


def test_sinusoidal(seed: int) -> None:
    d, base = 10, 10_000.0
    t = torch.randint(100_000, (2, 7))
    table = attnkit.positions.build("sinusoidal", d_model=d).embedding(t)
    halves = attnkit.positions.build({"name": "sinusoidal", "interleaved": False}, d_model=d).embedding(t)
    for b in range(2):
        for i in range(7):
            for c in range(d):
                angle = int(t[b, i]) / base ** (2 * (c // 2) / d)
                expected = math.sin(angle) if c % 2 == 0 else math.cos(angle)
                assert table[b, i, c].item() == pytest.approx(expected, abs=1e-7)
                assert halves[b, i, c // 2 + c % 2 * d // 2] == table[b, i, c]


def test_sinusoidal_needs_an_even_width() -> None:
    with pytest.raises(ValueError, match="even d_model, but it is 7"):
        attnkit.positions.build("sinusoidal", d_model=7)


@pytest.mark.parametrize("scale", [1.0, 0.3])
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
def test_alibi_slopes(heads: int, slopes: list[float], scale: float) -> None:
    alibi = attnkit.positions.build({"name": "alibi", "scale": scale}, num_heads=heads)
    query, key = torch.tensor([[5]]), torch.arange(9)[None]
    expected = -scale * torch.tensor(slopes, dtype=torch.float64)[:, None] * (5 - key).abs()
    torch.testing.assert_close(alibi.bias(query, key)[0, :, 0].double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_alibi_rejects_a_non_positive_scale(scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale must be (positive|finite), but is"):
        attnkit.positions.build({"name": "alibi", "scale": scale}, num_heads=2)


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa", "tiled", "blockwise"])
@torch.no_grad()
def test_every_backend_uses_the_scale_of_alibi(backend: str, seed: int) -> None:
    sizes: dict[str, Any] = {"stack": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9, "backend": backend}
    model, tokens = attnkit.compose(**sizes, position={"name": "alibi", "scale": 7.0}).double().eval(), torch.randint(3, 9, (2, 8))
    expected = model(tokens)
    last, state = model.step(tokens[:, :5], None)
    for t in range(5, 8):
        torch.testing.assert_close(last, expected[:, t - 1], rtol=1e-10, atol=1e-10)
        last, state = model.step(tokens[:, t : t + 1], state)
    by_hand = attnkit.compose(**sizes | {"backend": "reference"}, position="alibi").double().eval()
    by_hand.load_state_dict(model.state_dict())
    assert not torch.allclose(by_hand(tokens), expected, atol=1e-3)
    bias = Alibi.bias
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Alibi, "bias", lambda self, query, key: 7 * bias(self, query, key))
        torch.testing.assert_close(by_hand(tokens), expected, rtol=1e-10, atol=1e-10)


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
def test_invalid_buckets_are_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        attnkit.positions.build({"name": "relative", **wrong}, num_heads=2, bidirectional=True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_rotary_is_a_rotation_of_pairs_by_the_papers_angles(interleaved: bool, fraction: float, seed: int) -> None:
    d, base = 8, 100.0
    rotary = attnkit.positions.build({"name": "rotary", "base": base, "fraction": fraction, "interleaved": interleaved}, head_dim=d)
    t, x = torch.randint(5000, (2, 3)), torch.randn(2, 4, 3, d).double()
    y = rotary.rotation(t).query(x)
    assert torch.equal(y, rotary.rotation(t).key(x))
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
        return rotation.query(x)

    products = [float((turned(q, 3 + shift) * turned(k, 11 + shift)).sum()) for shift in (0, 1, 40, 10_000)]
    assert products == pytest.approx([products[0]] * 4, abs=1e-5)
    assert float((turned(q, 3) * turned(k, 12)).sum()) != pytest.approx(products[0], abs=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_xpos_scales_the_inner_product_of_each_pair_by_a_power_of_the_distance(interleaved: bool, seed: int) -> None:
    d, scale_base = 6, 20.0
    spec = {"name": "xpos", "interleaved": interleaved, "scale_base": scale_base, "max_length": 300}
    xpos = attnkit.positions.build(spec, head_dim=d).double()
    q, k = torch.randn(2, 1, 1, 1, d).double()

    def channels(x: torch.Tensor, pair: int) -> complex:
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + d // 2)
        return complex(x[0, 0, 0, first], x[0, 0, 0, second])

    for t, u in ((0, 0), (17, 3), (299, 0), (299, 298), (40, 41)):
        expected = 0.0
        for pair in range(d // 2):
            zeta = (2 * pair / d + 0.4) / 1.4
            angle = (t - u) * 10_000.0 ** (-2 * pair / d)
            inner = channels(q, pair) * complex(math.cos(angle), math.sin(angle)) * channels(k, pair).conjugate()
            expected += zeta ** ((t - u) / scale_base) * inner.real
        turned = xpos.rotation(torch.tensor([[t]])).query(q), xpos.rotation(torch.tensor([[u]])).key(k)
        assert float((turned[0] * turned[1]).sum()) == pytest.approx(expected, rel=1e-10)


def test_xpos_stays_in_range_up_to_its_maximum_length() -> None:
    widest = attnkit.positions.build({"name": "xpos", "scale_base": 64.0, "max_length": 4096}, head_dim=4)
    scale = widest.rotation(torch.tensor([[0, 2048, 4095]])).scale
    assert scale.max() < 1e18
    assert scale.min() > 1e-18
    assert torch.equal(scale[0, 0, 1], torch.ones(2))
    with pytest.raises(ValueError, match="must not exceed 64"):
        attnkit.positions.build({"name": "xpos", "scale_base": 64.0, "max_length": 4097}, head_dim=4)
    model = attnkit.compose(stack="decoder", d_model=8, num_layers=1, num_heads=2, position={"name": "xpos", "max_length": 5}, vocab_size=9)
    with pytest.raises(ConfigurationError, match="6 tokens does not fit into positions that end at 5"):
        model(torch.ones(1, 6, dtype=torch.long))


@pytest.mark.parametrize("kernel", ["log", "power"])
@torch.no_grad()
def test_kerple(kernel: str, seed: int) -> None:
    kerple = attnkit.positions.build({"name": "kerple", "kernel": kernel}, num_heads=3).double()
    query, key = torch.randint(60, (2, 4)), torch.randint(60, (2, 5))
    bias = kerple.bias(query, key)
    for h in range(3):
        r1, w = math.exp(kerple.strength[h]), float(kerple.shape[h])
        r2 = math.exp(w) if kernel == "log" else 2 / (1 + math.exp(-w))
        assert 0 < r2 < 2
        for b in range(2):
            for i in range(4):
                for j in range(5):
                    distance = abs(int(query[b, i] - key[b, j]))
                    expected = -r1 * math.log(1 + r2 * distance) if kernel == "log" else -r1 * distance**r2
                    assert float(bias[b, h, i, j]) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("kernel", "strength", "shape"), [("log", 2.0, 1.0), ("power", 1.0, 2.0)])
@torch.no_grad()
def test_kerple_initialises_like_its_authors_code(kernel: str, strength: float, shape: float, seed: int) -> None:
    kerple = attnkit.positions.build({"name": "kerple", "kernel": kernel}, num_heads=4000).double()
    r1 = kerple.strength.exp()
    r2 = kerple.shape.exp() if kernel == "log" else 2 * kerple.shape.sigmoid()
    for drawn, largest in ((r1, strength), (r2, shape)):
        assert drawn.min() >= 0.01 - 1e-6
        assert drawn.max() <= largest + 1e-5
        assert drawn.mean() == pytest.approx((largest + 0.01) / 2, abs=0.05)


def test_kerple_has_finite_gradients_at_distance_zero() -> None:
    for kernel in ("log", "power"):
        kerple = attnkit.positions.build({"name": "kerple", "kernel": kernel}, num_heads=2)
        kerple.bias(torch.tensor([[3]]), torch.tensor([[3]])).sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in kerple.parameters())


@torch.no_grad()
def test_fire(seed: int) -> None:
    fire = attnkit.positions.build({"name": "fire", "hidden_dim": 5, "threshold": 20.0}, num_heads=3).double()
    for parameter in fire.parameters():
        torch.nn.init.normal_(parameter)
    query, key = torch.randint(60, (2, 4)), torch.randint(60, (2, 5))
    bias = fire.bias(query, key)
    c, threshold = abs(float(fire.c)), abs(float(fire.multiplier)) * 20

    def psi(x: float) -> float:
        return math.log(c * x + 1)

    for b in range(2):
        for i in range(4):
            for j in range(5):
                t, u = int(query[b, i]), int(key[b, j])
                share = psi(abs(t - u)) / (psi(max(threshold, t)) + 1e-6)
                hidden = [max(float(w) * share + float(a), 0) for w, a in zip(fire.input.weight[:, 0], fire.input.bias, strict=True)]
                for h in range(3):
                    expected = sum(float(w) * x for w, x in zip(fire.output.weight[h], hidden, strict=True)) + float(fire.output.bias[h])
                    assert float(bias[b, h, i, j]) == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("constant", [False, True])
def test_piecewise_fire_equals_its_network(seed: int, constant: bool) -> None:
    """Values and gradients; with `constant`, hidden units that no share bends, on and off, and units that bend at one point."""
    fire = attnkit.positions.build({"name": "fire", "hidden_dim": 10, "threshold": 20.0}, num_heads=3).double()
    for parameter in fire.parameters():
        torch.nn.init.normal_(parameter)
    if constant:
        with torch.no_grad():
            fire.input.weight[:, 0] = torch.tensor([0.0, -0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -2.0, 2.0])
            fire.input.bias[:] = torch.tensor([1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, -0.5])
    query, key = torch.randint(90, (2, 64)), torch.randint(90, (2, 48))
    shares: list[torch.Tensor] = []
    network, pieces = type(fire)._network, type(fire)._pieces
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(fire), "_pieces", lambda self, share: (shares.append(share), pieces(self, share))[1])
        found = fire.bias(query, key)
        patch.setattr(type(fire), "_pieces", network)
        expected = fire.bias(query, key)
    assert len(shares) == 1
    assert shares[0].numel() >= 4096
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(expected)
    for name, one, other in zip(
        [name for name, _ in fire.named_parameters()],
        torch.autograd.grad(found, list(fire.parameters()), upstream),
        torch.autograd.grad(expected, list(fire.parameters()), upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("bidirectional", [False, True])
@torch.no_grad()
def test_shaw(bidirectional: bool, seed: int) -> None:
    d, k = 4, 3
    shaw = attnkit.positions.build({"name": "shaw", "max_distance": k}, head_dim=d, bidirectional=bidirectional).double()
    assert len(shaw.weight) == (2 * k + 1 if bidirectional else k + 1)
    q, t, u = torch.randn(2, 3, 4, d).double(), torch.randint(12, (2, 4)), torch.randint(12, (2, 5))
    bias = QueryBias(shaw, t, u)(q, unread)
    for b in range(2):
        for h in range(3):
            for i in range(4):
                for j in range(5):
                    offset = min(max(int(u[b, j] - t[b, i]), -k), k if bidirectional else 0)
                    expected = sum(float(x) * float(w) for x, w in zip(q[b, h, i], shaw.weight[offset + k], strict=True)) / math.sqrt(d)
                    assert float(bias[b, h, i, j]) == pytest.approx(expected, rel=1e-12)


def unread() -> torch.Tensor:
    raise AssertionError("the logits are computed although nothing reads them")


@torch.no_grad()
def test_cope(seed: int) -> None:
    d, keys, most = 4, 7, 4
    cope = attnkit.positions.build({"name": "cope", "max_count": most}, head_dim=d).double()
    t = torch.arange(keys)[None]
    q, logits = torch.randn(2, 3, keys, d).double(), torch.randn(2, 3, keys, keys).double()
    logits = logits.masked_fill(t > t.mT, float("-inf"))
    bias = QueryBias(cope, t, t)(q, lambda: logits)
    reached = 0
    for b in range(2):
        for h in range(3):
            for i in range(keys):
                for j in range(i + 1):
                    count = sum(1 / (1 + math.exp(-float(logits[b, h, i, x]))) for x in range(j, i + 1))
                    count, reached = min(count, most - 1), reached + (count >= most - 1)
                    below, part = int(count), count - int(count)
                    products = [sum(float(x) * float(w) for x, w in zip(q[b, h, i], row, strict=True)) for row in cope.weight]
                    expected = products[below] if part == 0 else (1 - part) * products[below] + part * products[below + 1]
                    assert float(bias[b, h, i, j]) == pytest.approx(expected, rel=1e-10)
    assert reached


@torch.no_grad()
def test_cope_gates_use_the_logits_of_the_layer(seed: int) -> None:
    """The whole layer, against the paper's code in a loop: gates from scaled and masked logits, the sum inside the softmax."""
    layer = MultiHeadAttention(d_model=8, num_heads=2, num_kv_heads=1).double()
    cope = attnkit.positions.build({"name": "cope", "max_count": 4}, head_dim=4).double()
    torch.nn.init.normal_(cope.weight)
    x, t = torch.randn(1, 6, 8).double(), torch.arange(6)[None]
    y, _ = layer(x, Tokens(mask=Mask(causal=True), bias=QueryBias(cope, t, t)))
    q = layer.query(x)[0].unflatten(-1, (2, 4))
    k, v = layer.key(x)[0], layer.value(x)[0]
    rows = torch.zeros(6, 2, 4).double()
    for i in range(6):
        for h in range(2):
            score = k[: i + 1] @ q[i, h] / 2
            count = score.sigmoid().flip(0).cumsum(0).flip(0).clamp(max=3)
            below, above = cope.weight[count.floor().long()] @ q[i, h], cope.weight[count.ceil().long()] @ q[i, h]
            rows[i, h] = (score + below + (count - count.floor()) * (above - below)).softmax(0) @ v[: i + 1]
    torch.testing.assert_close(y[0], layer.output(rows.flatten(1)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["cope", "xpos"])
def test_causal_positions_are_rejected_outside_causal_stacks(name: str) -> None:
    sizes = {"d_model": 8, "num_layers": 1, "num_heads": 2}
    with pytest.raises(ConfigurationError, match=f"position '{name}' does not work in an encoder: .* no later keys. Choose .*alibi, fire"):
        attnkit.compose(stack="encoder", position=name, vocab_size=9, **sizes)
    with pytest.raises(ConfigurationError, match=f"position '{name}' does not work in cross-attention: .*alibi, fire, kerple, none"):
        attnkit.compose(stack="encoder_decoder", cross_position=name, src_vocab_size=9, tgt_vocab_size=9, **sizes)


@pytest.mark.parametrize("wrong", [
    {"name": "shaw", "max_distance": 0}, {"name": "cope", "max_count": 1}, {"name": "fire", "hidden_dim": 0},
    {"name": "fire", "threshold": 0.0}, {"name": "xpos", "scale_base": 0.0}, {"name": "xpos", "max_length": 0},
    {"name": "rotary", "base": 1.0}, {"name": "rotary", "base": -2.0},
])  # fmt: skip
def test_invalid_sizes_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=list(wrong)[1]):
        attnkit.positions.build(wrong, head_dim=4, num_heads=2)


@pytest.mark.parametrize(("head_dim", "fraction"), [(7, 1.0), (4, 0.25), (8, 0.0), (8, 1.5)])
def test_rotary_rejects_odd_or_zero_widths(head_dim: int, fraction: float) -> None:
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


def test_float64_rotations_keep_fourteen_digits(seed: int) -> None:
    config = attnkit.layers.TransformerConfig(d_model=8, num_layers=1, num_heads=1, position="rotary")
    body = attnkit.layers.Transformer(config, causal=True).double()
    q, k = torch.randn(2, 1, 1, 30, 8).double()
    rotation = body.position.rotation(torch.arange(30)[None])
    products = (rotation.query(q[:, :, :1].expand_as(q)) * rotation.key(k[:, :, :1].expand_as(k))).sum(-1)
    torch.testing.assert_close(products, products[..., :1].expand_as(products), rtol=0, atol=1e-13)


def test_learned_returns_its_rows_and_has_a_maximum_length(seed: int) -> None:
    learned = attnkit.positions.build({"name": "learned", "max_length": 5}, d_model=4)
    t = torch.tensor([[4, 0, 2]])
    assert torch.equal(learned.embedding(t)[0], learned.weight[t[0]])
    assert learned.max_length == 5
    with pytest.raises(ValueError, match="max_length must be positive"):
        attnkit.positions.build({"name": "learned", "max_length": 0}, d_model=4)


def test_none_adds_no_position() -> None:
    none = attnkit.positions.build("none")
    t = torch.arange(3)[None]
    assert none.embedding(t) is None
    assert none.rotation(t) is None
    assert none.bias(t, t) is None
