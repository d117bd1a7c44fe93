from typing import Any

import pytest
import torch

import attnkit
import attnkit.masks

SIZES: dict[str, Any] = {"d_model": 8, "num_layers": 2, "num_heads": 2}


def test_decoder_and_encoder_depths_may_differ() -> None:
    stack = attnkit.stacks.build({"name": "encoder_decoder", **SIZES, "num_decoder_layers": 3})
    assert (len(stack.encoder.layers), len(stack.decoder.layers)) == (2, 3)
    with pytest.raises(ValueError, match="num_decoder_layers must be positive, but is 0"):
        attnkit.stacks.build({"name": "encoder_decoder", **SIZES, "num_decoder_layers": 0})


@pytest.mark.parametrize(("residual", "needed"), [("pre_norm", 1), ("sandwich_norm", 1), ("post_norm", 0), ("rezero", 0), ("none", 0)])
def test_a_final_norm_is_added_when_the_residual_leaves_the_stream_unnormalised(residual: str, needed: bool) -> None:
    for final_norm in (None, True, False):
        stack = attnkit.stacks.build({"name": "encoder", **SIZES, "residual": residual, "final_norm": final_norm})
        assert (stack.encoder.final_norm is not None) == (needed if final_norm is None else final_norm)


def test_a_window_covers_exactly_its_length(seed: int) -> None:
    stack = attnkit.stacks.build({"name": "decoder", **SIZES, "num_layers": 1, "window": 3, "position": "none"}).double().eval()
    x = torch.randn(1, 7, 8).double()
    y, _ = stack(x)
    changed = x.clone()
    changed[:, 2] = torch.randn(8)
    differs = (stack(changed)[0] != y).any(-1)[0].tolist()
    assert differs == [False, False, True, True, True, False, False]


def test_an_additional_mask_restricts_self_attention(seed: int) -> None:
    packed = torch.tensor([[0, 0, 0, 1, 1]])
    for name in ("encoder", "decoder"):
        stack = attnkit.stacks.build({"name": name, **SIZES, "position": "alibi"}).double().eval()
        x = torch.randn(1, 5, 8).double()
        both = stack(x, attn_mask=attnkit.masks.document(packed, packed))
        alone = stack(x[:, 3:])
        pair = (both, alone) if name == "encoder" else (both[0], alone[0])
        torch.testing.assert_close(pair[0][:, 3:], pair[1], rtol=1e-10, atol=1e-10)


def test_unselected_components_own_no_parameters() -> None:
    def outside(kind: type, **spec: Any) -> set[str]:
        norms = {} if spec.get("norm") == "none" else {"final_norm": False}
        stack = attnkit.stacks.build({"name": "encoder_decoder", **SIZES, **norms, **spec})
        inside = {f"{path}.{n}" for path, m in stack.named_modules() if isinstance(m, kind) for n, _ in m.named_parameters()}
        return {n for n, _ in stack.named_parameters()} - inside

    from attnkit.attention import Attention
    from attnkit.feed_forward import FeedForward
    from attnkit.norm import Norm
    from attnkit.position import Position
    from attnkit.residual import Residual

    kinds = {"attention": Attention, "feed_forward": FeedForward, "norm": Norm, "position": Position, "residual": Residual}
    for slot, kind in kinds.items():
        registry = getattr(attnkit, f"{slot}s")
        others = {"attention": "general", "position": "none"} | ({"position": "none"} if slot == "attention" else {})
        names = registry.built_in() - ({"none"} if slot == "feed_forward" else set())  # without it there is no norm either
        names = {name for name in names if not getattr(registry.get(name), "needs_causal", False)}  # an encoder takes no such position
        found = {name: outside(kind, **{**others, slot: name}) for name in names}
        assert len({frozenset(names) for names in found.values()}) == 1, f"{slot}: {found}"


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
@pytest.mark.parametrize("options", [{}, {"mixer": "gated_delta"}, {"mixer": "lstm", "position": "none"}])
def test_an_empty_input_is_rejected(options: dict[str, Any], shape: tuple[int, int]) -> None:
    model = attnkit.compose(stack="decoder", d_model=8, num_layers=1, num_heads=2, vocab_size=12, **options)
    with pytest.raises(ValueError, match="at least one row and one token"):
        model(torch.ones(shape, dtype=torch.long))


@pytest.mark.parametrize("stack", ["recurrent_encoder", "recurrent_decoder", "encoder"])
def test_other_stacks_reject_an_empty_input(stack: str) -> None:
    heads = {"num_heads": 2} if stack == "encoder" else {}
    model = attnkit.compose(stack=stack, d_model=8, num_layers=1, vocab_size=12, **heads)
    with pytest.raises(ValueError, match="at least one row and one token"):
        model(torch.ones(0, 3, dtype=torch.long))


@pytest.mark.parametrize("stack", ["encoder_decoder", "recurrent_encoder_decoder"])
def test_encoder_decoders_reject_an_empty_source_or_target(stack: str) -> None:
    heads = {"num_heads": 2} if stack == "encoder_decoder" else {}
    model = attnkit.compose(stack=stack, d_model=8, num_layers=1, src_vocab_size=12, tgt_vocab_size=12, **heads)
    source, empty = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 0, dtype=torch.long)
    for inputs in ((source, empty), (empty, source)):
        with pytest.raises(ValueError, match="at least one row and one token"):
            model(*inputs)


def test_generate_rejects_a_batch_without_rows() -> None:
    model = attnkit.compose(stack="decoder", d_model=8, num_layers=1, num_heads=2, vocab_size=12)
    with pytest.raises(ValueError, match="at least one row and one token"):
        model.generate(torch.ones(0, 3, dtype=torch.long), max_length=3)
