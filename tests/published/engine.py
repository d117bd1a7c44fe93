"""Comparisons of our model with transformers' by copied weights, in float64."""

import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from published.family import Family
from torch import Tensor, nn

import attnkit

LENGTH, PROMPT, NEW, STD = 11, 3, 6, 0.3


def families() -> list[Family]:
    """Return the families of all files, by name."""
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
    """Make float64 of what transformers computes in float32: norms, softmax, and tables of rotations."""
    with pytest.MonkeyPatch.context() as patch:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            patch.setattr(torch, "float32", torch.float64)
            patch.setattr(torch, "float", torch.float64)
            yield
        finally:
            torch.set_default_dtype(default)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, shared ones once, and the buffers that are saved."""
    saved = model.state_dict().keys()
    return dict(model.named_parameters()) | {name: x for name, x in model.named_buffers() if name in saved}


class Pair:
    """Their model and ours, with equal weights drawn at random."""

    def __init__(self, family: Family) -> None:
        transformers = pytest.importorskip("transformers")
        self.family = family
        torch.manual_seed(0)
        with double():  # also the imports, which bind types as defaults
            config_class, model_class = (getattr(transformers, name) for name in family.theirs)
            config = config_class(**{"eos_token_id": None, "pad_token_id": 0, **family.config})
            config._attn_implementation = "eager"
            self.theirs = model_class(config).double().eval()
        if self.theirs.can_generate():
            self.theirs.generation_config.eos_token_id = None
            self.theirs.generation_config.pad_token_id = 0
        self.ours = attnkit.compose(**{"eos_id": None, **family.spec}).double().eval()
        self.table = family.expanded(tensors(self.ours))
        self.check_complete()
        kept = {name.replace("{i}", str(i)) for name in family.kept for i in range(99)}
        drawn = {
            name: x.detach() + STD * torch.randn_like(x) if x.is_floating_point() and name not in kept else x
            for name, x in tensors(self.theirs).items()
        }
        copied = self.read(drawn)
        self.drawn = drawn | self.write(copied)  # what ours cannot say, such as unread rows, is cut
        self.copied = self.read(self.drawn)
        for model, values in ((self.theirs, self.drawn), (self.ours, self.copied)):
            for name, x in tensors(model).items():
                assert x.shape == values[name].shape, f"{name} is {tuple(x.shape)}, but the table gives {tuple(values[name].shape)}"
                x.data.copy_(values[name])
        self.is_decoder, self.is_encoder = (isinstance(self.ours, c) for c in (attnkit.models.DecoderModel, attnkit.models.EncoderModel))
        torch.manual_seed(1)
        vocab = self.ours.embedding.weight.shape[0] if hasattr(self.ours, "embedding") else family.spec["tgt_vocab_size"]
        self.tokens = torch.randint(3, vocab, (2, LENGTH))
        self.source = torch.randint(3, vocab, (2, LENGTH - 2))

    def read(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return our tensors, given theirs."""
        return {n: x for row in self.table for n, x in zip(row.ours, row.to_ours([theirs[t] for t in row.theirs]), strict=True)}

    def write(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return their tensors, given ours."""
        return {n: x for row in self.table for n, x in zip(row.theirs, row.to_theirs([ours[o] for o in row.ours]), strict=True)}

    def check_complete(self) -> None:
        """Check that every tensor of both sides stands in one row."""

        def once(names: list[str], all_names: set[str], side: str) -> None:
            twice = sorted({name for name in names if names.count(name) > 1})
            absent, unknown = sorted(all_names - set(names)), sorted(set(names) - all_names)
            wrong = {"twice": twice, "in no row": absent, "not in the model": unknown}
            assert not any(wrong.values()), f"{side}: {wrong}"

        once([name for row in self.table for name in row.ours], set(tensors(self.ours)), "ours")
        unread = {name.replace("{i}", str(i)) for name in (*self.family.unread, *self.family.kept) for i in range(99)}
        once([name for row in self.table for name in row.theirs], set(tensors(self.theirs)) - unread, "theirs")

    # Their forward and ours, for each kind of model

    def run_theirs(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        given: dict[str, Any] = {"input_ids": tokens}
        if mask is not None:
            given["attention_mask"] = mask.long()
            if "position_ids" in inspect.signature(self.theirs.forward).parameters and self.is_decoder:
                given["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
        if not (self.is_decoder or self.is_encoder):
            given = {
                "input_ids": self.source,
                "decoder_input_ids": tokens,
                "attention_mask": torch.ones_like(self.source) if mask is None else mask[:, : self.source.shape[1]].long(),
            }
        with double():
            output = self.theirs(**given, **({} if self.is_encoder else {"use_cache": False}))
        return output.logits

    def run_ours(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.is_decoder or self.is_encoder:
            return self.ours(tokens, mask)
        return self.ours(self.source, tokens, None if mask is None else mask[:, : self.source.shape[1]])

    def steps_theirs(self, tokens: Tensor) -> Tensor:
        """Return the logits of tokens that are read one by one, after a prompt read at once."""
        import transformers

        name = self.family.cache
        cache, logits = None if name else transformers.DynamicCache(config=self.theirs.config), []
        with double(), torch.no_grad():
            extra = {} if self.is_decoder else {"encoder_outputs": self.theirs.get_encoder()(input_ids=self.source, return_dict=True)}
            name = "input_ids" if self.is_decoder else "decoder_input_ids"
            for start, end in [(0, PROMPT), *((t, t + 1) for t in range(PROMPT, tokens.shape[1]))]:
                given = {name: tokens[:, start:end], "use_cache": True, **extra}
                if self.is_decoder and "position_ids" in inspect.signature(self.theirs.forward).parameters:
                    given["position_ids"] = torch.arange(start, end)[None]  # Bamba would start from 0
                given |= {} if cache is None else {self.family.cache or "past_key_values": cache}
                output = self.theirs(**given)
                cache = output[self.family.cache] if self.family.cache else cache
                logits.append(output.logits)
        return torch.cat(logits, 1)[:, PROMPT - 1 :]

    def steps_ours(self, tokens: Tensor) -> Tensor:
        logits = []
        with torch.no_grad():
            state = None if self.is_decoder else self.ours.encode(self.source)
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


def assert_close(ours: Tensor, theirs: Tensor, what: str) -> None:
    assert torch.isfinite(theirs).all(), f"{what}: theirs is not finite"
    size = max(1.0, float(theirs.abs().max()))
    difference = float((ours - theirs).abs().max())
    assert difference <= 1e-10 * size, f"{what} differs by {difference:.2e} at a size of {size:.2e}"
