"""Fields of configurations are the options that the table names."""

import pytest
from published.engine import Pair, assert_close, families
from published.fields import FIELDS, Field
from published.test_published import test_a_padded_batch_is_equal as check_padding
from published.test_published import test_cached_decoding_is_equal as check_steps

ALL = {family.name: family for family in families()}

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.name}-{field.family}")
def test_a_field_equals_its_option(field: Field) -> None:
    pair = Pair(field.of(ALL[field.family]))
    assert_close(pair.run_ours(pair.tokens), pair.run_theirs(pair.tokens), "logits", pair.family.tolerance)
    check_padding(pair)
    if pair.decodes:
        check_steps(pair)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.name}-{field.family}")
def test_without_the_option_the_models_differ(field: Field) -> None:
    def compare() -> None:
        pair = Pair(field.with_config(ALL[field.family]))
        assert_close(pair.run_ours(pair.tokens), pair.run_theirs(pair.tokens), "logits", pair.family.tolerance)

    with pytest.raises(AssertionError):
        compare()
