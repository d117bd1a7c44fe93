"""Each fast form against its equation, one step of time after another."""

from collections.abc import Callable
from math import inf

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnkit.mixer.recurrence import chunks
from attnkit.mixer.recurrence import exponential_cell as exponential
from attnkit.mixer.recurrence import outer_product as pairwise
from attnkit.mixer.recurrence import scan as scanning
from attnkit.mixer.recurrence import selective_scan as selective
from attnkit.mixer.recurrence.delta_rule import delta_rule
from attnkit.mixer.recurrence.generalized_delta_rule import generalized_delta_rule
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.mixer.recurrence.scan import EMPTY, running_maximum, scan
from attnkit.mixer.recurrence.selective_scan import selective_scan

BATCH, HEADS, KEY, VALUE = 2, 2, 6, 5
DECAYS = {
    "one": lambda u: torch.zeros_like(u),
    "near one": lambda u: -1e-4 * u,
    "any": lambda u: u.log(),
    "near zero": lambda u: -1e4 * u,
    "both": lambda u: torch.where(u < 0.1, -1e4 * u, -1e-4 * u),
    "some zero": lambda u: torch.where(u < 0.05, -float("inf"), -0.01 * u),
}
LENGTHS = [1, 2, 15, 16, 17, 64, 100, chunks.WHOLE, chunks.WHOLE + 1, 257]


def by_steps(step: Callable[..., tuple[Tensor, Tensor]], *tensors: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for t in range(tensors[0].shape[2]):
        output, state = step(*(x[:, :, t : t + 1] for x in tensors), state)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def sample(name: str, length: int, decay: str, *, channels: int = 1) -> list[Tensor]:
    """Return queries, keys, values, (beta,) log decays and a state."""
    torch.manual_seed(length)
    query, key = normal(BATCH, HEADS, length, KEY), torch.nn.functional.normalize(normal(BATCH, HEADS, length, KEY), dim=-1)
    value, state = normal(BATCH, HEADS, length, VALUE), normal(BATCH, HEADS, KEY, VALUE)
    own = {"delta_rule": [2 * uniform(BATCH, HEADS, length, 1)], "generalized_delta_rule": [key.flip(2), key.flip(2) * uniform(*key.shape)]}
    return [query, key, value, *own.get(name, []), DECAYS[decay](uniform(BATCH, HEADS, length, channels)), state]


FORMS = {"outer_product": outer_product, "delta_rule": delta_rule, "generalized_delta_rule": generalized_delta_rule}
CASES = [(name, channels) for name in FORMS for channels in (1, KEY) if (name, channels) != ("generalized_delta_rule", 1)]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("name", "channels"), CASES)
def test_chunks_equal_steps(name: str, channels: int, decay: str, length: int) -> None:
    *tensors, state = sample(name, length, decay, channels=channels)
    form = FORMS[name]
    for x, y in zip(form(*tensors, state), by_steps(form, *tensors, state=state), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def side_by_side(step: Callable[..., tuple[Tensor, Tensor]], samples: list[list[Tensor]]) -> list[tuple[Tensor, ...]]:
    """Return what `by_steps` does of each sample, whose rows are steps of one batch: the loop is what takes time."""
    *tensors, state = (torch.cat(x) for x in zip(*samples, strict=True))
    return list(zip(*(x.split(BATCH) for x in by_steps(step, *tensors, state=state)), strict=True))


@pytest.mark.parametrize(("name", "channels"), CASES)
def test_chunks_are_as_precise_as_steps_over_4096_tokens(name: str, channels: int) -> None:
    form = FORMS[name]
    double = [sample(name, 4096, decay, channels=channels) for decay in DECAYS]
    single = [[x.float() for x in tensors] for tensors in double]
    truths = side_by_side(form, double + [[x.double() for x in tensors] for tensors in single])  # the latter is what float32 stands for
    steps = side_by_side(form, single)
    for i, decay in enumerate(DECAYS):
        for x, y in zip(form(*double[i]), truths[i], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)
        for chunked, stepped, truth in zip(form(*single[i]), steps[i], truths[len(DECAYS) + i], strict=True):
            assert (chunked - truth).abs().max() <= 8 * (stepped - truth).abs().max() + 1e-6, decay


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize(("name", "channels"), CASES)
def test_gradients_equal_those_of_the_steps(name: str, channels: int, decay: str) -> None:
    tensors = [x.requires_grad_() for x in sample(name, 150, decay, channels=channels)]
    form = FORMS[name]
    torch.manual_seed(1)
    weights = normal(BATCH, HEADS, 150, VALUE), normal(BATCH, HEADS, KEY, VALUE)
    gradients = []
    for outputs in (form(*tensors), by_steps(form, *tensors[:-1], state=tensors[-1])):
        loss = sum((x * w).sum() for x, w in zip(outputs, weights, strict=True))
        gradients.append(torch.autograd.grad(loss, tensors))
    for x, y in zip(*gradients, strict=True):
        assert y.isfinite().all()
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


def test_the_flops_of_a_sum_of_outer_products_match_its_docstring() -> None:
    n, p, chunk_count = 8, 16, 8
    length = chunk_count * chunks.CHUNK
    key, value, log_decay = torch.ones(1, 1, length, n), torch.ones(1, 1, length, p), torch.zeros(1, 1, length, 1)
    with FlopCounterMode(display=False) as counter:
        outer_product(key, key, value, log_decay)
    decays = 2 * length * chunks.CHUNK  # a sum and an exponential for each pair
    assert counter.get_total_flops() == 2 * (length * (chunks.CHUNK * (n + p) + 2 * n * p) + chunk_count * n * p) + decays


def test_heads_sharing_keys_equal_heads_with_copied_keys() -> None:
    query, key, _, _, _ = sample("outer_product", 150, "any")
    value, decay, state = normal(BATCH, 3 * HEADS, 150, VALUE), -uniform(BATCH, 3 * HEADS, 150, 1), normal(BATCH, 3 * HEADS, KEY, VALUE)
    for start in (None, state):
        for length in (1, 100, 150):
            tensors = [x[:, :, :length] for x in (query, key, value, decay)]
            copies = [x.repeat_interleave(3, 1) for x in tensors[:2]]
            for x, y in zip(outer_product(*tensors, start), outer_product(*copies, *tensors[2:], start), strict=True):
                torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [2, chunks.WHOLE + 1])
@pytest.mark.parametrize(("batch", "heads", "channels"), [(1, 1, 1), (BATCH, 1, 1), (1, 4, 1), (1, 4, KEY)])
def test_shared_decays_equal_copied_decays(batch: int, heads: int, channels: int, length: int) -> None:
    torch.manual_seed(length)
    groups = 2 if channels == 1 else 4
    query, key, value = normal(BATCH, groups, length, KEY), normal(BATCH, groups, length, KEY), normal(BATCH, 4, length, VALUE)
    shared = uniform(batch, heads, length, channels).log().requires_grad_()
    copies = shared.detach().expand(BATCH, 4, -1, -1).clone().requires_grad_()
    found, expected = outer_product(query, key, value, shared), outer_product(query, key, value, copies)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    for x, _ in (found, expected):
        x.square().sum().backward()
    torch.testing.assert_close(shared.grad, copies.grad.sum_to_size(shared.shape), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [2, chunks.WHOLE + 1])
@pytest.mark.parametrize(("groups", "channels"), [(2, 1), (4, KEY)])
def test_an_empty_batch_gives_an_empty_output(groups: int, channels: int, length: int) -> None:
    query, value = normal(0, groups, length, KEY).requires_grad_(), normal(0, 4, length, VALUE)
    output, state = outer_product(query, query, value, uniform(0, 4, length, channels).log())
    (output.sum() + state.sum()).backward()
    assert (output.shape, state.shape, query.grad.shape) == (value.shape, (0, 4, KEY, VALUE), query.shape)


def test_a_missing_state_counts_as_zero() -> None:
    for name, channels in CASES:
        for length in (1, 100, 150):
            *tensors, state = sample(name, length, "any", channels=channels)
            for x, y in zip(FORMS[name](*tensors), FORMS[name](*tensors, torch.zeros_like(state)), strict=True):
                torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("length", [1, 16, 150])  # one step, and blocks of at most 64
@pytest.mark.parametrize("step", [1, 10**9])  # one after another; in pairs
def test_a_selective_scan_and_its_gradients_equal_the_recurrence(
    length: int, kept: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "STEP", step)
    torch.manual_seed(length)
    keep = (uniform(2, length) > 0.2).double() if kept else None
    delta, rate, value = uniform(2, length, 3), uniform(3, 4), normal(2, length, 3)
    tensors = [x.requires_grad_() for x in (delta, rate, value, normal(2, length, 4), normal(2, length, 4), normal(2, 3, 4))]
    delta, rate, value, write, read, state = tensors
    outputs, h = [], state
    for t in range(length):
        decay = torch.exp(-delta[:, t, :, None] * rate) * (1.0 if keep is None else keep[:, t, None, None])
        h = decay * h + (delta[:, t] * value[:, t])[..., None] * write[:, t, None]
        outputs.append((h * read[:, t, None]).sum(-1))
    slow, fast = (torch.stack(outputs, 1), h), selective_scan(delta, rate, value, write, read, keep, state)
    weights = [torch.randn_like(x) for x in slow]
    gradients = []
    for form in (slow, fast):
        gradients.append(torch.autograd.grad(sum((x * w).sum() for x, w in zip(form, weights, strict=True)), tensors))
    for x, y in zip((*fast, *gradients[1]), (*slow, *gradients[0]), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("step", [1, 10**9])  # one after another; in pairs
def test_a_scan_in_blocks_equals_its_recurrence(length: int, matrix: bool, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "BLOCK", 3 * 100)  # more than one block of 16 to 25 steps
    monkeypatch.setattr(scanning, "STEP", step)
    torch.manual_seed(0)
    decay = normal(3, length, 4, 2, 2) / 3 if matrix else uniform(3, length, 4, 1, 1)
    tensors = [x.requires_grad_() for x in (decay, normal(3, length, 4, 2, 1), normal(3, 4, 2, 1))]
    state, expected = tensors[2], []
    for t in range(length):
        state = (decay[:, t] @ state if matrix else decay[:, t] * state) + tensors[1][:, t]
        expected.append(state)
    slow, fast = torch.stack(expected, 1), scan(*tensors, dim=1, matrix=matrix)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(slow)
    for x, y in zip(*(torch.autograd.grad((out * weight).sum(), tensors) for out in (fast, slow)), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


def test_a_running_maximum_equals_its_recurrence() -> None:
    torch.manual_seed(0)
    decay, x, state = -uniform(2, 50, 3), normal(2, 50, 3), normal(2, 3)
    fast = running_maximum(decay, x, state, dim=1)
    for t in range(50):
        state = torch.maximum(state + decay[:, t], x[:, t])
        torch.testing.assert_close(fast[:, t], state, rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@torch._dynamo.config.patch(fake_tensor_cache_enabled=False)  # with a symbol, its entries take longer than operations
def test_one_compiled_graph_serves_all_lengths_beyond_one_chunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    monkeypatch.setattr(chunks, "CHUNK", 2)  # each doubling takes seconds
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(FORMS[name], backend=counter, fullgraph=True)
    for length in (130, 260):
        tensors = [x.requires_grad_() for x in sample(name, length, "any")]
        for x in tensors[:-1]:
            torch._dynamo.mark_dynamic(x, 2)  # the length alone: each further symbol takes seconds
        gradients = []
        for function in (FORMS[name], compiled):
            output, state = function(*tensors)
            gradients.append(torch.autograd.grad(output.sum() + state.sum(), tensors))
        for x, y in zip(*gradients, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    assert counter.frame_count == 1


@pytest.mark.parametrize("masked", ["", "real", "starts", "real and starts"])
def test_gradients_of_an_exponential_cell_match_its_steps(masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exponential, "SEGMENT", 8)  # three of them, the last of four tokens
    torch.manual_seed(0)
    real, starts = torch.rand(3, 20) < 0.7, torch.rand(3, 20) < 0.2
    real[0, :4] = False  # a row that begins with padding is still empty after it
    given = [x.T[:, None, :, None] if name in masked else None for name, x in (("real", real), ("starts", starts))]
    logits, state = normal(20, 2, 3, 16), normal(4, 2, 3, 4)
    if given[0] is not None:
        logits = torch.where(given[0], logits, torch.tensor([-inf, inf, 1.0, 1.0]).repeat_interleave(4))  # shut
    state[2] += 5  # the weight is at least 1
    state[:, :, 0] = torch.tensor([0.0, 0.0, 0.0, EMPTY])[:, None, None]
    tensors = [x.requires_grad_() for x in (logits, normal(2, 4, 16), state)]
    found, expected = (cell(*tensors[:2], *given, tensors[2])[:2] for cell in (exponential._exponential_cell, exponential._steps))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    weights = [torch.randn_like(found[0]), torch.randn_like(found[1][:3])]  # the largest gates have no gradient
    gradients = []
    for hidden, last in (found, expected):
        total = (hidden * weights[0]).sum() + (last[:3] * weights[1]).sum()
        gradients.append(torch.autograd.grad(total, tensors, materialize_grads=True))
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("matrix", [False, True])
def test_the_operators_pass_opcheck(matrix: bool) -> None:
    torch.manual_seed(0)
    tensors = [normal(2, 5, 3, 3 if matrix else 1), normal(2, 5, 3, 2), normal(2, 3, 2)]
    torch.library.opcheck(scanning._scan, (*(x.requires_grad_() for x in tensors), 1, matrix))
    torch.library.opcheck(pairwise._pairwise_decay, ((-uniform(2, 5)).requires_grad_(),))
    arguments = [uniform(2, 20, 3), uniform(4, 3), normal(2, 20, 3), normal(2, 20, 4), normal(2, 20, 4), None, normal(2, 4, 3)]
    torch.library.opcheck(selective._selective_scan, [x if x is None else x.requires_grad_() for x in arguments])
    torch.library.opcheck(
        exponential._exponential_cell, [normal(5, 2, 3, 16).requires_grad_(), normal(2, 4, 16), None, None, normal(4, 2, 3, 4)]
    )
    torch.library.opcheck(scanning._running_maximum, (normal(2, 5, 3), normal(2, 5, 3), normal(2, 3), 1))
    torch.library.opcheck(chunks._cut, (normal(2, 2, 5, 3).requires_grad_(), 16))
    torch.library.opcheck(chunks._join, (normal(2, 2, 3, 16, 3).requires_grad_(), 40))


def test_selective_scan_blocks_on_a_gpu_are_sized_by_memory() -> None:
    sizes = {rows: selective._block(torch.empty(rows, 16, 1024, device="meta")) for rows in (1, 4, 16, 512)}
    assert sizes == {1: 4096, 4: 1024, 16: 256, 512: 256}
