"""`attnkit generate`, `attnkit export` and the file of `attnkit predict`."""

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnkit.cli import generate
from attnkit.cli.commands import GENERATION
from attnkit.decoding import Generation
from attnkit.device import best_device
from attnkit.task import Task
from attnkit.task.generating import Hypothesis, TextGenerator
from tests.commands import started

Command = Callable[..., Any]
SAMPLING = ["--temperature", 1.5, "--top_k", 6, "--top_p", 0.9, "--min_length", 2, "--repetition_penalty", 1.2]


def loaded(trained: Path) -> TextGenerator:
    task = Task.load(trained)
    assert isinstance(task, TextGenerator)
    return task


def test_the_command_offers_every_generation_option_except_ids() -> None:
    options = {name for name, *_ in GENERATION}
    assert options == set(Generation.__dataclass_fields__) - {"end_tokens"}


def test_a_seed_gives_the_same_texts_everywhere(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    texts = ["abc", "ba", "cab", "a"]
    outcome = attnkit("generate", trained, *texts, *SAMPLING, "--seed", seed)
    assert (outcome.status, outcome.err) == (0, "")
    options = {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_length": 2, "repetition_penalty": 1.2}
    assert outcome.out.splitlines() == loaded(trained).generate(texts, seed=seed, **options)
    for flags in ([], ["--stream"]):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{text}\n" for text in texts)))
        assert attnkit("generate", trained, *SAMPLING, "--seed", seed, *flags).out == outcome.out  # text by text
    assert attnkit("generate", trained, *texts, *SAMPLING, "--seed", seed, "--stream").out == outcome.out
    assert attnkit("generate", trained, *texts, *SAMPLING, "--seed", seed + 9).out != outcome.out


def test_without_a_seed_texts_differ_and_the_seed_is_printed(attnkit: Command, trained: Path) -> None:
    command = ["generate", trained, *["abc"] * 20, "--temperature", 2.0]
    first, second = attnkit(*command), attnkit(*command)
    assert first.out != second.out
    seed = first.err.split("--seed ")[1].split()[0]
    assert attnkit(*command, "--seed", seed).out == first.out


def test_generate_uses_a_gpu_if_available(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []
    monkeypatch.setattr(TextGenerator, "generate", lambda self, texts, **_: (devices.append(str(self.device)), texts)[1])
    monkeypatch.setattr("attnkit.cli.generate.best_device", lambda: torch.device("meta"))
    assert attnkit("generate", trained, "abc").out == "abc\n"
    assert devices == ["meta"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert best_device() == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert best_device() == torch.device("cpu")


def test_out_of_memory_is_reported_in_one_line(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")

    monkeypatch.setattr(TextGenerator, "generate", fails)
    outcome = attnkit("generate", trained, "abc")
    assert outcome.status == 1
    assert outcome.err.startswith("attnkit: error: out of memory (CUDA out of memory. Tried to allocate 2.00 GiB")
    assert outcome.err.count("\n") == 1


def test_n_best_prints_scores_and_texts(attnkit: Command, trained: Path) -> None:
    outcome = attnkit("generate", trained, "abc", "ba", "--n_best", 3, "--length_penalty", 0.5)
    assert outcome.status == 0
    expected = loaded(trained).n_best(["abc", "ba"], 3, length_penalty=0.5)
    assert [line.split("\t") for line in outcome.out.splitlines()] == [[f"{h.score:.4f}", h.text] for row in expected for h in row]


def test_unknown_characters_are_noted_on_stderr(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = "note: unknown to the tokenizer, so the model sees <unk> instead: "
    outcome = attnkit("generate", trained, "abc", "ab한국")
    assert (outcome.status, outcome.err) == (0, f"{note}'한' (U+D55C), '국' (U+AD6D) in 'ab한국'\n")
    assert len(outcome.out.splitlines()) == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\n한\nx\n"))
    outcome = attnkit("generate", trained, "--stream")
    assert (outcome.status, outcome.err) == (0, f"{note}'한' (U+D55C) in '한'\n{note}'x' (U+0078) in 'x'\n")
    outcome = attnkit("attention", trained, "--text", "a한", "--out", "a.html")
    assert (outcome.status, outcome.err) == (0, f"{note}'한' (U+D55C) in 'a한'\n")
    page = Path("a.html").read_text(encoding="utf-8")
    assert '"note": "† unknown to the tokenizer"' in page
    assert '"keys": ["a", "†한", ' in page


def test_predict_reports_unknown_tokens_like_any_split(attnkit: Command, trained: Path) -> None:
    Path("p.txt").write_text("abc\nab한\n", encoding="utf-8")
    outcome = attnkit("predict", "--ckpt_path", trained, "--data.predict", "p.txt")
    assert (outcome.status, len(outcome.out.splitlines())) == (0, 2)
    assert "note: predict: 17 % of the tokens are unknown to the tokenizer: '한' (U+D55C). " in outcome.err


def test_output_files_are_written_atomically(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = attnkit("generate", trained, "abc", "ba").out
    assert attnkit("generate", trained, "abc", "ba", "--out", "made/it.txt").out == "Wrote made/it.txt\n"
    assert Path("made/it.txt").read_text(encoding="utf-8") == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\nba\n"))
    assert attnkit("generate", trained, "--out", "made/it.txt").status == 0
    assert Path("made/it.txt").read_text(encoding="utf-8") == expected

    def fails(self: Any, texts: Any, **options: Any) -> Any:
        yield "half"
        raise OSError(28, "No space left on device", "disk")

    monkeypatch.setattr(TextGenerator, "generate", fails)
    outcome = attnkit("generate", trained, "abc", "ba", "--out", "made/it.txt")
    assert (outcome.status, outcome.err) == (1, "attnkit: error: disk: No space left on device\n")
    assert Path("made/it.txt").read_text(encoding="utf-8") == expected
    assert os.listdir("made") == ["it.txt"]
    outcome = attnkit("generate", trained, "abc", "--out", "made")
    assert (outcome.status, "--out made is a folder" in outcome.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top_p", 0.5], "without a temperature, nothing is sampled, so top_p would have no effect"),
        (["--temperature", 0], "temperature must be above 0"),
        (["--temperature", 1, "--beam_size", 3], "mutually exclusive"),
        (["--temperature", 1, "--n_best", 3], "attnkit: error: n_best ranks the outputs of a beam search"),
        (["--n_best", 3, "--beam_size", 2], "n_best must be from 1 to beam_size (2), but is 3"),
        (["--stream", "--n_best", 3], "--stream prints an output as it is generated, but --n_best ranks whole outputs"),
        (["--stream", "--out", "x"], "--stream prints an output as it is generated, but the file of --out is created only when complete"),
        (["--stream", "--beam_size", 3], "cannot stream"),
        (["--min_length", 9, "--max_length", 3], "min_length (9) must not exceed max_length (3)"),
    ],
)
def test_invalid_combinations_are_rejected(attnkit: Command, trained: Path, arguments: list[Any], message: str) -> None:
    outcome = attnkit("generate", trained, "abc", *arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert "reproduces this output" not in outcome.err
    assert outcome.out == ""


def test_predictions_are_written_to_a_file_atomically(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parents[4])
    expected = attnkit("predict", "--ckpt_path", trained).out
    outcome = attnkit("predict", "--ckpt_path", trained, "--out", "predicted/words.tsv")
    assert (outcome.status, outcome.out) == (0, "Wrote predicted/words.tsv\n")
    assert Path("predicted/words.tsv").read_text(encoding="utf-8") == expected
    assert os.listdir("predicted") == ["words.tsv"]


def test_only_predict_accepts_an_output_file(attnkit: Command, trained: Path) -> None:
    outcome = attnkit("test", "--ckpt_path", trained, "--out", "x")
    assert outcome.status == 2
    assert "--out is only for `predict`: `test` writes no predictions" in outcome.err
    assert "--out needs a value, as in --out PATH" in attnkit("predict", "--ckpt_path", trained, "--out").err
    assert "--out FILE" in attnkit("predict", "--help").out


def test_generate_prints_one_line_per_text(attnkit: Command, trained: Path) -> None:
    outcome = attnkit("generate", trained, "abc", "ba", "--beam_size", 2, "--max_length", 3)
    assert outcome.status == 0
    assert outcome.out.splitlines() == loaded(trained).generate(["abc", "ba"], beam_size=2, max_length=3)


def test_options_may_stand_anywhere(attnkit: Command, trained: Path) -> None:
    expected = attnkit("generate", trained, "abc", "ba", "--max_length", 3).out
    assert attnkit("generate", trained, "--max_length", 3, "abc", "ba").out == expected
    assert attnkit("generate", trained, "abc", "--max_length", 3, "--", "ba").out == expected
    assert attnkit("generate", "--max_length", 3, "--", trained, "abc", "ba").out == expected


def test_line_breaks_are_escaped_in_output_but_not_in_a_stream(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextGenerator, "generate", lambda self, texts, **options: [f"{text}\n\t\\" for text in texts])
    monkeypatch.setattr(TextGenerator, "n_best", lambda self, texts, n, **options: [[Hypothesis("a\r\nb", -1.0)] * n for _ in texts])
    monkeypatch.setattr(TextGenerator, "stream", lambda self, text, **options: iter([text, "\n", "b"]))
    outcome = attnkit("generate", trained, "ab", "c")
    assert outcome.out == "ab\\n\\t\\\\\nc\\n\\t\\\\\n"
    assert subprocess.check_output(["printf", "%b", outcome.out.splitlines()[0]], text=True) == "ab\n\t\\"
    assert attnkit("generate", trained, "ab", "--n_best", 2).out == "-1.0000\ta\\r\\nb\n" * 2
    assert attnkit("generate", trained, "a", "--stream").out == "a\nb\n"


def test_a_line_of_stdin_that_is_not_utf8_is_named(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("abc\nba\né\n".encode("latin-1")), encoding="utf-8"))
    outcome = attnkit("generate", trained)
    assert (outcome.status, len(outcome.out.splitlines())) == (2, 2)
    assert r"the text '\udce9' has a lone surrogate" in outcome.err


def test_stdin_of_an_ascii_locale_is_read_as_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xc3\xa9\n\xff\n"), encoding="ascii"))
    assert list(generate._batches([], one_by_one=True)) == [["aé"], ["\udcff"]]


def test_generate_reads_stdin(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = attnkit("generate", trained, "abc", "", "ba").out
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufeffabc\r\n\nba\r\n"))  # as a file from Windows begins and ends its lines
    assert attnkit("generate", trained).out == expected


def test_generate_answers_each_line_before_reading_the_next(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with started("attnkit", "generate", trained, cwd=tmp_path, out=out) as process:
        assert process.stdin is not None
        deadline = time.monotonic() + 60
        for number, text in enumerate(("abc", "ba"), 1):
            process.stdin.write(f"{text}\n".encode())
            process.stdin.flush()
            while out.read_text().count("\n") < number:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize(("option", "value"), [("--beam_size", 0), ("--max_length", -1)])
def test_generate_refuses_numbers_out_of_range(attnkit: Command, trained: Path, option: str, value: int) -> None:
    outcome = attnkit("generate", trained, "abc", option, value)
    assert outcome.status == 2
    assert f"{option[2:]} must be at least 1, but is {value}" in outcome.err


def test_an_exported_model_gives_the_same_answers(attnkit: Command, trained: Path) -> None:
    assert attnkit("export", trained, "--out", "model.safetensors").out == "Wrote model.safetensors\n"
    assert attnkit("generate", "model.safetensors", "abc", "cab").out == attnkit("generate", trained, "abc", "cab").out


def test_an_exported_model_given_data_evaluates_like_its_checkpoint(attnkit: Command, trained: Path, tiny: str) -> None:
    assert attnkit("export", trained, "--out", "model.safetensors").status == 0
    for command in ("validate", "test", "predict"):
        outcome = attnkit(command, "--config", tiny, "--ckpt_path", "model.safetensors")
        assert outcome.status == 0, outcome.err
        assert outcome.out == attnkit(command, "--config", tiny, "--ckpt_path", trained).out
    alone = attnkit("test", "--ckpt_path", "model.safetensors")
    assert alone.status == 2
    assert "missing data: add --config RECIPE" in alone.err
    outcome = attnkit("fit", "--config", tiny, "--ckpt_path", "model.safetensors")
    assert outcome.status == 2
    assert "model.safetensors is an exported model, which has no state to continue from" in outcome.err
