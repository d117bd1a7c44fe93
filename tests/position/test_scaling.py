"""Each scaling of rotary positions against its paper's equation, and against transformers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnkit
from attnkit.registry import ConfigurationError

WIDTH, BASE, LENGTH = 16, 10_000.0, 512
CPU = torch.device("cpu")
FACTORS = [1.0, 1.05, 1.2, 1.7, 2.5, 4.0, 6.0, 9.5]
SPECS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "ntk": {"factor": 4.0},
    "yarn": {"factor": 8.0, "original_length": LENGTH},
    "llama3": {"factor": 8.0, "original_length": LENGTH},
    "longrope": {"factors": FACTORS, "factor": 32.0, "original_length": LENGTH},
    "proportional": {"proportion": 0.7, "factor": 2.0},
}


def rotary(**scaling: Any) -> Any:
    return attnkit.positions.build({"name": "rotary", "base": BASE, "scaling": scaling}, head_dim=WIDTH).double()


def plain(i: int) -> float:
    return BASE ** (-2 * i / WIDTH)


def yarn(i: int) -> float:
    def pair(turns: float) -> float:
        return WIDTH * math.log(LENGTH / (2 * math.pi * turns)) / (2 * math.log(BASE))

    first, last = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), WIDTH - 1)
    ramp = min(max((i - first) / (last - first), 0), 1)
    return plain(i) * ((1 - ramp) + ramp / 8)


def llama3(i: int) -> float:
    wavelength = 2 * math.pi / plain(i)
    if wavelength < LENGTH / 4:
        return plain(i)
    if wavelength > LENGTH / 1:
        return plain(i) / 8
    smooth = (LENGTH / wavelength - 1) / (4 - 1)
    return (1 - smooth) * plain(i) / 8 + smooth * plain(i)


EQUATIONS: dict[str, tuple[Callable[[int], float], float]] = {
    "linear": (lambda i: plain(i) / 4, 1.0),
    "ntk": (lambda i: (BASE * 4 ** (WIDTH / (WIDTH - 2))) ** (-2 * i / WIDTH), 1.0),
    "yarn": (yarn, 0.1 * math.log(8) + 1),
    "llama3": (llama3, 1.0),
    "proportional": (lambda i: plain(i) / 2 if i < 5 else 0.0, 1.0),  # 0.7 * 8 pairs = 5.6
    "longrope": (lambda i: plain(i) / FACTORS[i], math.sqrt(1 + math.log(32) / math.log(LENGTH))),
}


def test_every_scaling_is_tested() -> None:
    assert set(SPECS) == set(EQUATIONS) == attnkit.rotary_scalings.built_in()


@pytest.mark.parametrize("name", SPECS)
def test_rotated_vectors_follow_the_equation(name: str, seed: int) -> None:
    frequency, factor = EQUATIONS[name]
    t, x = torch.randint(5000, (2, 3)), torch.randn(2, 1, 3, WIDTH).double()
    rotation = rotary(name=name, **SPECS[name]).rotation(t)
    expected = torch.empty_like(x)
    for b in range(2):
        for i in range(3):
            for pair in range(WIDTH // 2):
                angle = int(t[b, i]) * frequency(pair)
                turned = complex(x[b, 0, i, pair], x[b, 0, i, pair + WIDTH // 2]) * complex(math.cos(angle), math.sin(angle)) * factor
                expected[b, 0, i, pair], expected[b, 0, i, pair + WIDTH // 2] = turned.real, turned.imag
    torch.testing.assert_close(rotation.query(x), expected, rtol=0, atol=1e-11)  # an angle of 5,000 has 12 digits after the point
    torch.testing.assert_close(rotation.key(x), expected, rtol=0, atol=1e-11)


THEIRS: dict[str, tuple[dict[str, Any], dict[str, Any], int | None]] = {
    # ours, transformers' rope_parameters, and their sequence length
    "linear": (SPECS["linear"] | {"name": "linear"}, {"rope_type": "linear", "factor": 4.0}, None),
    **{
        f"dynamic-{n}": ({"name": "ntk", "factor": max(3.0 * n / LENGTH - 2.0, 1.0)}, {"rope_type": "dynamic", "factor": 3.0}, n)
        for n in (100, LENGTH, LENGTH + 1, 4 * LENGTH)
    },
    "yarn": ({"name": "yarn"} | SPECS["yarn"], {"rope_type": "yarn", "factor": 8.0}, None),
    "yarn-untruncated": (
        {"name": "yarn", "truncate": False, "beta_fast": 20.0, "beta_slow": 2.0} | SPECS["yarn"],
        {"rope_type": "yarn", "factor": 8.0, "truncate": False, "beta_fast": 20.0, "beta_slow": 2.0},
        None,
    ),
    "yarn-attention-factor": (
        {"name": "yarn", "attention_factor": 1.0} | SPECS["yarn"],
        {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 0.7},
        None,
    ),
    "llama3": (
        {"name": "llama3"} | SPECS["llama3"],
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        None,
    ),
    "longrope-short": (
        {"name": "longrope"} | SPECS["longrope"],
        {"rope_type": "longrope", "factor": 32.0, "short_factor": FACTORS, "long_factor": [1.0] * 8},
        LENGTH,
    ),
    "longrope-long": (
        {"name": "longrope"} | SPECS["longrope"],
        {"rope_type": "longrope", "factor": 32.0, "short_factor": [1.0] * 8, "long_factor": FACTORS},
        LENGTH + 1,
    ),
}


@pytest.mark.parametrize("case", THEIRS)
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_frequencies_and_attention_factor_match_transformers(case: str, fraction: float) -> None:
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    spec, parameters, length = THEIRS[case]
    width = int(WIDTH / fraction)
    config = LlamaConfig(
        hidden_size=4 * width,
        num_attention_heads=4,
        head_dim=width,
        max_position_embeddings=LENGTH,
        rope_parameters={
            "rope_theta": BASE,
            "original_max_position_embeddings": LENGTH,
            "partial_rotary_factor": fraction,
            **parameters,
        },
    )
    expected, factor = rope.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, CPU, seq_len=length)
    ours = attnkit.positions.build({"name": "rotary", "base": BASE, "fraction": fraction, "scaling": spec}, head_dim=width)
    torch.testing.assert_close(ours.frequencies(CPU).float(), expected, rtol=3e-6, atol=0)  # theirs are computed in fp32
    assert ours.scaling.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("case", ["yarn", "llama3"])
def test_rotated_vectors_match_transformers(case: str, seed: int) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    spec, parameters, _ = THEIRS[case]
    rope_parameters = {"rope_theta": BASE, "original_max_position_embeddings": LENGTH, **parameters}
    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=1, max_position_embeddings=8 * LENGTH, rope_parameters=rope_parameters)
    t, q, k = torch.arange(40)[None], *torch.randn(2, 1, 3, 40, WIDTH)
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, t)
    expected = llama.apply_rotary_pos_emb(q, k, cos, sin)
    rotation = attnkit.positions.build({"name": "rotary", "base": BASE, "scaling": spec}, head_dim=WIDTH).rotation(t)
    for ours, theirs in zip((rotation.query(q), rotation.key(k)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)  # their angles are rounded to fp32: 40 radians to 2e-6, in part twice


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "proportional", "proportion": 1.5}, r"proportion must be in \[0, 1\]"),
        ({"name": "linear", "factor": 0.0}, "factor must be positive, but is 0"),
        ({"name": "yarn", "factor": 2.0, "original_length": 64, "beta_fast": 1.0}, "beta_fast .* must exceed beta_slow"),
        ({"name": "llama3", "factor": 2.0, "original_length": 64, "low_turns": 4.0}, "high_turns .* must exceed low_turns"),
        ({"name": "longrope", "factor": 2.0, "original_length": 64, "factors": [1.0] * 7}, "each of the 8 pairs .* but has 7"),
        ({"name": "yarn", "factor": 2.0, "original_length": 64, "attention_factor": 0.0}, "attention_factor must be positive, but is 0"),
        ({"name": "longrope", "factors": FACTORS, "attention_factor": -1.0}, "attention_factor must be positive, but is -1"),
        ({"name": "longrope", "factor": 2.0, "original_length": 64, "factors": [-1.0] * 8}, r"factors\[0\] must be positive"),
        ({"name": "longrope", "factor": 2.0, "original_length": 1, "factors": [1.0] * 8}, "original_length must be at least 2"),
    ],
)
def test_invalid_scalings_are_rejected(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rotary(**spec)


def test_proportional_frequencies_match_transformers() -> None:
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    parameters = {"rope_type": "proportional", "rope_theta": BASE, "partial_rotary_factor": 0.7, "factor": 2.0}
    config = LlamaConfig(hidden_size=WIDTH, num_attention_heads=1, rope_parameters=parameters)
    expected, factor = rope.ROPE_INIT_FUNCTIONS["proportional"](config, CPU)
    ours = rotary(name="proportional", **SPECS["proportional"])
    torch.testing.assert_close(ours.frequencies(CPU).float(), expected, rtol=3e-6, atol=0)
    assert ours.scaling.attention_factor == factor == 1


def test_ntk_needs_two_pairs() -> None:
    with pytest.raises(ValueError, match="at least two pairs"):
        attnkit.positions.build({"name": "rotary", "scaling": {"name": "ntk", "factor": 2.0}}, head_dim=2)


def test_the_registry_validates_a_scaling_inside_a_position() -> None:
    with pytest.raises(ConfigurationError, match=r"scaling: rotary_scaling 'yarn' needs factor, original_length"):
        attnkit.positions.resolve({"name": "rotary", "scaling": "yarn"})
    with pytest.raises(ConfigurationError, match=r"unknown rotary_scaling 'dynamic'"):
        attnkit.positions.resolve({"name": "rotary", "scaling": "dynamic"})
    resolved = attnkit.positions.resolve({"name": "rotary", "scaling": {"name": "linear", "factor": 2.0}})
    assert resolved.plain() == {
        "name": "rotary", "base": BASE, "fraction": 1.0, "interleaved": False, "scaling": {"name": "linear", "factor": 2.0}
    }  # fmt: skip
