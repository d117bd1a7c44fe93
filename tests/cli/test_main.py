import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest

from attnkit import __version__
from attnkit.cli.commands import COMMANDS
from attnkit.cli.main import exit_status, main
from attnkit.registry import FAMILIES, ConfigurationError, Registry, norms
from attnkit.testing import kit
from attnkit.testing.combinations import Outcome

Command = Callable[..., Any]
EXECUTABLE = Path(sys.executable).with_name("attnkit")


def test_help_lists_every_command_on_one_line(attnkit: Command) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        outcome = attnkit(*arguments)
        assert outcome.status == 0
        assert all(f"\n  {name:<10} {summary}\n" in outcome.out for name, (summary, _) in COMMANDS.items())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(attnkit: Command, command: str) -> None:
    outcome = attnkit(command, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"usage: attnkit {command}")


@pytest.mark.parametrize("command", ["list", "generate"])
def test_characters_that_stdout_lacks_are_escaped_or_refused(command: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setitem(COMMANDS, command, ("", lambda rest: print("caf\u00e9")))
    status = main([command])
    message = "attnkit: error: the output's encoding, ascii, lacks '\\xe9': set PYTHONIOENCODING=utf-8, or use --out FILE\n"
    expected = (0, b"caf\\xe9\n", "") if command == "list" else (1, b"", message)
    assert (status, written.getvalue(), capsys.readouterr().err) == expected


def test_version(attnkit: Command) -> None:
    assert attnkit("--version").out == f"attnkit {__version__}\n"


def test_a_wrong_command_gets_a_suggestion(attnkit: Command) -> None:
    outcome = attnkit("fitt")
    assert outcome.status == 2
    assert outcome.err.startswith("attnkit: error: unknown command 'fitt'. Did you mean 'fit'? Commands: new, fit, ")


def test_list_shows_every_name_with_its_summary(attnkit: Command) -> None:
    out = attnkit("list").out
    for registry in FAMILIES:
        assert (f"{registry.attribute}:" in out) == bool(registry.names())
        assert all(f"\n  {name} " in out or f"\n  {name}\n" in out for name in registry.names())
    assert "Additive attention (Bahdanau)" in out


@pytest.mark.parametrize("family", ["attention", "attentions"])
def test_list_of_one_family(attnkit: Command, family: str) -> None:
    out = attnkit("list", family).out
    assert out.startswith("attentions:\n  additive ")
    assert "positions" not in out


def test_list_of_an_unknown_family(attnkit: Command) -> None:
    outcome = attnkit("list", "atention")
    assert outcome.status == 2
    assert "unknown family 'atention'. Did you mean 'attentions'?" in outcome.err


def test_list_is_quick_and_does_not_import_torch() -> None:
    program = (
        "import sys; from attnkit.cli.main import main; main(['list']); sys.exit('torch' in sys.modules or 'lightning' in sys.modules)"
    )
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)  # not wall time: the machine may be busy
    assert min(times) < 0.5


def test_describe_shows_the_whole_documentation_and_the_source(attnkit: Command) -> None:
    out = attnkit("describe", "toy_task").out
    assert out.startswith("task.toy_task: A toy task.\n")
    assert "  stack: stack (required)\n" in out
    assert "Passed by the data module, not by you: src_tokenizer" in out
    out = attnkit("describe", "attention.toy").out
    assert "Equation:\n  $$w = 1$$\n\nThe cost is low.\n\nArguments:\n" in out
    assert "\n\nExample:\n  >>> 1 + 1\n  2\n\nPaper:" in out
    assert "  hidden_dim: int = 16\n      Width of the hidden layer.\n" in out
    assert "Passed by the parent, not by you: head_dim" in out
    assert "Paper: Nobody 2026, https://example.org" in out
    assert "conftest.py:" in out


def test_describe_omits_torchs_explanation_of_an_optimizer(attnkit: Command) -> None:
    assert attnkit("describe", "adam").out.startswith("optimizer.adam: Implements Adam algorithm.\n\nArguments:\n")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("aditive", "no component is called 'aditive'. Did you mean 'additive'?"),
        ("attention.aditive", "unknown attention 'aditive'. Did you mean 'additive'?"),
        ("atention.additive", "unknown family 'atention'. Did you mean 'attentions'?"),
    ],
)
def test_describe_rejects_an_unknown_name(attnkit: Command, word: str, message: str) -> None:
    outcome = attnkit("describe", word)
    assert outcome.status == 2
    assert message in outcome.err


def test_describe_lists_the_candidates_for_an_ambiguous_name(attnkit: Command) -> None:
    outcome = attnkit("describe", "none")
    assert outcome.status == 2
    assert "'none' is the name of several components; write mixer.none or position.none or norm.none or feed_forward.none" in outcome.err


def test_an_incompatible_torchvision_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    def carry_out() -> int:
        raise RuntimeError("operator torchvision::nms does not exist")

    assert exit_status(carry_out) == 2
    assert "it was built for another torch. Install the one built for this torch, or uninstall it" in capsys.readouterr().err


def test_wrong_usage_has_status_2(attnkit: Command) -> None:
    for arguments in (["describe"], ["generate"], ["export", "a.ckpt"], ["check"], ["check", "rms_norm", "--all"], ["schema", "x"]):
        outcome = attnkit(*arguments)
        assert outcome.status == 2
        assert f"attnkit {arguments[0]}: error: " in outcome.err


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rules for norms, the second of which `layer_norm` breaks; none for other families."""

    def holds(registry: Registry, spec: str) -> None: ...

    def is_root_mean_square(registry: Registry, spec: str) -> None:
        assert spec == "rms_norm", f"{spec} is not"

    monkeypatch.setattr(kit, "RULES", {"norms": (holds, is_root_mean_square)})
    monkeypatch.setattr("attnkit.cli.check.RULES", kit.RULES)


def test_check_prints_a_line_for_each_check(attnkit: Command, rules: None) -> None:
    outcome = attnkit("check", "norm.rms_norm")
    assert outcome.status == 0
    assert outcome.out == "ok      norm.rms_norm: holds\nok      norm.rms_norm: is_root_mean_square\n2 of 2 checks passed\n"


def test_documentation_is_checked_on_request(attnkit: Command, rules: None) -> None:
    outcome = attnkit("check", "norm.rms_norm", "--docs")
    assert outcome.out == "ok      norm.rms_norm: is_documented\nok      norm.rms_norm: has_a_running_example\n2 of 2 checks passed\n"
    everything = attnkit("check", "--all", "--docs")  # without combinations
    assert everything.out.endswith(f"{2 * len(norms.names())} of {2 * len(norms.names())} checks passed\n")


def test_a_failed_check_has_status_1_and_does_not_stop_the_rest(attnkit: Command, rules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.cli.check.check_combinations", lambda: Outcome(3, Counter({"no reason": 2}), []))
    outcome = attnkit("check", "--all")
    assert outcome.status == 1
    assert outcome.out.endswith("refused      2: no reason\n3 legal combinations follow the rules, 2 are refused, 0 are wrong\n")
    assert "FAILED  norm.layer_norm: is_root_mean_square: layer_norm is not" in outcome.out
    assert "ok      norm.rms_norm: is_root_mean_square" in outcome.out
    held = len(norms.names()) + 1  # of two rules, the second holds for one norm
    assert f"{held} of {2 * len(norms.names())} checks passed" in outcome.out


def test_a_check_that_this_machine_cannot_run_is_skipped(attnkit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_more(registry: Registry, spec: str) -> None:
        raise SkipTest("there is no GPU")

    monkeypatch.setattr(kit, "RULES", {"norms": (needs_more,)})
    monkeypatch.setattr("attnkit.cli.check.RULES", kit.RULES)
    outcome = attnkit("check", "norm.rms_norm")
    assert outcome.status == 0
    assert outcome.out == "skipped norm.rms_norm: needs_more: there is no GPU\n0 of 0 checks passed\n"


def test_check_rejects_a_family_without_rules(attnkit: Command, rules: None) -> None:
    outcome = attnkit("check", "additive")
    assert outcome.status == 2
    assert "no rules for the family 'attentions'" in outcome.err


def test_a_closed_pipe_causes_no_traceback() -> None:
    outcome = subprocess.run(f"{EXECUTABLE} list | head -1", shell=True, capture_output=True, text=True, check=True)
    assert outcome.stdout == "attentions:\n"
    assert outcome.stderr == ""


def test_a_closed_output_or_input_causes_no_traceback(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as after `<&-`
    outcome = attnkit("generate", trained)
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    monkeypatch.setattr(sys, "stdout", None)  # as after `>&-`
    assert exit_status(lambda: 0) == 0


def test_an_internal_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch, attnkit: Command) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setitem(COMMANDS, "list", ("", broken))
    with pytest.raises(ValueError, match="a bug"):
        attnkit("list")


def test_a_user_error_has_no_traceback(monkeypatch: pytest.MonkeyPatch, attnkit: Command) -> None:
    def mistaken(*_: Any) -> None:
        raise ConfigurationError("say this")

    monkeypatch.setitem(COMMANDS, "list", ("", mistaken))
    assert attnkit("list").err == "attnkit: error: say this\n"


PLUGIN = '''
from attnkit.attention import Attention

class Gaussian(Attention):
    """Gaussian attention of a plugin."""

    def __init__(self, *, head_dim: int, width: float = 1.0) -> None: ...

    def score(self, query, key): ...
'''


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, str]:
    """The environment in which a distribution with one good and one broken component is installed."""
    site = tmp_path / "site"
    metadata = site / "gaussian_attention-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: gaussian-attention\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[attnkit.components]\nattentions.gaussian = gaussian_attention.core:Gaussian\nnorms.rotten = gaussian_attention.rotten:Rotten\n"
    )
    package = site / "gaussian_attention"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "core.py").write_text(PLUGIN)
    (package / "rotten.py").write_text("import not_installed_anywhere")
    return {**os.environ, "PYTHONPATH": str(site)}


def test_a_plugin_is_listed_described_and_chosen_like_a_built_in_component(plugin: dict[str, str], tiny: str) -> None:
    commands = [
        ["list", "attention"],
        ["describe", "gaussian"],
        ["fit", "--config", tiny, "--model.stack.attention", "gaussian", "--print_config"],
        ["fit", "--config", tiny, "--model.stack.attention", "gausian"],
        ["fit", "--config", tiny, "--model.stack.norm", "rotten"],
        ["fit", "--help"],
    ]
    program = f"from attnkit.cli.main import main\nfor command in {commands!r}:\n    print('=====', main(command), flush=True)"
    outcome = subprocess.run([sys.executable, "-c", program], env=plugin, capture_output=True, text=True, check=True)
    listed, described, chosen, wrong, broken, helped, _ = outcome.stdout.split("=====")
    assert "  gaussian            Gaussian attention of a plugin. [gaussian-attention]\n" in listed
    assert "width: float = 1.0" in described
    assert "    attention:\n      name: gaussian\n      width: 1.0\n" in chosen
    assert [part.split()[0] for part in (described, chosen, wrong, broken, helped)] == ["0", "0", "0", "2", "2"]
    assert "Did you mean 'gaussian'?" in outcome.stderr
    assert "comes from the plugin 'gaussian-attention' (gaussian_attention.rotten:Rotten), which cannot be loaded" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "gaussian" in helped
