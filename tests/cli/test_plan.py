"""`attnkit plan`: memory, communication and data of each process."""

import re
from typing import Any

import pytest


def numbers(text: str) -> dict[str, float]:
    return {name.strip(): float(value.replace(",", "")) for name, value in re.findall(r"^  (\S.*?)  +([\d,.]+)", text, re.MULTILINE)}


def planned(attnkit: Any, tiny: str, *flags: object) -> dict[str, float]:
    size = ("--model.stack.d_model", 64, "--model.stack.attention", "scaled_dot_product", "--model.optimizer", "adamw")
    outcome = attnkit("plan", tiny, *size, *flags)
    assert outcome.status == 0, outcome.err
    return numbers(outcome.out)


def test_strategies_share_out_what_they_promise(attnkit: Any, tiny: str) -> None:
    alone = planned(attnkit, tiny)
    ddp = planned(attnkit, tiny, "--mesh", 4)
    fsdp2 = planned(attnkit, tiny, "--mesh", "4x1", "--strategy", "fsdp2")
    assert alone["optimizer"] == ddp["optimizer"] == pytest.approx(4 * fsdp2["optimizer"], abs=0.3)
    assert ddp["buckets of gradients (ddp)"] == alone["gradients"] == alone["parameters"]
    assert ddp["gradients: all-reduce"] == pytest.approx(1.5 * alone["gradients"], abs=0.2)  # 2 * 3 / 4
    assert fsdp2["gradients: reduce-scatter"] == pytest.approx(0.75 * alone["gradients"], abs=0.2)
    assert alone["together"] == 0
    assert ddp["tokens of a step, of all processes"] == 4 * alone["tokens of a step, of all processes"]
    split = planned(attnkit, tiny, "--mesh", "1x2")
    assert split["parameters"] < alone["parameters"]
    assert split["activations: all-reduce (tensor parallel)"] >= 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mesh", "8by1"], "as in 8x1, but is '8by1'"),
        (["--mesh", "1x2", "--strategy", "ddp"], "ddp splits no layers"),
        (["--mesh", "1x3"], "num_heads 2 cannot be split over 3 processes"),
        (["--mesh", "1x2", "--model.stack", "recurrent_encoder_decoder"], "this stack has none: use a mesh such as 8x1"),
        (["--precision", "8-mixed"], "there is no estimate for the precision '8-mixed'"),
    ],
)
def test_what_cannot_be_planned_is_said(attnkit: Any, tiny: str, flags: list[str], message: str) -> None:
    outcome = attnkit("plan", tiny, *flags)
    assert outcome.status == 2
    assert message in outcome.err
