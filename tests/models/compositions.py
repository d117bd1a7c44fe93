"""Compositions of every piece, in every stack, for tests that run all of them."""

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import product
from typing import Any

import torch
from torch import Tensor

import attnkit

VOCABULARY = {"encoder": {"vocab_size": 19}, "decoder": {"vocab_size": 19}, "encoder_decoder": {"src_vocab_size": 19, "tgt_vocab_size": 18}}
SIZES = {"d_model": 16, "num_layers": 2, "num_heads": 4}
BATCH, LENGTH = 3, 11
REQUIRED: dict[str, Any] = {
    "factor": 4.0, "original_length": 8, "factors": [1.0, 3.0], "proportion": 0.5, "num_experts": 4,
}  # fmt: skip


def spec(family: Any, name: str) -> dict[str, Any]:
    """Return the spec of a component with the arguments that it requires."""
    return {"name": name, **{a.name: REQUIRED[a.name] for a in family.arguments(name) if a.name in REQUIRED}}


def compositions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each composition with its name: every piece in every stack, every attention with every position.

    Pieces that treat each token on its own are left out of `encoder_decoder`, as they are in both its parts, and so are initialisations,
    which change only numbers.
    """
    stacks = sorted(VOCABULARY)
    attentions, positions = (sorted(family.built_in()) for family in (attnkit.attentions, attnkit.positions))
    for (i, attention), (j, position) in product(enumerate(attentions), enumerate(positions)):
        stack = stacks[(i + j) % 3] if position not in ("xpos", "cope") else "decoder"
        yield f"{stack}-{attention}-{position}", {"stack": stack, "attention": attention, "position": position, "num_kv_heads": 4 >> i % 3}
    for stack in stacks:
        tokenwise = () if stack == "encoder_decoder" else ("norm", "feed_forward", "head")
        for slot in (*tokenwise, "residual", "normalizer", "mixer"):
            family = getattr(attnkit, f"{slot}s")
            for name in sorted(family.built_in()):
                piece = spec(family, name)
                chosen = {"mixer": {"name": "multi_head", "normalizer": piece}} if slot == "normalizer" else {slot: piece}
                yield f"{stack}-{slot}-{name}", {"stack": stack, **chosen}
    for name in sorted(attnkit.rotary_scalings.built_in()):
        scaling = spec(attnkit.rotary_scalings, name)
        yield f"scaling-{name}", {"stack": "decoder", "position": {"name": "rotary", "scaling": scaling}}
    for name in sorted(attnkit.mixers.built_in()):
        if "cross" in attnkit.mixers.get(name).directions:
            yield f"cross-{name}", {"stack": "encoder_decoder", "cross_mixer": name}
    for name in sorted(attnkit.multi_tokens.built_in()):
        yield f"further-{name}", {"stack": "decoder", "multi_token": name}
    for side, cell in product(("encoder", "decoder", "encoder_decoder"), ("rnn", "lstm", "gru")):
        attention = {"attention": "additive"} if side == "encoder_decoder" else {}
        yield f"recurrent_{side}-{cell}", {"stack": f"recurrent_{side}", "d_model": 16, "num_layers": 2, "cell": cell, **attention}
    heads = {
        "softcap": 5.0, "talking_heads": True, "gate": "channel", "differential": 0.5, "memory_keys": 2, "value_residual": 0.5, "clip": 0.5,
        "biases": ["query"], "query_key_norm_over": "all", "scale_growth": 0.5, "forget_gate": True, "sub_norm": "rms_norm",
    }  # fmt: skip
    for option, value in heads.items():
        yield f"heads-{option}", {"stack": "decoder", "mixer": {"name": "multi_head", option: value}, "query_key_norm": "rms_norm"}
    after = {"mixer": {"name": "multi_head", "query_key_norm_after_rotation": True}, "query_key_norm": "rms_norm", "position": "rotary"}
    yield "heads-query_key_norm_after_rotation", {"stack": "decoder", **after}
    for window in ({"window": 3}, {"window": 3, "attention": "additive"}):
        yield f"window-{len(window)}", {"stack": "decoder", **window}
    for backend in ("reference", "chunked", "sdpa", "tiled", "blockwise"):
        yield f"backend-{backend}", {"stack": "decoder", "backend": backend, "position": "alibi"}
    for backend in ("additive_eager", *(["additive_triton"] if find_spec("triton") and torch.cuda.is_available() else [])):
        yield f"backend-{backend}", {"stack": "decoder", "backend": backend, "attention": "additive"}


def one_layer(name: str) -> dict[str, int]:
    """Return the option for one layer, with which a composition is quicker, unless its layers read each other or have no such option."""
    return {} if name.startswith(("heads", "recurrent")) else {"num_layers": 1}


def build(options: dict[str, Any], **other: Any) -> Any:
    """Build a model in fp32 on the CPU."""
    stack = options["stack"]
    sizes = {} if stack.startswith("recurrent") else SIZES
    return attnkit.compose(**{**sizes, **VOCABULARY[stack.removeprefix("recurrent_")], **options, **other})


def inputs(options: dict[str, Any]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return tokens and masks with padding."""
    tokens = torch.randint(3, 18, (BATCH, LENGTH))
    real = torch.arange(LENGTH) < torch.tensor([LENGTH, 4, 7])[:, None]
    if options["stack"].endswith("encoder_decoder"):
        return (tokens, torch.randint(3, 18, (BATCH, 6))), {"src_mask": real}
    return (tokens,), {"key_mask": real}
