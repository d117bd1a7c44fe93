import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnkit.cli.commands import COMMANDS, help_of
from attnkit.cli.completion import SCRIPTS, candidates
from attnkit.cli.kept import kept
from attnkit.cli.schema import recipe_schema
from attnkit.recipe import recipe_names


@pytest.fixture(scope="module")
def complete() -> Callable[..., list[str]]:
    schema = kept("schema", recipe_schema)  # as the command does: the shells below read what this process has written
    return lambda *words: candidates(words, commands=COMMANDS, help_of=help_of, schema=lambda: schema)


RECIPE = ("fit", "--config", "g2p/transformer")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("fi",), ["fit"]),
        (("fit", "--conf"), ["--config"]),
        (("fit", "--config", "g2p/transformer"), ["g2p/transformer", "g2p/transformer_full"]),
        (("fit", "--see"), ["--seed_everything"]),
        (("fit", "--trainer.prec"), ["--trainer.precision"]),
        (("fit", "--trainer.precision", "bf16"), ["bf16", "bf16-mixed", "bf16-true"]),
        (("fit", "--trainer.callbacks", "EarlyS"), ["EarlyStopping"]),
        (("fit", "--trainer.barebones", ""), ["false", "true"]),
        ((*RECIPE, "--model.stack.att"), ["--model.stack.attention", "--model.stack.attention.", "--model.stack.attention_dropout"]),
        ((*RECIPE, "--model.stack.attention", "addi"), ["additive"]),
        ((*RECIPE, "--model.stack.attention", "=", "addi"), ["additive"]),  # as bash splits words
        ((*RECIPE, "--model.stack.attention=addi"), ["--model.stack.attention=additive"]),  # as zsh and fish pass them
        (("fit", "--trainer.precision=bf16-"), ["--trainer.precision=bf16-mixed", "--trainer.precision=bf16-true"]),
        ((*RECIPE, "--model.stack.attention=additive", "--model.stack.attention.h"), ["--model.stack.attention.hidden_dim"]),
        (("fit", "--model.name", "causal", ""), []),  # a value, or a file: nothing to offer
        (("describe", "attention.addi"), ["attention.additive"]),
        (("list", "opt"), ["optimizer"]),
        (("ablate", "ru"), ["run"]),
        (("ablate", "run", "--jo"), ["--jobs"]),
        (("generate", "--top"), ["--top_k", "--top_p"]),
        (("generate", ""), []),  # a file
        (("fit", "--config", "no_such_recipe", "--model.stack.attention", "addi"), []),
        (("no_such_command", ""), []),
        ((), sorted(COMMANDS)),
    ],
)
def test_the_last_word_is_completed(complete: Callable[..., list[str]], words: tuple[str, ...], expected: list[str]) -> None:
    assert complete(*words) == expected


def test_every_recipe_is_offered(complete: Callable[..., list[str]]) -> None:
    assert complete("fit", "--config", "") == sorted(recipe_names())


def test_completed_keys_belong_to_the_named_components(complete: Callable[..., list[str]]) -> None:
    keys = complete(*RECIPE, "--model.stack.attention", "additive", "--model.stack.attention.")
    assert keys == ["--model.stack.attention.hidden_dim", "--model.stack.attention.name"]
    assert "--model.tie" in complete(*RECIPE, "--model.t")
    assert "--model.tie" not in complete("fit", "--model", "causal_lm", "--model.samp")


@pytest.fixture
def _command(complete: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `attnkit` on the path of shells."""
    command = tmp_path / "attnkit"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m attnkit "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("_command")
def test_the_script_completes_in_bash() -> None:
    lines = "COMP_WORDS=(attnkit describe scaled_dot); COMP_CWORD=2; _attnkit; echo ${COMPREPLY[@]}"
    done = subprocess.run(["bash", "-c", f"{SCRIPTS['bash']}\n{lines}"], capture_output=True, text=True, check=True)
    assert done.stdout == "scaled_dot_product\n"


@pytest.mark.usefixtures("_command")
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("attnkit describe scaled_dot", "scaled_dot_product\n"),
        ("attnkit fit --config g2p/transformer --model.stack.attention=addi", "--model.stack.attention=additive\n"),
    ],
)
def test_the_script_completes_in_fish(line: str, answer: str) -> None:
    done = subprocess.run(["fish", "-c", f"{SCRIPTS['fish']}\ncomplete -C '{line}'"], capture_output=True, text=True, check=True)
    assert done.stdout == answer


@pytest.mark.usefixtures("_command")
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("attnkit describe scaled_d", "scaled_dot_product "),
        ("attnkit fit --config g2p/transformer --model.stack.attention=addi", "--model.stack.attention=additive "),
    ],
)
def test_the_script_completes_in_zsh(tmp_path: Path, line: str, answer: str) -> None:
    """zsh completes only in a terminal: its module zpty is one."""
    (tmp_path / "script.zsh").write_text(SCRIPTS["zsh"], encoding="utf-8")
    terminal = f"""
        zmodload zsh/zpty
        zpty shell "TERM=dumb COLUMNS=200 zsh -f -i"
        zpty -w shell "source {tmp_path / "script.zsh"}; echo rea''dy"
        zpty -r -m shell seen "*ready*" || exit 1
        zpty -w -n shell $'{line}\\t'
        zpty -r -m shell seen "*{answer}*" || exit 1
        zpty -d shell
    """
    done = subprocess.run(["zsh", "-f", "-c", terminal], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_command_prints_the_script(attnkit: Callable[..., Any], shell: str) -> None:
    assert attnkit("completion", shell).out == SCRIPTS[shell]


def test_an_unsupported_shell_is_rejected(attnkit: Callable[..., Any]) -> None:
    outcome = attnkit("completion", "tcsh")
    assert outcome.status == 2
    assert "bash" in outcome.err
