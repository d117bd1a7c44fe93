"""Every composition that is legal builds, trains a step and generates; the others are refused with the reason."""

import copy
import json
import pickle
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import attnkit
from attnkit import ConfigurationError, draws
from attnkit.feed_forward import base
from attnkit.mixer.linear_attention import FEATURE_MAPS, POSITIVE
from attnkit.testing.transformer import is_legal

SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 1, "num_heads": 4}
VOCABULARY = {"encoder": {"vocab_size": 9}, "decoder": {"vocab_size": 9}, "encoder_decoder": {"src_vocab_size": 9, "tgt_vocab_size": 8}}
PIECES = {f.attribute: f.names() for f in (attnkit.norms, attnkit.feed_forwards, attnkit.residuals, attnkit.embeddings)}
PIECES["embeddings"] = [  # images and files of vectors have tests of their own
    n
    for n in PIECES["embeddings"]
    if attnkit.embeddings.get(n).reads == "tokens" and not any(a.required for a in attnkit.embeddings.arguments(n))
]


def compose(stack: str, **other: Any) -> Any:
    return attnkit.compose(stack=stack, **SIZES, **VOCABULARY[stack], **other)


def logits(model: nn.Module, stack: str) -> torch.Tensor:
    src, tgt = torch.randint(3, 8, (2, 5)), torch.randint(3, 8, (2, 4))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    output: torch.Tensor = model(src, tgt, src_mask=mask) if stack == "encoder_decoder" else model(src, key_mask=mask)
    return output


def train_and_generate(model: Any, stack: str) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    output = logits(model.train(), stack)
    assert output.shape == (2, 4 if stack == "encoder_decoder" else 5, model.spec.get("tgt_vocab_size", 9))
    nn.functional.cross_entropy(output.flatten(0, 1), torch.randint(3, 8, output.shape[:2]).flatten()).backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None]
    assert not idle, f"parameters without gradients: {idle}"
    optimizer.step()
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())
    if stack != "encoder":
        new = model.eval().generate(torch.randint(3, 8, (2, 3)), max_length=3, beam_size=2)
        assert new.shape[0] == 2
        assert 1 <= new.shape[1] <= 3


CHOICES = product(*map(enumerate, (attnkit.attentions.names(), attnkit.positions.names(), sorted(VOCABULARY))))
"""Each number of heads comes with each attention, with each position and with each stack."""


@pytest.mark.parametrize(
    ("attention", "position", "stack", "num_kv_heads"), [(a, p, s, (4, 2, 1)[(i + j + k) % 3]) for (i, a), (j, p), (k, s) in CHOICES]
)
def test_every_legal_pair_trains_and_generates_in_every_stack(
    attention: str, position: str, stack: str, num_kv_heads: int, seed: int
) -> None:
    if not is_legal(attention, position, "causal" if stack == "decoder" else "none"):
        with pytest.raises(ConfigurationError, match=f"'{position}' does not work .*Choose "):
            compose(stack, attention=attention, position=position)
        return
    train_and_generate(compose(stack, attention=attention, position=position, num_kv_heads=num_kv_heads, dropout=0.1), stack)


@pytest.mark.parametrize(("slot", "name"), [(family.removesuffix("s"), name) for family, names in PIECES.items() for name in names])
@pytest.mark.parametrize("stack", sorted(VOCABULARY))
def test_every_other_component_trains_and_generates_in_every_stack(stack: str, slot: str, name: str, seed: int) -> None:
    train_and_generate(compose(stack, **{slot: name}), stack)


@pytest.mark.parametrize("stack", sorted(VOCABULARY))
def test_only_additive_attention_with_rotations_is_illegal(stack: str) -> None:
    illegal = {(a, p) for a in attnkit.attentions.built_in() for p in attnkit.positions.built_in() if not is_legal(a, p)}
    assert illegal == {("additive", "rotary"), ("additive", "xpos")}


def test_cross_attention_may_use_another_score(seed: int) -> None:
    model = compose(
        "encoder_decoder", attention="scaled_dot_product", position="rotary", cross_attention={"name": "additive", "hidden_dim": 3}
    )
    kinds = {path.rpartition("layers.0.")[2]: type(m).__name__ for path, m in model.named_modules() if path.endswith(".attention")}
    assert kinds == {"mixer.attention": "ScaledDotProduct", "cross_mixer.attention": "Additive"}
    train_and_generate(model, "encoder_decoder")


@pytest.mark.parametrize("cross_position", ["none", "rotary", "alibi", "relative", "shaw"])
def test_positions_work_inside_cross_attention(cross_position: str, seed: int) -> None:
    model = compose("encoder_decoder", cross_position=cross_position, num_kv_heads=2).double().eval()
    src, tgt = torch.randint(3, 8, (3, 6)), torch.randint(3, 8, (3, 5))
    mask = torch.arange(6) < torch.tensor([6, 2, 4])[:, None]
    whole = model(src, tgt, src_mask=mask)
    for row in range(3):
        torch.testing.assert_close(model(src[row, mask[row]][None], tgt[row][None])[0], whole[row], rtol=1e-10, atol=1e-10)
    rows, state = torch.tensor([2, 0, 0]), model.encode(src, mask)
    state = state.select(rows)
    for t in range(5):
        step, state = model.step(tgt[rows, t : t + 1], state)
        torch.testing.assert_close(step, whole[rows, t], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cross_position", ["sinusoidal", "learned"])
def test_embedding_positions_are_rejected_inside_cross_attention(cross_position: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cross_position '{cross_position}' does not work.*fire, kerple, none, .*shaw"):
        compose("encoder_decoder", cross_position=cross_position)


@pytest.mark.parametrize("stack", sorted(VOCABULARY))
@pytest.mark.parametrize("tie", ["none", "output", "all"])
def test_the_spec_is_plain_data_and_rebuilds_the_model(stack: str, tie: str, seed: int) -> None:
    arguments: dict[str, Any] = {"attention": {"name": "additive", "hidden_dim": 3}, "position": "relative", "tie": tie, "eos_id": None}
    if stack == "encoder_decoder":
        arguments["tgt_vocab_size"] = 9
    elif tie == "all":
        with pytest.raises(ConfigurationError, match="tie must be one of none, output, but is 'all'"):
            compose(stack, **arguments)
        return
    model = attnkit.compose(**{"stack": stack, **SIZES, **VOCABULARY[stack], **arguments})
    spec = json.loads(json.dumps(model.spec))
    assert spec == model.spec
    rebuilt = attnkit.compose(**spec)
    assert rebuilt.spec == model.spec
    rebuilt.load_state_dict(model.state_dict())
    torch.manual_seed(seed)
    first = logits(model.eval(), stack)
    torch.manual_seed(seed)
    assert torch.equal(first, logits(rebuilt.eval(), stack))


@pytest.mark.parametrize(("tie", "tables"), [("none", 3), ("output", 2), ("all", 1)])
def test_ties_share_tables_and_survive_copies(tie: Any, tables: int, seed: int) -> None:
    model = attnkit.compose(stack="encoder_decoder", **SIZES, src_vocab_size=77, tgt_vocab_size=77, tie=tie)
    for m in (model, copy.deepcopy(model), model.to(torch.float64)):
        assert sum(77 in p.shape for p in m.parameters()) == tables
        assert len(m.state_dict()) == len({v.data_ptr() for v in m.state_dict().values()})
        logits(m, "encoder_decoder").sum().backward()
        assert all(p.grad is not None for p in m.parameters())


def test_three_way_ties_require_one_vocabulary() -> None:
    with pytest.raises(ConfigurationError, match="9 and 8 tokens; use tie 'output', or one tokenizer"):
        compose("encoder_decoder", tie="all")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stack": "encodr"}, "unknown stack 'encodr'. Did you mean 'encoder'"),
        ({"attention": "aditive"}, "unknown attention 'aditive'. Did you mean 'additive'"),
        (
            {"attention": {"name": "additive", "hiden_dim": 3}},
            "attention 'additive' has no argument 'hiden_dim'. Did you mean 'hidden_dim'",
        ),
        ({"attention": {"name": "additive", "head_dim": 3}}, "receives 'head_dim' from its parent"),
        ({"attention": {"name": "additive", "hidden_dim": "wide"}}, r"hidden_dim must be int \| None, but is 'wide' \(str\)"),
        ({"position": "rotery"}, "unknown position 'rotery'. Did you mean 'rotary'"),
        ({"atention": "additive"}, "stack 'encoder' has no argument 'atention'. Did you mean 'attention'"),
        ({"embedding": "tokn"}, "unknown embedding 'tokn'. Did you mean 'token'"),
        ({"num_layers": 1.5}, r"num_layers must be int \| None, but is 1.5 \(float\)"),
        ({"bias": 1}, r"bias must be bool, but is 1 \(int\)"),
        ({"tie": "outputs"}, "tie must be one of none, output, but is 'outputs'"),
        ({"src_vocab_size": 3}, "takes vocab_size, tie, head, not src_vocab_size"),
        ({"vocab_size": None}, "needs vocab_size"),
        ({"pooling": "mean"}, "takes vocab_size, tie, head, not pooling"),
        ({"pooler": True}, "not pooler"),
        ({"vocab_size": True}, r"vocab_size must be int \| None, but is True \(bool\)"),
        ({"vocab_size": "10"}, "looks like a number: write 10, without quotes"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, but is 0"),
        ({"num_classes": 2.0}, r"num_classes must be int \| None, but is 2.0"),
        ({"num_classes": -1}, "num_classes must be at least 1, but is -1"),
        ({"num_classes": 2, "pooler": "no"}, "pooler must be bool, but is 'no'"),
        ({"pad_id": "0"}, "pad_id must be int, but is '0'"),
        ({"pad_id": 9}, "pad_id is 9, outside the vocabulary of 9 tokens, 0 to 8"),
        ({"eos_id": -1}, "eos_id must be at least 0, but is -1"),
        ({"norm": {"name": "rms_norm", "eps": -1.0}}, "eps must be at least 0, but is -1.0"),
        ({"norm": {"name": "layer_norm", "eps": float("nan")}}, "eps must be finite, but is nan"),
        ({"num_heads": 3}, "3"),
        ({"num_kv_heads": 3}, r"num_kv_heads \(3\) must be positive and divide num_heads"),
        ({"attention": "general", "backend": "additive_eager"}, "has no backend 'additive_eager'"),
        ({"attention": {"name": "additive", 3: 4}}, "attention 'additive' has no argument '3'"),
        ({"embedding": {"name": "patch", "patch_size": 4}}, "embedding 'patch' reads images, so the model needs num_classes"),
        ({"stack": {"name": "encoder", "d_model": 8}}, "has d_model twice"),
        ({"attention": 3}, "attention must be a name or a mapping with a name, but is 3"),
        ({"attention": None}, "attention must be a name or a mapping with a name, but is None"),
        ({"attention": {"hidden_dim": 3}}, "attention 'scaled_dot_product' has no argument 'hidden_dim'"),  # it adds to the default
    ],
)
def test_wrong_words_are_named_at_every_level(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        attnkit.compose(**{"stack": "encoder", **SIZES, "vocab_size": 9, **wrong})


def test_a_bos_id_outside_the_vocabulary_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="bos_id is 8, outside the vocabulary of 8 tokens"):
        attnkit.compose(stack="encoder_decoder", **SIZES, src_vocab_size=20, tgt_vocab_size=8, bos_id=8)


def test_an_eos_id_outside_the_vocabulary_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"eos_id is 8, outside the vocabulary of 8 tokens, 0 to 7; for .*, set eos_id to None"):
        attnkit.compose(stack="decoder", **SIZES, vocab_size=8, eos_id=8)
    assert attnkit.compose(stack="decoder", **SIZES, vocab_size=8, eos_id=None).eos_id is None
    attnkit.compose(stack="encoder", **SIZES, vocab_size=8, eos_id=8)  # it does not generate


@torch.no_grad()
def test_a_query_dependent_bias_survives_the_graph_break_of_experts(seed: int) -> None:
    model = attnkit.compose(stack="encoder", **SIZES, vocab_size=9, position="shaw", feed_forward="mixture_of_experts").eval()
    tokens = torch.randint(0, 9, (2, 5))
    torch.testing.assert_close(torch.compile(model, backend="eager")(tokens), model(tokens))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch
def test_a_model_compiles_with_inductor(seed: int) -> None:
    model = compose("decoder", attention="additive", position="relative", num_kv_heads=2, attention_dropout=0.3)
    tokens = torch.randint(3, 8, (2, 5))
    with draws.using(draws.make_keys(torch.arange(2), seed)):
        output = torch.compile(model, fullgraph=True)(tokens)
        torch.testing.assert_close(output, model(tokens), rtol=1e-4, atol=1e-5)
    output.sum().backward()


def activations() -> list[str]:
    return sorted(base._TORCH | set(base._OWN))


@pytest.mark.parametrize(
    "options",
    [
        *({"feed_forward": {"name": "glu", "activation": name}} for name in activations()),
        *({"mixer": {"name": "linear_attention", "feature_map": name, "normalized": name in POSITIVE}} for name in FEATURE_MAPS),
        *({"mixer": name, "position": "none"} for name in attnkit.mixers.names() if "causal" in attnkit.mixers.get(name).directions),
    ],
    ids=str,
)
def test_a_model_can_be_pickled(options: dict[str, Any], seed: int) -> None:
    model, tokens = compose("decoder", **options).eval(), torch.randint(3, 8, (2, 5))
    assert torch.equal(pickle.loads(pickle.dumps(model))(tokens), model(tokens))
