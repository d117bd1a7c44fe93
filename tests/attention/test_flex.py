"""FlexAttention computes what the reference does, in the blocks that masks leave; its kernels need a GPU."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.utils.flop_counter import FlopCounterMode

import attnkit
from attnkit.attention import Attention, LazyBias
from attnkit.attention.backend import flex, flex_mask
from attnkit.attention.backend.base import Inputs, Refused, choose
from attnkit.masks import Mask
from attnkit.position import Position

B, H, T, D = 2, 4, 300, 16
MASKS = [None, Mask(causal=True), Mask(window=4), Mask(causal=True, window=200)]
STRETCHES = torch.arange(T) // torch.tensor([[70], [130]])
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def built(name: str, *, softcap: float | None = None, width: int = D, kv_heads: int = 2) -> tuple[Attention, Position]:
    attention = attnkit.attentions.build("scaled_dot_product", head_dim=width, num_heads=H, num_kv_heads=kv_heads)
    position = attnkit.positions.build(name, d_model=H * width, head_dim=width, num_heads=H, bidirectional=True)
    return attention.configure(softcap=softcap), position


def heads(length: int, *, width: int = D, kv_heads: int = 2) -> list[Tensor]:
    return [torch.randn(B, count, length, width, requires_grad=True) for count in (H, kv_heads, kv_heads)]


def bias_of(position: Position, length: int) -> LazyBias | None:
    t = torch.arange(length)[None]
    bias = position.bias
    return None if bias(t[:, :1], t[:, :1]) is None else LazyBias(bias, t, t, position.by_offset)  # type: ignore[arg-type]


def with_gradients(attention: Attention, given: list[Tensor], position: Position, mask: Mask | None, backend: str) -> list[Tensor]:
    bias = bias_of(position, given[0].shape[-2])
    inputs = Inputs(given[0], given[1], given[2], mask, bias, 0.0, 0)
    called = flex.Flex().compute(attention, inputs) if backend == "flex" else attention(*given, mask=mask, attn_bias=bias, backend=backend)
    return [called, *torch.autograd.grad(called.square().mean(), [*given, *position.parameters()])]


@pytest.mark.parametrize(
    "mask", [*MASKS, Mask.of(torch.arange(B * T * T).view(B, 1, T, T) % 3 > 0), Mask(causal=True, stretches=STRETCHES)]
)
@pytest.mark.parametrize(("name", "softcap"), [("none", None), ("alibi", None), ("relative", 2.0), ("kerple", None)])
@pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile", "ignore:The .grad attribute of a Tensor that is not a leaf"
)
def test_flex_agrees_with_the_reference(
    name: str, softcap: float | None, mask: Mask | None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)  # torch's own plain form has gradients on a CPU
    attention, position = built(name, softcap=softcap)
    given = heads(T)
    found, wanted = (with_gradients(attention, given, position, mask, backend) for backend in ("flex", "reference"))
    for x, y in zip(found, wanted, strict=True):
        assert (x - y).norm() < 1e-5 * y.norm()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_mask_cached_in_inference_mode_works_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
    flex_mask._symbolic.cache_clear()
    attention, _ = built("none")
    inputs = Inputs(*heads(T), Mask(causal=True), None, 0.0, 0)
    with torch.inference_mode():
        flex.Flex().compute(attention, inputs)
    flex.Flex().compute(attention, inputs).sum().backward()
    assert inputs.query.grad is not None


@pytest.mark.parametrize("mask", MASKS[1:])
@pytest.mark.parametrize("length", [100, 256, 300, 1000])
def test_the_block_mask_marks_partial_and_full_blocks(mask: Mask, length: int) -> None:
    dense = mask.dense(length, length, torch.device("cpu"))
    assert dense is not None
    rows = range(0, length, flex_mask.BLOCK)
    parts = [[dense[0, 0, i : i + flex_mask.BLOCK, j : j + flex_mask.BLOCK] for j in rows] for i in rows]
    some, every = flex_mask.blocks(mask, length, length, torch.device("cpu"))
    assert some.tolist() == [[bool(part.any()) for part in row] for row in parts]
    assert every.tolist() == [[bool(part.all()) and part.numel() == flex_mask.BLOCK**2 for part in row] for row in parts]


@pytest.mark.parametrize("allowed", [None, torch.ones(1000, dtype=torch.bool)])
def test_each_block_is_partial_full_or_skipped(allowed: Tensor | None) -> None:
    mask = Mask(allowed=allowed, causal=True, window=400)
    given = heads(1000)
    listed = flex_mask.block_mask(mask, given[0], given[1])
    assert listed is not None
    some, every = flex_mask.blocks(mask, 1000, 1000, torch.device("cpu"))
    assert torch.equal(listed.to_dense()[0, 0].bool(), some)
    partial, whole = listed.kv_num_blocks.sum(), listed.full_kv_num_blocks.sum()  # type: ignore[union-attr]  # there are some
    assert [int(partial), int(whole)] == [int((some & ~every).sum()), int(every.sum())] if allowed is None else [int(some.sum()), 0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dropout": 0.1}, "does not support dropout"),
        ({"query": torch.zeros(B, H, T, D).double()}, "float64"),
        ({"value": torch.zeros(B, 2, T, 8)}, "16 to 256 channels, but have 16 and 8"),
        ({"bias": torch.zeros(T, T)}, "depend only on the offset"),
    ],
)
def test_unsupported_inputs_are_rejected_with_a_reason(change: dict[str, object], reason: str) -> None:
    attention, _ = built("none")
    inputs = Inputs(*heads(T), None, None, 0.0, 0)
    assert flex.Flex().refuses_inputs(attention, inputs) is None
    assert reason in str(flex.Flex().refuses_inputs(attention, inputs._replace(**change)))  # type: ignore[arg-type]


def test_flex_declines_calls_under_a_flop_counter() -> None:
    attention, _ = built("none")
    with FlopCounterMode(display=False):
        assert "FlopCounterMode" in str(flex.Flex().refuses_inputs(attention, Inputs(*heads(T), None, None, 0.0, 0)))


def test_compiled_code_supports_heads_of_several_widths() -> None:
    """torch 2.11 makes the width a symbol from the second on."""
    backend, attention = flex.Flex(), attnkit.attentions.build("scaled_dot_product", head_dim=64)

    def refusal(query: Tensor) -> str | None:
        return backend.refuses_inputs(attention, Inputs(query, query, query, None, None, 0.0, 0))

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1 if refusal(x) is None else x - 1, backend="eager", fullgraph=True)
    for width in (flex.WIDTHS.start - 1, 20, 24, flex.WIDTHS.stop):
        assert compiled(torch.zeros(1, 1, 2, width))[0, 0, 0, 0] == (1 if width in flex.WIDTHS else -1)


def test_flex_rejects_a_cpu_and_auto_does_not_choose_it() -> None:
    attention, _ = built("none")
    given = heads(T)
    with pytest.raises(Refused, match="CUDA only" if flex.Flex().has_triton else "triton is not installed"):
        attention(*given, backend="flex")
    inputs = Inputs(*given, Mask(causal=True, window=4), None, 0.0, 0)
    assert not isinstance(choose("auto", attention, inputs), flex.Flex)


def test_flex_rejects_a_bias_under_deterministic_algorithms() -> None:
    attention, position = built("relative")
    inputs = Inputs(*heads(T), None, bias_of(position, T), 0.0, 0)
    torch.use_deterministic_algorithms(True)
    try:
        assert "order" in str(flex.Flex().refuses_inputs(attention, inputs))
        assert flex.Flex().refuses_inputs(attention, inputs._replace(bias=None)) is None
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile", "ignore:The .grad attribute of a Tensor that is not a leaf"
)
@pytest.mark.parametrize("extra", [{"position": "relative"}, {"window": 100}])
def test_a_compiled_decoder_traces_flex_and_agrees_with_eager(extra: dict[str, object], monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    model = attnkit.compose(stack="decoder", d_model=32, num_layers=1, num_heads=2, vocab_size=50, dropout=0.0, **extra)  # type: ignore[arg-type]
    tokens, found, uses = torch.randint(3, 50, (1, 1100)), [], []
    attend = flex._attend
    for is_flex in (False, True):
        if is_flex:
            monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
            monkeypatch.setattr(flex.Flex, "refuses_device", lambda *_: None)
            monkeypatch.setattr(flex.Flex, "suits", lambda *_: True)
            monkeypatch.setattr(flex, "_attend", lambda *call: uses.append(call) or attend(*call))
        output = torch.compile(model, backend="aot_eager")(tokens) if is_flex else model(tokens)
        found.append([output, *torch.autograd.grad(output.square().mean(), [*model.parameters()])])
    assert len(uses) == 1
    for x, y in zip(*found, strict=True):
        assert (x - y).norm() <= 1e-5 * y.norm() + 1e-7


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "softcap", "mask"),
    [
        ("none", 2.0, Mask(causal=True)),
        ("none", None, Mask(causal=True, window=200)),
        ("none", None, Mask(window=4)),
        ("alibi", None, Mask(causal=True)),
        ("relative", None, Mask(causal=True)),
        ("relative", 2.0, Mask(causal=True, window=200)),
        ("kerple", None, None),
    ],
)
def test_the_kernels_agree_with_float64(name: str, softcap: float | None, mask: Mask | None, dtype: torch.dtype, seed: int) -> None:
    with torch.device("cuda"):
        attention, position = built(name, softcap=softcap, width=64)
        other = built(name, softcap=softcap, width=64)
        other[1].double().load_state_dict(position.state_dict())
        for length in (1024, 1100, 1500):  # the second compiles for any length
            given = [x.to(dtype).detach().requires_grad_() for x in heads(length, width=64)]
            exact = [x.detach().double().requires_grad_() for x in given]
            found = with_gradients(attention, given, position, mask, "flex")
            wanted = with_gradients(other[0], exact, other[1], mask, "reference")
            for x, y in zip(found, wanted, strict=True):
                assert (x.double() - y).norm() < (1e-5 if dtype == torch.float32 else 2e-2) * y.norm()


@needs_gpu
@pytest.mark.parametrize("width", [16, 80, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_of_every_width_are_supported(width: int, dtype: torch.dtype, seed: int) -> None:
    with torch.device("cuda"):
        attention, position = built("alibi", width=width)
        given = [x.to(dtype).detach().requires_grad_() for x in heads(1024, width=width)]
        found, wanted = (with_gradients(attention, given, position, Mask(causal=True), backend) for backend in ("flex", "reference"))
        for x, y in zip(found, wanted, strict=True):
            assert (x.float() - y.float()).norm() < 3e-2 * y.float().norm()


@needs_gpu
@pytest.mark.filterwarnings(  # torch.compile's own
    "ignore:The .grad attribute of a Tensor that is not a leaf", "ignore:TensorFloat32 tensor cores"
)
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("extra", [{"position": "alibi"}, {"position": "relative"}, {"window": 100}])
def test_a_decoder_trains_with_flex(extra: dict[str, object], is_compiled: bool, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    spec = {"stack": "decoder", "d_model": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 50, "dropout": 0.0, **extra}
    model = attnkit.compose(**spec).cuda()  # type: ignore[arg-type]
    tokens, parameters = torch.randint(3, 50, (2, 1100), device="cuda"), [*model.parameters()]
    uses: list[object] = []
    if not is_compiled:
        compute = flex.Flex.compute
        monkeypatch.setattr(flex.Flex, "compute", lambda *call: uses.append(call) or compute(*call))
    output = (torch.compile(model) if is_compiled else model)(tokens)
    found = [output, *torch.autograd.grad(output.square().mean(), parameters)]
    assert is_compiled or len(uses) == 2
    monkeypatch.setattr(flex.Flex, "suits", lambda *_: False)
    torch._dynamo.reset()
    output = model(tokens)
    for x, y in zip(found, [output, *torch.autograd.grad(output.square().mean(), parameters)], strict=True):
        assert (x - y).norm() <= 1e-4 * y.norm() + 1e-7
