"""The options that the page names for those of x-transformers compute the same, with copied weights in float64."""

import inspect
import re
from collections.abc import Callable

import pytest
import torch
from published.engine import LENGTH, NEW, PROMPT, STD, assert_close, double
from published.options_of_x_transformers import ABSENT, DIFFERENT, HEAD_DIM, HEADS, OPTIONS, OURS, THEIRS, TOGETHER, WRAPPER, D, Option
from torch import Tensor, nn
from torch.func import functional_call

import attnkit
from attnkit.attention import Attention

x_transformers = pytest.importorskip("x_transformers")

BOS, VOCAB, TOLERANCE = 1, 40, 1e-10
EYE = torch.eye(HEADS, dtype=torch.float64)


def same(x: Tensor) -> Tensor:
    return x


def plus_one(x: Tensor) -> Tensor:
    return x + 1


def joint(x: Tensor) -> Tensor:
    return x[0, 0] + 1


def mixing(x: Tensor) -> Tensor:
    return (EYE + x[:, :, 0, 0]).T


RULES: list[tuple[str, str, Callable[[Tensor], Tensor]]] = [  # the end of our name, that of theirs, and what ours is of theirs
    (r"embedding\.weight|embeddings\.\w+\.weight", r"token_emb\.emb\.weight", same),
    (r"head\.projection\.weight", r"to_logits\.weight", same),
    (r"embedding_norm\.weight", r"post_emb_norm\.gamma", same),
    (r"final_norm\.weight", r"final_norm\.(gamma|g)", plus_one),
    (r"final_norm\.bias", r"final_norm\.beta", same),
    (r"final_norm\.alpha", r"final_norm\.pre_tanh_scale", plus_one),
    (r"residual\.norm\.weight", r"0\.[02]\.(gamma|g)", plus_one),
    (r"residual\.norm\.bias", r"0\.0\.beta", same),
    (r"residual\.norm\.alpha", r"0\.0\.pre_tanh_scale", plus_one),
    (r"residual\.input_norm\.weight", r"0\.0\.gamma", plus_one),
    (r"residual\.output_norm\.weight", r"0\.1\.gamma", plus_one),
    (r"residual\.scale", r"1\.gamma", plus_one),
    (r"query\.weight", r"to_q\.weight", same),
    (r"key\.weight", r"to_k\.weight", same),
    (r"value\.weight", r"to_v\.weight", same),
    (r"mixer\.output\.weight", r"to_out\.weight", same),
    (r"gate\.weight", r"to_v_(head_)?gate\.weight", same),
    (r"gate\.bias", r"to_v_head_gate\.bias", same),
    (r"forget_gate\.(weight|bias)", r"data_dependent_alibi\.to_forget_gates\.0\.KIND", same),
    (r"query_norm\.weight", r"q_rmsnorm\.gamma", joint),
    (r"key_norm\.weight", r"k_rmsnorm\.gamma", joint),
    (r"memory_keys\.key", r"mem_k", same),
    (r"memory_keys\.value", r"mem_v", same),
    (r"normalizer\.sink", r"head_attn_sink", same),
    (r"talking_heads\.logits", r"pre_softmax_talking_heads\.weight", mixing),
    (r"talking_heads\.weights", r"post_softmax_talking_heads\.weight", lambda x: x[:, :, 0, 0].T),
    (r"position\.weight", r"pos_emb\.emb\.weight", lambda x: x * D**-0.5),
    (r"position\.weight", r"relative_attention_bias\.weight", lambda x: x * HEAD_DIM**0.5),
    (r"position\.weight", r"layers\.0\..*cope\.pos_emb", same),
    (r"other_positions\.0\.weight", r"layers\.2\..*cope\.pos_emb", same),
    (r"feed_forward\.input\.(weight|bias)", r"ff\.0\.0\.KIND", same),
    (r"feed_forward\.input\.(weight|bias)", r"ff\.0\.proj\.KIND", lambda x: x.chunk(2)[0]),
    (r"feed_forward\.gate\.(weight|bias)", r"ff\.0\.proj\.KIND", lambda x: x.chunk(2)[1]),
    (r"feed_forward\.output\.(weight|bias)", r"ff\.2\.KIND", same),
]
FIXED = {"head_scale": 10.0, "value_residual.factor": 0.5}  # our parameters that are numbers there


class Theirs(nn.Module):
    """Their model, with our interface."""

    def __init__(self, option: Option) -> None:
        super().__init__()
        sizes = {**THEIRS, **{name: value for name, value in option.theirs.items() if name not in WRAPPER}}
        outer = {"num_tokens": VOCAB, "max_seq_len": 64, "use_abs_pos_emb": False}
        outer |= {name: value for name, value in option.theirs.items() if name in WRAPPER}
        if option.stack == "encoder_decoder":
            width = sizes.pop("dim")
            sides = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in {**outer, **sizes}.items()}
            both = x_transformers.XTransformer(dim=width, **sides)
            self.encoder, self.net = both.encoder, both.decoder.net
        else:
            kind = {"encoder": x_transformers.Encoder, "decoder": x_transformers.Decoder}[option.stack]
            self.encoder, self.net = None, x_transformers.TransformerWrapper(attn_layers=kind(**sizes, verbose=False), **outer)

    def context(self, source: Tensor, mask: Tensor | None = None) -> dict[str, Tensor | None]:
        return {} if self.encoder is None else {"context": self.encoder(source, mask=mask, return_embeddings=True), "context_mask": mask}

    def forward(self, tokens: Tensor, source: Tensor, mask: Tensor | None = None) -> Tensor:
        x: Tensor = self.net(tokens, mask=mask) if self.encoder is None else self.net(tokens, **self.context(source, mask))
        return x


class Pair:
    """Their model and ours, whose parameters are functions of theirs."""

    def __init__(self, option: Option) -> None:
        self.stack, self.caches = option.stack, "attn_data_dependent_alibi" not in option.theirs
        torch.manual_seed(0)
        with double():
            self.theirs = Theirs(option).double().eval()
        sides = ("src_vocab_size", "tgt_vocab_size") if self.stack == "encoder_decoder" else ("vocab_size",)
        spec = {"stack": self.stack, **dict.fromkeys(sides, VOCAB), **OURS, **option.ours, **(option.hidden or {})}
        spec = {name: value for name, value in spec.items() if value is not None}
        self.ours = attnkit.compose(**spec, embedding={"name": "token", "scale": False}, bos_id=BOS, eos_id=None).double().eval()
        self.parameters = dict(self.theirs.named_parameters())
        drawn = {name: x.detach().clamp(max=1) + STD * torch.randn_like(x) for name, x in self.parameters.items()}  # gates open at 10
        self.leaves = {name: (x[:1] if "_rmsnorm" in name else x).requires_grad_() for name, x in drawn.items()}
        with torch.no_grad():
            for model, values in ((self.theirs, self.of_theirs()), (self.ours, self.of_ours())):
                for name, x in model.named_parameters():
                    x.copy_(values[name])
        torch.manual_seed(1)
        self.tokens, self.source = torch.randint(3, VOCAB, (2, LENGTH)), torch.randint(3, VOCAB, (2, LENGTH - 2))

    def of_theirs(self) -> dict[str, Tensor]:
        return {name: x.expand(self.parameters[name].shape) for name, x in self.leaves.items()}

    def of_ours(self) -> dict[str, Tensor]:
        return {name: self.one(name, x) for name, x in self.ours.named_parameters()}

    def one(self, name: str, ours: Tensor) -> Tensor:
        """Return our parameter of this name."""
        for end, number in FIXED.items():
            if name.endswith(end):
                return torch.full_like(ours, number)
        in_encoder = self.theirs.encoder is not None and name.startswith(("stack.encoder", "embeddings.src"))
        within = r"encoder\..*" if in_encoder else r"net\..*"
        if place := re.fullmatch(r"stack\.(\w+)\.layers\.(\d+)\.(\w+?)(_residual)?\..*", name):
            side, layer, part = place[1], int(place[2]), place[3]
            parts = [
                (i, kind)
                for i, each in enumerate(getattr(self.ours.stack, side).layers)
                for kind in ("mixer", "cross_mixer", "feed_forward")
                if getattr(each, f"{kind}_residual", None) is not None
            ]
            within += rf"layers\.{parts.index((layer, part))}\..*"
        for end, their_end, of in RULES:
            if not re.fullmatch(rf"(.*[._])?({end})", name):
                continue
            pattern = within + r"(?<![a-z_])" + their_end.replace("KIND", name.rsplit(".", 1)[-1])
            if found := [x for theirs, x in self.leaves.items() if re.fullmatch(pattern, theirs)]:
                (x,) = found
                return self.by_key_head(name, of(x)).reshape(ours.shape)
        raise KeyError(f"no rule for {name}")

    def by_key_head(self, name: str, x: Tensor) -> Tensor:
        """Reorder query heads: there, head h reads the key head h mod Hkv."""
        if re.search(r"mixer\.(query|output|gate)\.weight|sink$", name) is None:
            return x
        (kv_heads,) = {each.num_kv_heads for each in self.ours.modules() if isinstance(each, Attention)}
        axis, order = int("output" in name), torch.arange(HEADS).view(-1, kv_heads).T.flatten()
        return x.unflatten(axis, (HEADS, -1)).index_select(axis, order).flatten(axis, axis + 1)

    def run_ours(self, *, mask: Tensor | None = None, values: dict[str, Tensor] | None = None) -> Tensor:
        if self.stack == "encoder_decoder":
            given = (self.source, self.tokens, mask)
        else:
            given = (self.tokens, mask)
        x: Tensor = self.ours(*given) if values is None else functional_call(self.ours, values, given)
        return x


@pytest.fixture(scope="module", params=[*OPTIONS, *TOGETHER], ids=lambda option: option.name or option.stack)
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def test_logits_and_gradients_are_equal(pair: Pair) -> None:
    ours = pair.run_ours(values=pair.of_ours())
    with double():
        theirs = functional_call(pair.theirs, pair.of_theirs(), (pair.tokens, pair.source))
    assert_close(ours.detach(), theirs.detach(), "logits", TOLERANCE)
    direction = torch.randn_like(theirs)
    names, leaves = list(pair.leaves), list(pair.leaves.values())
    found, expected = (
        torch.autograd.grad((x * direction).sum(), leaves, allow_unused=True, materialize_grads=True) for x in (ours, theirs)
    )
    for name, x, y in zip(names, found, expected, strict=True):
        assert_close(x, y, f"gradient of {name}", TOLERANCE)


def test_cached_decoding_is_equal(pair: Pair) -> None:
    if pair.stack == "encoder":
        pytest.skip("an encoder")
    if not pair.caches:
        pytest.skip("x-transformers computes its forget gates of the newest token alone")
    steps: list[tuple[Tensor, Tensor]] = []
    with double(), torch.no_grad():
        context, cache = pair.theirs.context(pair.source), None
        state = None if pair.theirs.encoder is None else pair.ours.encode(pair.source)
        for start, end in [(0, PROMPT), *((t, t + 1) for t in range(PROMPT, LENGTH))]:
            theirs, cache = pair.theirs.net(pair.tokens[:, :end], cache=cache, return_intermediates=True, **context)
            ours, state = pair.ours.step(pair.tokens[:, start:end], state)
            steps.append((ours, theirs[:, -1]))
        whole = pair.run_ours()[:, PROMPT - 1 :]
    cached, their_cached = (torch.stack(logits, 1) for logits in zip(*steps, strict=True))
    assert_close(cached, their_cached, "cached logits", TOLERANCE)
    assert_close(cached, whole, "cached and whole logits", TOLERANCE)


def test_greedy_output_is_equal(pair: Pair) -> None:
    if pair.stack == "encoder":
        pytest.skip("an encoder")
    if not pair.caches:
        pytest.skip("x-transformers computes its forget gates of the newest token alone")
    ours = pair.ours.generate(pair.tokens[:, :PROMPT] if pair.theirs.encoder is None else pair.source, max_length=NEW)
    with double(), torch.no_grad():
        prompt = pair.tokens[:, :PROMPT] if pair.theirs.encoder is None else torch.full((2, 1), BOS)
        writer = x_transformers.AutoregressiveWrapper(pair.theirs.net)
        theirs = writer.generate(prompt, NEW, temperature=0.0, **pair.theirs.context(pair.source))
    assert torch.equal(ours, theirs)


def test_a_padded_batch_is_equal(pair: Pair) -> None:
    mask = torch.ones_like(pair.source if pair.theirs.encoder is not None else pair.tokens, dtype=torch.bool)
    mask[1, -4:] = False
    with double(), torch.no_grad():
        ours, theirs = pair.run_ours(mask=mask), pair.theirs(pair.tokens, pair.source, mask)
    real = mask if pair.theirs.encoder is None else torch.ones_like(pair.tokens, dtype=torch.bool)
    assert_close(ours[real], theirs[real], "padded logits", TOLERANCE)


def test_options_listed_as_unmatched_exist() -> None:
    module = x_transformers.x_transformers
    classes = {"": (module.AttentionLayers, module.TransformerWrapper), "attn_": (module.Attention,), "ff_": (module.FeedForward,)}
    known = {f"{prefix}{name}" for prefix, kinds in classes.items() for kind in kinds for name in inspect.signature(kind).parameters}
    equal = {name for option in OPTIONS for name, value in option.theirs.items() if value is not False}
    assert {*ABSENT, *DIFFERENT} <= known - equal
    assert list(ABSENT) == sorted(set(ABSENT) - set(DIFFERENT))
