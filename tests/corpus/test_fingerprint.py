from attnkit.corpus.fingerprint import fingerprint


def test_a_fingerprint_depends_on_order_and_text_boundaries() -> None:
    assert len({fingerprint(texts) for texts in ([], [""], ["ab"], ["a", "b"], ["b", "a"], ["", "ab"])}) == 6
