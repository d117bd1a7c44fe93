import math
import random
import time

import pytest

import attnkit
from attnkit.registry import ConfigurationError
from attnkit.schedule import Schedule

DECAYING = ["linear", "cosine", "warmup_stable_decay"]


def build(name: str, total_steps: int | None = 1000, **arguments) -> Schedule:
    return attnkit.schedules.build({"name": name, **arguments}, total_steps=total_steps)


def test_names():
    assert attnkit.schedules.names() == ["constant", "cosine", "inverse_sqrt", "linear", "warmup_stable_decay"]


@pytest.fixture(params=attnkit.schedules.names())
def name(request):
    return request.param


def test_warmup_rises_linearly_to_exactly_1(name):
    schedule = build(name, warmup_steps=100)
    assert [schedule.factor(t) for t in range(100)] == [(t + 1) / 100 for t in range(100)]
    assert schedule.factor(99) == 1.0
    assert schedule.factor(100) == pytest.approx(1.0, abs=0.006)  # inverse_sqrt is one step further on its curve


def test_a_fraction_is_relative_to_the_run(name):
    assert build(name, warmup_steps=0.25).warmup == 250


def test_factor_is_a_pure_function_between_0_and_1(name):
    seed = time.time_ns() % 2**31
    print(f"seed {seed}")
    rng = random.Random(seed)
    total = rng.randint(1, 5000)
    schedule, twin = (build(name, total, warmup_steps=(w := 0.3)) for _ in range(2))
    steps = [rng.randint(0, 2 * total) for _ in range(200)]
    forwards = [schedule.factor(t) for t in steps]
    assert forwards == [twin.factor(t) for t in reversed(steps)][::-1]
    assert all(0 <= f <= 1 for f in forwards)
    assert schedule.factor(0) > 0  # no update is wasted
    assert w == 0.3


@pytest.mark.parametrize("name", DECAYING)
def test_decay_reaches_final_and_stays_there(name):
    schedule = build(name, warmup_steps=100, final=0.125)
    assert schedule.factor(100) == 1.0
    assert schedule.factor(1000) == pytest.approx(0.125, abs=1e-15)
    assert schedule.factor(5000) == schedule.factor(1000)
    assert build(name).factor(1000) == pytest.approx(0, abs=1e-15)
    assert build(name).factor(999) > 0


def test_linear_and_cosine_reach_half_at_the_midpoint():
    for name in ("linear", "cosine"):
        assert build(name, warmup_steps=100).factor(550) == pytest.approx(0.5)


def test_inverse_sqrt_follows_the_papers_curve():
    d_model, warmup = 512, 4000
    lr = (d_model * warmup) ** -0.5
    schedule = build("inverse_sqrt", None, warmup_steps=warmup)
    for s in (1, 17, 3999, 4000, 4001, 100_000):
        paper = d_model**-0.5 * min(s**-0.5, s * warmup**-1.5)
        assert lr * schedule.factor(s - 1) == pytest.approx(paper, rel=1e-12)


def test_warmup_stable_decay_is_constant_until_its_decay():
    schedule = build("warmup_stable_decay", warmup_steps=50, decay_steps=200)
    assert {schedule.factor(t) for t in range(50, 801)} == {1.0}
    assert schedule.factor(850) == pytest.approx(1 - math.sqrt(0.25))
    assert build("warmup_stable_decay", decay_steps=200, shape="linear").factor(850) == pytest.approx(0.75)
    assert build("warmup_stable_decay", decay_steps=0).factor(999) == 1.0


@pytest.mark.parametrize("total", [1, 2, 5])
def test_a_run_shorter_than_its_warmup_stays_in_warmup(name, total):
    schedule = build(name, total, warmup_steps=10)
    assert [schedule.factor(t) for t in range(total)] == [(t + 1) / 10 for t in range(total)]
    build(name, total)  # with the defaults too


@pytest.mark.parametrize("name", DECAYING)
def test_a_decay_needs_a_run_with_an_end(name):
    with pytest.raises(ConfigurationError, match=r"needs the number of steps.*set trainer.max_steps"):
        build(name, None, warmup_steps=10)


@pytest.mark.parametrize("name", ["constant", "inverse_sqrt"])
def test_an_open_ended_run_needs_warmup_in_steps(name):
    assert build(name, None, warmup_steps=7).factor(6) == 1.0
    with pytest.raises(ConfigurationError, match="the run is open-ended"):
        build(name, None, warmup_steps=0.1)


@pytest.mark.parametrize("value", [-1, 1.0, 1.5, 0.0, -0.1, math.nan])
def test_an_invalid_warmup_is_refused(name, value):
    with pytest.raises(ConfigurationError, match=r"warmup_steps must be (a whole number of steps|finite)"):
        build(name, warmup_steps=value)


def test_other_invalid_arguments_are_refused():
    with pytest.raises(ConfigurationError, match="needs warmup_steps of at least 1"):
        build("inverse_sqrt", warmup_steps=0)
    with pytest.raises(ConfigurationError, match=r"final is a factor.* but is 1.5"):
        build("linear", final=1.5)
    with pytest.raises(ConfigurationError, match="shape must be"):
        build("warmup_stable_decay", shape="cubic")
    with pytest.raises(ConfigurationError, match="Did you mean 'warmup_steps'"):
        build("cosine", warmup=10)
