"""Published architectures, as specs of names, equal transformers' implementation with copied weights."""

import pytest
import torch
from published.engine import Pair, assert_close, families

ALL = families()
EQUAL = [family for family in ALL if not family.missing]

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own


@pytest.fixture(scope="module", params=EQUAL, ids=lambda family: family.name)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def test_renames_are_invertible(pair: Pair) -> None:
    for found, expected in ((pair.read(pair.write(pair.copied)), pair.copied), (pair.write(pair.copied), pair.drawn)):
        for name, x in found.items():
            torch.testing.assert_close(x, expected[name], rtol=1e-14, atol=1e-14)


def test_logits_and_gradients_are_equal(pair: Pair) -> None:
    ours, theirs = pair.run_ours(pair.tokens), pair.run_theirs(pair.tokens)
    assert_close(ours, theirs, "logits", pair.family.tolerance)
    direction = torch.randn_like(theirs)
    parameters, their_parameters = dict(pair.ours.named_parameters()), dict(pair.theirs.named_parameters())
    their_parameters = {name: x for name, x in their_parameters.items() if x.requires_grad}  # tables of positions do not
    gradients = {
        name: None if x is None else x.detach()
        for model, logits in ((parameters, ours), (their_parameters, theirs))
        for name, x in zip(
            ((model is parameters, n) for n in model),
            torch.autograd.grad((logits * direction).sum(), list(model.values()), allow_unused=True),
            strict=True,
        )
    }
    leaves = {name: x.clone().requires_grad_(name in their_parameters) for name, x in pair.drawn.items()}
    mapped = {name: x for name, x in pair.read(leaves).items() if x.requires_grad and name in parameters}
    through = [gradients[True, name] for name in mapped]
    assert None not in through, [name for name in mapped if gradients[True, name] is None]
    wanted = [name for row in pair.table for name in row.theirs if name in their_parameters]
    found = torch.autograd.grad(list(mapped.values()), [leaves[name] for name in wanted], through)
    for name, x in zip(wanted, found, strict=True):
        expected = gradients[False, name]
        assert_close(x, torch.zeros_like(x) if expected is None else expected, f"gradient of {name}", pair.family.tolerance)


def test_cached_decoding_is_equal(pair: Pair) -> None:
    if not pair.decodes:
        pytest.skip("an encoder, or no cache in transformers")
    ours, theirs = pair.steps_ours(pair.tokens), pair.steps_theirs(pair.tokens)
    assert_close(ours, theirs, "cached logits", pair.family.tolerance)
    assert_close(ours, pair.run_ours(pair.tokens).detach()[:, -ours.shape[1] :], "cached and whole logits", pair.family.tolerance)


def test_greedy_output_is_equal(pair: Pair) -> None:
    if not pair.decodes or pair.family.front is not None or pair.family.output != "logits":
        pytest.skip("an encoder, no head or cache in transformers, or a source that is not tokens")
    assert torch.equal(pair.greedy_ours(), pair.greedy_theirs())


def test_a_padded_batch_is_equal(pair: Pair) -> None:
    if pair.family.padding is None:
        pytest.skip("transformers does not mask padding here")
    mask = torch.ones_like(pair.tokens, dtype=torch.bool)
    if pair.family.padding == "left":
        mask[1, :4] = False
    else:
        mask[1, -5:] = False
    with torch.no_grad():
        ours, theirs = pair.run_ours(pair.tokens, mask), pair.run_theirs(pair.tokens, mask)
    real = mask if pair.is_decoder or pair.is_encoder else torch.ones_like(mask)
    assert_close(ours[real], theirs[real], "padded logits", pair.family.tolerance)


def test_each_row_has_a_paper_and_an_implementation_or_states_the_gap() -> None:
    for family in ALL:
        assert family.paper.startswith("https://"), family.name
        assert family.missing or family.theirs, family.name
