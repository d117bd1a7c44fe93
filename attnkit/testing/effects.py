"""Rule: no argument is silent. Every value changes what is built, computed or reported, or is refused, or is reported as unread."""

import json
import re
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, Literal, get_args, get_origin
from zlib import crc32

import torch
from torch import Tensor

from attnkit.attention.backend import Refused
from attnkit.models import compose
from attnkit.registry import Argument, ConfigurationError, Registry, ResolvedSpec, Spec, embeddings, mixers, stacks
from attnkit.registry.values import is_union
from attnkit.reports import reporters, take_reports
from attnkit.testing.component import HEAD_DIM, IMAGE_SHAPE, NUM_FEATURES, VOCAB_SIZE, WORDS, complete

Options = Mapping[str, Any]
LENGTH = 36  # longer than the exact distances of `relative`
SIZES: dict[str, Any] = {"d_model": 32, "num_layers": 2, "num_heads": 2}


def no_argument_is_silent(registry: Registry, spec: Spec) -> None:
    """Each argument has an effect alone or together with another one, and is refused if another one removes its effect."""
    name, own_arguments = registry.split(complete(registry, spec))
    spec = {"name": name, **own_arguments}
    arguments = registry.arguments(name)
    contexts: list[tuple[Options, Options]] = [({}, {})]
    for argument in arguments:
        contexts += [({argument.name: value}, {}) for value in _some(_alternatives(registry, spec, argument), argument)]
    if registry is mixers:
        contexts.append(({}, {"query_key_norm": "rms_norm", "position": "rotary"}))
    outcomes: dict[str, Outcome] = {}  # each pair of arguments is tried twice, with each as the context

    def outcome(component: Options, layer: Options) -> Outcome:
        options = {**options_with(registry, component), **layer}
        return outcomes.setdefault(json.dumps(options, sort_keys=True), Outcome(options))

    effective: set[str] = set()
    judged: set[str] = set()
    for context, layer in contexts:
        base = outcome({**spec, **context}, layer)
        if not context and not layer:
            base.build()  # raises if the component alone cannot be built, because nothing would be tried then
        if not base.is_legal or base.is_refused:
            continue
        for argument in arguments:
            if argument.name in context:
                continue
            tried = []
            for value in _alternatives(registry, {**spec, **context}, argument):
                other = outcome({**spec, **context, argument.name: value}, layer)
                if other.is_legal:
                    judged.add(argument.name)
                    if base.differs(other):
                        effective.add(argument.name)
                        break
                    tried.append(value)
            else:
                unread = registry.resolve({**spec, **context}).unread
                where = f" with {context}" if context else ""
                silent = tried and argument.name not in unread and (context or argument.name not in effective)
                assert not silent, f"{argument.name} has no effect{where}: {tried} change nothing; refuse it there, or let it act"
    assert judged == effective, f"{', '.join(sorted(judged - effective))} never has an effect"


class Outcome:
    """The parameters and outputs of a model with these options, computed step by step."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._steps = self._run()
        self._found: list[Any] = []

    @cached_property
    def is_legal(self) -> bool:
        """Whether the model can be built."""
        try:
            self.build()
        except ValueError:  # a ConfigurationError is one too
            return False
        return True

    def build(self) -> None:
        """Build the model, or raise its error."""
        self._at(0)

    @property
    def is_refused(self) -> bool:
        """Whether the model is built but refuses to compute on this machine, as with a kernel for GPUs."""
        return isinstance(self._at(1), str)

    def differs(self, other: "Outcome") -> bool:
        """Return whether initial parameters, outputs for equal parameters, reports, or outputs after the step that reports end differ.

        Parameters that only one of the two models has do not count by themselves: they must change an output.
        """
        (buffers, own), (other_buffers, others) = self._at(0), other._at(0)
        both = own.keys() & others.keys()
        if not _equal(buffers, other_buffers) or any(not _equal(own[name], others[name]) for name in both):
            return True
        return any(not _equal(self._at(step), other._at(step)) for step in (1, 2))

    def _at(self, step: int) -> Any:
        while len(self._found) <= step:
            try:
                self._found.append(next(self._steps))
            except (ConfigurationError, Refused) as error:
                if not self._found:
                    raise
                self._found += [str(error)] * 2
        return self._found[step]

    def _run(self) -> Iterator[Any]:
        torch.default_generator.manual_seed(0)  # `torch.manual_seed` records the whole call stack
        model: Any = compose(**self.options)
        if callable(load := getattr(getattr(model, "embedding", None), "load_vectors", None)):
            load([word.title() for word in WORDS])
        parameters = {name: (parameter, parameter.requires_grad) for name, parameter in model.named_parameters()}
        buffers = {name: x for name, x in model.state_dict().items() if name not in parameters}
        yield {**buffers, "rates": model.learning_rates}, {name: (x.detach().clone(), learned) for name, (x, learned) in parameters.items()}
        model.double()
        draw = torch.Generator()
        with torch.no_grad():  # left before each `yield`: other code runs until the next step
            for name, parameter in model.named_parameters():  # parameters of equal name and shape are equal, whatever else the model has
                draw.manual_seed(crc32(name.encode()))
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
            draw.manual_seed(1)
            tokens = torch.randint(3, VOCAB_SIZE, (2, 3, LENGTH), generator=draw)
            real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 3], [2]])
            inputs: tuple[Tensor, ...] = tuple(tokens) if "tgt_vocab_size" in self.options else (tokens[0], real)
            if "image_shape" in self.options:
                inputs = (torch.randn(2, *IMAGE_SHAPE, generator=draw, dtype=torch.float64),)
            elif "src_shape" in self.options:
                inputs = (torch.randn(3, LENGTH, NUM_FEATURES, generator=draw, dtype=torch.float64), tokens[1])
            further = {"further": True} if "multi_token" in self.options else {}
            outputs = model.eval()(*inputs, **further)
        yield outputs
        with torch.no_grad():
            model.train()
            torch.default_generator.manual_seed(2)
            trained = model(*inputs, **further)
            if further:  # affects only the loss
                trained.append(model.multi_token.weighted([(logits.mean(), logits.sum(), logits.sum()) for logits in trained[1:]]))
            modules = reporters(model)
            reports = take_reports(modules)
            for path, report in reports.items():
                modules[path].end_step(report.sums)
            after = model.eval()(*inputs, **further) if reports else None
            trained = trained, [(report.loss, report.sums) for report in reports.values()], after
        yield trained


def options_with(registry: Registry, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model with a component."""
    kind, name = registry.attribute, spec["name"]
    if registry is stacks:
        two = {"src_vocab_size": VOCAB_SIZE, "tgt_vocab_size": VOCAB_SIZE} if "encoder_decoder" in name else {"vocab_size": VOCAB_SIZE}
        return {**{key: value for key, value in spec.items() if key != "name"}, "stack": name, **two}
    sizes = SIZES if registry is mixers else {**SIZES, "num_layers": 1}  # mixers may read the values of the first layer
    options: dict[str, Any] = {"stack": "decoder", **sizes, "vocab_size": VOCAB_SIZE, "position": "none"}
    if kind == "embeddings" and embeddings.get(name).reads == "image":
        options = {"stack": "encoder", **sizes, "image_shape": IMAGE_SHAPE, "num_classes": 3}
    elif kind == "embeddings" and embeddings.get(name).reads == "frames":
        shapes = {"src_shape": [NUM_FEATURES], "tgt_vocab_size": VOCAB_SIZE}
        return {"stack": "encoder_decoder", **sizes, **shapes, "position": "none", "src_embedding": spec}
    elif kind == "rotary_scalings" and "factors" in spec:
        options["head_dim"] = HEAD_DIM  # the width for which the kit has factors
    elif kind in ("embeddings", "heads") or (kind == "mixers" and "causal" not in mixers.get(name).directions):
        options["stack"] = "encoder"
    slots: dict[str, dict[str, Any]] = {
        "normalizers": {"mixer": {"name": "multi_head", "normalizer": spec}},
        "rotary_scalings": {"position": {"name": "rotary", "scaling": spec}},
    }
    return {**options, **slots.get(kind, {kind.removesuffix("s"): spec})}


def _alternatives(registry: Registry, spec: Mapping[str, Any], argument: Argument) -> Iterator[Any]:
    """Yield other values of an argument, legal or not."""
    try:
        default = registry.resolve(spec).get(argument.name)
    except ConfigurationError:
        return
    default = default.plain() if isinstance(default, ResolvedSpec) else default
    for value in _values(argument.annotation, default):
        if value != default or type(value) is not type(default):
            yield value
    if argument.annotation is str:
        try:
            Outcome(options_with(registry, {**spec, argument.name: "?"})).build()
        except ConfigurationError as error:
            listed = re.search(r"[Nn]ames: ([\w, ]+)", str(error))
            yield from () if listed is None else (name for name in listed[1].split(", ") if name != default)


def _some(values: Iterator[Any], argument: Argument) -> list[Any]:
    """Return the values with which other arguments are tried: all choices, but only two of numbers or strings."""
    found = list(values)
    is_open = argument.annotation is str or all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)
    return found[:2] if is_open else found


def _values(annotation: Any, default: Any) -> Iterator[Any]:
    origin, inside = get_origin(annotation), get_args(annotation)
    if is_union(annotation):
        yield from chain.from_iterable(_values(part, default) for part in inside)
    elif annotation is types.NoneType:
        yield None
    elif annotation is bool:
        yield from (True, False)
    elif annotation is int:
        base_int = default if isinstance(default, int) else 2
        yield from (2 * base_int, base_int + 1, max(1, base_int // 2), 1, 2, 3, 4, 8, 0)
    elif annotation is float:
        base = default if isinstance(default, float) else 0.5
        yield from (2 * base, base / 2, base + 0.2, 0.3, 2.5)
    elif origin is Literal:
        yield from inside
    elif origin is Annotated:
        for family in (mark for mark in annotation.__metadata__ if isinstance(mark, Registry)):
            for name in family:
                with suppress(ConfigurationError):
                    yield family.resolve(complete(family, name)).plain()
    elif origin is list:
        items = list(_values(inside[0], None))
        yield from ([item] for item in items)
        yield from ([item] * 2 for item in items[:2])


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
