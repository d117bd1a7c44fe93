"""Probes against numbers that are known otherwise, and what all of them promise."""

import copy
import json
import math

import pytest
import torch

from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.probe import Findings
from attnkit.probe.base import limits
from attnkit.registry import ConfigurationError, probes
from tests.probe.subjects import DECODER, INAPPLICABLE, PAIRS, PROMPTED, QUICK, SUBJECTS, ask, subject

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),  # Lightning 2.6 on torch 2.13
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


@pytest.mark.parametrize("name", sorted(probes.built_in()))
@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_probe_returns_plain_data_or_a_reason_and_changes_nothing(kind: str, name: str) -> None:
    task, data = SUBJECTS[kind]()
    task.configure_model()
    before, state = copy.deepcopy(task.state_dict()), torch.get_rng_state()
    modes = [module.training for module in task.modules()]
    probe = probes.build({"name": name, **QUICK.get(name, {})})
    if (kind, name) in INAPPLICABLE:
        with pytest.raises(ConfigurationError, match="attention"):
            probe(task, data)
    else:
        found = probe(task, data)
        assert found.probe == name
        assert json.loads(found.json())["rows"] == list(found.rows)
        assert found.rows
        assert {found.x, *found.y, *([found.lines] if found.lines else [])} <= {key for row in found.rows for key in row}
        assert found.scalars()
        assert all(math.isfinite(value) for value in found.scalars().values())
        if kind == "decoder":  # which all apply to: the columns that are drawn are those of the probe, and drawing takes longest
            assert found.svg().startswith("<svg")
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in task.modules()] == modes
    assert all(torch.equal(x, before[key]) for key, x in task.state_dict().items())


@pytest.mark.parametrize("name", sorted(probes.built_in()))
def test_each_probe_states_its_limits_in_one_sentence(name: str) -> None:
    said = limits(probes.get(name))
    assert said.endswith(".")
    assert 60 < len(said) < 300


def test_gradients_vanish_in_an_rnn_less_in_an_lstm_not_in_decoders() -> None:
    reached = {}
    for label, stack in {
        "rnn": {"name": "recurrent_decoder", "cell": "rnn"},
        "lstm": {"name": "recurrent_decoder", "cell": "lstm"},
        "decoder": DECODER,
    }.items():
        rows = ask({"name": "gradient", "length": 100}, subject(stack, width=64)[0])
        assert [row["distance"] for row in rows] == [0, 1, 2, 4, 8, 16, 32, 64, 99]
        reached[label] = rows[-1]["gradient"] / rows[1]["gradient"]
    assert reached["rnn"] < 1e-12
    assert 1e-8 < reached["lstm"] < 0.1
    assert 0.2 < reached["decoder"] < 5


def test_the_gradient_matches_finite_differences() -> None:
    task, _ = subject({"name": "recurrent_decoder", "cell": "gru"}, width=4)
    rows = ask({"name": "gradient", "length": 4, "rows": 1, "seed": 3}, task)
    model = copy.deepcopy(task.model).double()
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(4, model.spec["vocab_size"], (1, 4), generator=generator)
    target = torch.randint(model.spec["vocab_size"], (1,), generator=generator)

    @torch.no_grad()
    def loss(x):
        return torch.nn.functional.cross_entropy(model.head(model.stack(x)[0])[:, -1], target)

    x = model.embedding(tokens).detach()
    for row in rows:
        partial = []
        for channel in range(4):
            step = torch.zeros_like(x)
            step[0, 3 - row["distance"], channel] = 1e-6
            partial.append((loss(x + step) - loss(x - step)) / 2e-6)
        assert row["gradient"] == pytest.approx(float(torch.stack(partial).norm()), rel=1e-6)


def test_shared_layers_count_once_per_use() -> None:
    rows = ask("layers", *SUBJECTS["shared"]())
    assert [(row["part"], row["layer"]) for row in rows] == [("stack", layer) for layer in (1, 2, 3)]
    assert all(0 < row["cosine"] < 1 for row in rows)


@pytest.mark.parametrize("tie", ["inputs", "output"])
def test_source_and_target_have_separate_vectors(tie: str) -> None:
    data = {**PAIRS, "tgt_tokenizer": None}
    task, module = subject({"name": "encoder_decoder", "num_heads": 2}, task="seq2seq", data=data, metrics=[], tie=tie)
    rows = {(row["label"], row["layer"]) for row in ask("linear", task, module)}
    assert {(f"{part}: tokens", layer) for part in ("encoder", "decoder") for layer in (0, 1)} <= rows


def test_a_rollout_needs_the_weights_of_every_layer() -> None:
    for layers, message in (([{"mixer": "rwkv"}, {}], "other mixers"), ([{"share": True}], "shared layers")):
        with pytest.raises(ConfigurationError, match=message):
            ask("rollout", *subject({**DECODER, "layers": layers}, layers=2))
    assert ask("rollout", *subject({**DECODER, "layers": [{"mixer": "none"}, {}]}, layers=2))


def test_an_unused_head_has_zero_importance() -> None:
    task, data = subject(DECODER)
    task.configure_model()
    with torch.no_grad():
        next(module for module in task.model.modules() if isinstance(module, MultiHeadAttention)).output.weight[:, 8:] = 0.0
    first, second = ask("heads", task, data)
    assert (first["head"], second["head"]) == (0, 1)
    assert second["loss_increase"] == 0
    assert first["loss_increase"] != 0


def test_recall_is_perfect_for_a_model_that_knows_the_answer() -> None:
    task, data = subject(DECODER)
    task.configure_model()
    answers = {}
    for distance in (0, 3):
        for prompt, answer in data.corpus.at_distance(distance).turns("test"):
            answers[prompt] = data.tokenizer.encode(answer)

    def knows(tokens, documents=None):
        logits = torch.zeros(*tokens.shape, len(data.tokenizer))
        for row, read in enumerate(tokens.tolist()):
            prompt = data.tokenizer.decode(read).partition("=")[0] + "="
            start = len(prompt.split())
            for place, answer in enumerate([*answers[prompt], 2]):
                logits[row, start + place, answer] = 50.0
        return logits

    task.forward = knows
    assert ask({"name": "recall", "distances": [0, 3]}, task, data) == [
        {"distance": distance, "exact_match": 1.0, "token_accuracy": 1.0, "loss": pytest.approx(0, abs=1e-6)} for distance in (0, 3)
    ]


def test_recall_needs_a_task_with_a_distance(tmp_path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\nb\ta\n")
    task, data = subject(DECODER, data={**PROMPTED, "corpus": str(tmp_path / "pairs.tsv")})
    with pytest.raises(ConfigurationError, match="synthetic task with a distance"):
        ask("recall", task, data)


def test_linear_probes_find_the_previous_token_only_above_the_embedding() -> None:
    task, data = subject({**DECODER, "position": "rotary"}, width=32)
    rows = {(row["label"], row["layer"]): row["accuracy"] for row in ask("linear", task, data)}
    assert rows["stack: tokens", 0] == 1.0
    assert rows["stack: before", 0] < 0.9
    assert {layer for _, layer in rows} == {0, 1}


def test_a_rollout_is_a_distribution_over_visible_tokens() -> None:
    task, data = subject(DECODER, layers=2)
    rows = ask({"name": "rollout", "query": 3}, task, data)
    assert sum(row["rollout"] for row in rows) == pytest.approx(1)
    assert all((row["rollout"] > 0) == (row["position"] <= 3) for row in rows)
    assert rows[0]["token"] == "<bos>"


def test_state_size_grows_with_length_for_attention_but_not_for_recurrence() -> None:
    lengths = {"name": "cost", "lengths": [8, 16, 32], "repeats": 1}
    decoder, lstm = (ask(lengths, SUBJECTS[kind]()[0]) for kind in ("decoder", "lstm"))
    # the keys and the values of two layers, in fp32, and a position
    assert [row["state_mb"] * 1e6 for row in decoder] == pytest.approx([n * (2 * 2 * 16 * 4 + 8) for n in (8, 16, 32)], rel=0.05)
    assert len({row["state_mb"] for row in lstm}) == 1
    assert decoder[2]["train_mb"] > decoder[0]["train_mb"] * 3.5
    task, read = SUBJECTS["decoder"]()[0], []
    task.configure_model()
    step = task.model.step
    task.model.step = lambda tokens, state: read.append(state) or step(tokens, state)
    assert decoder[0]["train_mb"] == ask(lengths, task)[0]["train_mb"]
    assert len({id(state) for state in read if state is not None}) == 3 * 2  # none is continued twice, which would copy it


def test_a_table_omits_unmeasured_values() -> None:
    found = Findings("cost", "None.", [{"length": 1, "a": 1.0, "b": None}, {"length": 2, "a": 2.0}], x="length", y=("a", "b"))
    assert found.table().splitlines()[1].split() == ["1", "1"]
    assert found.scalars() == {"a/length_1": 1.0, "a/length_2": 2.0}
