"""The FLOP formula of a task, against torch's counter on real batches."""

import random
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import attnkit
from attnkit.mixer.recurrence.chunks import CHUNK
from attnkit.profile.flops import as_written, batch_flops, forward_flops, row_lengths, traced
from tests.task.conftest import TOKENIZER

SIZE = {"d_model": 16, "num_layers": 1}
BOTH = {"src_tokenizer": TOKENIZER.spec, "tgt_tokenizer": TOKENIZER.spec}
RECURRENT = {"name": "recurrent_encoder_decoder", **SIZE}
TASKS: dict[str, dict[str, Any]] = {
    "transformer": {"name": "seq2seq", "stack": {"name": "encoder_decoder", **SIZE, "num_heads": 2}, **BOTH},
    "additive": {
        "name": "seq2seq",
        "stack": {"name": "encoder_decoder", **SIZE, "num_heads": 2, "attention": {"name": "additive", "hidden_dim": 5}},
        **BOTH,
    },
    "bahdanau": {"name": "seq2seq", "stack": {**RECURRENT, "cell": "gru", "attention": "additive", "placement": "before"}, **BOTH},
    "luong": {"name": "seq2seq", "stack": {**RECURRENT, "cell": "rnn", "attention": "general", "input_feeding": True}, **BOTH},
    "decoder": {
        "name": "causal_lm",
        "stack": {"name": "decoder", **SIZE, "num_heads": 4, "num_kv_heads": 2, "position": "rotary", "feed_forward": "glu"},
        "tokenizer": TOKENIZER.spec,
    },
    "encoder": {
        "name": "classification",
        "stack": {"name": "encoder", **SIZE, "num_heads": 2},
        "tokenizer": TOKENIZER.spec,
        "classes": ["a", "b", "c"],
    },
}


def value(formula: dict[tuple[int, int], int], s: int, t: int) -> int:
    return sum(c * s**a * t**b for (a, b), c in formula.items())


@pytest.mark.parametrize("kind", ["bahdanau", "luong", "encoder"])
def test_the_formula_equals_torchs_counter(kind: str, rng: random.Random) -> None:
    task = attnkit.tasks.build(TASKS[kind])
    task.configure_model()
    rows, s, t = rng.randint(1, 3), rng.randint(2, 9), rng.randint(2, 9)
    inputs = [torch.randint(5, 10, (rows, n)) for n in ((s,) if kind == "encoder" else (s, t))]
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        task.model(*inputs)
    assert rows * value(forward_flops(task), s, t) == counter.get_total_flops()


def test_latent_attention_is_counted_by_its_multi_token_path(rng: random.Random) -> None:
    mixer = {"name": "latent_attention", "latent_dim": 12, "content_dim": 6, "value_dim": 5}
    stack = {"name": "encoder_decoder", **SIZE, "num_heads": 2, "mixer": mixer, "cross_mixer": mixer}
    task = attnkit.tasks.build({"name": "seq2seq", "stack": stack, **BOTH})
    task.configure_model()
    s, t = rng.randint(2, 9), rng.randint(2, 9)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), as_written(task.model):
        task.model(torch.randint(5, 10, (1, s)), torch.randint(5, 10, (1, t)))
    masked = 2 * 2 * (8 + 6 + 5) * t * (t - 1) // 2  # heads x two operations for each channel of a pair
    assert value(forward_flops(task), s, t) == counter.get_total_flops() - masked


def test_channels_that_hold_a_decay_or_pad_values_are_not_counted() -> None:
    plain, gated, narrow = (
        forward_flops(
            attnkit.tasks.build(
                {"name": "causal_lm", "stack": {**SIZE, "name": "decoder", "num_heads": 2, "mixer": mixer}, "tokenizer": TOKENIZER.spec}
            )
        )
        for mixer in ("multi_head", {"name": "multi_head", "forget_gate": True}, {"name": "multi_head", "value_dim": 3})
    )
    layers, d, length = SIZE["num_layers"], SIZE["d_model"], 2000
    counts = [value(formula, length, 0) for formula in (plain, gated, narrow)]
    assert counts[1] - counts[0] == 2 * layers * length * d * 2  # the projection to a gate per head
    fewer = d // 2 - 3  # channels of each of two heads' values
    assert counts[0] - counts[2] == 2 * layers * (2 * length * d * 2 * fewer + length * (length + 1) // 2 * 2 * fewer)


@pytest.mark.parametrize("position", [{"name": "learned", "max_length": 100}, {"name": "xpos", "max_length": 100}])
def test_counting_works_beyond_the_maximum_position(position: dict[str, Any]) -> None:
    stack = {"name": "decoder", **SIZE, "num_heads": 2, "mixer": "retention"}
    limited, free = (
        forward_flops(attnkit.tasks.build({"name": "causal_lm", "stack": {**stack, "position": p}, "tokenizer": TOKENIZER.spec}))
        for p in (position, "rotary")
    )
    assert limited == free


def test_fires_network_is_counted_even_where_a_cpu_uses_a_lookup() -> None:
    def formula(position: str, *others: dict[str, Any]) -> dict[tuple[int, int], int]:
        stack = {"name": "decoder", "d_model": 8, "num_layers": 2, "num_heads": 2, "layers": [{"position": position}, *others]}
        return forward_flops(attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": TOKENIZER.spec}))

    hybrid = {"mixer": "linear_attention", "position": "none"}  # it is counted in rows of several chunks, so of many pairs
    for others in ([], [hybrid]):
        assert formula("fire", *others)[2, 0] - formula("none", *others)[2, 0] == (1 + 2) * 32  # multiply-adds of a pair, or half its FLOPs
    model = attnkit.compose(stack="decoder", d_model=8, num_layers=1, num_heads=2, position="fire", vocab_size=9)
    tokens = torch.zeros(1, 70, dtype=torch.long)
    with torch.no_grad(), as_written(model), FlopCounterMode(display=False) as counter:
        model(tokens)
    with torch.no_grad(), FlopCounterMode(display=False) as fewer:
        model(tokens)
    assert counter.get_total_flops() - fewer.get_total_flops() > 70**2 * 2 * (1 + 2) * 32 * 0.9


@pytest.mark.parametrize("mixer", ["delta_rule", "gated_linear_attention", "linear_attention", "rg_lru", "state_space"])
def test_recurrence_flops_are_linear_and_match_torch_for_full_chunks(mixer: str) -> None:
    stack = {"name": "decoder", **SIZE, "num_heads": 4, "mixer": mixer}
    task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": TOKENIZER.spec})
    task.configure_model()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        task.model(torch.randint(5, 10, (1, 5 * CHUNK)))
    formula = forward_flops(task)
    assert set(formula) == {(1, 0)}
    assert value(formula, 5 * CHUNK, 0) == counter.get_total_flops()


@pytest.mark.parametrize("kind", ["transformer", "additive", "decoder"])
def test_causal_attention_counts_the_pairs_computed_by_cached_decoding(kind: str, rng: random.Random) -> None:
    """A cached step pairs its token with earlier ones and no masked ones, so the sum over all steps is an independent count."""
    task = attnkit.tasks.build(TASKS[kind])
    task.configure_model()
    model: Any = task.model.eval()
    s, t = rng.randint(2, 9), rng.randint(2, 9)
    src, tgt = torch.randint(5, 10, (1, s)), torch.randint(5, 10, (1, t))
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        state = None if kind == "decoder" else model.encode(src, None)
        for token in tgt.split(1, dim=1):
            _, state = model.step(token, state)
    formula = forward_flops(task)
    assert (value(formula, t, 0) if kind == "decoder" else value(formula, s, t)) == counter.get_total_flops()


def test_a_decoder_classifier_counts_as_causal() -> None:
    decoder = {"name": "decoder", **SIZE, "num_heads": 2}
    causal = forward_flops(attnkit.tasks.build({**TASKS["encoder"], "stack": decoder, "pooling": "mean"}))
    full = forward_flops(attnkit.tasks.build({**TASKS["encoder"], "stack": {**decoder, "name": "encoder"}, "pooling": "mean"}))
    assert value(full, 9, 0) - value(causal, 9, 0) == (2 * 2 * 16) * (81 - 45)  # two products of 16 numbers x pairs


def test_an_lstm_is_counted_although_torch_does_not_count_its_kernel() -> None:
    lstm = {"name": "causal_lm", "stack": {"name": "recurrent_decoder", "d_model": 16, "num_layers": 1, "cell": "lstm"}}
    formula = forward_flops(attnkit.tasks.build({**lstm, "tokenizer": TOKENIZER.spec}))
    assert formula == {(1, 0): 2 * (4 * 16 * (16 + 16) + 16 * len(TOKENIZER))}


def test_a_masked_language_models_head_counts_only_selected_tokens() -> None:
    tokenizer = attnkit.tokenizers.build({"name": "character", "extra_tokens": ["<mask>"]}).train(["abc"])
    stack = {"name": "encoder", "d_model": 10, "num_layers": 1, "num_heads": 1}
    task: Any = {"name": "masked_lm", "stack": stack, "tokenizer": tokenizer.spec, "head": "linear"}
    little, much = (forward_flops(attnkit.tasks.build({**task, "mask_probability": p}))[1, 0] for p in (0.2, 0.7))
    assert much - little == 0.5 * 2 * 10 * len(tokenizer)


@pytest.mark.parametrize("name", ["independent", "sequential"])
def test_each_further_token_costs_a_layer_and_a_head(name: str) -> None:
    """2 operations per token for each weight of a layer of 8 x (4 x 8 + 2 x 16), the head's 8 x 6, and a sequential module's 16 x 8."""
    stack = {"name": "decoder", "d_model": 8, "num_layers": 2, "num_heads": 2, "feed_forward": {"name": "mlp", "ffn_dim": 16}}
    tokenizer = attnkit.tokenizers.build("character").train(["ab"]).spec
    task = {"name": "causal_lm", "stack": stack, "tokenizer": tokenizer}
    several, plain = (forward_flops(attnkit.tasks.build({**task, "multi_token": kind})) for kind in ({"name": name, "num_tokens": 3}, None))
    joins = 16 * 8 if name == "sequential" else 0
    assert several[1, 0] - plain[1, 0] == 2 * (2 * (8 * (4 * 8 + 2 * 16) + 8 * 6 + joins) + 16)  # and half of 2 x 2 x 8 for each pair
    assert several[2, 0] == 2 * plain[2, 0]


def test_a_batch_is_the_sum_of_its_rows(make_batch: Any, make_task: Any) -> None:
    task = make_task()
    formula = forward_flops(task)
    whole, *rows = (batch_flops(formula, task, make_batch(texts)) for texts in (["abcdef", "ab"], ["abcdef"], ["ab"]))
    assert whole == sum(rows) > 0


def test_padding_is_not_counted(make_batch: Any, make_task: Any) -> None:
    s, t = row_lengths(make_task(), make_batch(["abcdef", "ab"]))
    assert (s.tolist(), t.tolist()) == ([7, 3], [7, 3])  # including the source's eos; including the target's bos
    text = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]])
    assert row_lengths(attnkit.tasks.build(TASKS["decoder"]), {"tokens": text})[0].tolist() == [3, 1]
    assert row_lengths(attnkit.tasks.build(TASKS["encoder"]), {"tokens": text})[0].tolist() == [4, 2]
    with pytest.raises(attnkit.registry.ConfigurationError, match="but this one has audio"):
        row_lengths(make_task(), {"audio": text})


@pytest.mark.parametrize(
    ("mixer", "operator", "expected"),
    [
        ("rg_lru", "scan", 2 * 16),  # a multiply-add for each channel
        ("rwkv", "scan", 2 * 2 * 16),  # of the numerator and of the denominator
        ("rwkv", "running_maximum", 2 * 16),
        ("delta_rule", "scan", 2 * 4 * 4 * 4 * 4 // CHUNK),  # once in a chunk, each of 4 heads multiplies matrices 4 wide
        ("delta_rule", "pairwise_decay", 2 * 1 * CHUNK),  # one decay for all heads, paired with each token of the chunk
        ("slstm", "exponential_cell", 2 * 4 * 16 * 4 + 20 * 16),  # recurrent matrices of 4 heads 4 wide
        ("selective_state_space", "selective_scan", 7 * 32 * 16 + 32),  # 32 channels with 16 numbers each
    ],
)
def test_custom_operators_register_their_flops(mixer: str, operator: str, expected: int) -> None:
    heads = {} if mixer == "selective_state_space" else {"num_heads": 4}
    stack = {"name": "decoder", "d_model": 16, "num_layers": 1, "mixer": mixer, "position": "none", **heads}
    task: Any = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": TOKENIZER.spec})
    with traced(task) as model, FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 5 * CHUNK, dtype=torch.long))
    assert counter.get_flop_counts()["Global"][getattr(torch.ops.attnkit, operator)] == 5 * CHUNK * expected
    task.configure_model()
    with as_written(task.model), FlopCounterMode(display=False) as counter:
        task.model(torch.full((1, 5 * CHUNK), 5)).sum().backward()
    found = counter.get_flop_counts()["Global"]
    has_gradient = operator not in ("running_maximum", "pairwise_decay")  # of a decay that is not learned
    assert not has_gradient or found[getattr(torch.ops.attnkit, f"{operator}_backward")] > 0
