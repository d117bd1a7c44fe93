"""Encoders of images, and the towers of text beside them."""

from typing import Any

from published.family import Family, Gap, Rename, Reshape, rename

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 12,
    "patch_size": 4,
    "num_channels": 3,
}
PATCHES, WIDTH = 9, 16
CLASSES = {"num_labels": 5}
IMAGES = ("pixel_values", (3, 12, 12))
TOWER = {"d_model": 16, "num_layers": 2, "num_heads": 4}


def spec(*, positions: int, activation: str = "gelu", eps: float = 1e-12, **other: Any) -> dict[str, Any]:
    """Return the spec of a classifier of images."""
    return {
        "stack": "encoder",
        **TOWER,
        "num_classes": 5,
        "image_shape": [3, 12, 12],
        "pooling": "class_token",
        "position": {"name": "learned", "max_length": positions},
        "norm": {"name": "layer_norm", "eps": eps},
        "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": activation},
        "embedding": patches(),
        **other,
    }


def patches(**other: Any) -> dict[str, Any]:
    return {"name": "patch", "patch_size": 4, **other}


VIT = {
    "mixer.query": "attention.q_proj",
    "mixer.key": "attention.k_proj",
    "mixer.value": "attention.v_proj",
    "mixer.output": "attention.o_proj",
    "mixer_residual.norm": "layernorm_before",
    "feed_forward.input": "mlp.fc1",
    "feed_forward.output": "mlp.fc2",
    "feed_forward_residual.norm": "layernorm_after",
}
DINO = {**VIT, "mixer_residual.norm": "norm1", "feed_forward_residual.norm": "norm2"}
CLIP = {
    "mixer.query": "self_attn.q_proj",
    "mixer.key": "self_attn.k_proj",
    "mixer.value": "self_attn.v_proj",
    "mixer.output": "self_attn.out_proj",
    "mixer_residual.norm": "layer_norm1",
    "feed_forward.input": "mlp.fc1",
    "feed_forward.output": "mlp.fc2",
    "feed_forward_residual.norm": "layer_norm2",
}
FLATTEN = Reshape((WIDTH, 48), (WIDTH, 3, 4, 4))


def layers(parts: dict[str, str], theirs: str, side: str = "encoder") -> tuple[Rename, ...]:
    return tuple(row for a, b in parts.items() for row in rename(f"stack.{side}.layers.{{i}}.{a}.*", f"{theirs}.{{i}}.{b}.*"))


def final_norm(theirs: str, side: str = "encoder") -> tuple[Rename, ...]:
    return rename(f"stack.{side}.final_norm.*", f"{theirs}.*")


def images(theirs: str, tokens: int, *, class_token: bool = True) -> tuple[Rename, ...]:
    """Return the renames of ViT's embeddings; `tokens` have positions."""
    return (
        *rename("embedding.projection.weight", f"{theirs}.patch_embeddings.projection.weight", FLATTEN),
        *rename("embedding.projection.bias", f"{theirs}.patch_embeddings.projection.bias"),
        *(rename("embedding.class_token", f"{theirs}.cls_token", Reshape((WIDTH,), (1, 1, WIDTH))) if class_token else ()),
        *rename("stack.encoder.position.weight", f"{theirs}.position_embeddings", Reshape((tokens, WIDTH), (1, tokens, WIDTH))),
    )


HEAD = rename("head.projection.*", "classifier.*")
LAYER_SCALE = (
    *rename("stack.encoder.layers.{i}.mixer_residual.scale", "encoder.layer.{i}.layer_scale1.lambda1"),
    *rename("stack.encoder.layers.{i}.feed_forward_residual.scale", "encoder.layer.{i}.layer_scale2.lambda1"),
)
DINO_SIZES = {**{key: value for key, value in SIZES.items() if key != "intermediate_size"}, "mlp_ratio": 2}
DINO_MLP = {"feed_forward": {"name": "mlp", "ffn_dim": 32, "activation": "gelu"}}
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 40,
    "max_position_embeddings": 20,
}
TEXT_SPEC = {
    **TOWER,
    "vocab_size": 40,
    "position": {"name": "learned", "max_length": 20},
    "embedding": {"name": "token", "scale": False},
}
GATED_DINO = {"gate": "gate_proj", "input": "up_proj", "output": "down_proj"}


def words(side: str) -> tuple[Rename, ...]:
    return (
        *rename("embedding.weight", "embeddings.token_embedding.weight"),
        *rename(f"stack.{side}.position.weight", "embeddings.position_embedding.weight"),
    )


FAMILIES = (
    Family(
        name="ViT",
        paper="https://arxiv.org/abs/2010.11929",
        theirs=("ViTConfig", "ViTForImageClassification"),
        config={**SIZES, **CLASSES},
        spec=spec(positions=10),
        renames=(*images("vit.embeddings", 10), *layers(VIT, "vit.layers"), *final_norm("vit.layernorm"), *HEAD),
        inputs=IMAGES,
        padding=None,
    ),
    Family(
        name="ViT-MSN",
        paper="https://arxiv.org/abs/2204.07141",
        theirs=("ViTMSNConfig", "ViTMSNForImageClassification"),
        config={**SIZES, **CLASSES, "layer_norm_eps": 1e-6},
        spec=spec(positions=10, eps=1e-6),
        renames=(*images("vit.embeddings", 10), *layers(VIT, "vit.layers"), *final_norm("vit.layernorm"), *HEAD),
        inputs=IMAGES,
        padding=None,
    ),
    Family(
        name="DeiT",
        paper="https://arxiv.org/abs/2012.12877",
        theirs=("DeiTConfig", "DeiTForImageClassification"),
        config={**SIZES, **CLASSES},
        spec=spec(positions=11, embedding=patches(registers=1)),
        renames=(
            *images("deit.embeddings", 11),
            *rename("embedding.registers", "deit.embeddings.distillation_token", Reshape((1, WIDTH), (1, 1, WIDTH))),
            *layers(VIT, "deit.layers"),
            *final_norm("deit.layernorm"),
            *HEAD,
        ),
        inputs=IMAGES,
        padding=None,
        note="The class token's head; the distillation token is a register next to it.",
    ),
    Family(
        name="I-JEPA",
        paper="https://arxiv.org/abs/2301.08243",
        theirs=("IJepaConfig", "IJepaForImageClassification"),
        config={**SIZES, **CLASSES},
        spec=spec(positions=9, pooling="mean", embedding=patches(class_token=False)),
        renames=(*images("ijepa.embeddings", 9, class_token=False), *layers(VIT, "ijepa.layers"), *final_norm("ijepa.layernorm"), *HEAD),
        inputs=IMAGES,
        padding=None,
    ),
    Family(
        name="DINOv2",
        paper="https://arxiv.org/abs/2304.07193",
        theirs=("Dinov2Config", "Dinov2Model"),
        config={**DINO_SIZES, "layer_norm_eps": 1e-6},
        spec=spec(positions=10, eps=1e-6, residual="layer_scale", **DINO_MLP),
        renames=(*images("embeddings", 10), *layers(DINO, "encoder.layer"), *LAYER_SCALE, *final_norm("layernorm")),
        unread=("embeddings.mask_token",),
        inputs=IMAGES,
        output="last_hidden_state",
        padding=None,
        note="The largest one has `glu` in place of `mlp`.",
    ),
    Family(
        name="DINOv2 with registers",
        paper="https://arxiv.org/abs/2309.16588",
        theirs=("Dinov2WithRegistersConfig", "Dinov2WithRegistersModel"),
        config={**DINO_SIZES, "layer_norm_eps": 1e-6, "num_register_tokens": 4},
        spec=spec(positions=14, eps=1e-6, residual="layer_scale", embedding=patches(registers=4), **DINO_MLP),
        renames=(
            *(row for row in images("embeddings", 10) if "stack.encoder.position.weight" not in row.ours),
            *rename("stack.encoder.position.weight", "embeddings.position_embeddings", Reshape((10, WIDTH), (1, 10, WIDTH)), Gap(1, 4)),
            *rename("embedding.registers", "embeddings.register_tokens", Reshape((4, WIDTH), (1, 4, WIDTH))),
            *layers(DINO, "encoder.layer"),
            *LAYER_SCALE,
            *final_norm("layernorm"),
        ),
        unread=("embeddings.mask_token",),
        inputs=IMAGES,
        output="last_hidden_state",
        padding=None,
        note="Its registers have no positions; here, their position vectors are zero.",
    ),
    Family(
        name="CLIP, vision",
        paper="https://arxiv.org/abs/2103.00020",
        theirs=("CLIPVisionConfig", "CLIPVisionModel"),
        config={**SIZES, "hidden_act": "quick_gelu"},
        spec=spec(positions=10, eps=1e-5, activation="quick_gelu", embedding_norm=True, final_norm=False, embedding=patches(bias=False)),
        renames=(
            *rename("embedding.projection.weight", "embeddings.patch_embedding.weight", FLATTEN),
            *rename("embedding.class_token", "embeddings.class_embedding"),
            *rename("stack.encoder.position.weight", "embeddings.position_embedding.weight"),
            *rename("stack.encoder.embedding_norm.*", "pre_layrnorm.*"),
            *layers(CLIP, "encoder.layers"),
        ),
        unread=("post_layernorm.*",),
        inputs=IMAGES,
        output="last_hidden_state",
        padding=None,
    ),
    Family(
        name="CLIP, text",
        paper="https://arxiv.org/abs/2103.00020",
        theirs=("CLIPTextConfig", "CLIPTextModel"),
        config={**TEXT, "hidden_act": "quick_gelu", "eos_token_id": 2, "pad_token_id": 0},
        spec={**TEXT_SPEC, "stack": "decoder", "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "quick_gelu"}},
        renames=(*words("decoder"), *layers(CLIP, "encoder.layers", "decoder"), *final_norm("final_layer_norm", "decoder")),
        output="last_hidden_state",
        decoding=False,
        padding="right",
    ),
    Family(
        name="SigLIP, vision",
        paper="https://arxiv.org/abs/2303.15343",
        theirs=("SiglipVisionConfig", "SiglipVisionModel"),
        config={**SIZES, "hidden_act": "gelu_pytorch_tanh"},
        spec=spec(positions=9, eps=1e-6, activation="gelu_tanh", pooling="mean", embedding=patches(class_token=False)),
        renames=(
            *rename("embedding.projection.weight", "embeddings.patch_embedding.weight", FLATTEN),
            *rename("embedding.projection.bias", "embeddings.patch_embedding.bias"),
            *rename("stack.encoder.position.weight", "embeddings.position_embedding.weight"),
            *layers(CLIP, "encoder.layers"),
            *final_norm("post_layernorm"),
        ),
        unread=("head.*",),
        inputs=IMAGES,
        output="last_hidden_state",
        padding=None,
        note="Without its attention pooling.",
    ),
    Family(
        name="SigLIP, text",
        paper="https://arxiv.org/abs/2303.15343",
        theirs=("SiglipTextConfig", "SiglipTextModel"),
        config={**TEXT, "hidden_act": "gelu_pytorch_tanh"},
        spec={
            **TEXT_SPEC,
            "stack": "encoder",
            "norm": {"name": "layer_norm", "eps": 1e-6},
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu_tanh"},
        },
        renames=(*words("encoder"), *layers(CLIP, "encoder.layers"), *final_norm("final_layer_norm")),
        unread=("head.*",),
        output="last_hidden_state",
        padding="right",
    ),
    Family(
        name="BEiT",
        paper="https://arxiv.org/abs/2106.08254",
        missing="relative positions in two dimensions",
    ),
    Family(
        name="Swin",
        paper="https://arxiv.org/abs/2103.14030",
        missing="attention in shifted windows of two dimensions, and layers that merge patches",
    ),
)
