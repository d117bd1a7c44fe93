"""A misspelled option or word of a command gets the closest one."""

import pytest

from attnkit.cli.main import main


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("plan language_model/gpt --measre", "unrecognized arguments: --measre. Did you mean '--measure'?"),
        ("generate best.ckpt hello --temprature 1", "Did you mean '--temperature'?"),
        ("ablate rn study.yaml", "Did you mean 'run'?"),
        ("ablate run study.yaml --job 2", "Did you mean '--jobs'?"),
        ("new translaton --train a.tsv", "Did you mean 'translation'?"),
        ("draw position sinusoidal --out a.svg --lenght 3", "Did you mean '--length'?"),
        ("bench --qqqqqqq", "unrecognized arguments: --qqqqqqq\n"),
    ],
)
def test_the_closest_word_is_suggested(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert meant in capsys.readouterr().err
