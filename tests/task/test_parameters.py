"""Parameters on a CPU or a GPU are updated in one fused call, with torch's results."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

import attnkit
from attnkit.task.parameters import fuse, parameter_groups, place_steps

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


def trained(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters after 20 steps with gradients of all sizes."""
    generator = torch.Generator().manual_seed(0)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for _ in range(20):
        for p in parameters:
            p.grad = torch.randn(p.shape, dtype=p.dtype, generator=generator) * 10 ** torch.randint(-6, 3, (), generator=generator)
        optimizer.step()
    return parameters


@pytest.mark.parametrize("arguments", [{}, {"betas": (0.5, 0.6), "eps": 1e-3, "weight_decay": 0.3}, {"amsgrad": True}])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_steps_match_the_loop(name: str, arguments: dict[str, Any], dtype: torch.dtype) -> None:
    def made() -> torch.optim.Optimizer:
        layer = nn.Linear(5, 7, dtype=dtype)
        for i, p in enumerate(layer.parameters()):
            p.data = torch.linspace(-1, 1, p.numel(), dtype=dtype).reshape(p.shape) + i
        groups = [{"params": [layer.weight]}, {"params": [layer.bias], "weight_decay": 0.0, "lr": 0.03}]
        optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(groups, lr=0.01, **arguments)
        return optimizer

    loop, fused = made(), made()
    fuse(fused)
    assert [group["fused"] for group in fused.param_groups] == [True, True]
    # 20 steps, each of about ten operations that round, on values of about 1
    bound = 200 * torch.finfo(dtype).eps
    for a, b in zip(trained(loop), trained(fused), strict=True):
        torch.testing.assert_close(a, b, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    "chosen", [{"fused": False}, {"foreach": False}, {"foreach": True}, {"capturable": True}, {"differentiable": True}]
)
def test_a_spec_that_chooses_an_implementation_keeps_it(chosen: dict[str, bool]) -> None:
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), **chosen)  # type: ignore[arg-type]
    before = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    fuse(optimizer)
    assert {key: value for key, value in optimizer.param_groups[0].items() if key != "params"} == before


class Own(torch.optim.AdamW):
    """A stranger's optimizer, whose step may be another."""


@pytest.mark.parametrize("cls", [Own, torch.optim.SGD, torch.optim.NAdam])
def test_other_optimizers_are_not_fused(cls: type[torch.optim.Optimizer]) -> None:
    optimizer = cls(nn.Linear(2, 2).parameters())  # type: ignore[call-arg]
    fuse(optimizer)
    assert not optimizer.param_groups[0].get("fused")


def test_parameters_on_other_devices_keep_torchs_default() -> None:
    optimizer = torch.optim.AdamW(nn.Linear(2, 2, device="meta").parameters())
    fuse(optimizer)
    assert optimizer.param_groups[0]["fused"] is None


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_lightning_clips_gradients_of_a_fused_optimizer(
    name: str, make_task: Callable[..., Any], make_batch: Callable[..., Any], fit: Callable[..., Trainer]
) -> None:
    task = make_task(optimizer={"name": name, "lr": 0.01})
    clip = {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"}
    trainer = fit(task, [make_batch(["abc", "de"])] * 3, precision="bf16-mixed", **clip)
    assert trainer.global_step == 3
    assert all(group["fused"] for group in trainer.optimizers[0].param_groups)


def test_a_loop_checkpoint_resumes_with_fused_steps() -> None:
    loop = torch.optim.AdamW(nn.Linear(3, 2).parameters())
    trained(loop)
    fused = torch.optim.AdamW(nn.Linear(3, 2).parameters())
    fuse(fused)
    settings = [{key: value for key, value in group.items() if key != "params"} for group in fused.param_groups]
    fused.load_state_dict(loop.state_dict())
    for group, own in zip(fused.param_groups, settings, strict=True):  # as Task.on_train_start does
        group.update(own)
    trained(fused)
    assert all(state["step"] == 40 for state in fused.state.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_loop_checkpoint_resumes_with_fused_steps_on_a_gpu() -> None:
    loop, fused = (torch.optim.AdamW(nn.Linear(3, 2).cuda().parameters()) for _ in range(2))
    pairs = list(zip(fused.param_groups[0]["params"], loop.param_groups[0]["params"], strict=True))
    for _, q in pairs:
        q.grad = torch.ones_like(q)
    loop.step()
    fuse(fused)
    assert fused.param_groups[0]["fused"]
    fused.load_state_dict(copy.deepcopy(loop.state_dict()))  # a checkpoint shares no tensors with the optimizer
    for p, q in pairs:
        p.data.copy_(q)
    fused.param_groups[0]["fused"] = True  # as Task.on_train_start does
    assert {state["step"].device.type for state in fused.state.values()} == {"cpu"}  # which the fused step would read on the GPU
    place_steps(fused)
    assert {state["step"].device.type for state in fused.state.values()} == {"cuda"}
    for optimizer in (fused, loop):
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.full_like(p, 0.5)
        optimizer.step()
    for p, q in pairs:
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize(
    ("options", "spared", "decayed"),
    [
        ({"mixer": "selective_state_space", "position": "none"}, ("log_rate", "skip"), ("select.weight", "convolution.weight")),
        ({"residual": "hyper_connections"}, ("mixing", "writing"), ("mixing_weight", "output.weight")),
        ({"residual": "manifold_hyper_connections"}, ("mixing_bias", "scales"), ("mixing_weight", "reading_weight")),
        ({"mixer": {"name": "multi_head", "talking_heads": True}}, ("heads.logits", "heads.weights"), ("output.weight",)),
        (
            {"mixer": {"name": "multi_head", "differential": 0.2, "memory_keys": 3}},
            ("differential.query", "differential.key", "memory_keys.key", "memory_keys.value"),
            ("mixer.query.weight",),
        ),
        *(({"position": name}, ("position.weight",), ("mixer.output.weight",)) for name in ("shaw", "cope")),
        *(({"position": name}, (), ("position.weight", "embedding.weight")) for name in ("learned", "relative")),
        ({"position": "fire"}, ("position.input.weight", "position.output.weight"), ("mixer.output.weight",)),
        (
            {"mixer": {"name": "convolution", "kernel_size": None}, "position": "none"},
            ("kernel.hidden.weight", "kernel.output.weight"),
            ("mixer.input.weight", "mixer.output.weight"),
        ),
    ],
)
def test_weight_decay_skips_parameters_a_module_exempts(options: dict[str, Any], spared: tuple[str, ...], decayed: tuple[str, ...]) -> None:
    model = attnkit.compose(stack="decoder", d_model=8, num_layers=2, num_heads=2, vocab_size=9, **options)
    groups = parameter_groups(model)
    spares = {id(p): group.get("weight_decay") == 0.0 for group in groups for p in group["params"]}
    assert len(spares) == len(list(model.parameters()))
    found = {name: spares[id(p)] for name, p in model.named_parameters() if name.endswith(spared + decayed)}
    assert found == {name: name.endswith(spared) for name in found}
    assert all(any(name.endswith(end) for name in found) for end in spared + decayed)
    maps = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)} - {id(model.head.projection.weight)}
    assert {id(p) for group in groups if group["matrices"] for p in group["params"]} == maps  # whether spared or not
