"""Models of classes: pooling, padding, images, and what is refused."""

import json
from typing import Any

import pytest
import torch

import attnkit
from attnkit import ConfigurationError
from attnkit.models.pooling import pool

SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 2, "num_classes": 3}
STACKS: dict[str, dict[str, Any]] = {
    "encoder": {"num_heads": 4, "position": "sinusoidal"},
    "decoder": {"num_heads": 4, "position": "rotary"},
    "recurrent_encoder": {},
    "recurrent_decoder": {},
}
LEGAL = [(s, p) for s in STACKS for p in ("class_token", "mean", "last") if not (p == "class_token" and s.endswith("decoder"))]


def classifier(stack: str, **other: Any) -> Any:
    return attnkit.compose(stack=stack, **SIZES, **STACKS[stack], **{"vocab_size": 9, **other})


@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize(("stack", "pooling"), LEGAL)
def test_padding_has_no_effect_and_a_batch_equals_its_rows(stack: str, pooling: Any, pooler: bool, seed: int) -> None:
    model = classifier(stack, pooling=pooling, pooler=pooler).double().eval()
    tokens, lengths = torch.randint(3, 9, (3, 6)), (6, 1, 4)
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    whole = model(tokens, key_mask=mask)
    assert whole.shape == (3, 3)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(model(tokens[row : row + 1, :length])[0], whole[row], rtol=1e-10, atol=1e-10)
    other = model(torch.where(mask, tokens, torch.randint(3, 9, (3, 6))), key_mask=mask)
    torch.testing.assert_close(other, whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("stack", "pooling"), LEGAL)
def test_every_parameter_learns_and_the_spec_rebuilds_the_model(stack: str, pooling: Any, seed: int) -> None:
    model = classifier(stack, pooling=pooling, pooler=True)
    tokens = torch.randint(3, 9, (4, 5))
    torch.nn.functional.cross_entropy(model(tokens), torch.tensor([0, 1, 2, 0])).backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]
    spec = json.loads(json.dumps(model.spec))
    rebuilt = attnkit.compose(**spec)
    assert rebuilt.spec == model.spec
    rebuilt.load_state_dict(model.state_dict())
    assert torch.equal(rebuilt.eval()(tokens), model.eval()(tokens))


@pytest.mark.parametrize("pooling", ["class_token", "mean", "last"])
def test_pooling_follows_its_definition_with_padding_on_either_side(pooling: Any, seed: int) -> None:
    x = torch.randn(4, 5, 3)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]).bool()
    want = torch.stack([{"class_token": r[m][0], "mean": r[m].mean(0), "last": r[m][-1]}[pooling] for r, m in zip(x, mask, strict=True)])
    torch.testing.assert_close(pool(x, mask, pooling), want)
    torch.testing.assert_close(pool(x, None, pooling), pool(x, torch.ones(4, 5, dtype=torch.bool), pooling))


def test_decoder_classifiers_are_causal_and_images_need_no_mask(seed: int) -> None:
    shape = [3, 8, 12]
    spec = {"embedding": {"name": "patch", "patch_size": 4}, "image_shape": shape, "vocab_size": None}
    for stack in ("encoder", "decoder"):
        model = classifier(stack, pooling="last" if stack == "decoder" else "mean", **spec)
        assert model(torch.randn(2, *shape)).shape == (2, 3)
        assert attnkit.compose(**json.loads(json.dumps(model.spec))).spec == model.spec


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stack": "decoder", "pooling": "class_token"}, "which sees no other in the stack 'decoder': use pooling last or mean"),
        ({"pooling": "first"}, "pooling must be one of class_token, mean, last, none, but is 'first'"),
        ({"vocab_size": None}, "embedding 'token' reads tokens: the model needs vocab_size, and takes no image_shape"),
        ({"image_shape": [1, 4, 4]}, "embedding 'token' reads tokens: the model needs vocab_size, and takes no image_shape"),
        ({"embedding": {"name": "patch", "patch_size": 4}}, "reads images: the model needs image_shape, and takes no vocab_size"),
        ({"tie": "output"}, "with stack 'encoder' and num_classes takes .*, not tie"),
        ({"head": "bert"}, "not head"),
    ],
)
def test_incompatible_arguments_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        classifier(**{"stack": "encoder", **arguments})


def test_an_encoder_decoder_rejects_num_classes() -> None:
    with pytest.raises(
        ConfigurationError, match="takes tgt_vocab_size, src_vocab_size, src_shape, src_embedding, tie, head, not num_classes"
    ):
        attnkit.compose(stack="encoder_decoder", d_model=8, num_layers=1, num_heads=2, src_vocab_size=9, tgt_vocab_size=9, num_classes=2)
