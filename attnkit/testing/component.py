"""Rules for every component: its documentation, its spec, its initialisation."""

import doctest
import inspect
import json
import re
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnkit.registry import Registry, Spec, mixers, norms
from attnkit.registry.arguments import parameters
from attnkit.registry.docstrings import argument_docs

D_MODEL, NUM_HEADS, NUM_KV_HEADS, VOCAB_SIZE = 16, 4, 2, 11
HEAD_DIM = D_MODEL // NUM_HEADS
IMAGE_SHAPE = [2, 6, 9]
NUM_FEATURES = 5
WORDS = [f"word{i}" for i in range(VOCAB_SIZE)]

GIVEN: dict[str, Any] = {
    "d_model": D_MODEL,
    "head_dim": HEAD_DIM,
    "num_heads": NUM_HEADS,
    "num_kv_heads": NUM_KV_HEADS,
    "bidirectional": True,
    "direction": "causal",
    "vocab_size": VOCAB_SIZE,
    "outputs": VOCAB_SIZE,
    "image_shape": IMAGE_SHAPE,
    "num_features": NUM_FEATURES,
    "stack": {"name": "decoder", "d_model": D_MODEL, "num_layers": 2, "num_heads": NUM_HEADS},
    "make_norm": lambda: norms.build("layer_norm", d_model=D_MODEL),
}
"""The arguments that the kit passes as the parent."""

STACK_SIZES: dict[str, Any] = {"d_model": D_MODEL, "num_layers": 2, "num_heads": NUM_HEADS, "num_kv_heads": NUM_KV_HEADS}
"""The required arguments of a stack, and grouped heads."""


def stack_sizes(mixer: Spec) -> dict[str, Any]:
    """Return the required arguments of a stack with this mixer, and grouped heads if the mixer has them."""
    grouped = "num_kv_heads" in parameters(mixers.get(mixers.resolve(mixer).name))
    return {name: size for name, size in STACK_SIZES.items() if grouped or name != "num_kv_heads"}


@cache
def _vectors() -> tuple[tempfile.TemporaryDirectory[str], str]:
    """Write a file with vectors for some of the words; it is deleted when the process ends."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name, "vectors.txt")
    path.write_text("".join(f"{word} {i} -0.5 {i * i}\n" for i, word in enumerate(WORDS) if i % 3), encoding="utf-8")
    return folder, str(path)


def _own_arguments(registry: Registry) -> dict[str, Any]:
    """Return the kit's values for arguments, by name: sizes that match its inputs, and required arguments."""
    if registry.attribute == "embeddings":
        return {"patch_size": 3, "path": _vectors()[1], "dim": 3}
    return {
        "stacks": STACK_SIZES,
        "inits": {"base_width": D_MODEL},
        "feed_forwards": {"num_experts": 4},
        "rotary_scalings": {"factor": 4.0, "original_length": 64, "factors": [1.0, 3.0], "proportion": 0.5},
    }.get(registry.attribute, {})


def build(registry: Registry, spec: Spec, **other: Any) -> Any:
    """Build a component with the kit's small sizes, where its spec has none; `other` arguments of the parent override the kit's."""
    return registry.build(complete(registry, spec), **{k: v for k, v in {**GIVEN, **other}.items() if k in registry.given})


def complete(registry: Registry, spec: Spec) -> Spec:
    """Add those of the kit's arguments to a spec that the component has."""
    name, arguments = registry.split(spec)
    declared = {a.name for a in registry.arguments(name)}
    return {"name": name, **{k: v for k, v in _own_arguments(registry).items() if k in declared}, **arguments}


def is_documented(registry: Registry, spec: Spec) -> None:
    """The docstring has a summary, an equation, a paper with its address, and every argument."""
    name, _ = registry.split(spec)
    described = registry.describe(name)
    assert described.summary, f"{name} has no docstring; its first line must summarise it"
    assert described.equation, f"{name}'s docstring has no section `Equation:` with the indented formula"
    assert described.paper, f"{name}'s docstring has no line `Paper: Author Year, address`"
    assert re.search(r"https?://\S+", described.paper), f"the paper of {name} has no address: {described.paper!r}"
    declared = inspect.signature(registry.get(name)).parameters.values()
    parameters = [p for p in declared if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]  # torch's own, if there is no __init__
    positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert not positional, f"{name} takes {', '.join(positional)} by position; put a * before them"
    entries = argument_docs(described.documentation)
    missing = [p.name for p in parameters if p.name not in entries]
    assert not missing, f"{name}'s docstring has no entry in `Args:` for {', '.join(missing)}"
    unknown = entries.keys() - {p.name for p in parameters}
    assert not unknown, f"{name}'s docstring documents {', '.join(sorted(unknown))}, which are not its arguments"


def has_a_running_example(registry: Registry, spec: Spec) -> None:
    """The docstring has an example, whose output is as documented."""
    name, _ = registry.split(spec)
    cls = registry.get(name)
    described = registry.describe(name)
    globs = dict(vars(sys.modules[cls.__module__]))
    test = doctest.DocTestParser().get_doctest(described.documentation, globs, name, described.file, 0)
    assert test.examples, f"{name}'s docstring has no example with >>>"
    output: list[str] = []
    result = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test, out=output.append)
    assert not result.failed, f"the example of {name} fails:\n{''.join(output)}"


def survives_the_round_trip_through_its_spec(registry: Registry, spec: Spec) -> None:
    """The resolved spec is plain data, and builds a component with the same parameters."""
    resolved = registry.resolve(complete(registry, spec)).plain()
    assert json.loads(json.dumps(resolved)) == resolved, f"the spec is not plain data: {resolved}"
    assert registry.resolve(resolved) == resolved, f"resolving the spec again changes it: {resolved}"
    first, second = shapes(build(registry, spec)), shapes(build(registry, resolved))
    assert first == second, f"the rebuilt component has {second}, the first had {first}"


def is_initialised_by_the_seed_alone(registry: Registry, spec: Spec) -> None:
    """A seed determines the initialisation: on any device, and by `reset_parameters` after construction on the meta device."""
    seed = int(torch.randint(2**31, ()))
    torch.manual_seed(seed)
    first = build(registry, spec)
    torch.manual_seed(seed)
    second = build(registry, spec)
    torch.manual_seed(seed)
    third = start_on_meta(registry, spec)
    for how, other in (("a second construction", second), ("construction on the meta device", third)):
        for key, value in first.state_dict().items():
            assert torch.isfinite(value).all(), f"{key} is not finite after initialisation"
            assert torch.equal(value, other.state_dict()[key]), f"{key} differs after {how} with the same seed"


def can_be_sharded(registry: Registry, spec: Spec) -> None:
    """Every parameter has an axis along which FSDP2 can shard it."""
    scalars = [name for name, p in build(registry, spec).named_parameters() if p.ndim == 0]
    assert not scalars, (
        f"FSDP2 cannot shard parameters of shape [], such as {' and '.join(scalars)}: give them the shape [1], for example "
        f"nn.Parameter(torch.ones(1)) instead of nn.Parameter(torch.tensor(1.0))"
    )


def start_on_meta(registry: Registry, spec: Spec) -> nn.Module:
    """Build a component on the meta device, then allocate and initialise it, as large models are."""
    with torch.device("meta"):
        module: nn.Module = build(registry, spec)
    module.to_empty(device="cpu")
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data.fill_(float("nan"))
    for part in module.modules():
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()
    return module


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in the state dict."""
    return {key: tuple(value.shape) for key, value in module.state_dict().items()}


DOCS_RULES = (is_documented, has_a_running_example)  # the rules of documentation, for every family with rules

RULES = (survives_the_round_trip_through_its_spec, is_initialised_by_the_seed_alone, can_be_sharded)
