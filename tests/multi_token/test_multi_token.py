"""Several tokens at once, against slow loops over the papers' equations."""

from typing import Any

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit.registry import ConfigurationError
from attnkit.stack import DecoderStack
from attnkit.state import State

STACK: dict[str, Any] = {"d_model": 8, "num_layers": 2, "num_heads": 2, "position": "rotary"}
TOKENS = torch.tensor([[4, 5, 6, 7, 8, 9, 4], [9, 8, 7, 6, 5, 4, 3]])
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1]])

MIXED = [{"window": 3}, {"mixer": "retention", "share": True}]


def make(multi_token: Any, **options: Any) -> Any:
    """Return a model in float64 in which no parameter is special."""
    model = attnkit.compose(**{"stack": "decoder", **STACK, "vocab_size": 10, "multi_token": multi_token, **options}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return model


def test_independent_layers_read_the_output_of_the_stack(seed: int) -> None:
    """p(x_{t+i} | x_{<=t}) = softmax(head(f_i(h_t))), token by token over each prefix."""
    model = make({"name": "independent", "num_tokens": 3})
    logits = model(TOKENS, further=True)
    torch.testing.assert_close(logits[0], model(TOKENS), rtol=0, atol=0)
    for t in range(TOKENS.shape[1]):
        h, _ = model.stack(model.embedding(TOKENS[:, : t + 1]))
        for i, layer in enumerate(model.multi_token.stacks, start=1):
            torch.testing.assert_close(logits[i][:, t], model.head(layer(h)[0][:, -1]), rtol=0, atol=1e-12)


def test_sequential_modules_read_the_previous_tokens_embedding(seed: int) -> None:
    """h_t^i = f_i(M_i [norm(h_t^{i-1}); norm(E x_{t+i-1})]), over each prefix that has the tokens."""
    model = make({"name": "sequential", "num_tokens": 4}, norm="rms_norm", head={"name": "linear", "softcap": 3.0}, tie="output")
    further = model.multi_token
    logits = model(TOKENS, further=True)
    length = TOKENS.shape[1]
    embedded = model.embedding(TOKENS)
    h = model.stack(embedded)[0]
    for i in (1, 2, 3):
        rows = []
        for t in range(length - i):
            both = torch.cat([further.norms[i - 1](h[:, t]), further.embedding_norms[i - 1](embedded[:, t + i])], -1)
            rows.append(both @ further.joins[i - 1].weight.T)
        h = torch.stack([further.stacks[i - 1](torch.stack(rows[: t + 1], 1))[0][:, -1] for t in range(length - i)], 1)
        expected = 3 * torch.tanh(h @ model.embedding.weight.T / 3)
        torch.testing.assert_close(logits[i][:, : length - i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["independent", "sequential"])
def test_a_token_is_predicted_only_from_earlier_ones(name: str, seed: int) -> None:
    model = make({"name": name, "num_tokens": 3})
    logits = model(TOKENS, further=True)
    for place in range(1, TOKENS.shape[1]):
        changed = TOKENS.clone()
        changed[:, place] = 3 + (changed[:, place] + 1) % 7
        for offset, (before, after) in enumerate(zip(logits, model(changed, further=True), strict=True), start=1):
            unseen = max(0, place - offset + 1)  # the vectors at t predict the token at t + offset
            torch.testing.assert_close(after[:, :unseen], before[:, :unseen], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["independent", "sequential"])
def test_no_prediction_reads_another_document(name: str, seed: int) -> None:
    model = make({"name": name, "num_tokens": 3})
    whole = model(TOKENS, documents=DOCUMENTS, further=True)
    for row, documents in enumerate(DOCUMENTS):
        for document in (0, 1):
            places = (documents == document).nonzero()[:, 0]
            alone = model(TOKENS[row : row + 1, places], further=True)
            for offset, (logits, expected) in enumerate(zip(whole, alone, strict=True), start=1):
                kept = max(0, len(places) - offset)  # beyond, the predicted token belongs to another document
                torch.testing.assert_close(logits[row, places[:kept]], expected[0, :kept], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["independent", "sequential"])
@pytest.mark.parametrize(
    "stack",
    [
        STACK,
        {**STACK, "position": "learned", "embedding_norm": True, "skips": True},
        {**STACK, "residual": "hyper_connections", "norm": "rms_norm"},
        {**STACK, "mixer": {"name": "multi_head", "value_residual": 0.5}},
        {**STACK, "num_layers": 4, "attention": "additive", "position": "none", "layers": MIXED},
        {**STACK, "layers": [{}, {"mixer": "state_space"}]},
        {**STACK, "position": "relative", "shared_positions": False, "residual": "rezero", "feed_forward": "none"},
        {"name": "recurrent_decoder", "d_model": 8, "num_layers": 2, "embedding_norm": True},
    ],
    ids=lambda stack: " ".join(str(value) for key, value in stack.items() if key not in ("d_model", "num_heads")),
)  # fmt: skip
def test_multi_token_prediction_changes_only_the_loss(name: str, stack: dict[str, Any]) -> None:
    models: list[Any] = []
    for multi_token in (name, None):
        torch.manual_seed(0)
        models.append(attnkit.compose(stack={"name": "decoder", **stack}, vocab_size=10, eos_id=None, multi_token=multi_token))
    several, plain = models
    assert several.spec["multi_token"]["name"] == name
    assert attnkit.compose(**several.spec).state_dict().keys() == several.state_dict().keys()
    own = {key: value for key, value in several.state_dict().items() if not key.startswith("multi_token.")}
    assert len(own) < len(several.state_dict())
    for key, value in plain.state_dict().items():
        assert torch.equal(own.pop(key), value)
    assert not own
    for beams in (1, 3):
        generated = several.generate(TOKENS, beam_size=beams, max_length=4)
        assert torch.equal(generated, plain.generate(TOKENS, beam_size=beams, max_length=4))


def test_a_further_layer_has_the_form_of_the_last_one() -> None:
    stack = {**STACK, "layers": [{"mixer": "gru"}, {"feed_forward": {"name": "glu", "ffn_dim": 5}, "window": 2}], "num_layers": 4}
    model: Any = attnkit.compose(stack={"name": "decoder", **stack}, vocab_size=10, multi_token={"name": "independent", "num_tokens": 2})
    further = model.multi_token.stacks[0].decoder
    shapes = {key: value.shape for key, value in further.layers[0].state_dict().items()}
    assert shapes == {key: value.shape for key, value in model.stack.decoder.layers[3].state_dict().items()}
    assert further.layers[0].mixer.window == 2


class Summing(DecoderStack):
    """A stack that does not consist of layers."""

    def __init__(self, *, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        documents: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, State]:
        raise NotImplementedError


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="num_tokens must be at least 2, but is 1"):
        make({"name": "independent", "num_tokens": 1})
    with pytest.raises(ConfigurationError, match="weight must be positive, but is 0"):
        make({"name": "sequential", "weight": 0.0})
    with pytest.raises(ConfigurationError, match=r"a model with stack 'encoder' takes .*, not multi_token"):
        make("sequential", stack="encoder")
    with pytest.raises(ConfigurationError, match="needs a stack that consists of layers"):
        attnkit.compose(stack={"name": f"{__name__}.Summing", "d_model": 8}, vocab_size=9, multi_token="independent")
    with pytest.raises(ValueError, match="predicts only the next token"):
        make(None)(TOKENS, further=True)
