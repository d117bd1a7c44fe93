"""Time decoding against transformers with equal weights, contestants in alternation: the decoding rows of docs/results/speed.md.

`greedy` compares a decoder with GPT-2, `beam` an encoder-decoder with BART under a beam of 5. No end token is allowed, so both write the
same number of tokens; the script prints whether they are equal. With `greedy` and `beam`, it first prints the shortest time in which this
processor reads the weights once. `recurrent` compares an LSTM decoder with additive attention, before or after the cell, with a Python loop
over `nn.LSTMCell`: a training step of the decoder on a given memory, and greedy decoding.

Usage: OMP_NUM_THREADS=1 python scripts/decoding.py {greedy,beam,recurrent} [--compile]
       [--device cuda] [--d-model D] [--layers L] [--vocab V] [--batch B ...]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import attnkit

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LAYER = {"mixer.output": "attn.c_proj", "feed_forward.input": "mlp.c_fc", "feed_forward.output": "mlp.c_proj"}
NORMS = {"mixer_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2"}


def decoders(chosen: argparse.Namespace, length: int) -> tuple[nn.Module, Any, dict[str, Tensor]]:
    """Return GPT-2, our decoder, and GPT-2's weights under our names."""
    d, count, vocab, heads = chosen.d_model, chosen.layers, chosen.vocab, chosen.d_model // 64
    config = transformers.GPT2Config(
        vocab_size=vocab, n_positions=length, n_embd=d, n_layer=count, n_head=heads, bos_token_id=1, eos_token_id=None, pad_token_id=0
    )
    theirs = random(transformers.GPT2LMHeadModel(config))
    ours = attnkit.compose(
        stack={
            "name": "decoder", "d_model": d, "num_layers": count, "num_heads": heads, "position": {"name": "learned", "max_length": length},
            "feed_forward": {"name": "mlp", "activation": "gelu_tanh"},
        },
        embedding={"name": "token", "scale": False}, vocab_size=vocab, tie="output", eos_id=None,
    )  # fmt: skip
    table: dict[str, Tensor] = {
        "embedding.weight": theirs.transformer.wte.weight,
        "stack.decoder.position.weight": theirs.transformer.wpe.weight,
    }
    for kind in ("weight", "bias"):
        table[f"stack.decoder.final_norm.{kind}"] = getattr(theirs.transformer.ln_f, kind)
        for i, layer in enumerate(theirs.transformer.h):
            ours_i = f"stack.decoder.layers.{i}"
            parts = getattr(layer.attn.c_attn, kind).split(d, -1)
            table |= {f"{ours_i}.mixer.{name}.{kind}": part.t() for name, part in zip(("query", "key", "value"), parts, strict=True)}
            table |= {f"{ours_i}.{our}.{kind}": getattr(layer.get_submodule(their), kind).t() for our, their in LAYER.items()}
            table |= {f"{ours_i}.{our}.{kind}": getattr(layer.get_submodule(their), kind) for our, their in NORMS.items()}
    return theirs, ours, table


def encoder_decoders(chosen: argparse.Namespace, length: int) -> tuple[nn.Module, Any, dict[str, Tensor]]:
    """Return BART, our encoder-decoder, and BART's weights under our names."""
    d, count, vocab, heads = chosen.d_model, chosen.layers, chosen.vocab, chosen.d_model // 64
    sides = {
        f"{side}_{name}": n
        for side in ("encoder", "decoder")
        for name, n in (("layers", count), ("attention_heads", heads), ("ffn_dim", 4 * d))
    }
    config = transformers.BartConfig(
        **sides, d_model=d, vocab_size=vocab, max_position_embeddings=length, pad_token_id=0, bos_token_id=1, eos_token_id=None,
        decoder_start_token_id=1, forced_eos_token_id=None,
    )  # fmt: skip
    theirs = random(transformers.BartForConditionalGeneration(config))
    ours = attnkit.compose(
        stack={
            "name": "encoder_decoder", "d_model": d, "num_layers": count, "num_heads": heads,
            "residual": "post_norm", "embedding_norm": True,
            "position": {"name": "learned", "max_length": length}, "feed_forward": {"name": "mlp", "activation": "gelu"},
        },
        embedding={"name": "token", "scale": False}, src_vocab_size=vocab, tgt_vocab_size=vocab, tie="all", eos_id=None,
    )  # fmt: skip
    table: dict[str, Tensor] = {"embeddings.shared.weight": theirs.model.shared.weight}
    for side in ("encoder", "decoder"):
        their_side = getattr(theirs.model, side)
        table[f"stack.{side}.position.weight"] = their_side.embed_positions.weight[2:]
        renames = {
            **{f"mixer.{our}": f"self_attn.{their}_proj" for our, their in PROJECTIONS.items()},
            **{f"cross_mixer.{our}": f"encoder_attn.{their}_proj" for our, their in PROJECTIONS.items()},
            "mixer_residual.norm": "self_attn_layer_norm", "cross_mixer_residual.norm": "encoder_attn_layer_norm",
            "feed_forward.input": "fc1", "feed_forward.output": "fc2", "feed_forward_residual.norm": "final_layer_norm",
        }  # fmt: skip
        for kind in ("weight", "bias"):
            table[f"stack.{side}.embedding_norm.{kind}"] = getattr(their_side.layernorm_embedding, kind)
            for i, layer in enumerate(their_side.layers):
                own = {our: their for our, their in renames.items() if side == "decoder" or not our.startswith("cross")}
                table |= {f"stack.{side}.layers.{i}.{our}.{kind}": getattr(layer.get_submodule(their), kind) for our, their in own.items()}
    return theirs, ours, table


PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "out"}


def random(model: Any) -> Any:
    """Draw weights that give spread logits."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.05)
    return model


def contestants(chosen: argparse.Namespace, theirs: Any, ours: Any) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the functions to time: each maps the prompt or source to the new tokens."""
    beams = 1 if chosen.kind == "greedy" else 5
    length = {"max_new_tokens": chosen.new, "min_new_tokens": chosen.new}

    def run_theirs(tokens: Tensor) -> Tensor:
        written = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, num_beams=beams, **length)
        return written[:, -chosen.new :]  # type: ignore[no-any-return]

    def run_ours(tokens: Tensor) -> Tensor:
        return ours.generate(tokens, beam_size=beams, max_length=chosen.new, min_length=chosen.new)  # type: ignore[no-any-return]

    return {"transformers": run_theirs, "attnkit": run_ours}


class Loop:
    """A hand-written decoder: a cell and additive attention, token by token, with the weights of our model."""

    def __init__(self, ours: Any) -> None:
        decoder, layer = ours.stack.decoder, ours.stack.decoder.recurrent.layers[0]
        self.ours, self.is_before = ours, decoder.placement == "before"
        self.cell = nn.LSTMCell(layer.input_weight.shape[1], layer.hidden_dim)
        self.cell.weight_ih, self.cell.weight_hh = layer.input_weight, layer.hidden_weight
        self.cell.bias_ih, self.cell.bias_hh = layer.input_bias, layer.hidden_bias
        score = decoder.attention.attention
        self.query, self.score, self.readout = score.query_weight[0], score.score_weight[0], decoder.readout

    def start(self, state: Any) -> tuple[Tensor, ...]:
        """Return hidden state, cell, projected keys and memory."""
        return state.layers[0].hidden, state.layers[0].cell, state.memory.key[:, 0], state.memory.value[:, 0]

    def attend(self, h: Tensor, keys: Tensor, memory: Tensor) -> Tensor:
        """Return the context [B, D]."""
        logits = torch.tanh((h @ self.query)[:, None] + keys) @ self.score
        context: Tensor = logits.softmax(-1)[:, None] @ memory
        return context[:, 0]

    def step(self, x: Tensor, h: Tensor, c: Tensor, keys: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output [B, D], the hidden state and the cell after one token [B, D]."""
        context = self.attend(h, keys, memory) if self.is_before else None
        h, c = self.cell(x if context is None else torch.cat([x, context], -1), (h, c))
        context = self.attend(h, keys, memory) if context is None else context
        return torch.tanh(self.readout(torch.cat([context, h], -1))), h, c

    def logits(self, tgt: Tensor, state: Any) -> Tensor:
        """Return the logits [B, T, V] of a target."""
        h, c, *memory = self.start(state)
        outputs = []
        for x in self.ours.embeddings["tgt"](tgt).unbind(1):
            y, h, c = self.step(x, h, c, *memory)
            outputs.append(y)
        return self.ours.head(torch.stack(outputs, 1))  # type: ignore[no-any-return]

    @torch.no_grad()
    def generate(self, src: Tensor, length: int) -> Tensor:
        """Return the tokens [B, length] of greedy decoding."""
        h, c, *memory = self.start(self.ours.encode(src))
        token, tokens = src.new_full((len(src),), self.ours.bos_id), []
        for _ in range(length):
            y, h, c = self.step(self.ours.embeddings["tgt"](token[:, None])[:, 0], h, c, *memory)
            token = self.ours.head(y).argmax(-1)
            tokens.append(token)
        return torch.stack(tokens, 1)


def recurrent(chosen: argparse.Namespace, placement: str, batch: int) -> None:
    """Print the lines of the recurrent decoder whose attention is before or after the cell."""
    ours: Any = attnkit.compose(
        stack={
            "name": "recurrent_encoder_decoder", "d_model": chosen.d_model, "num_layers": 1,
            "attention": "additive", "placement": placement,
        },
        src_vocab_size=chosen.vocab, tgt_vocab_size=chosen.vocab, eos_id=None,
    ).to(chosen.device)  # fmt: skip
    loop = Loop(ours)
    src, tgt = (torch.randint(3, chosen.vocab, (batch, count), device=chosen.device) for count in (chosen.prompt, chosen.new))
    with torch.no_grad():
        state = ours.encode(src)

    def trained(logits: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def step() -> Tensor:
            scored = logits()
            torch.autograd.backward(nn.functional.cross_entropy(scored.flatten(0, 1), tgt.flatten()))
            return scored.detach()

        return step

    title = f"recurrent, attention {placement} the cell, batch {batch}"
    calls = {
        "loop": trained(lambda: loop.logits(tgt, state)),
        "attnkit": trained(lambda: ours.head(ours.stack.decode(ours.embeddings["tgt"](tgt), state)[0])),
    }
    compare(f"{title}, training", calls, chosen)
    calls = {"loop": lambda: loop.generate(src, chosen.new), "attnkit": lambda: ours.generate(src, max_length=chosen.new)}
    compare(f"{title}, greedy", calls, chosen)


def compare(title: str, calls: Mapping[str, Callable[[], Tensor]], chosen: argparse.Namespace) -> None:
    """Print the median milliseconds per step of both, and the median ratio of the other's time to ours in the same round."""
    clock = time.perf_counter if chosen.clock == "wall" else time.thread_time
    theirs, ours = (call() for call in calls.values())
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(chosen.rounds):
        for name, call in calls.items():
            began = clock()
            call().cpu()  # waits for a GPU
            times[name].append((clock() - began) / chosen.new * 1e3)
    other = next(iter(calls))
    ratio = statistics.median(a / b for a, b in zip(times[other], times["attnkit"], strict=True))
    equal = "equal" if torch.allclose(theirs, ours, atol=1e-4) else "different"
    steps = ", ".join(f"{name} {statistics.median(ms):.2f}" for name, ms in times.items())
    print(f"{title}: ms per step: {steps}; {ratio:.2f} times as fast; {equal} results", flush=True)


def reading(model: nn.Module) -> float:
    """Return the processor time in milliseconds to read all weights once: the shortest of ten tries."""
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).float()
    times = []
    for _ in range(10):
        began = time.thread_time()
        weights.sum().item()
        times.append(time.thread_time() - began)
    size = next(model.parameters()).element_size() / weights.element_size()
    return min(times) * 1e3 * size


def main() -> None:
    """Print a line for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("greedy", "beam", "recurrent"))
    for name, value in (("d-model", 512), ("layers", 6), ("vocab", 8192), ("prompt", 64), ("new", 64), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--precision", choices=DTYPES, default="fp32")
    parser.add_argument("--compile", action="store_true", help="compile our step (greedy and beam)")
    parser.add_argument("--device", default="cpu", help="cuda: on a GPU (default: cpu)")
    parser.add_argument("--clock", choices=("wall", "thread"), default="wall", help="thread: processor time, for a machine with other load")
    chosen = parser.parse_args()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if chosen.kind == "recurrent":
        for placement in ("before", "after"):
            for batch in chosen.batch:
                recurrent(chosen, placement, batch)
        return
    theirs, ours, table = (decoders if chosen.kind == "greedy" else encoder_decoders)(chosen, chosen.prompt + chosen.new + 1)
    assert table.keys() == dict(ours.named_parameters()).keys()
    for name, parameter in ours.named_parameters():
        parameter.data.copy_(table[name])
    for model in (theirs, ours):
        model.eval().to(chosen.device, DTYPES[chosen.precision])
    if chosen.compile:
        ours.step = torch.compile(ours.step, dynamic=True)
    calls = contestants(chosen, theirs, ours)
    size = sum(p.numel() for p in ours.parameters()) / 1e6
    print(f"reading {size:.1f}M weights once takes {reading(ours):.2f} ms")
    for batch in chosen.batch:
        tokens = torch.randint(3, chosen.vocab, (batch, chosen.prompt), device=chosen.device)
        own = {name: partial(call, tokens) for name, call in calls.items()}
        compare(f"{chosen.kind}, {size:.1f}M, {chosen.precision}, batch {batch}", own, chosen)


if __name__ == "__main__":
    main()
