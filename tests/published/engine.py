"""Compares our model with transformers' after copying weights, in float64."""

import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from published.family import Family
from torch import Tensor, nn

import attnkit
from attnkit.embedding import Embedding

LENGTH, PROMPT, NEW, STD = 11, 3, 6, 0.3


def families() -> list[Family]:
    """Return all families by name."""
    found: dict[str, Family] = {}
    for path in sorted((Path(__file__).parent / "families").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"published.families.{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for family in module.FAMILIES:
            if family.name in found:
                raise ValueError(f"{family.name} stands in two files")
            found[family.name] = family
    return sorted(found.values(), key=lambda family: family.name.lower())


@contextmanager
def double() -> Iterator[None]:
    """Make transformers compute in float64 what it computes in float32: norms, softmax, and rotation tables."""
    with pytest.MonkeyPatch.context() as patch:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            patch.setattr(torch, "float32", torch.float64)
            patch.setattr(torch, "float", torch.float64)
            patch.setattr(torch, "FloatTensor", torch.DoubleTensor)
            yield
        finally:
            torch.set_default_dtype(default)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, shared ones once, and the persistent buffers."""
    saved = model.state_dict().keys()
    return dict(model.named_parameters()) | {name: x for name, x in model.named_buffers() if name in saved}


class Embedded(Embedding):
    """Passes on vectors that are already embedded."""

    def forward(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        return inputs


class Pair:
    """Their model and ours, with equal random weights."""

    def __init__(self, family: Family) -> None:
        transformers = pytest.importorskip("transformers")
        importlib.import_module("transformers.modeling_utils")  # whose table of types is for all tests
        self.family = family
        torch.manual_seed(0)
        with double():  # also the imports, which bind types as defaults
            config_class, model_class = (getattr(transformers, name) for name in family.theirs)
            config = config_class(**{"eos_token_id": None, "pad_token_id": 0, **family.config})
            config._attn_implementation = "eager"
            self.theirs = model_class(config).double().eval()
        for name, value in family.overrides.items():
            setattr(self.theirs.config, name, value)
        if family.spec.get("tie") == "inputs":  # transformers ties T5 1.1 too
            self.theirs.lm_head.weight = nn.Parameter(self.theirs.lm_head.weight.detach().clone())
        if self.theirs.can_generate():
            self.theirs.generation_config.eos_token_id = None
            self.theirs.generation_config.pad_token_id = 0
        self.ours = attnkit.compose(**{"eos_id": None, **family.spec}).double().eval()
        self.is_decoder = isinstance(self.ours, attnkit.models.DecoderModel)
        self.is_encoder = isinstance(self.ours, attnkit.models.EncoderModel | attnkit.models.ClassifierModel)
        if family.output != "logits":
            self.ours.head = nn.Identity()
        if family.front is not None and (self.is_decoder or self.is_encoder):
            self.ours.embedding = Embedded()
        elif family.front is not None:
            self.ours.embeddings["src"] = Embedded()
        self.table = family.expanded(tensors(self.ours))
        patterns = [name.replace("{i}", "*") for name in family.unread]
        self.unread = {name for name in tensors(self.theirs) if any(fnmatch(name, pattern) for pattern in patterns)}
        self.check_complete()
        drawn = {name: x.detach() for name, x in tensors(self.theirs).items()}
        drawn |= {n: x + STD * torch.randn_like(x) for n, x in drawn.items() if x.is_floating_point() and n not in self.unread}
        copied = self.read(drawn)
        self.drawn = drawn | self.write(copied)  # drop what ours cannot express, such as unread rows
        self.copied = self.read(self.drawn)
        for model, values in ((self.theirs, self.drawn), (self.ours, self.copied)):
            for name, x in tensors(model).items():
                assert x.shape == values[name].shape, f"{name} is {tuple(x.shape)}, but the table gives {tuple(values[name].shape)}"
                x.data.copy_(values[name])
        torch.manual_seed(1)
        vocab = family.spec.get("vocab_size", family.spec.get("tgt_vocab_size", LENGTH))
        self.tokens = torch.randint(3, vocab, (family.rows, family.length or LENGTH))
        self.source = torch.randint(3, vocab, (2, LENGTH - 2))
        if family.inputs is not None:
            inputs = torch.randn(2, *family.inputs[1], dtype=torch.float64)
            self.tokens, self.source = (inputs, self.source) if self.is_encoder else (self.tokens, inputs)

    def read(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our tensors, given theirs."""
        return {n: x for row in self.table for n, x in zip(row.ours, row.to_ours([theirs[t] for t in row.theirs]), strict=True)}

    def write(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return their tensors, given ours."""
        return {n: x for row in self.table for n, x in zip(row.theirs, row.to_theirs([ours[o] for o in row.ours]), strict=True)}

    def check_complete(self) -> None:
        """Check that every tensor of both sides occurs in exactly one rename."""

        def once(names: list[str], all_names: set[str], side: str) -> None:
            twice = sorted({name for name in names if names.count(name) > 1})
            absent, unknown = sorted(all_names - set(names)), sorted(set(names) - all_names)
            wrong = {"twice": twice, "in no row": absent, "not in the model": unknown}
            assert not any(wrong.values()), f"{side}: {wrong}"

        once([name for row in self.table for name in row.ours], set(tensors(self.ours)), "ours")
        once([name for row in self.table for name in row.theirs], set(tensors(self.theirs)) - self.unread, "theirs")

    @property
    def decodes(self) -> bool:
        """Whether both models decode from caches."""
        return self.family.decoding and not self.is_encoder

    @property
    def reads(self) -> str:
        """The name of their model's input argument."""
        return "input_ids" if self.family.inputs is None else self.family.inputs[0]

    def embedded(self, inputs: Tensor) -> Tensor:
        """Return our model's input: theirs, or their front end's output."""
        if self.family.front is None:
            return inputs
        with double(), torch.no_grad():
            return self.family.front(self.theirs, inputs)

    # Their forward and ours, for each kind of model

    def run_theirs(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        given: dict[str, Any] = {self.reads: tokens}
        if mask is not None:
            given["attention_mask"] = mask.long()
            if "position_ids" in inspect.signature(self.theirs.forward).parameters and self.is_decoder:
                given["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
        if not (self.is_decoder or self.is_encoder):
            given = {
                self.reads: self.source,
                "decoder_input_ids": tokens,
                "attention_mask": self.source.new_ones(self.source.shape[:2], dtype=torch.long)
                if mask is None
                else mask[:, : self.source.shape[1]].long(),
            }
        with double():
            output = self.theirs(**given, **({"use_cache": False} if self.decodes else {}))
        return output[self.family.output]

    def run_ours(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.family.output != "logits":
            x = self.ours.stack(self.ours.embedding(self.embedded(tokens)), key_mask=mask)
            return x[0] if self.is_decoder else x
        if self.is_decoder or self.is_encoder:
            return self.ours(self.embedded(tokens), mask)
        return self.ours(self.embedded(self.source), tokens, None if mask is None else mask[:, : self.source.shape[1]])

    def steps_theirs(self, tokens: Tensor) -> Tensor:
        """Return the logits of decoding token by token after a prompt."""
        cache, logits = None, []
        places = self.is_decoder and "position_ids" in inspect.signature(self.theirs.forward).parameters  # Bamba would start from 0
        with double(), torch.no_grad():
            if not self.family.cache:
                cache = pytest.importorskip("transformers").DynamicCache(config=self.theirs.config)
            extra = {} if self.is_decoder else {"encoder_outputs": self.theirs.get_encoder()(**{self.reads: self.source}, return_dict=True)}
            name = "input_ids" if self.is_decoder else "decoder_input_ids"
            for start, end in [(0, PROMPT), *((t, t + 1) for t in range(PROMPT, tokens.shape[1]))]:
                given = {name: tokens[:, start:end], "use_cache": True, **extra}
                given |= {"position_ids": torch.arange(start, end)[None]} if places else {}
                given |= {} if cache is None else {self.family.cache or "past_key_values": cache}
                output = self.theirs(**given)
                cache = output[self.family.cache] if self.family.cache else cache
                logits.append(output[self.family.output])
        return torch.cat(logits, 1)[:, PROMPT - 1 :]

    def steps_ours(self, tokens: Tensor) -> Tensor:
        logits = []
        with torch.no_grad():
            state = None if self.is_decoder else self.ours.encode(self.embedded(self.source))
            for start, end in [(0, PROMPT), *((t, t + 1) for t in range(PROMPT, tokens.shape[1]))]:
                last, state = self.ours.step(tokens[:, start:end], state)
                logits.append(last)
        return torch.stack(logits, 1)

    def greedy_theirs(self) -> Tensor:
        prompt = self.tokens[:, :PROMPT] if self.is_decoder else self.source
        extra = {} if self.is_decoder else {"decoder_start_token_id": self.ours.bos_id, "num_beams": 1}
        with double(), torch.no_grad():
            found = self.theirs.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, **extra
            )
        return found[:, -NEW:]

    def greedy_ours(self) -> Tensor:
        prompt = self.tokens[:, :PROMPT] if self.is_decoder else self.source
        return self.ours.generate(prompt, max_length=NEW)


def assert_close(ours: Tensor, theirs: Tensor, what: str, tolerance: float) -> None:
    assert torch.isfinite(theirs).all(), f"{what}: theirs is not finite"
    size = max(1.0, float(theirs.abs().max()))
    difference = float((ours - theirs).abs().max())
    assert difference <= tolerance * size, f"{what} differs by {difference:.2e} at a size of {size:.2e}"
