import pytest
import torch

import attnkit
from attnkit.registry import ConfigurationError
from attnkit.task.attending import place, read_batch, read_text, token_labels
from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.unknown import UnknownTokens
from tests.task.conftest import TOKENIZER

RECURRENT = {"name": "recurrent_encoder_decoder", "d_model": 16, "num_layers": 1}


@pytest.mark.parametrize("beam_size", [1, 3])
def test_maps_cover_the_source_text_and_the_generated_output(rng, make_task, beam_size):
    while True:  # random weights may write padding, which is no token
        task = make_task(max_length=5).double()
        reading = read_text(task, "fab", beam_size=beam_size)
        if (reading.target[0] != Tokenizer.pad_id).all():
            break
    encoder, decoder, cross = reading.labelled(reading.maps())
    assert [m.name for m in (encoder, decoder, cross)] == ["encoder self-attention", "decoder self-attention", "cross-attention"]
    assert encoder.queries == encoder.keys == cross.keys == ["f", "a", "b", "<eos>"]
    assert reading.output == task.generate(["fab"], beam_size=beam_size)[0]
    written = TOKENIZER.tokens(reading.target[0, 1:].tolist())
    assert cross.queries == written
    assert decoder.queries == decoder.keys == ["<bos>", *written[:-1]]
    for m in (encoder, decoder, cross):
        torch.testing.assert_close(m.weights.sum(-1), torch.ones(m.weights.shape[:-1]))


def test_maps_cover_a_given_target(rng, make_task):
    reading = read_text(make_task(), "fab", "cde")
    cross = reading.labelled(reading.maps())[-1]
    assert cross.queries == ["c", "d", "e", "<eos>"]
    assert reading.output == "cde"


def test_unknown_tokens_are_marked_and_warn(rng, make_task):
    with pytest.warns(UnknownTokens) as warned:
        reading = read_text(make_task(), "f한a국", "각c각")
    assert [str(w.message).split(": ")[1] for w in warned] == ["'한' (U+D55C), '국' (U+AD6D) in 'f한a국'", "'각' (U+AC01) in '각c각'"]
    encoder, decoder, cross = reading.labelled(reading.maps())
    assert encoder.queries == encoder.keys == cross.keys == ["f", "†한", "a", "†국", "<eos>"]
    assert decoder.queries == ["<bos>", "†각", "c", "†각"]
    assert cross.queries == ["†각", "c", "†각", "<eos>"]
    assert {m.note for m in (encoder, decoder, cross)} == {"† unknown to the tokenizer"}
    known = read_text(make_task(), "fab", "cde")
    assert {m.note for m in known.labelled(known.maps())} == {""}


def test_a_language_model_marks_unknown_tokens_in_text_and_target(rng):
    tokenizer = attnkit.tokenizers.build("word").train(["so good"])
    stack = {"name": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2}
    task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": tokenizer.spec})
    with pytest.warns(UnknownTokens):
        reading = read_text(task, "so very good", "so bad")
    (only,) = reading.labelled(reading.maps())
    assert only.queries == ["<bos>", "so", "†very", "good", "so", "†bad"]


def test_recurrent_attention_yields_one_map(rng, make_task):
    for placement in ("before", "after"):
        task = make_task(stack={**RECURRENT, "attention": "additive", "placement": placement})
        (only,) = (reading := read_text(task, "fab", "cd")).labelled(reading.maps())
        assert (only.name, only.layer, tuple(only.weights.shape)) == ("cross-attention", 0, (1, 3, 4))


def test_a_model_without_attention_is_refused(rng, make_task):
    task = make_task(stack={**RECURRENT, "attention": None})
    with pytest.raises(ConfigurationError, match="this model has no attention to show: its stack is 'recurrent_encoder_decoder'"):
        read_text(task, "fab").maps()


def test_a_batch_row_is_shown_without_padding_and_as_if_alone(rng, make_task, make_batch):
    task = make_task().double()
    task.configure_model()
    batch = make_batch(["abcdef", "fa", "c"])
    reading = read_batch(task, batch, 2)
    maps = reading.maps()
    assert all(len(weights) == 2 for weights in maps.values())
    for path in maps:
        assert (reading.queries(path) != Tokenizer.pad_id).sum(1).tolist() == [7, 3]
    alone = read_text(task, "fa", "af")
    for mine, other in zip(reading.labelled(maps, 1), alone.labelled(alone.maps()), strict=True):
        assert (mine.queries, mine.keys, mine.name) == (other.queries, other.keys, other.name)
        torch.testing.assert_close(mine.weights, other.weights)


def test_a_batch_without_tokens_is_refused(rng, make_task):
    task = make_task()
    task.configure_model()
    with pytest.raises(ConfigurationError, match="need a batch with src and tgt, or with tokens, but this one has image, label"):
        read_batch(task, {"image": torch.zeros(1), "label": torch.zeros(1)}, 2)


def test_a_task_of_one_text_reads_it_between_bos_and_eos(rng):
    tokenizer = attnkit.tokenizers.build({"name": "character", "extra_tokens": ["<mask>"]}).train(["abc"])
    stack = {"name": "encoder", "d_model": 16, "num_layers": 2, "num_heads": 2}
    task = attnkit.tasks.build({"name": "masked_lm", "stack": stack, "tokenizer": tokenizer.spec})
    reading = read_text(task, "a<mask>c")
    maps = reading.labelled(reading.maps())
    assert [(m.name, m.layer, m.queries) for m in maps] == [
        ("encoder self-attention", layer, ["<bos>", "a", "<mask>", "c", "<eos>"]) for layer in (0, 1)
    ]
    assert reading.output is None
    for arguments, message in (({"target": "b"}, "remove --target"), ({"beam_size": 2}, "remove --beam_size")):
        with pytest.raises(ConfigurationError, match=message):
            read_text(task, "a", **arguments)


def test_part_kind_and_layer_are_parsed_from_module_paths():
    assert place("model.stack.encoder.layers.11.mixer") == ("encoder", "self", 11)
    assert place("stack.decoder.layers.1.mixer.mixers.0") == ("decoder", "self", 1)  # one of several side by side
    assert place("stack.decoder.attention") == ("decoder", "cross", 0)


def test_bytes_of_one_character_are_labelled_with_it():
    tokenizer = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 260}).train(["a"])
    ids = tokenizer.encode("가 나")
    assert token_labels(tokenizer, [1, *ids, 2]) == ["<bos>", "가₁", "가₂", "가₃", " ", "나₁", "나₂", "나₃", "<eos>"]
    assert token_labels(tokenizer, [*ids[:2], 2]) == ["\ufffd", "\ufffd", "<eos>"]  # never finished


def test_a_language_model_reads_the_text_and_a_target_after_it(rng):
    tokenizer = attnkit.tokenizers.build("character").train(["abc"])
    stack = {"name": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2}
    task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": tokenizer.spec})
    (only,) = (reading := read_text(task, "ab", "c")).labelled(reading.maps())
    assert (only.name, only.queries) == ("decoder self-attention", ["<bos>", "a", "b", "c"])
    batch = {"tokens": torch.tensor([[1, 4, 5, 1, 6, 0]]), "documents": torch.tensor([[0, 0, 0, 1, 1, 1]])}
    (apart,) = (reading := read_batch(task, batch, 1)).labelled(reading.maps())
    assert (apart.weights[:, 3:, :3] == 0).all()
    assert len(apart.queries) == 5
    torch.testing.assert_close(apart.weights[..., 4, :].sum(-1), torch.ones(2))


def test_a_classifier_reads_its_text(rng):
    tokenizer = attnkit.tokenizers.build("character").train(["abc"])
    for name, part in (("encoder", "encoder"), ("decoder", "decoder")):
        stack = {"name": name, "d_model": 16, "num_layers": 1, "num_heads": 2}
        task = attnkit.tasks.build({"name": "classification", "stack": stack, "classes": ["x", "y"], "tokenizer": tokenizer.spec})
        (only,) = (reading := read_text(task, "ab")).labelled(reading.maps())
        assert (only.name, only.queries) == (f"{part} self-attention", ["<bos>", "a", "b", "<eos>"])
