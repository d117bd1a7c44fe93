from collections.abc import Iterator
from typing import Any

import pytest
import torch

import attnkit
from attnkit.mixer import Tokens
from attnkit.registry import FAMILIES, ConfigurationError
from attnkit.testing import Check, checks_for, combinations, parametrize, transformer
from attnkit.testing.combinations import Combination, check_combinations
from attnkit.testing.kit import RULES

pytestmark = pytest.mark.random

# Every built-in piece keeps every rule. The pairs of attention and position are run from the side of the attention alone.


POSITIONS, MASKS = list(attnkit.positions), [mask for mask in transformer.MASKS if mask != "combined"]


def pairs() -> Iterator[Any]:
    """Yield the checks of attentions: with each position under the combined mask and under one of the others, in turn.

    So each mask also meets each attention and each position, and what a mask does depends on no pair of both. Each position is compiled
    with one attention: each backend of an attention is compiled on its own. `attnkit check` runs the whole product, and so does
    `test_plugin.py` for one attention, except that it compiles it only on its own.
    """
    for i, attention in enumerate(attnkit.attentions):
        for check in checks_for("attentions", attention):
            rule, _, pair = check.name.rstrip("]").partition("[")
            position, _, mask = pair.rpartition("-")
            if rule == "is_refused" or not position:
                yield pytest.param(check, id=f"{attention}-{check.name}")
            elif rule == "compiles_without_graph_breaks" and attention != compiled_with(position):
                continue
            elif mask in ("combined", MASKS[(i + POSITIONS.index(position)) % 4]):
                yield pytest.param(check, id=f"{attention}-{check.name}")


def compiled_with(position: str) -> str:
    legal = [attention for attention in attnkit.attentions if transformer.is_legal(attention, position)]
    return legal[POSITIONS.index(position) % len(legal)]


@pytest.mark.parametrize("check", [*pairs()])
def test_attention(check: Check) -> None:
    check()


def test_every_mask_is_checked_with_every_attention_and_position() -> None:
    names = [param.id.partition("-")[::2] for param in pairs()]
    met = [(attention, *name.rstrip("]").partition("[")[2].rpartition("-")[::2]) for attention, name in names if "[" in name]
    masks = {*transformer.MASKS}
    assert all({m for a, _, m in met if a == attention} == masks for attention in attnkit.attentions)
    assert all({m for _, p, m in met if p == position} == masks for position in attnkit.positions)
    compiled = [name.partition("[")[2].rpartition("-")[0] for _, name in names if name.startswith("compiles_without_graph_breaks[")]
    assert sorted(compiled) == POSITIONS


@parametrize("normalizers", *(name for name in attnkit.normalizers if name != "softmax"))  # the one of `test_attention`
def test_normalizer(check: Check) -> None:
    check()


@parametrize("backends", "additive_eager", "additive_triton")  # `test_attention` compares all backends
def test_backend(check: Check) -> None:
    check()


@parametrize("mixers")
def test_mixer(check: Check) -> None:
    check()


@pytest.mark.parametrize("check", [c for name in attnkit.positions for c in checks_for("positions", name) if "[" not in c.name])
def test_position(check: Check) -> None:
    check()


@parametrize("norms")
def test_norm(check: Check) -> None:
    check()


@parametrize("feed_forwards")
def test_feed_forward(check: Check) -> None:
    check()


@parametrize("residuals")
def test_residual(check: Check) -> None:
    check()


@parametrize("embeddings")
def test_embedding(check: Check) -> None:
    check()


@parametrize("heads")
def test_head(check: Check) -> None:
    check()


@parametrize("multi_tokens")
def test_multi_token(check: Check) -> None:
    check()


@parametrize("inits")
def test_init(check: Check) -> None:
    check()


@parametrize("stacks")
def test_stack(check: Check) -> None:
    check()


@pytest.mark.parametrize("check", [pytest.param(c, id=f"{name}-{c.name}") for f in RULES for name in getattr(attnkit, f)
                                  for c in checks_for(f, name, docs=True)])  # fmt: skip
def test_documentation(check: Check) -> None:
    check()


def test_every_family_with_tensors_has_rules() -> None:
    assert {f.attribute for f in FAMILIES} - set(RULES) == {
        *("tokenizers", "optimizers", "schedules", "tasks", "datasets", "corpora", "probes"),
        "layer_kinds",  # its parts have rules, and so have stacks
    }


def test_every_pair_is_checked_from_both_sides() -> None:
    for attention in attnkit.attentions:
        for position in attnkit.positions:
            of_attention = {c.name.replace(f"[{position}", "[*") for c in checks_for("attentions", attention) if f"[{position}" in c.name}
            of_position = {c.name.replace(f"[{attention}", "[*") for c in checks_for("positions", position) if f"[{attention}" in c.name}
            assert of_attention == of_position
            assert of_attention


def test_unknown_families_and_names_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'attentions'"):
        checks_for("attention", "additive")
    with pytest.raises(ConfigurationError, match="Did you mean 'additive'"):
        checks_for("attentions", "aditive")
    with pytest.raises(ConfigurationError, match="Did you mean 'attentions'"):
        parametrize("attention")


def test_a_failing_check_names_its_seed_and_preserves_the_random_state(seed: int) -> None:
    drawn: list[float] = []

    def fail() -> None:
        drawn.append(float(torch.rand(())))
        raise ZeroDivisionError("reason")

    before = torch.get_rng_state()
    with pytest.raises(AssertionError, match=r"some_rule: ZeroDivisionError: reason\nTo repeat it: check\(seed=(\d+)\)") as caught:
        Check("some_rule", fail)()
    assert torch.equal(before, torch.get_rng_state())
    with pytest.raises(AssertionError):
        Check("some_rule", fail)(seed=int(str(caught.value).rpartition("=")[2].rstrip(")")))
    assert drawn[0] == drawn[1]


# Rules can fail: each of these pieces breaks one, and the kit says which.


def broken(family: str, name: str, cls: type, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    registry: Any = getattr(attnkit, family)
    monkeypatch.setitem(registry._classes, name, cls)
    failed = set()
    for check in [*checks_for(family, name), *checks_for(family, name, docs=True)]:
        if "[" in check.name or check.name.startswith("compiles"):
            continue
        try:
            check()
        except AssertionError:
            failed.add(check.name)
    return failed


def test_the_kit_detects_leaking_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnkit.attention.scaled_dot_product import ScaledDotProduct

    class Leaking(ScaledDotProduct):
        def row_weights(self, query, key, mask, attn_bias):  # type: ignore[no-untyped-def]
            logits = self.score(query, key.repeat_interleave(2, 1) if key.shape[1] != query.shape[1] else key)
            if mask is not None and mask.allowed is not None:
                logits = logits.masked_fill(~mask.allowed, -3.0)
            return logits.softmax(-1)

    assert "ignores_masked_keys" in broken("attentions", "leaking", Leaking, monkeypatch)


def test_the_kit_detects_scores_that_overflow_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnkit.attention.dot_product import DotProduct

    class Overflowing(DotProduct):
        def score(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (query.half() @ key.half().transpose(-1, -2)).to(query.dtype)

    assert "does_not_overflow_in_half_precision" in broken("attentions", "overflowing", Overflowing, monkeypatch)


def test_layers_that_share_values_compile_together() -> None:
    options = {"mixer": {"name": "multi_head", "value_residual": 0.5}, "position": "rotary"}
    transformer.compiles_without_graph_breaks(options, "causal")


def test_a_true_gradient_beyond_half_precision_is_not_a_failure() -> None:
    (rule,) = [check for check in checks_for("attentions", "general") if check.name.startswith("does_not_overflow")]
    rule(seed=2938147620)  # with a probe of one, the weights' gradient is 70,000, in float64 too


def test_the_kit_detects_a_mixer_less_accurate_than_its_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnkit.mixer.linear_attention import LinearAttention

    class Coarse(LinearAttention):  # rounds its output to bfloat16, also where fp16 is asked for
        def forward(self, x: Any, tokens: Any, state: Any = None) -> Any:
            y, state = super().forward(x, tokens, state)
            return (y.bfloat16().to(y.dtype) * (1 + 2**-5) if torch.is_autocast_enabled("cpu") else y), state

    monkeypatch.setitem(attnkit.mixers._classes, "coarse", Coarse)
    rule = next(check for check in checks_for("mixers", "coarse") if check.name.startswith("is_accurate_in_half_precision"))
    with pytest.raises(AssertionError, match=r"output in torch.float16: off by .* \(root mean square\), where .* is allowed"):
        rule()


def test_the_kit_detects_options_a_mixer_declares_but_ignores(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnkit.mixer.linear_attention import LinearAttention

    class TakesAWindow(LinearAttention):
        def __init__(self, *, d_model: int, num_heads: int | None = None, window: int | None = None) -> None:
            super().__init__(d_model=d_model, num_heads=num_heads)

    class NamesRotations(LinearAttention):
        reads_positions = frozenset({"rotation"})

    for mixer in (TakesAWindow, NamesRotations):
        assert "reads_what_it_declares" in broken("mixers", "ignorant", mixer, monkeypatch)


def test_the_kit_detects_tables_that_lose_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnkit.position import Position

    class Table(Position):
        """A table in a buffer.

        Args:
            d_model: Width.
        """

        def __init__(self, *, d_model: int) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(64.0)[:, None].mul(0.1).sin().expand(-1, d_model), persistent=False)

        def embedding(self, positions: torch.Tensor) -> torch.Tensor:
            table: torch.Tensor = self.table  # type: ignore[assignment]
            return table[positions]

    failed = broken("positions", "table", Table, monkeypatch)
    assert {"is_exact_in_any_precision", "is_documented", "has_a_running_example"} <= failed


def test_undocumented_code_fails_only_the_documentation_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scale(torch.nn.Module):
        def __init__(self, *, d_model: int) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.empty(d_model))
            self.reset_parameters()

        def reset_parameters(self) -> None:
            torch.nn.init.ones_(self.scale)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    assert broken("norms", "scale", Scale, monkeypatch) == {"is_documented", "has_a_running_example"}
    assert {c.name for c in checks_for("norms", "scale", docs=True)} == {"is_documented", "has_a_running_example"}


def test_a_scalar_parameter_fails_only_the_sharding_rule_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self, *, shape: tuple[int, ...] = ()) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.empty(shape))
            self.reset_parameters()

        def reset_parameters(self) -> None:
            torch.nn.init.ones_(self.scale)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    assert broken("norms", "scaled", Scaled, monkeypatch) - {"is_documented", "has_a_running_example"} == {"can_be_sharded"}
    bare, flat = (
        next(check for check in checks_for("norms", spec) if check.name == "can_be_sharded")
        for spec in ("scaled", {"name": "scaled", "shape": [1]})
    )
    with pytest.raises(AssertionError, match=r"FSDP2 cannot shard .* of shape \[\], such as scale: give them the shape \[1\]"):
        bare()
    flat()


def test_the_kit_detects_unused_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnkit.norm.rms_norm import RMSNorm

    class Idle(RMSNorm):
        def __init__(self, *, d_model: int) -> None:
            super().__init__(d_model=d_model)
            self.idle = torch.nn.Parameter(torch.zeros(3))

    assert "has_exact_gradients" in broken("norms", "idle", Idle, monkeypatch)


def test_the_kit_detects_a_backend_that_ignores_the_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnkit.attention.backend.reference import Reference

    class Forgetful(Reference):
        def compute(self, attention, inputs):  # type: ignore[no-untyped-def]
            return super().compute(attention, inputs._replace(bias=None))

    monkeypatch.setattr(attnkit.backends, "version", -2)
    failed = broken("backends", "forgetful", Forgetful, monkeypatch) - {"is_documented", "has_a_running_example"}
    assert failed == {"agrees_with_the_reference_on_every_score"}


def test_every_combination_is_legal_or_rejected_before_building() -> None:
    found = check_combinations(100)  # `attnkit check --all` runs all
    assert not found.failures
    assert found.kept > 30
    assert set(found.refused) == {
        "mixer does not work in a decoder",
        "mixer does not work in an encoder",
        "mixer does not work as a reader of a memory",
        "position has no effect",
        "position does not work in an encoder",
        "residual with a shared norm needs a mixer in addition to the feed-forward network",
    }


def test_combinations_detect_leaks_and_late_rejections(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnkit.mixer.convolution import Convolution

    class Leaking(Convolution):
        def forward(self, x, tokens, state=None):  # type: ignore[no-untyped-def]
            return super().forward(x, Tokens(), state)

    class Late(Convolution):
        def __init__(self, *, d_model: int, direction: str = "causal") -> None:
            super().__init__(d_model=d_model)
            if direction == "bidirectional":
                raise ConfigurationError("no")

    monkeypatch.setattr(combinations, "combinations", lambda: iter([Combination("encoder", "convolution", None, "none", "pre_norm")]))
    for broken_mixer, message in ((Leaking, "masked tokens change the output"), (Late, "was refused only after")):
        monkeypatch.setitem(attnkit.mixers._classes, "convolution", broken_mixer)
        (failure,) = check_combinations().failures
        assert message in failure
