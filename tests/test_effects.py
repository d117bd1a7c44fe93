"""No option is silent: the kit's rule notices one that is, and stacks refuse or name what their parts do not read."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnkit
from attnkit.models.word_vectors import WordVectorModel
from attnkit.norm import Norm
from attnkit.registry import ConfigurationError, Registry, ResolvedSpec, norms, stacks, tasks
from attnkit.testing.component import complete
from attnkit.testing.effects import Outcome, no_argument_is_silent, options_with
from attnkit.train.composition import outline, without_effect


class Plain(Norm):
    """A norm that reads `shift` only with `shifted`, without a word."""

    def __init__(self, *, d_model: int, scale: float = 1.0, shifted: bool = True, shift: float = 1.0) -> None:
        super().__init__()
        self.scale, self.shift = scale, shift if shifted else 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x.tanh() + self.shift


class Deaf(Plain):
    def __init__(self, *, d_model: int, scale: float = 1.0, deaf: float = 1.0) -> None:
        super().__init__(d_model=d_model, scale=scale)


class Idle(Plain):
    """A norm whose `extra` is a parameter that is multiplied by zero."""

    def __init__(self, *, d_model: int, scale: float = 1.0, extra: bool = False) -> None:
        super().__init__(d_model=d_model, scale=scale)
        self.extra = nn.Parameter(torch.ones(d_model)) if extra else None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.extra is None else y + 0.0 * self.extra


class Impossible(Plain):
    def __init__(self, *, d_model: int, scale: float = 1.0) -> None:
        raise ConfigurationError("no such scale")


class Candid(Plain):
    def __init__(self, *, d_model: int, shifted: bool = True, shift: float = 1.0) -> None:
        if not shifted and shift != 1.0:
            raise ConfigurationError("shift has no effect unless shifted")
        super().__init__(d_model=d_model, shifted=shifted, shift=shift)


def test_the_rule_detects_an_argument_that_nothing_reads() -> None:
    with pytest.raises(AssertionError, match=r"^deaf has no effect: "):
        no_argument_is_silent(norms, f"{__name__}.Deaf")


def test_the_rule_fails_if_no_value_can_be_tried() -> None:
    with pytest.raises(ConfigurationError, match="no such scale"):
        no_argument_is_silent(norms, f"{__name__}.Impossible")


def test_the_rule_detects_a_parameter_without_effect() -> None:
    with pytest.raises(AssertionError, match=r"^extra has no effect: \[True\] change nothing"):
        no_argument_is_silent(norms, f"{__name__}.Idle")


def test_the_rule_detects_an_argument_silenced_by_another() -> None:
    with pytest.raises(AssertionError, match=r"^shift has no effect with {'shifted': False}: "):
        no_argument_is_silent(norms, f"{__name__}.Plain")
    no_argument_is_silent(norms, f"{__name__}.Candid")


SLOTS = ("mixer", "attention", "position", "norm", "feed_forward", "residual")
LISTS: tuple[dict[str, Any], ...] = (
    {"layers": [{"mixer": "rwkv"}, {"feed_forward": "none"}]},
    {"layers": [{"residual": "rezero", "norm": "none"}, {"residual": "rezero", "norm": "none"}]},
    {"layers": [{"mixer": "none", "feed_forward": "none"}, {}]},
    {"mixer": {"name": "parallel", "mixers": ["rwkv", "convolution"]}},
    {"mixer": {"name": "multi_head", "biases": ["output"]}},
    {"norm": "none", "residual": "pre_norm"},
    {"residual": "rezero", "feed_forward": "none"},
)
CHANGES: dict[str, tuple[Any, ...]] = {
    "num_heads": (1,), "num_kv_heads": (1,), "head_dim": (3,), "attention": ("additive",), "query_key_norm": ("rms_norm",),
    "attention_dropout": (0.5,), "bias": (False,), "window": (2,),
    "backend": ("chunked", "sdpa", "additive_eager"), "mixer": ("convolution",),
    "position": ("rotary", "alibi", "relative"), "norm": ("rms_norm", "dynamic_tanh"), "feed_forward": ("glu",),
    "residual": ("sandwich_norm", "layer_scale"), "dropout": (0.5,), "num_layers": (3, 4),
    "layers": ([{}, {"feed_forward": "none"}], [{}, {"mixer": "none"}]),
    "shared_positions": (False,), "skips": (True,), "embedding_norm": (True,), "final_norm": (True, False),
}  # fmt: skip


def contexts() -> Iterator[dict[str, Any]]:
    for slot in SLOTS:
        registry: Registry = next(a.registry for a in stacks.arguments("decoder") if a.name == slot and a.registry is not None)
        yield from ({slot: complete(registry, name)} for name in registry)
    yield from LISTS


@pytest.mark.parametrize("name", ["recurrent_decoder", "recurrent_encoder", "recurrent_encoder_decoder"])
def test_no_option_of_a_recurrent_stack_is_silent(name: str) -> None:
    no_argument_is_silent(stacks, name)


def test_every_option_of_a_stack_is_tried() -> None:
    assert set(CHANGES) == {a.name for a in stacks.arguments("decoder")} - {"d_model"}


CASES = [("decoder", context) for context in contexts()] + [("encoder", c) for c in contexts() if c.keys() & {"mixer", "position"}]


@pytest.mark.parametrize(("stack", "context"), CASES, ids=str)
def test_every_stack_option_takes_effect_or_is_rejected_or_reported(stack: str, context: dict[str, Any]) -> None:
    """With each component in its slot. Numbers that results do not depend on count as acting, since they are rounded otherwise."""
    base = {"name": stack, "d_model": 8, "num_layers": 2, "num_heads": 2, "position": "none", **context}
    plain = Outcome(options_with(stacks, base))
    if not plain.is_legal:
        pytest.skip("it does not stand here, or needs a position")
    for option, values in CHANGES.items():
        changed = [{**base, option: value} for value in values]
        legal = 0
        for outcome in (Outcome(options_with(stacks, spec)) for spec in changed):
            if outcome.is_legal and plain.differs(outcome):
                break
            legal += outcome.is_legal
        else:
            specs = [stacks.resolve(spec) for spec in changed]
            named = any(option in spec.unread for spec in specs)
            same = option in context and stacks.resolve(base)[option] in [spec[option] for spec in specs]
            assert not legal or named or same, f"{option} does nothing with {context}"


def test_options_without_effect_are_reported() -> None:
    spec = {"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "backend": "sdpa", "mixer": "rwkv"}
    why = "no mixer of this stack reads it (mixers: rwkv)"
    assert attnkit.stacks.resolve(spec).unread == {"num_heads": why, "backend": why}
    assert attnkit.stacks.resolve({**spec, "mixer": "multi_head"}).unread == {}
    both = {**spec, "name": "encoder_decoder", "mixer": "multi_head", "decoder_layers": [{"mixer": "rwkv"}]}
    assert attnkit.stacks.resolve(both).unread == {}
    assert attnkit.stacks.resolve({**both, "layers": [{"mixer": "fourier"}], "cross_mixer": "linear_attention"}).unread.keys() == {
        "backend"
    }
    own = {"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "backend": "sdpa"}
    own |= {"layers": [{"num_heads": 4, "backend": "chunked"}], "cross_attention": "general"}
    assert attnkit.stacks.resolve(own).unread.keys() == {"num_heads", "backend"}  # the reader of the memory has its layer's, too


def test_unused_segments_are_reported() -> None:
    why = "the tokens of this task have only 1 segment; question_answering, which can start from its checkpoint, gives passages the second"
    stack = {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2}

    def spec(name: str, count: int) -> ResolvedSpec:
        return tasks.resolve({"name": name, "stack": stack, "embedding": {"name": "token", "num_segments": count}})

    for name in ("masked_lm", "classification", "regression", "tagging"):
        assert [spec(name, count).unread for count in (0, 1, 2)] == [{}, {}, {"embedding.num_segments": why}]
    assert [*spec("question_answering", 3).unread.values()] == ["the tokens of this task have only 2 segments"]
    assert spec("question_answering", 2).unread == tasks.resolve({"name": "tagging", "stack": stack}).unread == {}
    assert without_effect(spec("masked_lm", 2), path="model") == [f"model.embedding.num_segments has no effect: {why}"]
    shown = [line for line in outline(spec("masked_lm", 2), role="model") if "has no effect" in line]
    assert shown == [f"  embedding: token (num_segments=2, which has no effect: {why})"]


ONE, TWO = ({"name": "token", "num_segments": count} for count in (1, 2))
WITHOUT_SEGMENTS: dict[str, Any] = {
    "decoder": {"stack": "decoder", "vocab_size": 9},
    "target": {"stack": "encoder_decoder", "src_vocab_size": 9, "tgt_vocab_size": 9, "src_embedding": "token"},
    "source": {"stack": "encoder_decoder", "src_vocab_size": 9, "tgt_vocab_size": 9},
}


@pytest.mark.parametrize("kind", WITHOUT_SEGMENTS)
def test_a_model_without_segment_inputs_rejects_a_second_segment(kind: str) -> None:
    argument = "src_embedding" if kind == "source" else "embedding"
    spec = {**WITHOUT_SEGMENTS[kind], "d_model": 8, "num_layers": 1, "num_heads": 2}
    attnkit.compose(**spec, **{argument: ONE})
    with pytest.raises(ConfigurationError, match="num_segments=2 has no effect, because all tokens of this model have the first"):
        attnkit.compose(**{**spec, argument: TWO})


def test_word_vectors_reject_a_second_segment() -> None:
    with pytest.raises(ConfigurationError, match="num_segments=2 has no effect"):
        WordVectorModel(vocab_size=9, d_model=8, embedding=TWO)
