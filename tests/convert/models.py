"""Small published models with random weights, and their distance from ours."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import attnkit
from attnkit import convert

transformers = pytest.importorskip("transformers")


def model_of(spec: dict[str, Any], **changes: Any) -> Any:
    """Return a model of attnkit with weights that matter."""
    torch.manual_seed(0)
    model = attnkit.compose(**deepcopy({**spec, **changes})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    return model


def without(spec: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a mapping without some entries."""
    return {key: value for key, value in spec.items() if key not in names}


COMMON = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    **COMMON, "pad_token_id": 0, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 64,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {**COMMON, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": LLAMA, "mistral": {**LLAMA, "sliding_window": 4}, "qwen2": LLAMA, "qwen3": {**LLAMA, "head_dim": 8},
    "smollm3": {**LLAMA, "no_rope_layer_interval": 2}, "olmo2": LLAMA, "granite": {**LLAMA, "embedding_multiplier": 3.0},
    "gpt_neox": {**without(LLAMA, "num_key_value_heads"), "hidden_size": 32}, "gemma2": {**LLAMA, "head_dim": 8, "sliding_window": 4},
    "gemma3_text": {**LLAMA, "head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "phi3": {**LLAMA, "sliding_window": 4}, "starcoder2": {**LLAMA, "sliding_window": 4}, "mixtral": {**LLAMA, "num_local_experts": 4},
    "qwen3_moe": {**LLAMA, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
}  # fmt: skip
NAMES = {
    **{"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "smollm3": "SmolLM3", "olmo2": "Olmo2"},
    **{"granite": "Granite", "gpt_neox": "GPTNeoX", "gemma2": "Gemma2", "phi3": "Phi3", "starcoder2": "Starcoder2", "mixtral": "Mixtral"},
    "qwen3_moe": "Qwen3Moe",
}
CLASSES = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"), "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    **{kind: (f"{name}Config", f"{name}ForCausalLM") for kind, name in NAMES.items()},
}  # fmt: skip

BERT = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 34,
}  # fmt: skip
SIZES |= {
    "bert": BERT, "roberta": BERT,
    "modernbert": {
        **without(BERT, "max_position_embeddings"), "num_hidden_layers": 4, "local_attention": 6, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "distilbert": {"vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 34},
}  # fmt: skip
ENCODERS = {
    kind: (f"{name}Config", f"{name}ForMaskedLM")
    for kind, name in (("bert", "Bert"), ("roberta", "Roberta"), ("distilbert", "DistilBert"), ("modernbert", "ModernBert"))
}
SIZES["qwen3_5_text"] = {
    **LLAMA, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_key_head_dim": 6, "linear_value_head_dim": 5,
}  # fmt: skip
SIZES["qwen3_5"] = {
    "text_config": SIZES["qwen3_5_text"], "tie_word_embeddings": True,
    "vision_config": {"depth": 1, "hidden_size": 8, "num_heads": 2, "intermediate_size": 8, "out_hidden_size": 16, "patch_size": 4},
}  # fmt: skip
UNWRITTEN = {**ENCODERS, "qwen3_5_text": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM")}
"""Families that attnkit reads, but does not write."""
WITH_IMAGES = {"qwen3_5": ("Qwen3_5Config", "Qwen3_5ForConditionalGeneration")}
"""Those of which it reads the text model alone."""


def published(kind: str, folder: Path, **changes: Any) -> Any:
    """Write a model of transformers with weights that matter, and return it."""
    config_class, model_class = (getattr(transformers, name) for name in {**CLASSES, **UNWRITTEN, **WITH_IMAGES}[kind])
    torch.manual_seed(0)
    config = config_class(**deepcopy({**SIZES[kind], **changes}))  # it modifies its argument
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    model.save_pretrained(folder)
    return model


def difference(model: Any, folder: Path, ours: Any = None) -> float:
    """Return how far our logits are from theirs, relative to the largest; ours are those of the folder, if no model is given."""
    tokens = torch.randint(2, 40, (2, 12), generator=torch.Generator().manual_seed(0))  # RoBERTa takes any 1 for padding
    with torch.no_grad():
        wanted, found = model(tokens).logits, (ours or convert.load(folder)).eval()(tokens)
    return float((found - wanted).abs().max() / wanted.abs().max())


def edit(folder: Path, **fields: Any) -> None:
    """Change fields of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
