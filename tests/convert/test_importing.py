"""A published model is read as it is: each field of its configuration is followed or refused, and outputs are equal."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnkit import convert
from attnkit.convert.fields import NO_MATHEMATICS
from attnkit.registry import ConfigurationError

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

COMMON = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    **COMMON, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 64,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {**COMMON, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": LLAMA, "mistral": {**LLAMA, "sliding_window": 4}, "qwen2": LLAMA, "qwen3": {**LLAMA, "head_dim": 8},
}  # fmt: skip
CLASSES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    **{kind: (f"{name}Config", f"{name}ForCausalLM") for kind, name in (("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2"), ("qwen3", "Qwen3"))},
}  # fmt: skip


def published(kind: str, folder: Path, **changes: Any) -> Any:
    """Write a model of transformers with weights that matter, and return it."""
    config_class, model_class = (getattr(transformers, name) for name in CLASSES[kind])
    torch.manual_seed(0)
    config = config_class(**{**SIZES[kind], **changes})
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    model.save_pretrained(folder)
    return model


def difference(model: Any, folder: Path) -> float:
    """Return how far our logits are from theirs, relative to the largest."""
    tokens = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted, found = model(tokens).logits, convert.load(folder).eval()(tokens)
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("kind", CLASSES)
def test_a_model_has_equal_outputs(kind: str, tmp_path: Path) -> None:
    assert difference(published(kind, tmp_path), tmp_path) < 1e-5


OTHER: dict[str, tuple[Any, ...]] = {  # values to try; by default, a number is doubled and a bool negated
    "activation_function": ("gelu", "relu", "silu", "tanh"), "hidden_act": ("gelu", "relu", "gelu_new", "sigmoid"), "n_inner": (24,),
    "sliding_window": (3, None), "head_dim": (8, None), "num_key_value_heads": (1, 4), "hidden_size": (32,), "n_embd": (32,),
    "num_attention_heads": (2,), "n_head": (2,), "vocab_size": (50,), "max_window_layers": (1,),
    "layer_types": (["full_attention", "sliding_attention"], ["full_attention"] * 2),
    "rope_parameters": tuple({"rope_type": kind, "rope_theta": 500.0, **rest} for kind, rest in (
        ("default", {}), ("linear", {"factor": 4.0}), ("dynamic", {"factor": 4.0}), ("default", {"partial_rotary_factor": 0.5}),
        ("llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 16}),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False}),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 2.0}),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 16, "mscale": 2.0, "mscale_all_dim": 1.0}),
    )),
    "bos_token_id": (None, 5), "eos_token_id": (None, 5, [2, 7]), "pad_token_id": (0,),
}  # fmt: skip
UNFIT = ("architectures", "transformers_version", "dtype", "model_type", "id2label", "label2id", "return_dict")


def others(name: str, value: Any) -> tuple[Any, ...]:
    """Return other values of a field."""
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, bool):
        return (not value,)
    return (2 * value or 1,) if isinstance(value, int | float) else ()


def changes(kind: str) -> list[tuple[str, Any]]:
    """Return the fields of a configuration with other values."""
    fields = getattr(transformers, CLASSES[kind][0])(**SIZES[kind]).to_dict()
    return [(name, other) for name, value in fields.items() if name not in UNFIT for other in others(name, value)]


@pytest.mark.parametrize("kind", CLASSES)
def test_each_field_is_followed_or_refused(kind: str, tmp_path: Path) -> None:
    followed, refused = [], []
    for i, (name, value) in enumerate(changes(kind)):
        folder = tmp_path / str(i)
        more = {"use_sliding_window": True, "sliding_window": 3} if name in ("layer_types", "max_window_layers", "use_sliding_window") else {}
        try:
            model = published(kind, folder, **{**more, name: value})
        except Exception:  # not a model of transformers either
            continue
        try:
            assert difference(model, folder) < 1e-5, f"{name}: {value} is silently ignored"
            followed.append(name)
        except ConfigurationError as error:
            assert name in str(error) or str(value) in str(error), error
            refused.append(name)
    print(kind, "followed:", sorted(set(followed)), "refused:", sorted(set(refused)))
    assert len(set(followed)) > 12
    assert refused
