"""Only attnkit's and torch's own code is known, and only as it is."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import register_parametrization

import attnkit
from attnkit.decoding.graph import Graphed
from attnkit.decoding.known import is_known
from attnkit.models.base import GeneratingModel
from attnkit.position.scaling.linear import Linear as LinearScaling
from attnkit.registry import backends
from tests.models.compositions import build, compositions, one_layer


def decoder() -> GeneratingModel:
    stack = {"name": "decoder", "d_model": 16, "num_layers": 2, "num_heads": 2, "position": "rotary"}
    model: GeneratingModel = attnkit.compose(stack=stack, vocab_size=20).eval()
    return model


def network(model: Any) -> Any:
    return model.stack.decoder.layers[0].feed_forward


GENERATING = {name: spec for name, spec in compositions() if "decoder" in spec["stack"]}


@pytest.mark.parametrize("name", GENERATING)
def test_all_built_in_components_are_known(name: str) -> None:
    try:
        model = build(GENERATING[name], **one_layer(name))
    except attnkit.ConfigurationError as error:
        pytest.skip(str(error))
    assert is_known(model)


def test_parametrizations_of_torch_are_known() -> None:
    model = decoder()
    weight_norm(network(model).input)
    assert is_known(model)


class Foreign(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Scaling(LinearScaling):
    pass


class Special(Tensor):
    pass


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend="eager")


CHANGES: dict[str, Callable[[Any], None]] = {
    "module": lambda model: setattr(network(model), "input", Foreign()),
    "parametrization": lambda model: register_parametrization(network(model).input, "weight", Foreign()),
    "function": lambda model: setattr(network(model), "activation", lambda x: x),
    "compiled function": lambda model: setattr(network(model), "activation", compiled(torch.relu)),
    "object": lambda model: setattr(network(model), "scaling", Scaling(factor=2.0)),
    "forward": lambda model: setattr(network(model), "forward", network(model).forward),
    "compiled step": lambda model: setattr(model, "step", compiled(model.step)),
    "compiled in place": lambda model: network(model).compile(backend="eager"),
    "compiled module": lambda model: setattr(model.stack.decoder.layers[0], "feed_forward", compiled(network(model))),
    "subclass of Tensor": lambda model: network(model).input.register_buffer("special", torch.ones(2).as_subclass(Special)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_code_is_not_known(change: str) -> None:
    model = decoder()
    assert is_known(model)
    CHANGES[change](model)
    assert not is_known(model)


def test_a_plugins_backend_may_compute_any_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    names = backends.names()
    monkeypatch.setattr(backends, "names", lambda: [*names, "mine"])
    assert not is_known(decoder())


class Declared(nn.Module):
    repeatable = True

    def forward(self, x: Tensor) -> Tensor:
        return x


class Heir(Declared):
    """Says nothing of itself."""


@pytest.mark.parametrize(("kind", "is_recorded"), [(Declared, True), (Heir, False), (Foreign, False)])
def test_a_class_may_declare_its_steps_recordable(kind: type[nn.Module], is_recorded: bool) -> None:
    model = decoder()
    network(model).input = kind()
    assert is_known(model) is is_recorded
    on_gpu = Graphed(model.step, 100)
    on_gpu.calls = 2
    assert on_gpu._records(cast(Tensor, SimpleNamespace(is_cuda=True)), 100) is is_recorded
