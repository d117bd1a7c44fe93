import json
from pathlib import Path

import numpy as np
import pytest

from tests.commands import run


@pytest.mark.slow
def test_two_lightning_processes_share_all_examples_in_equal_steps(tmp_path: Path, rng: np.random.Generator) -> None:
    count = int(rng.integers(150, 250))
    sources = ["".join(rng.choice(list("abcdef"), size=rng.integers(1, 15))) + str(i) for i in range(count)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{source.upper()}\n" for source in sources))
    done = run("two_processes", tmp_path / "pairs.tsv", tmp_path, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert set(first) == {"train 0", "train 1", "validation 0", "validation 1", "predict 2"}
    for part in first:
        assert len(first[part]) == len(second[part]) > 1, f"{part}: a process is idle while the other works"
        assert sorted(text for batch in first[part] + second[part] for text in batch) == sorted(sources), part
    assert first["train 0"] != first["train 1"]
    assert first["validation 0"] == first["validation 1"]
