import pytest
import torch

import attnkit
from attnkit.attention import Attention
from attnkit.layers import TransformerState
from attnkit.recording import attention_maps
from attnkit.state import State


def test_every_attention_of_a_model_is_recorded_by_its_path(seed: int) -> None:
    model = attnkit.compose(
        stack="encoder_decoder", d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, cross_attention="additive",
        src_vocab_size=9, tgt_vocab_size=9, dropout=0.2, attention_dropout=0.2,
    ).train()  # fmt: skip
    src, tgt = torch.randint(3, 8, (2, 6)), torch.randint(3, 8, (2, 5))
    mask = torch.arange(6) < torch.tensor([[6], [3]])
    torch.manual_seed(seed)
    expected = model(src, tgt, src_mask=mask)
    torch.manual_seed(seed)
    with attnkit.record_attention(model) as maps:
        recorded = model(src, tgt, src_mask=mask)
    assert torch.equal(expected, recorded)
    shapes = {path.removeprefix("stack."): tuple(weights.shape) for path, weights in maps.items()}
    assert shapes == {
        **{f"encoder.layers.{i}.mixer": (2, 4, 6, 6) for i in (0, 1)},
        **{f"decoder.layers.{i}.mixer": (2, 4, 5, 5) for i in (0, 1)},
        **{f"decoder.layers.{i}.cross_mixer": (2, 4, 5, 6) for i in (0, 1)},
    }
    for weights in maps.values():
        assert not weights.requires_grad
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert (maps["stack.decoder.layers.1.cross_mixer"][1, :, :, 3:] == 0).all()


def test_recording_does_not_change_gradients(seed: int) -> None:
    model = attnkit.compose(stack="decoder", d_model=16, num_layers=1, num_heads=2, vocab_size=9)
    tokens = torch.randint(3, 8, (2, 5))
    model(tokens).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    with attnkit.record_attention(model):
        model(tokens).sum().backward()
    assert all(torch.equal(expected[name], p.grad) for name, p in model.named_parameters() if p.grad is not None)


def test_nothing_is_recorded_after_the_block_even_after_an_error(seed: int) -> None:
    model = attnkit.compose(stack="decoder", d_model=16, num_layers=1, num_heads=2, vocab_size=9)
    with pytest.raises(ZeroDivisionError), attnkit.record_attention(model) as maps:
        raise ZeroDivisionError
    model(torch.randint(3, 8, (2, 5)))
    assert not maps
    assert not any(m._forward_hooks for m in model.modules() if isinstance(m, Attention))


def test_a_standalone_attention_is_recorded(seed: int) -> None:
    attention = attnkit.attentions.build("cosine", head_dim=4, num_heads=2)
    x = torch.randn(1, 2, 3, 4)
    with attnkit.record_attention(attention) as maps:
        attention(query=x, key=x, value=x)
    assert [tuple(w.shape) for w in maps.values()] == [(1, 2, 3, 3)]


STACKS = {
    "transformer": {"stack": "encoder_decoder", "num_heads": 2, "num_kv_heads": 1, "cross_attention": "additive"},
    "bahdanau": {"stack": "recurrent_encoder_decoder", "cell": "gru", "attention": "additive", "placement": "before"},
    "luong": {"stack": "recurrent_encoder_decoder", "attention": "general", "placement": "after"},
    "input_feeding": {"stack": "recurrent_encoder_decoder", "attention": "dot_product", "num_heads": 2, "input_feeding": True},
}


def chooser(**composition):
    """Return a float64 model whose next tokens differ widely in probability, so that beams change places."""
    model = attnkit.compose(d_model=16, num_layers=2, dropout=0.3, **composition).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def steps_of(model, part, run):
    """Return the output of `run`, and all weights of attentions below `part` during it, call by call."""
    seen = {}

    def hook(path, module, args, kwargs, output):
        given = dict(zip(("query", "key", "value"), args, strict=False), **kwargs)
        used = {name: given[name] for name in ("query", "key", "mask", "attn_bias", "projected") if name in given}
        seen.setdefault(path.removesuffix(".attention"), []).append(module.weights(**used))

    handles = [
        module.register_forward_hook(lambda m, a, k, o, path=path: hook(path, m, a, k, o), with_kwargs=True)
        for path, module in model.named_modules()
        if isinstance(module, Attention) and f".{part}." in f".{path}."
    ]
    output = run()
    for handle in handles:
        handle.remove()
    return output, seen


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("name", STACKS)
def test_the_maps_of_a_generation_equal_those_of_its_beams_at_each_step(
    seed: int, name: str, beam_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransformerState, "branch", State.branch)  # one row for each beam; and no row ends early, which would leave it out
    model = chooser(**STACKS[name], src_vocab_size=12, tgt_vocab_size=12)
    src = torch.randint(3, 12, (3, 7))
    mask = torch.arange(7) < torch.tensor([[7], [4], [6]])
    src = src.masked_fill(~mask, 0)
    output, steps = steps_of(model, "decoder", lambda: model.generate(src, mask=mask, max_length=8, min_length=8, beam_size=beam_size))
    maps = attention_maps(model, src, output, mask=mask)
    assert model.training
    lengths = ((output == model.eos_id).cumsum(1) - (output == model.eos_id).int() == 0).sum(1)  # with the end token
    assert steps
    for path, calls in steps.items():
        for row, length in enumerate(lengths.tolist()):
            for t in range(length):
                expected = maps[path][row, :, t]  # [H, K]
                beams = calls[t].view(3, -1, *calls[t].shape[1:])[row, :, :, -1]  # [N, H, up to K]
                difference = (beams - expected[:, : beams.shape[-1]]).abs().amax((1, 2))
                assert difference.min() < 1e-9
                assert (expected[:, beams.shape[-1] :] == 0).all()


@pytest.mark.parametrize("name", STACKS)
def test_the_maps_of_a_generation_equal_those_of_a_full_pass(seed: int, name: str) -> None:
    model = chooser(**STACKS[name], src_vocab_size=12, tgt_vocab_size=12).eval()
    src = torch.randint(3, 12, (2, 5))
    output = model.generate(src, max_length=6, beam_size=3)
    with torch.no_grad(), attnkit.record_attention(model) as full:
        model(src, torch.cat([torch.ones(2, 1, dtype=torch.long), output[:, :-1]], 1))
    maps = attention_maps(model.train(), src, output)
    assert maps.keys() == full.keys()
    assert all(torch.equal(maps[path], full[path]) for path in maps)
    for path, weights in maps.items():
        assert weights.shape[2] == (5 if ".encoder." in path else output.shape[1])


def test_a_padded_prompt_has_the_maps_of_the_prompt_alone(seed: int) -> None:
    model = chooser(stack="decoder", num_heads=2, vocab_size=12, eos_id=None)
    prompt = torch.randint(3, 12, (2, 5))
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    output = model.generate(prompt, mask=mask, max_length=4, beam_size=3)
    (together,) = (m[1:] for path, m in attention_maps(model, prompt, output, mask=mask).items() if ".1." in path)
    (alone,) = (m for path, m in attention_maps(model, prompt[1:, :3], output[1:]).items() if ".1." in path)
    real = [0, 1, 2, 5, 6, 7]
    torch.testing.assert_close(together[:, :, real][..., real], alone)
    assert (together[..., [3, 4]] == 0).all()


def test_an_output_is_required_only_if_the_model_generates_one(seed: int) -> None:
    tokens = torch.randint(3, 9, (1, 4))
    encoder = attnkit.compose(stack="encoder", d_model=8, num_layers=1, num_heads=2, vocab_size=9)
    assert len(attention_maps(encoder, tokens)) == 1
    with pytest.raises(ValueError, match="EncoderModel generates no output"):
        attention_maps(encoder, tokens, tokens)
    both = attnkit.compose(stack="encoder_decoder", d_model=8, num_layers=1, num_heads=2, src_vocab_size=9, tgt_vocab_size=9)
    with pytest.raises(ValueError, match="pass the generated tokens"):
        attention_maps(both, tokens)
