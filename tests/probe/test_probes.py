"""Probes against numbers that are known otherwise, and what all of them promise."""

import copy
import csv
import json
import math
import wave
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger

from attnkit.callback import Probing
from attnkit.checkpoint import export
from attnkit.cli.main import main
from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.probe import Findings
from attnkit.probe.base import limits
from attnkit.probe.cost import Cost
from attnkit.probe.order import shuffle
from attnkit.registry import ConfigurationError, datasets, probes, tasks

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),  # Lightning 2.6 on torch 2.13
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]
ROWS = {"train_rows": 32, "validation_rows": 16, "test_rows": 16}
COPY = {"name": "copy", "length": 4, "distance": 1, "vocabulary": 5, **ROWS}
DECODER = {"name": "decoder", "num_heads": 2}
PROMPTED = {"name": "prompted_text", "corpus": COPY, "tokenizer": "word", "batch_tokens": 200}
PAIRS = {"name": "text_pairs", "corpus": COPY, "src_tokenizer": "word", "tgt_tokenizer": "word", "batch_tokens": 200}


def subject(stack, *, task="causal_lm", data=PROMPTED, width=16, layers=1, **arguments):
    """Return a new task and its data."""
    module = datasets.build(data)
    given = {key: getattr(module, attribute) for key, attribute in tasks.from_data(task).items()}
    torch.manual_seed(0)
    spec = {"name": task, "stack": {"d_model": width, "num_layers": layers, **stack}, **given, **arguments}
    return tasks.build(spec), module


def ask(spec, task, data=None):
    return probes.build(spec)(task, data).rows


SUBJECTS = {
    "decoder": lambda: subject(DECODER, layers=2),
    "lstm": lambda: subject({"name": "recurrent_decoder", "cell": "lstm"}, layers=2),
    "encoder_decoder": lambda: subject({"name": "encoder_decoder", "num_heads": 2}, task="seq2seq", data=PAIRS, metrics=[]),
    "shared": lambda: subject(
        {**DECODER, "layers": [{"share": True}], "residual": "hyper_connections"}, layers=3, multi_token="independent"
    ),
    "side_by_side": lambda: subject({**DECODER, "mixer": {"name": "parallel", "mixers": ["multi_head", "multi_head"]}}, layers=2),
    "attentive_gru": lambda: subject(
        {"name": "recurrent_encoder_decoder", "cell": "gru", "attention": "additive"}, task="seq2seq", data=PAIRS, metrics=[]
    ),
}
INAPPLICABLE = {("lstm", "heads"), ("lstm", "saturation"), ("lstm", "rollout"), ("attentive_gru", "rollout")}
INAPPLICABLE |= {("shared", "rollout"), ("side_by_side", "rollout")}
QUICK = {"cost": {"lengths": [4, 8], "repeats": 1}, "recall": {"distances": [0, 2]}, "gradient": {"length": 9}}


@pytest.mark.parametrize("name", sorted(probes.built_in()))
@pytest.mark.parametrize("kind", SUBJECTS)
def test_a_probe_answers_with_plain_data_or_says_why_not_and_changes_nothing(kind: str, name: str) -> None:
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
def test_each_probe_says_in_one_sentence_what_it_can_and_cannot_show(name: str) -> None:
    said = limits(probes.get(name))
    assert said.endswith(".")
    assert 60 < len(said) < 300


def test_the_gradient_vanishes_in_an_rnn_less_in_an_lstm_and_not_in_a_decoder() -> None:
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


def test_the_gradient_is_the_one_of_finite_differences() -> None:
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


def test_the_variance_without_the_scale_is_larger_by_the_width_of_a_head() -> None:
    for width in (8, 32):
        found = [ask("saturation", *subject({**DECODER, "attention": name}, width=width)) for name in ("dot_product", "scaled_dot_product")]
        assert found[0][0]["variance"] == pytest.approx(found[1][0]["variance"] * width / 2, rel=1e-4)
        assert found[0][0]["entropy"] < found[1][0]["entropy"]


def test_the_weights_are_those_of_the_normalizer() -> None:
    soft, sparse, sigmoid = (
        ask("saturation", *subject({**DECODER, "mixer": {"name": "multi_head", "normalizer": normalizer}}))[0]
        for normalizer in ("softmax", {"name": "entmax", "alpha": 2.0}, {"name": "sigmoid", "bias": -9.0})
    )
    assert soft["variance"] == sparse["variance"] == sigmoid["variance"]
    assert sparse["entropy"] < 0.9 * soft["entropy"]
    assert sparse["largest_weight"] > soft["largest_weight"] > 100 * sigmoid["largest_weight"]
    assert 0 < sigmoid["entropy"] <= 1


def test_every_layer_of_the_stack_counts_once_for_each_time_it_is_read() -> None:
    rows = ask("layers", *SUBJECTS["shared"]())
    assert [(row["part"], row["layer"]) for row in rows] == [("stack", layer) for layer in (1, 2, 3)]
    assert all(0 < row["cosine"] < 1 for row in rows)


@pytest.mark.parametrize("tie", ["inputs", "output"])
def test_source_and_target_have_vectors_of_their_own(tie: str) -> None:
    data = {**PAIRS, "tgt_tokenizer": None}
    task, module = subject({"name": "encoder_decoder", "num_heads": 2}, task="seq2seq", data=data, metrics=[], tie=tie)
    rows = {(row["label"], row["layer"]) for row in ask("linear", task, module)}
    assert {(f"{part}: tokens", layer) for part in ("encoder", "decoder") for layer in (0, 1)} <= rows


def test_a_rollout_needs_the_weights_of_every_layer() -> None:
    for layers, message in (([{"mixer": "rwkv"}, {}], "other mixers"), ([{"share": True}], "shared layers")):
        with pytest.raises(ConfigurationError, match=message):
            ask("rollout", *subject({**DECODER, "layers": layers}, layers=2))
    assert ask("rollout", *subject({**DECODER, "layers": [{"mixer": "none"}, {}]}, layers=2))


def test_the_widths_asked_for_are_new_models_of_the_same_spec() -> None:
    task, data = subject({**DECODER, "attention": "dot_product"})
    rows = ask({"name": "saturation", "widths": [16, 256], "seed": 0}, task, data)
    assert [row["width"] for row in rows] == [16, 256]
    assert rows[0]["variance"] == pytest.approx(ask("saturation", task, data)[0]["variance"])  # the same seed as the subject's
    assert rows[1]["variance"] > 4 * rows[0]["variance"]
    assert rows[1]["largest_weight"] > rows[0]["largest_weight"]


def test_a_head_whose_output_is_not_used_is_worth_nothing() -> None:
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


def test_an_order_that_is_kept_costs_nothing() -> None:
    task, data = subject(DECODER)
    first, last = ask({"name": "order", "kept": [0, 100]}, task, data)
    assert last["loss"] == last["loss_in_order"] == first["loss_in_order"]
    assert first["loss"] != first["loss_in_order"]


def test_of_running_text_the_last_token_of_each_window_is_scored_also_where_windows_overlap(tmp_path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(f"{i * i % 19}" for i in range(400)), encoding="utf-8")
    corpus = {"name": str(tmp_path / "text.txt"), "validation_fraction": 0.5}
    task, data = subject(
        DECODER, data={"name": "text", "corpus": corpus, "tokenizer": "word", "context": 8, "stride": 4, "batch_tokens": 64}
    )
    [row] = ask({"name": "order", "kept": [0], "batches": 1}, task, data)
    batch = next(iter(data.val_dataloader()))
    last = (batch["tokens"] != 0).sum(1, keepdim=True) - 1
    assert (batch["targets"][1:, :4] == 0).all(), "the windows overlap"
    task.eval()
    with torch.no_grad():
        scores = task(batch["tokens"]).log_softmax(-1).gather(2, batch["targets"][..., None])[..., 0].gather(1, last)
    assert row["loss_in_order"] == pytest.approx(-float(scores.mean()), rel=1e-5)
    assert len(ask("free_running", task, data)) == 5  # the targets after half of a window


def test_a_shuffle_moves_only_the_tokens_that_it_may() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.cat([torch.ones(6, 1, dtype=torch.int64), torch.arange(10, 22).expand(6, -1), torch.zeros(6, 2, dtype=torch.int64)], 1)
    end = torch.tensor([0, 1, 2, 5, 9, 13])
    shuffled = shuffle(tokens, end, generator)
    for row in range(6):
        assert torch.equal(shuffled[row, end[row] :], tokens[row, end[row] :])
        assert shuffled[row, 0] == 1
        assert sorted(shuffled[row].tolist()) == sorted(tokens[row].tolist())
    assert not torch.equal(shuffled[5], tokens[5])


def test_linear_probes_read_the_token_off_its_embedding_and_the_one_before_only_above() -> None:
    task, data = subject({**DECODER, "position": "rotary"}, width=32)
    rows = {(row["label"], row["layer"]): row["accuracy"] for row in ask("linear", task, data)}
    assert rows["stack: tokens", 0] == 1.0
    assert rows["stack: before", 0] < 0.9
    assert {layer for _, layer in rows} == {0, 1}


def test_a_rollout_is_a_distribution_over_what_the_token_may_see() -> None:
    task, data = subject(DECODER, layers=2)
    rows = ask({"name": "rollout", "query": 3}, task, data)
    assert sum(row["rollout"] for row in rows) == pytest.approx(1)
    assert all((row["rollout"] > 0) == (row["position"] <= 3) for row in rows)
    assert rows[0]["token"] == "<bos>"


def test_the_first_token_is_as_wrong_free_running_as_with_the_truth() -> None:
    for kind in ("decoder", "encoder_decoder"):
        rows = ask("free_running", *SUBJECTS[kind]())
        assert len(rows) == 5  # four symbols and the end
        assert rows[0]["teacher_forced"] == rows[0]["free_running"]
        assert 0 < rows[0]["free_running"] <= 1


def test_the_state_of_attention_grows_with_the_length_and_that_of_a_recurrence_does_not() -> None:
    lengths = {"name": "cost", "lengths": [8, 16, 32], "repeats": 1}
    decoder, lstm = (ask(lengths, SUBJECTS[kind]()[0]) for kind in ("decoder", "lstm"))
    # the keys and the values of two layers, in fp32, and a position
    assert [row["state_mb"] * 1e6 for row in decoder] == pytest.approx([n * (2 * 2 * 16 * 4 + 8) for n in (8, 16, 32)], rel=0.05)
    assert len({row["state_mb"] for row in lstm}) == 1
    assert decoder[2]["train_mb"] > decoder[0]["train_mb"] * 3.5
    assert decoder[0]["train_mb"] == ask(lengths, SUBJECTS["decoder"]()[0])[0]["train_mb"]


def test_a_training_with_a_probe_is_bit_for_bit_the_same_and_logs_its_numbers(tmp_path) -> None:
    states = []
    for number, callbacks in enumerate(([], [Probing(probe={"name": "saturation", "widths": [8, 16]}), Probing(probe="recall")])):
        task, data = subject(DECODER, optimizer={"name": "adam", "lr": 0.01}, prompts=[])
        logger = CSVLogger(tmp_path, version=number)
        trainer = Trainer(
            max_epochs=2, accelerator="cpu", logger=logger, callbacks=callbacks, enable_checkpointing=False, log_every_n_steps=1,
            enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        )  # fmt: skip
        trainer.fit(task, datamodule=data)
        states.append(task.state_dict())
    assert all(torch.equal(x, states[1][key]) for key, x in states[0].items())
    logged = (tmp_path / "lightning_logs/version_1/metrics.csv").read_text()
    assert "probe/exact_match/distance_64" in logged
    assert "/width_16" in logged
    assert "probe/variance/stack.decoder.layers.0" in logged


@pytest.mark.filterwarnings("ignore:.*overrides the configure_model")
def test_a_probe_after_a_validation_measures_the_averaged_weights(tmp_path) -> None:
    task, data = subject(DECODER, optimizer={"name": "adam", "lr": 0.01}, prompts=[])
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", logger=CSVLogger(tmp_path, version=0), num_sanity_val_steps=0, enable_checkpointing=False,
        callbacks=[Probing(probe="saturation"), EMAWeightAveraging(decay=0.9)], enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(task, datamodule=data)
    with (tmp_path / "lightning_logs/version_0/metrics.csv").open() as file:
        *_, row = (row for row in csv.DictReader(file) if any(value for name, value in row.items() if name.startswith("probe/")))
    expected = probes.build("saturation")(task, data).scalars()  # at the end of a fit, the task has the averages
    assert expected
    assert {name: float(row[f"probe/{name}"]) for name in expected} == pytest.approx(expected, rel=1e-6)


def test_the_command_prints_limits_and_a_table_and_writes_both_files(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--model.stack.num_layers=1", "--length", "5", "--out", "g.svg", "--out=g.json"]
    assert main(["probe", "gradient", "synthetic/decoder", *flags]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("gradient: It shows how strongly")
    rows = json.loads((tmp_path / "g.json").read_text())["rows"]
    assert [row["distance"] for row in rows] == [0, 1, 2, 4]
    assert f"{rows[-1]['gradient']:.4g}" in shown
    assert (tmp_path / "g.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(("flags", "device"), [([], "meta"), (["--clock", "cpu"], "cpu")])
def test_the_command_computes_on_a_gpu_if_there_is_one(flags, device, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    devices = []
    monkeypatch.setattr(Cost, "rows", lambda self, task, data: (devices.extend(p.device.type for p in task.parameters()), [])[1])
    monkeypatch.setattr("attnkit.cli.probe.best_device", lambda: torch.device("meta"))
    assert main(["probe", "cost", "synthetic/decoder", *flags]) == 0
    assert {*devices} == {device}


TAGGED = {
    "model": {"name": "tagging", "stack": {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2}},
    "data": {"name": "tagged_text", "tokenizer": "word"},
}
SPOKEN = {
    "model": {
        "name": "seq2seq",
        "stack": {"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 2},
        "src_embedding": "frames",
        "max_length": 5,
        "metrics": [],
    },
    "data": {"name": "signal_text"},
}


@pytest.mark.parametrize(("recipe", "probe"), [(TAGGED, "layers"), (SPOKEN, "free_running")])
def test_a_checkpoint_or_an_export_brings_what_its_data_have_saved_and_not_only_tokenizers(
    recipe, probe, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    if recipe is TAGGED:
        Path("mine.jsonl").write_text('{"words": "a b", "tags": "X Y"}\n' * 4, encoding="utf-8")
        corpus = "mine.jsonl"
    else:
        with wave.open("a.wav", "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(bytes(2 * 16 * 60))
        Path("mine.tsv").write_text("a.wav\tno\n" * 4, encoding="utf-8")
        corpus = "mine.tsv"
    files = {"name": "files", "train": corpus, "validation": corpus}
    Path("mine.yaml").write_text(json.dumps({**recipe, "data": {**recipe["data"], "corpus": files}}), encoding="utf-8")
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    assert main(["fit", "--config", "mine.yaml", "--trainer.max_steps=1", *quiet]) == 0
    [checkpoint] = Path("runs").rglob("last.ckpt")
    capsys.readouterr()
    assert main(["probe", probe, str(checkpoint)]) == 0
    answer = capsys.readouterr().out
    assert f"{probe}: It shows" in answer
    export(checkpoint, "mine.safetensors")
    assert main(["probe", probe, "mine.safetensors", "--config", "mine.yaml"]) == 0
    assert capsys.readouterr().out == answer
    assert main(["probe", probe, "mine.safetensors"]) == 2
    assert "no data is given; add --config RECIPE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gradiant", "synthetic/decoder"], "Did you mean 'gradient'"),
        (["gradient", "synthetic/decoder", "--length", "many"], "length must be int"),
        (["gradient", "synthetic/decoder", "--long", "5"], "has no argument 'long'"),
        (["gradient", "synthetic/decoder", "--out", "g.png"], "must end in .json or .svg"),
        (["word_map", "synthetic/decoder", "--words", "[1, 2]"], "words must be Sequence[str], but is [1, 2]"),
        (["gradient", "nothing.ckpt"], "nothing.ckpt"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(arguments, message, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["probe", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_table_leaves_out_what_was_not_measured() -> None:
    found = Findings("cost", "None.", [{"length": 1, "a": 1.0, "b": None}, {"length": 2, "a": 2.0}], x="length", y=("a", "b"))
    assert found.table().splitlines()[1].split() == ["1", "1"]
    assert found.scalars() == {"a/length_1": 1.0, "a/length_2": 2.0}


@pytest.mark.parametrize("kind", ["causal_lm", "seq2seq"])
def test_saturation_is_over_the_real_queries_of_all_batches(kind: str) -> None:
    if kind == "seq2seq":
        task, _ = subject({"name": "encoder_decoder", "num_heads": 2}, task=kind, data=PAIRS, metrics=[])
        rows = [
            {"src": torch.tensor([src]), "tgt": torch.tensor([tgt])} for src, tgt in (([4, 5, 6, 2], [1, 7, 2]), ([6, 2], [1, 7, 8, 5, 2]))
        ]
    else:
        task, _ = subject(DECODER)
        rows = [{"tokens": torch.tensor([ids]), "targets": torch.tensor([[*ids[1:], 2]])} for ids in ([1, 4, 5, 6, 7], [1, 6, 5])]
    together = {name: torch.nn.utils.rnn.pad_sequence([row[name][0] for row in rows], batch_first=True) for name in rows[0]}
    more = {name: x + (x == 6).long() for name, x in rows[0].items()}
    task.configure_model()

    def asked(batches):
        loader = torch.utils.data.DataLoader(batches, batch_size=None)
        return ask({"name": "saturation", "batches": len(batches)}, task, SimpleNamespace(val_dataloader=lambda: loader))

    alone = [asked([row]) for row in (*rows, more)]
    for found, *parts in zip(asked([together, more]), *alone, strict=True):
        counts = []
        for row in (*rows, more):  # the queries with at least two keys
            read = row["tgt"].shape[1] - 1 if kind == "seq2seq" else row["tokens"].shape[1]
            counts.append(row["src"].shape[1] if "encoder" in found["layer"] or "cross" in found["layer"] else read)
            if "cross" in found["layer"]:
                counts[-1] = read
            elif "encoder" not in found["layer"].split(".")[1]:
                counts[-1] = read - 1
        for name in ("variance", "entropy", "largest_weight"):
            expected = sum(n * part[name] for n, part in zip(counts, parts, strict=True)) / sum(counts)
            assert found[name] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("check", "every", "expected"), [(2, 2, [2, 4, 6]), (2, 3, [2, 6]), (1, 3, [1, 4]), (1, 1, [1, 2, 3, 4, 5, 6])])
def test_a_probe_runs_every_so_many_epochs_whenever_the_run_validates(tmp_path, check, every, expected) -> None:
    task, data = subject(DECODER, prompts=[])
    trainer = Trainer(
        max_epochs=6, accelerator="cpu", logger=CSVLogger(tmp_path, version=0), num_sanity_val_steps=1, enable_checkpointing=False,
        callbacks=[Probing(probe={"name": "gradient", "length": 2, "rows": 1}, every_n_epochs=every)], check_val_every_n_epoch=check,
        limit_train_batches=1, limit_val_batches=1, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(task, datamodule=data)
    with (tmp_path / "lightning_logs/version_0/metrics.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file) if row.get("probe/gradient/distance_0")]
    assert steps == expected


@pytest.mark.parametrize("document_mask", [False, True])
def test_free_running_ends_with_the_document_and_reads_only_it_under_a_document_mask(tmp_path, document_mask) -> None:
    texts = [" ".join("abc"[(i * j) % 3] for j in range(1 + i % 4)) for i in range(40)]
    (tmp_path / "a.txt").write_text("|".join(texts))
    corpus = {"name": str(tmp_path / "a.txt"), "separator": "|", "validation_fraction": 0.4}
    text = {"name": "text", "corpus": corpus, "tokenizer": "word", "context": 8, "batch_tokens": 64, "document_mask": document_mask}
    task, data = subject({**DECODER, "position": "rotary"}, data=text)
    task.configure_model()
    torch.nn.init.normal_(task.model.embedding.weight, generator=torch.Generator().manual_seed(1))
    task.eval()
    expected: dict[int, list[tuple[bool, bool]]] = {}
    (batch,) = list(data.val_dataloader())[:1]
    for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
        place = max(4, int((targets != 0).int().argmax()) + 1)
        begins = int((tokens[:place] == 1).nonzero().max()) if document_mask and (tokens[:place] == 1).any() else 0
        read = tokens[begins:place].tolist()
        for t, truth in enumerate(targets[place - 1 :].tolist()):
            first = int((tokens[: place + t] == 1).nonzero().max()) if document_mask and (tokens[: place + t] == 1).any() else 0
            with torch.no_grad():
                forced = int(task.model(tokens[None, first : place + t])[0, -1].argmax())
                free = 0 if 2 in read else int(task.model(torch.tensor([read]))[0, -1].argmax())
            read.append(free)
            expected.setdefault(t, []).append((forced != truth, free != truth))
            if truth == 2:
                break
    rows = ask({"name": "free_running", "batches": 1}, task, data)
    assert len(rows) == len(expected) > 2
    for t, pairs in expected.items():
        assert [rows[t]["teacher_forced"], rows[t]["free_running"]] == pytest.approx(torch.tensor(pairs).double().mean(0).tolist())
