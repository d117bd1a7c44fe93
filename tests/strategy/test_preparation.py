"""Activation checkpointing and compilation change no result, no name, and nothing in a copy."""

import copy
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.nn.parallel import DistributedDataParallel

import attnkit
from attnkit import draws
from attnkit.registry import ConfigurationError
from attnkit.strategy import preparation
from attnkit.strategy.preparation import layers, parallelize, prepare
from tests.strategy.conftest import TASK

pytestmark = [  # by torch's own compiler
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

STACKS: dict[str, dict[str, Any]] = {
    "encoder": {"num_heads": 2, "attention": "additive"},
    "decoder": {"num_heads": 2, "position": "rotary"},
    "encoder_decoder": {"num_heads": 2, "attention": "additive", "tie": "all", "position": "relative"},
    "recurrent_encoder": {},
    "recurrent_decoder": {},
    "recurrent_encoder_decoder": {"attention": "additive", "placement": "before"},
}


def make(stack: str, **arguments: Any) -> nn.Module:
    sizes = {"src_vocab_size": 20, "tgt_vocab_size": 20} if "encoder_decoder" in stack else {"vocab_size": 20}
    model = attnkit.compose(stack=stack, d_model=8, **{"num_layers": 2, "dropout": 0.3} | STACKS[stack] | sizes | arguments)
    assert isinstance(model, nn.Module)
    return model.double()


def run(model: nn.Module, stack: str, *, rows: int = 3, length: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(rows * 100 + length)
    tokens = torch.randint(3, 20, (rows, length), generator=generator)
    mask = torch.arange(length)[None] < torch.randint(1, length + 1, (rows, 1), generator=generator)
    output: Tensor = model(tokens, tokens[:, :-1], src_mask=mask) if "encoder_decoder" in stack else model(tokens, mask)
    return output


def gradients(model: nn.Module, stack: str, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    model.zero_grad()
    run(model, stack).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("policy", ["layer", "mixer", "feed_forward"])
@pytest.mark.parametrize("stack", STACKS)
def test_recomputation_with_dropout_gives_equal_results(stack: str, policy: Any, seed: int) -> None:
    model = make(stack)
    other = copy.deepcopy(model)
    if "recurrent" in stack and (policy == "feed_forward" or (policy == "mixer" and "encoder_decoder" not in stack)):
        with pytest.raises(ConfigurationError, match=rf"'{policy}' has nothing to recompute"):
            prepare(other, activation_checkpointing=policy, compile=False)
        return
    prepare(other, activation_checkpointing=policy, compile=False)
    expected, found = gradients(model, stack, seed), gradients(other, stack, seed)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    assert list(model.state_dict()) == list(other.state_dict())


EXPERTS = {"name": "mixture_of_experts", "num_experts": 3, "expert": {"name": "mlp", "ffn_dim": 8, "dropout": 0.4}}


@pytest.mark.parametrize("policy", ["layer", "mixer", "feed_forward"])
@pytest.mark.parametrize(
    "options", [{"layers": [{"share": True}, {}], "num_layers": 4, "attention_dropout": 0.3}, {"feed_forward": EXPERTS}]
)
def test_recomputation_in_a_training_step_drops_the_same_elements(options: dict[str, Any], policy: Any, seed: int) -> None:
    torch.manual_seed(seed)
    model = make("decoder", **options)
    draws.name_sites(model)
    other = copy.deepcopy(model)
    prepare(other, activation_checkpointing=policy, compile=False)
    draws.begin(draws.make_keys(torch.arange(3), seed))
    try:
        expected, found = gradients(model, "decoder", seed), gradients(other, "decoder", seed)
    finally:
        draws.begin(None)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_recomputed_activations_are_not_stored() -> None:
    kept = {}
    for policy in ("none", "mixer", "feed_forward", "layer"):
        model = make("decoder", attention="dot_product", backend="reference")
        prepare(model, activation_checkpointing=policy, compile=False)
        sizes: dict[int, int] = {}

        def pack(x: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            run(model, "decoder", length=40)
        kept[policy] = sum(sizes.values())
    assert kept["layer"] < min(kept["mixer"], kept["feed_forward"])
    assert max(kept["mixer"], kept["feed_forward"]) < kept["none"]


def test_unsupported_settings_are_rejected_before_training() -> None:
    with pytest.raises(ConfigurationError, match=r"activation_checkpointing must be .*'feed_forward'.*, but is 'layers'"):
        attnkit.tasks.build(TASK | {"activation_checkpointing": "layers"})
    recurrent = {"name": "recurrent_encoder_decoder", "d_model": 8, "num_layers": 1}
    with pytest.raises(ConfigurationError, match="'feed_forward' has nothing to recompute"):
        attnkit.tasks.build(TASK | {"stack": recurrent, "activation_checkpointing": "feed_forward"}).configure_model()
    with pytest.raises(ConfigurationError, match="compile does not work with activation_checkpointing 'mixer'"):
        attnkit.tasks.build(TASK | {"activation_checkpointing": "mixer", "compile": True}).configure_model()
    words = {"name": "word_vectors", "tokenizer": attnkit.tokenizers.build("word").train(["a b"]).spec, "counts": [0, 0, 0, 0, 1, 1]}
    with pytest.raises(ConfigurationError, match="compile has no effect, because the model has no layers"):
        attnkit.tasks.build(words | {"compile": True}).configure_model()


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())  # type: ignore[no-any-return]


def test_ddp_does_not_split_the_graph_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter, compiler = CompileCounterWithBackend("eager"), torch.compile
    monkeypatch.setattr(preparation.torch, "compile", lambda run, **how: compiler(run, **how, backend=counter))
    monkeypatch.setattr(preparation, "LAYERS", (Pair,))
    monkeypatch.setattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 1)
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", SimpleNamespace(bucket_bytes_cap=1))  # as within its forward
    model = nn.Sequential(Pair(), Pair())
    preparation.compile_layers(model)
    model(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize(("stack", "policy", "backend"), [("decoder", "layer", "aot_eager"), ("encoder_decoder", "none", "eager")])
def test_layers_share_graphs_for_every_length(monkeypatch: pytest.MonkeyPatch, stack: str, policy: Any, backend: str, seed: int) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiler = torch.compile
    monkeypatch.setattr(preparation.torch, "compile", lambda run, **how: compiler(run, **how, fullgraph=True, backend=counter))
    model = make(stack, dropout=0.0, num_layers=4)
    other = copy.deepcopy(model)
    prepare(other, activation_checkpointing=policy, compile=True)
    assert list(model.state_dict()) == list(other.state_dict())
    counts = []
    for rows, length in ((3, 5), (2, 9), (5, 7), (4, 12)):
        torch.testing.assert_close(run(other, stack, rows=rows, length=length), run(model, stack, rows=rows, length=length))
        gradients(other, stack, seed)
        counts.append(counter.frame_count)
    assert 0 < counts[0] <= 2, "every layer has a graph of its own"
    assert counts[1:] == counts[:1] * 3, "new lengths are compiled anew"
    found = gradients(other, stack, seed)
    for name, gradient in gradients(model, stack, seed).items():
        torch.testing.assert_close(found[name], gradient, msg=lambda m, name=name: f"{name}: {m}")
    other.generate(torch.tensor([[5, 6, 7]]), max_length=4)
    assert counter.frame_count == counts[-1], "generation is compiled"


@pytest.mark.parametrize("compiled", [False, True])
def test_a_copy_has_independent_weights(compiled: bool) -> None:
    model = make("encoder", dropout=0.0)
    prepare(model, activation_checkpointing="layer" if compiled else "mixer", compile=compiled)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert run(other.eval(), "encoder").abs().sum() > 0


def test_nested_layers_belong_to_their_outer_layer() -> None:
    assert [type(layer).__name__ for layer in layers(make("recurrent_encoder_decoder"))] == ["RecurrentLayer"] * 4 + ["ContextDecoder"]


def test_a_layer_is_gathered_once_the_gradient_of_its_memory_arrives(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    register = FSDPState._register_pre_backward_hook
    # as in torch before 2.13, which sees no tensors in dataclasses
    monkeypatch.setattr(FSDPState, "_register_pre_backward_hook", lambda self, made: made if is_dataclass(made) else register(self, made))
    model = make("encoder_decoder").eval()
    expected = gradients(copy.deepcopy(model), "encoder_decoder", seed)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        parallelize(model, init_device_mesh("cpu", (1, 1), mesh_dim_names=("data_parallel", "tensor_parallel")))
        found = gradients(model, "encoder_decoder", seed)
        whole = {name: gradient.full_tensor() for name, gradient in found.items()}
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(whole, expected)
