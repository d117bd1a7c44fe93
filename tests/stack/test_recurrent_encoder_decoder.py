"""Recurrent encoder-decoders: a slow loop over each model's equations, the rules of the kit for every wiring, and what they refuse."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit import ConfigurationError
from attnkit.layers import CellState, ContextState
from attnkit.stack.recurrent_encoder_decoder import RecurrentEncoderDecoder
from attnkit.testing import parametrize

D, B, S, T = 8, 3, 6, 5
CELLS: Any = ("rnn", "lstm", "gru")
MASK = torch.arange(S) < torch.tensor([6, 3, 0])[:, None]
WIRINGS: dict[str, dict[str, Any]] = {
    "sutskever": {"attention": None},
    "cho": {"attention": None, "placement": "before"},
    "luong": {"attention": "general"},
    "luong_input_feeding": {"attention": "dot_product", "input_feeding": True},
    "bahdanau": {"attention": "additive", "placement": "before"},
}
NAME_AS_STACK: dict[str, Any] = {"stack": "recurrent_encoder_decoder"}
NAME = {"name": "recurrent_encoder_decoder"}
SPECS: list[Any] = [
    {**NAME, **wiring, "num_heads": heads, "cell": cell}
    for wiring, heads, cell in zip(WIRINGS.values(), (1, 1, 4, 1, 4), (*CELLS, *CELLS), strict=False)
]


@parametrize(
    "stacks",
    *SPECS,
    {**NAME, "num_heads": 1, "num_decoder_layers": 1, "attention": None, "bidirectional": False},
    {**NAME, "num_decoder_layers": 3},
)
def test_every_wiring_passes_the_conformance_rules(check: Callable[[], None]) -> None:
    check()


def make(cell: str, **other: Any) -> Any:
    stack = RecurrentEncoderDecoder(**{"d_model": D, "num_layers": 1, "cell": cell, **other}).double().eval()  # type: ignore[arg-type]
    for parameter in stack.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)
    return stack


@torch.no_grad()
def slow(stack: Any, tgt: Tensor, state: ContextState, memory: Tensor, wiring: str) -> Tensor:
    """One token of one row at a time, by the equations of the papers, for one layer."""
    decoder = stack.decoder
    layer, attention, readout = decoder.recurrent.layers[0], decoder.attention, decoder.readout
    out = torch.zeros_like(tgt)
    for b in range(B):
        s = state.layers[0].select(torch.tensor([b]))
        own = memory[b, MASK[b]]
        fixed, fed = s.hidden[0].clone(), torch.zeros(D).double()

        def context(query: Tensor, own: Tensor = own) -> Tensor:
            if len(own) == 0:
                return torch.zeros(D).double()
            logits = []
            for h in own:
                if wiring == "bahdanau":
                    a = attention.attention
                    logits.append(a.score_weight[0] @ torch.tanh(a.query_weight[0].T @ query + a.key_weight[0].T @ h))
                elif wiring == "luong":
                    a = attention.attention
                    logits.append(a.score(a.project_query(query[None, None, None]), a.project_key(h[None, None, None])).squeeze())
                else:
                    logits.append(query @ h)
            return torch.stack(logits).softmax(0) @ own

        def cell(x: Tensor, s: CellState, layer: Any = layer) -> CellState:
            return layer.step(x[None], s)  # type: ignore[no-any-return]

        for t, x in enumerate(tgt[b]):
            if wiring == "sutskever":
                s = cell(x, s)
                out[b, t] = s.hidden[0]
                continue
            if wiring == "luong":
                s = cell(x, s)
                c = context(s.hidden[0])
            elif wiring == "luong_input_feeding":
                s = cell(torch.cat([x, fed]), s)
                c = context(s.hidden[0])
            else:
                c = context(s.hidden[0]) if wiring == "bahdanau" else fixed
                s = cell(torch.cat([x, c]), s)
            fed = torch.tanh(readout.weight @ torch.cat([c, s.hidden[0]]))
            out[b, t] = fed
    return out


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_outputs_follow_the_papers_equations(wiring: str, cell: str, seed: int) -> None:
    stack = make(cell, **WIRINGS[wiring])
    src, tgt = torch.randn(B, S, D).double(), torch.randn(B, T, D).double()
    memory, encoded = stack.encoder(src, key_mask=MASK)
    state = stack.encode(src, src_mask=MASK)
    assert torch.equal(state.layers[0].hidden, encoded.layers[0].hidden)
    y, _ = stack.decode(tgt, state)
    torch.testing.assert_close(y, slow(stack, tgt, state, memory, wiring), rtol=1e-12, atol=1e-12)


def test_without_attention_the_source_is_a_fixed_size_vector(seed: int) -> None:
    for wiring in ("sutskever", "cho"):
        stack = make("gru", **WIRINGS[wiring])
        short, long = (stack.encode(torch.randn(B, length, D).double()) for length in (2, 20))
        assert short.memory is None
        assert [t.shape for t in (short.layers[0].hidden, long.layers[0].hidden)] == [(B, D)] * 2


def test_the_memory_is_projected_once_for_all_steps(seed: int) -> None:
    for wiring in ("luong", "luong_input_feeding", "bahdanau"):
        stack = make("lstm", **WIRINGS[wiring])
        state = stack.encode(torch.randn(B, S, D).double(), src_mask=MASK)
        _, after = stack.decode(torch.randn(B, T, D).double(), state)
        assert after.memory is state.memory


def test_decoder_layers_start_from_encoder_layers_at_the_same_height(seed: int) -> None:
    for encoder, decoder, expected in ((3, 1, [2]), (3, 2, [1, 2]), (1, 3, [0, 0, 0]), (2, 3, [0, 0, 1])):
        stack = make("rnn", num_layers=encoder, num_decoder_layers=decoder)
        src = torch.randn(B, S, D).double()
        _, encoded = stack.encoder(src)
        for layer, height in zip(stack.encode(src).layers, expected, strict=True):
            assert torch.equal(layer.hidden, encoded.layers[height].hidden)


@pytest.mark.parametrize("wiring", [w for w in WIRINGS if WIRINGS[w]["attention"] is not None])
@pytest.mark.parametrize("num_heads", [1, 4])
def test_recorded_weights_cover_all_targets_and_only_real_source_tokens(wiring: str, num_heads: int, seed: int) -> None:
    model = attnkit.compose(
        stack="recurrent_encoder_decoder",
        d_model=D,
        num_layers=2,
        num_heads=num_heads,
        **WIRINGS[wiring],
        src_vocab_size=9,
        tgt_vocab_size=8,
    )
    src, tgt = torch.randint(3, 9, (B, S)), torch.randint(3, 8, (B, T))
    for _ in range(2):  # a second pass replaces the first
        with attnkit.record_attention(model) as maps:
            model(src, tgt, src_mask=MASK)
            model(src, tgt, src_mask=MASK)
    [(path, weights)] = maps.items()
    assert path == "stack.decoder.attention"
    assert weights.shape == (B, num_heads, T, S)
    torch.testing.assert_close(weights.sum(-1)[:2], torch.ones(2, num_heads, T))
    assert (weights.masked_select(~MASK[:, None, None]) == 0).all()
    with attnkit.record_attention(model) as maps:
        model.generate(src, mask=MASK, max_length=3, beam_size=2)
    assert maps[path].shape[1:] == (num_heads, 1, S)


@pytest.mark.parametrize("attention", attnkit.attentions.names())
@pytest.mark.parametrize("num_heads", [1, 2])
def test_any_attention_trains_and_generates_in_every_placement(attention: str, num_heads: int, seed: int) -> None:
    for place in ({}, {"input_feeding": True}, {"placement": "before"}):
        sizes = {"d_model": D, "num_layers": 1, "num_heads": num_heads, "attention_dropout": 0.1, "dropout": 0.1}
        model = attnkit.compose(**NAME_AS_STACK, **sizes, **place, attention=attention, src_vocab_size=9, tgt_vocab_size=8)
        src, tgt = torch.randint(3, 9, (B, S)), torch.randint(3, 8, (B, T))
        model.train()(src, tgt, src_mask=MASK).square().sum().backward()
        assert not [name for name, p in model.named_parameters() if p.grad is None]
        model.eval()
        for beam_size in (1, 3):
            batch = model.generate(src[:2], mask=MASK[:2], max_length=4, beam_size=beam_size)
            for row in range(2):
                alone = model.generate(src[row, MASK[row]][None], max_length=4, beam_size=beam_size)
                assert torch.equal(batch[row, : alone.shape[1]], alone[0])
                assert (batch[row, alone.shape[1] :] == 0).all()


@pytest.mark.parametrize("stack", ["encoder", "decoder", "encoder_decoder"])
def test_a_recurrent_stack_replaces_a_transformer_in_a_composition(stack: str, seed: int) -> None:
    sizes = {"vocab_size": 9} if stack != "encoder_decoder" else {"src_vocab_size": 9, "tgt_vocab_size": 8}
    spec = attnkit.compose(stack=stack, d_model=D, num_layers=2, num_heads=2, attention="additive", dropout=0.1, tie="output", **sizes).spec
    twin = f"recurrent_{stack}"
    lacking = {a.name for a in attnkit.stacks.arguments(stack)} - {a.name for a in attnkit.stacks.arguments(twin)}
    model = attnkit.compose(**{**{k: v for k, v in spec.items() if k not in lacking}, "stack": twin})
    assert {k: model.spec[k] for k in ("d_model", "num_layers", "dropout", "tie", "embedding")} == {
        k: spec[k] for k in ("d_model", "num_layers", "dropout", "tie", "embedding")
    }
    again = json.loads(json.dumps(model.spec))
    rebuilt = attnkit.compose(**again)
    rebuilt.load_state_dict(model.state_dict())
    tokens = torch.randint(3, 8, (B, S))
    given = (tokens, tokens[:, :T]) if stack == "encoder_decoder" else (tokens,)
    assert torch.equal(model.eval()(*given), rebuilt.eval()(*given))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attention": None, "input_feeding": True}, "input_feeding .* there is no attention; remove it"),
        ({"placement": "before", "input_feeding": True}, "placement 'before' already reads the context with the input"),
        ({"placement": "befor"}, "placement must be"),
        ({"cell": "ltsm"}, "cell must be"),
        ({"num_heads": 3}, r"num_heads \(3\) must divide d_model \(8\)"),
        ({"window": 3}, "has no argument 'window'"),
        ({"position": "rotary"}, "has no argument 'position'"),
        ({"attention": "aditive"}, "Did you mean 'additive'"),
        ({"d_model": 9}, r"d_model \(9\) must be even"),
        ({"attention": "additive", "backend": "sdpa"}, "has no backend 'sdpa'"),
        ({"attention_dropout": 1.5}, "1.5"),
    ],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigurationError, ValueError), match=message):
        attnkit.stacks.build({**NAME, "d_model": D, "num_layers": 1, **wrong})


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_gradients_of_a_whole_target_match_token_by_token_decoding(cell: Any, seed: int) -> None:
    stack = attnkit.stacks.build(
        {"name": "recurrent_encoder_decoder", "d_model": 6, "num_layers": 1, "cell": cell, "attention": "additive", "placement": "before"}
    ).double()
    x, memory = torch.randn(2, 4, 6, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)

    def gradients(parts: int) -> tuple[Tensor, ...]:
        state, outputs = stack.encode(memory), []
        for tokens in x.split(parts, 1):
            y, state = stack.decode(tokens, state)
            outputs.append(y)
        return torch.autograd.grad(torch.cat(outputs, 1).square().sum(), list(stack.decoder.parameters()))

    torch.testing.assert_close(gradients(4), gradients(1))


@pytest.mark.parametrize("wiring", WIRINGS)
def test_padding_of_a_target_has_no_effect_wherever_it_is(wiring: str, seed: int) -> None:
    model = attnkit.compose(**NAME_AS_STACK, d_model=D, num_layers=1, src_vocab_size=9, tgt_vocab_size=9, **WIRINGS[wiring]).double()
    src, tgt = torch.randint(3, 9, (2, S)), torch.randint(3, 9, (2, T))
    real = torch.tensor([[False, True, True, False, True], [True, True, False, False, False]])
    logits = model(src, tgt, tgt_mask=real)
    for row in range(2):
        alone = model(src[row : row + 1], tgt[row, real[row]][None])[0]
        torch.testing.assert_close(logits[row, real[row]], alone)
    with pytest.raises(TypeError, match="tgt_mask must be a bool tensor"):
        model(src, tgt, tgt_mask=real.long())


@pytest.mark.parametrize("embedding", ["token", "frames"])
def test_the_mask_of_a_source_has_a_value_for_each_token_or_frame(embedding: str) -> None:
    size: dict[str, Any] = {"src_vocab_size": 9} if embedding == "token" else {"src_shape": [2], "src_embedding": "frames"}
    model = attnkit.compose(**NAME_AS_STACK, d_model=D, num_layers=1, tgt_vocab_size=9, **size)
    src = torch.ones(2, S, dtype=torch.long) if embedding == "token" else torch.ones(2, S, 2)
    for shape in ((2, S - 1), (S,)):
        with pytest.raises(ValueError, match=r"src_mask must have shape \[2, 6\]"):
            model(src, torch.ones(2, T, dtype=torch.long), src_mask=torch.ones(shape, dtype=torch.bool))
