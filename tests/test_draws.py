import numpy as np
import pytest
import torch
from torch import nn

import attnkit
from attnkit import draws
from attnkit.dropout import Dropout, dropout


@pytest.fixture(autouse=True)
def _no_keys_stay():
    yield
    draws.begin(None)


def keys(count: int, *words: int) -> torch.Tensor:
    return draws.make_keys(torch.arange(count), *words)


def test_words_equal_splitmix64_in_plain_integers() -> None:
    top = 2**64

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % top
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % top
        return z ^ (z >> 31)

    found = draws.words(torch.tensor([-5]), 11, torch.tensor([0, 3]), 2, first=7)[0]
    for r, row in enumerate([0, 3]):
        for w, word in enumerate([7, 8]):
            base = mix((-5 + 11) % top) + row * 0x9E3779B97F4A7C15
            assert int(found[r, w]) % top == mix((base + word * 0xD1342543DE82EF95) % top)


def test_dropped_elements_do_not_depend_on_batch_padding_or_process() -> None:
    module, x = Dropout(0.4), torch.ones(6, 5, 9)
    draws.begin(keys(6, 1, 2))
    whole = module(x)
    for rows in ([0, 1], [5, 3], [2]):
        draws.begin(keys(6, 1, 2)[rows])
        assert torch.equal(module(x[rows]), whole[rows])
        assert torch.equal(module(x[rows, :3]), whole[rows, :3])


@pytest.mark.parametrize("first", [1, 4, 6])
def test_a_process_with_a_slice_of_columns_drops_the_same_elements(first: int) -> None:
    module, x = Dropout(0.4), torch.ones(2, 5, 9)
    draws.begin(keys(2))
    whole = module(x)
    module.first = first
    assert torch.equal(module(x[..., first:]), whole[..., first:])


def test_epochs_seeds_examples_sites_and_calls_drop_different_elements() -> None:
    module, x, seen = Dropout(0.5), torch.ones(2, 64), []
    for seed, epoch, site, call in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)):
        draws.begin(keys(2, seed, epoch))
        module.site = draws.site(f"layer.{site}")
        seen += [tuple(row.tolist()) for row in module(x, call=call)]
    assert len(set(seen)) == len(seen)


def test_a_part_of_a_sequence_drops_the_same_elements_as_the_whole() -> None:
    module, x = Dropout(0.5), torch.ones(2, 7, 8)
    draws.begin(keys(2))
    assert torch.equal(torch.stack([module(x[:, t], position=t) for t in range(7)], 1), module(x))


def test_numbers_are_uniform_and_uncorrelated() -> None:
    drawn = draws.uniform(keys(200), draws.site("a"), 500)
    n = drawn.numel()
    assert abs(float(drawn.mean()) - 0.5) < 5 * (1 / 12 / n) ** 0.5  # five standard deviations; the draw is fixed
    counts = torch.histc(drawn.float(), 64, 0, 1)
    assert float(((counts - n / 64) ** 2 / (n / 64)).sum()) < 64 + 5 * (2 * 64) ** 0.5  # chi-squared
    between_rows, between_columns = (np.corrcoef(table)[np.triu_indices(100, 1)] for table in (drawn[:100].numpy(), drawn.T[:100].numpy()))
    for found, length in ((between_rows, 500), (between_columns, 200)):
        assert np.abs(found).max() < 5.5 / length**0.5


def test_without_keys_torchs_generator_is_used() -> None:
    x = torch.ones(3, 50)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x, 0.5))
    assert not torch.equal(first, second)
    draws.begin(keys(4))  # keys of a batch of another size
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x, 0.5))


def test_sites_are_derived_from_paths() -> None:
    stack = {"d_model": 8, "num_layers": 2, "num_heads": 2}
    one = attnkit.compose(stack="encoder", **stack, vocab_size=9)
    two = attnkit.compose(stack="encoder", **stack, position="rotary", vocab_size=9)
    for model in (one, two):
        draws.name_sites(model)

    def sites(model: nn.Module) -> dict[str, int]:
        return {path: module.site for path, module in model.named_modules() if hasattr(module, "site")}

    assert sites(one) == sites(two)
    assert len(set(sites(one).values())) == len(sites(one)) >= 7


@pytest.mark.parametrize("size", [1, 3, 100])
def test_chunks_of_queries_drop_the_same_weights_as_the_whole(size: int) -> None:
    attention = attnkit.attentions.build("additive", head_dim=4, num_heads=2)
    query, key, value = (torch.randn(3, 2, length, 4, generator=torch.Generator().manual_seed(0)) for length in (5, 7, 7))
    draws.begin(keys(3))
    how = {"dropout": 0.5, "mask": torch.ones(5, 7, dtype=torch.bool).tril(2)}
    whole = attention(query, key, value, backend="reference", **how)
    attention.chunk_elements = size * 3 * 2 * 7 * attention.pair_width
    torch.testing.assert_close(attention(query, key, value, backend="chunked", **how), whole)
    attention.first_head = 1
    other = attention(query, key, value, backend="reference", **how)
    assert not torch.equal(other, whole)
    steps = [attention(query[:, :, [t]], key, value, backend="reference", first_query=t, dropout=0.5) for t in range(5)]
    attention.first_head = 1
    torch.testing.assert_close(torch.cat(steps, 2), attention(query, key, value, backend="reference", dropout=0.5))


def test_recomputed_activations_draw_the_same_numbers_after_the_forward_pass() -> None:
    module, x = Dropout(0.5), torch.ones(2, 50, requires_grad=True)
    draws.begin(keys(2))
    y = torch.utils.checkpoint.checkpoint(lambda x: module(x) * x, x, use_reentrant=False, preserve_rng_state=False)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * y.detach())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch
def test_compiled_dropout_drops_the_same_elements() -> None:
    torch._dynamo.reset()
    module, x = Dropout(0.3), torch.ones(6, 5, 9)
    compiled = torch.compile(lambda x: module(x) * 2)
    for epoch in range(2):
        draws.begin(draws.make_keys(torch.arange(6), epoch))
        assert torch.equal(compiled(x), module(x) * 2)
        assert 0 < float((module(x) == 0).float().mean()) < 0.6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch
def test_compiled_numbers_are_those_of_eager_code_when_keys_and_rows_are_counted_in_it() -> None:
    def drawn(x: torch.Tensor) -> torch.Tensor:
        return draws.fields(draws.make_keys(torch.arange(8)), 3, torch.arange(128), 256) + x

    torch._dynamo.reset()
    x = torch.zeros(8, 128, 256, dtype=torch.int64)
    assert torch.equal(torch.compile(drawn)(x), drawn(x))  # the compiled loops wrote past their tensors, which killed the process


def test_products_for_compilers_equal_those_of_eager_code(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    index = torch.randint(-(2**63), 2**63 - 1, (1000,))
    products = [draws._product(index, factor) for factor in (draws.ROW, draws.WORD)]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for factor, product in zip((draws.ROW, draws.WORD), products, strict=True):
        assert torch.equal(draws._product(index, factor), product)
