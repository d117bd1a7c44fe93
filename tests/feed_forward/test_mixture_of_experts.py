import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attnkit
from attnkit import draws
from attnkit.feed_forward.mixture_of_experts import MixtureOfExperts
from attnkit.reports import FORGOTTEN, reporters, take_reports
from tests.test_documentation import blocks

D, E, F = 8, 8, 6
TOLERANCE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
GLU = {"name": "glu", "ffn_dim": F}


def build(**arguments: Any) -> MixtureOfExperts:
    """Build experts in float64; a bias that chooses is drawn."""
    spec = {"name": "mixture_of_experts", "num_experts": E, "expert": GLU, **arguments}
    experts: MixtureOfExperts = attnkit.feed_forwards.build(spec, d_model=D).double()
    if experts.bias is not None:
        nn.init.normal_(experts.bias)
    return experts


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, D, dtype=torch.float64, requires_grad=True)


@torch.no_grad()
def slow(layer: MixtureOfExperts, token: Tensor, *, sigmoid: bool, normalize: bool, k: int, scale: float = 1.0) -> Tensor:
    """The equation, for one token [D], without groups."""
    bias = [0.0] * E if layer.router.bias is None else layer.router.bias.tolist()
    logits = [float(row @ token) + b for row, b in zip(layer.router.weight, bias, strict=True)]
    total = sum(math.exp(z) for z in logits)
    s = [1 / (1 + math.exp(-z)) if sigmoid else math.exp(z) / total for z in logits]
    ranked = sorted(range(len(s)), key=lambda e: s[e] + (0.0 if layer.bias is None else float(layer.bias[e])), reverse=True)[:k]
    divisor = layer.eps + sum(s[e] for e in ranked) if normalize else 1.0
    y = sum(scale * s[e] / divisor * layer.experts[e](token[None])[0] for e in ranked)
    if layer.shared is not None:
        gate = 1.0 if layer.shared_gate is None else torch.sigmoid(layer.shared_gate(token))
        y = y + gate * layer.shared(token)
    return y


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("others", [{}, {"bias_rate": 0.1, "router_bias": True}, {"shared": "mlp"}, {"shared": "mlp", "shared_gate": True}])
def test_each_token_follows_the_equation(sigmoid: bool, normalize: bool, others: dict[str, Any], seed: int) -> None:
    eps = {"eps": 0.3} if normalize else {}
    layer = build(top_k=3, scores="sigmoid" if sigmoid else "softmax", normalize=normalize, scale=1.5, **others, **eps).eval()
    assert layer.eps == eps.get("eps", 1e-20)
    if layer.router.bias is not None:
        nn.init.normal_(layer.router.bias)
    x = draw(2, 5)
    expected = torch.stack([slow(layer, t, sigmoid=sigmoid, normalize=normalize, k=3, scale=1.5) for t in x.flatten(0, 1)])
    torch.testing.assert_close(layer(x).flatten(0, 1), expected, **TOLERANCE)


def test_only_the_best_groups_are_eligible(seed: int) -> None:
    layer = build(num_groups=4, top_groups=2, top_k=3, scores="sigmoid", bias_rate=0.1).eval()
    scores = torch.rand(50, E, dtype=torch.float64)
    chosen = layer._choose(scores)
    for row, experts in zip(scores, chosen, strict=True):
        biased = (row + layer.bias).tolist()
        pairs = sorted(range(4), key=lambda g: biased[2 * g] + biased[2 * g + 1], reverse=True)[:2]
        allowed = [e for e in range(E) if e // 2 in pairs]
        assert set(experts.tolist()) == set(sorted(allowed, key=lambda e: biased[e], reverse=True)[:3])


def test_a_group_may_be_ranked_by_its_best_expert(seed: int) -> None:  # DeepSeek-V2
    layer = build(num_groups=2, top_groups=1, top_k=1, group_best=1, normalize=False)
    assert layer._choose(torch.tensor([[0.9, 0.0, 0.0, 0.0, 0.8, 0.8, 0.8, 0.8]])).tolist() == [[0]]
    layer = build(num_groups=2, top_groups=1, top_k=1, normalize=False)
    assert layer._choose(torch.tensor([[0.9, 0.0, 0.0, 0.0, 0.8, 0.7, 0.0, 0.0]])).tolist() == [[4]]


def test_the_balance_loss_is_transformers_divided_by_top_k(seed: int) -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    layer = build(top_k=2, balance_loss=1.0)
    x = draw(3, 40)
    layer(x)
    logits = layer.router(x).flatten(0, 1)
    expected = load_balancing_loss_func((logits,), num_experts=E, top_k=2)
    torch.testing.assert_close(take_reports(reporters(layer))[""].loss, expected.double() / 2, rtol=1e-5, atol=1e-5)  # theirs is in fp32


@torch.no_grad()
def test_losses_follow_their_equations_over_real_tokens(seed: int) -> None:
    layer = build(top_k=2, balance_loss=0.3, z_loss=0.7, scores="sigmoid")
    x, real = draw(2, 6), torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
    layer(x, real)
    report = take_reports(reporters(layer))[""]
    tokens = [x[b, t] for b in range(2) for t in range(6) if real[b, t]]
    choices, means, z = [0] * E, [0.0] * E, 0.0
    for token in tokens:
        logits = layer.router(token)
        scores = logits.sigmoid()
        for e in scores.topk(2).indices:
            choices[e] += 1
        means = [m + float(s / scores.sum()) / len(tokens) for m, s in zip(means, scores, strict=True)]
        z += float(logits.logsumexp(0) ** 2) / len(tokens)
    balance = E * sum(c / (2 * len(tokens)) * m for c, m in zip(choices, means, strict=True))
    assert report.loss.item() == pytest.approx(0.3 * balance + 0.7 * z, rel=1e-12)
    assert report.sums.tolist() == pytest.approx([*choices, balance * len(tokens), len(tokens)], rel=1e-12)
    x = x.detach().clone()
    x[1, 2:] += 1  # padding
    layer(x, real)
    assert take_reports(reporters(layer))[""].loss.item() == pytest.approx(report.loss.item(), rel=1e-12)


def test_a_step_moves_the_bias_towards_even_shares_and_logs_them() -> None:
    layer = build(num_experts=4, bias_rate=0.01)
    layer.bias.zero_()
    logged = layer.end_step(torch.tensor([8.0, 0.0, 4.0, 4.0, 30.0, 20.0]))
    assert layer.bias.tolist() == pytest.approx([-0.01, 0.01, 0.0, 0.0])
    assert {k: v.item() for k, v in logged.items() if k.startswith("share")} == {
        "share_0": 0.5,
        "share_1": 0,
        "share_2": 0.25,
        "share_3": 0.25,
    }
    assert logged["entropy"].item() == pytest.approx(0.75)  # 1.5 bits of 2
    assert logged["balance"].item() == 1.5


def test_the_loop_of_the_how_to_counts_real_tokens_only() -> None:
    [code] = [block for block in blocks("docs/how-to/own-module.md", "python") if "take_reports" in block]
    found: dict[str, Any] = {}
    exec(code, found)
    assert all(layer.feed_forward.router.weight.grad is not None for layer in found["model"].stack.decoder.layers)
    for mask, counted in ((found["tokens"] != 0, 6), (None, 8)):
        found["model"](found["tokens"], mask)
        assert {int(report.sums[-1]) for report in take_reports(reporters(found["model"])).values()} == {counted}


def test_an_expert_without_tokens_gets_zero_gradients(seed: int) -> None:  # DDP waits for every gradient
    layer = build(top_k=1, normalize=False)
    layer(draw(1, 2)).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    assert sum(bool(e.output.weight.grad.any()) for e in layer.experts) <= 2


def test_nothing_is_reported_in_evaluation(seed: int) -> None:
    layer = build().eval()
    layer(draw(1, 4))
    assert take_reports(reporters(layer)) == {}


def test_a_layer_used_twice_reports_both_calls(seed: int) -> None:
    layer = build()
    x, other = draw(2, 3), draw(2, 4)
    single = [take_reports(reporters(layer))[""] for z in (x, other) if layer(z) is not None]
    layer(x), layer(other)
    both = take_reports(reporters(layer))[""]
    torch.testing.assert_close(both.loss, single[0].loss + single[1].loss)
    torch.testing.assert_close(both.sums, single[0].sums + single[1].sums)


def test_dropout_in_an_expert_depends_only_on_the_token(seed: int) -> None:
    layer = build(expert={**GLU, "dropout": 0.5})
    draws.name_sites(layer)
    x, keys = draw(3, 5), torch.tensor([11, 22, 33])
    with draws.using(keys):
        whole = layer(x)
    with draws.using(keys[1:]):
        torch.testing.assert_close(layer(x[1:]), whole[1:], **TOLERANCE)
    with draws.using(keys + 1):
        assert not torch.allclose(layer(x), whole)
    with draws.using(keys):
        same = layer(x[:, :1].expand(3, 5, -1))
        assert not torch.allclose(same[:, 0], same[:, 1])  # equal tokens at other positions


@torch.no_grad()
@pytest.mark.parametrize("stack", ["decoder", "encoder_decoder"])
def test_without_a_mask_every_token_is_real_regardless_of_its_id(stack: str) -> None:  # DeepSeek-V3's bos_id is 0, T5's is its pad_id
    sizes = {"d_model": D, "num_layers": 2, "num_heads": 2, "position": "rotary", "feed_forward": {"name": "mixture_of_experts"}}
    special: dict[str, Any] = {"pad_id": 0, "bos_id": 0, "eos_id": 1}
    tokens = torch.tensor([[0, 7, 0, 1, 8, 9]])
    if stack == "decoder":
        model = attnkit.compose(stack="decoder", **sizes, vocab_size=12, **special).double()
        whole, state = model(tokens), None
    else:
        src = torch.randint(3, 12, (1, 5))
        model = attnkit.compose(stack="encoder_decoder", **sizes, src_vocab_size=12, tgt_vocab_size=12, **special).double()
        whole, state = model(src, tokens), model.encode(src)
    for t in range(tokens.shape[1]):
        logits, state = model.step(tokens[:, t : t + 1], state)
        torch.testing.assert_close(logits, whole[:, t], **TOLERANCE)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch asks for it where a graph goes on
@pytest.mark.parametrize("how", ["checkpoint", "compile", "both"])
def test_losses_are_equal_when_recomputed_or_compiled(how: str, seed: int) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.experts = nn.Linear(D, D).double(), build(balance_loss=1.0, z_loss=1.0)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x + self.experts(self.first(x).tanh())
            return y

    layers, x = nn.ModuleList([Layer(), Layer()]), draw(2, 6)

    def gradients(run: Any) -> tuple[list[Tensor], list[Tensor]]:
        layers.zero_grad()
        y = x
        for layer in layers:
            y = run(layer, y)
        reports = list(take_reports(reporters(layers)).values())
        (y.square().sum() + sum(r.loss for r in reports)).backward()
        return [p.grad.clone() for p in layers.parameters()], [t.detach() for r in reports for t in r]

    def recompute(layer: Layer, x: Tensor) -> Any:
        return checkpoint(Layer.forward, layer, x, use_reentrant=False)

    torch._dynamo.reset()
    run: Any = Layer.forward if how == "compile" else recompute
    run = run if how == "checkpoint" else torch.compile(run, dynamic=True, backend="aot_eager")
    expected, reported = gradients(Layer.forward)
    for _ in range(2):
        found, values = gradients(run)
        assert len(values) == len(reported) == 4
        for a, b in zip([*found, *values], [*expected, *reported], strict=True):
            torch.testing.assert_close(a, b, **TOLERANCE)


def test_a_loop_of_ones_own_may_recompute_layers(seed: int) -> None:
    """A norm after the experts makes the recomputation reach their report, which must not be added to that of the next step."""
    layer, norm = build(balance_loss=1.0), nn.LayerNorm(D).double()
    for _ in range(2):
        x = draw(2, 6)
        y: Any = checkpoint(lambda x: norm(layer(x)).tanh(), x, use_reentrant=False)
        [report] = take_reports(reporters(layer)).values()
        assert report.sums[-1] == 12
        (y.sum() + report.loss).backward()
    assert take_reports(reporters(layer)) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_groups": 3}, r"num_groups \(3\) must divide num_experts \(8\)"),
        ({"num_groups": 2, "top_groups": 3}, r"top_groups \(3\) must be in \[1, 2\]"),
        ({"top_k": 9}, r"top_k \(9\) must be in \[1, 8\]"),
        ({"top_k": 5, "num_groups": 2, "top_groups": 1}, r"top_k \(5\) must be in \[1, 4\], the experts of 1 groups"),
        ({"num_groups": 8, "top_groups": 4}, r"group_best \(2\) must be in \[1, 1\]"),
        ({"num_groups": 4}, "num_groups has no effect while all groups are open"),
        ({"top_k": 1}, "the router cannot learn"),
        ({"bias_rate": -0.1}, "bias_rate must not be negative"),
        ({"balance_loss": -0.1}, "balance_loss, z_loss and bias_rate must not be negative"),
        ({"scale": 0.0}, "scale and eps must be positive"),
        ({"eps": 0.0}, "scale and eps must be positive"),
        ({"eps": 1e-6, "normalize": False}, "eps has no effect without normalize"),
        ({"shared_gate": True}, "shared_gate scales the output of shared"),
        ({"shared_gate": True, "shared": "none"}, "shared_gate scales the output of shared"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(attnkit.ConfigurationError, match=message):
        build(**arguments)


def test_an_exported_program_routes_the_tokens_it_is_given(seed: int) -> None:
    layer = build(top_k=2, num_groups=4, top_groups=2).eval()
    sizes = {0: torch.export.Dim("rows", min=2), 1: torch.export.Dim("length", min=2)}
    program = torch.export.export(layer, (draw(2, 5),), dynamic_shapes=(sizes,)).module()
    for x in (draw(2, 5), draw(3, 4)):
        torch.testing.assert_close(program(x), layer(x), **TOLERANCE)


def test_vmap_routes_each_row(seed: int) -> None:
    layer, x = build(top_k=2, num_groups=4, top_groups=2).eval(), draw(3, 5)
    torch.testing.assert_close(torch.func.vmap(layer)(x), layer(x), **TOLERANCE)


def test_copies_drop_the_report(seed: int) -> None:
    layer = build(z_loss=0.1).train()
    layer(draw(2, 5)).sum().backward()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.report is None
        assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), layer.parameters(), strict=True))
    assert layer.report is not None


def test_reports_never_taken_are_dropped_with_a_warning(seed: int) -> None:
    layer, x = build(balance_loss=1.0).train(), draw(2, 5)
    for _ in range(3):  # a loop that takes them hears nothing
        for _ in range(FORGOTTEN):
            layer(x)
        (taken,) = take_reports(reporters(layer)).values()
    layer(x)
    (once,) = take_reports(reporters(layer)).values()
    torch.testing.assert_close(taken.loss, FORGOTTEN * once.loss, **TOLERANCE)
    for _ in range(FORGOTTEN):
        layer(x)
    with pytest.warns(UserWarning, match=r"never taken.*attnkit.reports.take_reports"):
        layer(x)
    (rest,) = take_reports(reporters(layer)).values()
    torch.testing.assert_close(rest.loss, once.loss, **TOLERANCE)
