"""What `attnkit bench` times of a model: a task as it trains, or a model without a task as logits under torch's cross-entropy."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from attnkit import draws
from attnkit.profile.flops import trained_outputs
from attnkit.registry import ConfigurationError
from attnkit.task.base import Task
from attnkit.task.causal_lm import CausalLM
from attnkit.task.classification import Classification
from attnkit.task.masked_lm import MaskedLM
from attnkit.task.question_answering import QuestionAnswering
from attnkit.task.regression import Regression
from attnkit.task.seq2seq import Seq2Seq
from attnkit.task.steps import ExactSteps
from attnkit.task.tagging import Tagging
from attnkit.task.word_vectors import WordVectors

Targets = Literal["tokens", "hidden tokens", "class", "class of each token", "number", "span", "neighbours"]

_TARGETS: dict[type[Task], Targets] = {
    CausalLM: "tokens", Seq2Seq: "tokens", MaskedLM: "hidden tokens", Classification: "class", Tagging: "class of each token",
    Regression: "number", QuestionAnswering: "span", WordVectors: "neighbours",
}  # fmt: skip


class Kind(NamedTuple):
    """The inputs and targets of a model. Only models of one kind are compared, on the same batch.

    Example:
        >>> print(Kind(shape=[40], is_pair=True), Kind(shape=[1, 28, 28], targets="class", number=10), sep="; ")
        frames of 40 features and target tokens -> tokens; images of 1 x 28 x 28 -> class (10)
    """

    shape: Sequence[int] | None = None  # of an image [C, H, W] or a frame of sound [F]; None: tokens
    is_pair: bool = False  # whether these are the source of target tokens
    targets: Targets = "tokens"
    number: float | None = None  # the number of classes, or the fraction of the tokens that is hidden

    @property
    def has_tokens(self) -> bool:
        """Whether there is a vocabulary, and rows have a length; an image has a fixed size."""
        return self.is_pair or self.shape is None

    def __str__(self) -> str:
        size = " x ".join(map(str, self.shape or ()))
        source = "tokens" if self.shape is None else f"images of {size}" if len(self.shape) == 3 else f"frames of {size} features"
        number = "" if self.number is None else f" ({self.number:g})"
        return f"{source}{' and target tokens' if self.is_pair else ''} -> {self.targets}{number}"

    def batch(self, vocab_size: int, rows: int, length: int, *, excluded: Collection[int] = ()) -> dict[str, Tensor]:
        """Return a batch like those of the data modules, drawn at random, without padding or ends; every token begins a word.

        Excluded tokens are not drawn.
        """
        generator = torch.Generator().manual_seed(0)

        def below(limit: int, *size: int) -> Tensor:
            return torch.randint(limit, size, generator=generator)

        def tokens(count: int) -> Tensor:
            drawn = torch.tensor([token for token in range(3, vocab_size) if token not in excluded])
            return drawn[below(len(drawn), rows, count)]

        if self.shape is None:
            source = tokens(length)
        else:
            source = torch.randn(rows, *([length] if len(self.shape) == 1 else []), *self.shape, generator=generator)
        batch = {"example": torch.arange(rows), "src" if self.is_pair else "tokens" if self.shape is None else "image": source}
        if self.is_pair:
            batch["tgt"] = tokens(1 + length)
            if self.shape is not None and len(self.shape) == 1:
                batch["src_mask"] = torch.ones(rows, length, dtype=torch.bool)
        elif self.targets == "tokens":
            batch["targets"] = tokens(length)
        elif self.targets in ("class", "class of each token"):
            batch["label"] = below(int(self.number or 0), rows, *([length] if self.targets != "class" else []))
        elif self.targets == "number":
            batch["label"] = torch.randn(rows, generator=generator)
        elif self.targets == "span":
            batch["label"] = below(length, rows, 2)
        if self.targets in ("class of each token", "span"):
            batch["words"] = torch.arange(1, 1 + length).repeat(rows, 1)
        return batch


def kind_of(model: nn.Module) -> Kind | None:
    """Return the kind of a task or of a model of `attnkit.compose`, or None for other modules."""
    if isinstance(model, Task):
        found = [targets for task, targets in _TARGETS.items() if isinstance(model, task)]
        if not found:
            known = ", ".join(task.__name__ for task in _TARGETS)
            raise ConfigurationError(f"bench knows no batch for the task {model.registered_name!r}, which is none of {known}")
        number = model.config.mask_probability if isinstance(model, MaskedLM) else None
        if isinstance(model, Classification | Tagging):
            number = len(model.classes)
        return _kind(getattr(model.model, "spec", {}), found[0], number)
    if (spec := getattr(model, "spec", None)) is None:
        return None
    number = spec.get("num_classes")
    return _kind(spec, "tokens" if number is None else "class of each token" if spec.get("pooling") == "none" else "class", number)


def _kind(spec: dict[str, Any], targets: Targets, number: float | None) -> Kind:
    shape = spec.get("image_shape") or spec.get("src_shape")
    kind = Kind(None if shape is None else tuple(shape), "tgt_vocab_size" in spec, targets, number)
    if not kind.is_pair and len(shape or ()) == 1:
        raise ConfigurationError("bench times frames of sound only as the source of target tokens, but this model has no target")
    return kind


def common_kind(models: Mapping[str, nn.Module]) -> Kind:
    """Return the kind of all models; those of unknown kind are taken to be of that of the first."""
    kinds = {name: kind_of(model) for name, model in models.items()}
    first = next(iter(kinds.values())) or Kind()
    for name, kind in kinds.items():
        if kind not in (None, first):
            raise ConfigurationError(
                f"{next(iter(kinds))} maps {first}, but {name} maps {kind}: bench compares models of equal inputs and targets"
            )
    return first


class Contestant(ABC):
    """A model to time.

    Attributes:
        module: What has the parameters.
        model: The model, uncompiled; it may have the method `generate`.
        rows_differ: Whether rows of equal length differ in FLOPs.
    """

    module: nn.Module
    model: nn.Module
    rows_differ = False

    @abstractmethod
    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Return what a training step minimises."""

    @abstractmethod
    def inputs(self, batch: dict[str, Tensor]) -> tuple[Tensor | None, ...] | None:
        """Return the arguments of `outputs`, or None if the model has no forward pass apart from its loss."""

    @abstractmethod
    def outputs(self, *inputs: Tensor | None) -> object:
        """Return what a forward pass computes in evaluation."""

    @abstractmethod
    def end_step(self) -> None:
        """Do what follows a backward pass."""


class TrainedTask(Contestant):
    """A task, with its own objective, dropout and activation checkpointing, and the draws of its training step."""

    def __init__(self, task: Task, *, is_compiled: bool) -> None:
        self.module = self.task = task
        self.model = task.model
        self.rows_differ = isinstance(task, MaskedLM)
        if is_compiled:
            task.model = torch.compile(task.model)  # type: ignore[assignment]
        task.draw_seed = 0
        ExactSteps.on_train_start(task)  # what tasks do besides needs a Trainer

    @override
    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return self.task.training_step(batch, 0)

    @override
    def inputs(self, batch: dict[str, Tensor]) -> tuple[Tensor | None, ...] | None:
        if isinstance(self.task, WordVectors):
            return None
        if isinstance(self.task, MaskedLM):
            return self.task.hide(batch, 0, "fit")
        return (*_inputs(batch), batch.get("src_mask")) if "src" in batch else _inputs(batch)

    @override
    def outputs(self, *inputs: Tensor | None) -> object:
        return self.task(*inputs)

    @override
    def end_step(self) -> None:
        self.task.on_after_backward()
        draws.begin(None)


class PlainModel(Contestant):
    """A model that maps inputs to logits, under torch's mean cross-entropy; further predicted tokens have the same targets."""

    def __init__(self, model: nn.Module, *, is_compiled: bool) -> None:
        self.module = self.model = model
        self.called: Any = torch.compile(model) if is_compiled else model

    @override
    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        targets = batch["tgt"][:, 1:] if "tgt" in batch else batch["targets" if "targets" in batch else "label"]
        further = trained_outputs(self.model)
        outputs: Any = self.called(*self.inputs(batch), **further)
        losses = [F.cross_entropy(logits.flatten(0, -2), targets.flatten()) for logits in (outputs if further else [outputs])]
        return torch.stack(losses).sum()

    @override
    def inputs(self, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return _inputs(batch)

    @override
    def outputs(self, *inputs: Tensor | None) -> object:
        return self.called(*inputs)

    @override
    def end_step(self) -> None:
        pass


def _inputs(batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return (batch["src"], batch["tgt"][:, :-1]) if "src" in batch else (batch["image" if "image" in batch else "tokens"],)


def contestant(model: nn.Module, *, is_compiled: bool) -> Contestant:
    """Return the contestant of a task, or of a model that maps inputs to logits."""
    return (TrainedTask if isinstance(model, Task) else PlainModel)(model, is_compiled=is_compiled)  # type: ignore[arg-type]
