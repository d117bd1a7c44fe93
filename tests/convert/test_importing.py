"""A published model is read as it is: every weight is used, and damaged or incomplete files are refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import attnkit
from attnkit import convert
from attnkit.registry import ConfigurationError
from tests.convert.models import difference, edit, published

pytestmark = pytest.mark.filterwarnings("ignore")


def stored(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def test_files_without_the_head_prefix_and_with_extra_buffers_are_read(tmp_path: Path) -> None:
    model = published("gpt2", tmp_path)
    weights = {name.removeprefix("transformer."): x.contiguous() for name, x in stored(tmp_path).items()}
    save_file({**weights, "h.0.attn.bias": torch.ones(1, 1, 64, 64)}, tmp_path / "model.safetensors")
    assert difference(model, tmp_path) < 1e-5


def test_only_the_text_model_of_a_multimodal_model_is_read(tmp_path: Path) -> None:
    model = published("qwen3_5", tmp_path)
    assert any(name.startswith("model.visual.") for name in stored(tmp_path))
    save_file({**stored(tmp_path), "mtp.norm.weight": torch.ones(16)}, tmp_path / "model.safetensors")
    assert difference(model, tmp_path) < 1e-5
    found = convert.load(tmp_path)
    assert found.eos_id == 2
    assert found.spec["tie"] == "output"  # as the model says it, not the part
    edit(tmp_path, speed=3)
    with pytest.raises(ConfigurationError, match="has the field speed"):
        convert.load(tmp_path)
    edit(tmp_path, text_config=[])
    with pytest.raises(ConfigurationError, match="text_config must be a mapping"):
        convert.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "the weight model.norm.weight is missing"),
        ({"model.norm.bias": torch.ones(16)}, "the weight model.norm.bias has no place in the model"),
        ({"model.norm.weight": torch.ones(8)}, "stack.decoder.final_norm.weight is"),
        (
            {"model.layers.2.mlp.up_proj.weight": torch.ones(24, 16)},
            "the weight model.layers.2.mlp.up_proj.weight has no place in the model",
        ),
        ({"lm_head.weight": None}, "the weight lm_head.weight is missing"),
        (
            {"lm_head.weight": torch.ones(40, 16, dtype=torch.int8)},
            "lm_head.weight holds torch.int8, but attnkit does not read quantized weights",
        ),
        ({"lm_head.weight": torch.ones(40, 16).to(torch.float8_e4m3fn)}, "holds torch.float8_e4m3fn"),
    ],
)
def test_unused_and_missing_weights_are_rejected(change: dict[str, Tensor | None], message: str, tmp_path: Path) -> None:
    published("llama", tmp_path)
    changed = {name: x for name, x in {**stored(tmp_path), **change}.items() if x is not None}
    save_file(changed, tmp_path / "model.safetensors")
    with pytest.raises(ConfigurationError, match=message):
        convert.load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [("gpt2", "transformer.h.0.attn.c_attn", (48,)), ("gpt_neox", "gpt_neox.layers.1.attention.query_key_value", ())],
)
def test_a_fused_weight_with_a_wrong_shape_is_named(kind: str, name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    published(kind, tmp_path)
    save_file({**stored(tmp_path), f"{name}.weight": torch.ones(shape)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigurationError, match=rf"{name}.weight is \[{'48' if shape else ''}\], which does not fit config.json"):
        convert.load(tmp_path)


def test_two_heads_are_refused(tmp_path: Path) -> None:
    published("gpt_neox", tmp_path)
    save_file({**stored(tmp_path), "lm_head.weight": torch.ones(40, 32)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"the weight embed_out.weight has no place in the model"):
        convert.load(tmp_path)


def test_a_header_with_too_many_tensors_is_rejected_immediately(tmp_path: Path) -> None:
    published("llama", tmp_path)
    entry = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    header = ("{" + ",".join(entry.format(i) for i in range(100_001)) + "}").encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ConfigurationError, match="more than 100,000 tensors"):
        convert.load(tmp_path)


def test_a_stored_head_must_equal_the_tied_table(tmp_path: Path) -> None:
    model = published("qwen2", tmp_path, tie_word_embeddings=True)
    table = stored(tmp_path)["model.embed_tokens.weight"]
    save_file({**stored(tmp_path), "lm_head.weight": table.clone()}, tmp_path / "model.safetensors")
    assert difference(model, tmp_path) < 1e-5
    save_file({**stored(tmp_path), "lm_head.weight": table + 1}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigurationError, match=r"lm_head.weight differs from model.embed_tokens.weight, although config.json ties them"):
        convert.load(tmp_path)


def in_pieces(folder: Path) -> dict[str, str]:
    """Divide the weights into two files, and return the map of their index."""
    weights, places = stored(folder), {}
    for i, part in enumerate((sorted(weights)[::2], sorted(weights)[1::2])):
        save_file({name: weights[name] for name in part}, folder / f"{i}.safetensors")
        places |= dict.fromkeys(part, f"{i}.safetensors")
    (folder / "model.safetensors").unlink()
    return places


def test_weights_may_be_in_several_files(tmp_path: Path) -> None:
    model = published("llama", tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": in_pieces(tmp_path)}))
    assert difference(model, tmp_path) < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": "../0.safetensors"}, "files in the same folder"),
        ({"model.more.weight": "2.safetensors"}, "2.safetensors' is missing"),
        ({"model.more.weight": ""}, "not a regular file"),
        ({"model.more.weight": ".."}, "files in the same folder"),
        ({"model.more.weight": "1.safetensors"}, "lacks model.more.weight"),
        ({"model.norm.weight": "swapped"}, "does not list"),
    ],
)
def test_an_inconsistent_index_is_rejected(change: dict[str, str], message: str, tmp_path: Path) -> None:
    published("llama", tmp_path)
    places = in_pieces(tmp_path)
    other = {"0.safetensors": "1.safetensors", "1.safetensors": "0.safetensors"}
    change = {name: other[places[name]] if place == "swapped" else place for name, place in change.items()}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {**places, **change}}))
    with pytest.raises(ConfigurationError, match=message):
        convert.load(tmp_path)


def test_pickles_and_damaged_files_are_refused(tmp_path: Path) -> None:
    published("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    with pytest.raises(ConfigurationError, match="truncated or damaged"):
        convert.load(tmp_path)
    file.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="could run code: convert them to safetensors first"):
        convert.load(tmp_path)


def test_a_model_far_larger_than_its_weights_is_rejected_immediately(tmp_path: Path) -> None:
    published("llama", tmp_path)
    edit(tmp_path, hidden_size=2**20, num_hidden_layers=1000)
    with pytest.raises(ConfigurationError, match="far larger model"):
        convert.load(tmp_path)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text"])
def test_norms_stored_minus_one_are_not_rounded(kind: str, tmp_path: Path) -> None:
    model = published(kind, tmp_path).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    exact = type(model).from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    assert {p.dtype for p in convert.load(tmp_path).parameters()} == {torch.float32}
    assert difference(exact, tmp_path) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_precision_matches_the_file(dtype: torch.dtype, tmp_path: Path) -> None:
    published("llama", tmp_path).to(dtype).save_pretrained(tmp_path)
    assert {p.dtype for p in convert.load(tmp_path).parameters()} == {dtype}


def test_a_model_can_be_moved_and_rotates_in_its_precision(tmp_path: Path) -> None:
    published("llama", tmp_path).double().save_pretrained(tmp_path)
    model = convert.load(tmp_path)
    model.to("cpu")
    built = attnkit.compose(**model.spec).double()
    built.load_state_dict(model.state_dict())
    tokens = torch.randint(2, 40, (2, 12))
    torch.testing.assert_close(model(tokens), built(tokens), rtol=1e-14, atol=1e-14)
