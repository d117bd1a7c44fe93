"""Time decoding against transformers with equal weights, contestants in alternation: the decoding rows of docs/results/speed.md.

`greedy` compares a decoder with GPT-2, `beam` an encoder-decoder with BART under a beam of 5. No end token is allowed, so both write the
same number of tokens, and whether these are equal is printed.

Usage: OMP_NUM_THREADS=1 python scripts/decoding.py {greedy,beam} [--d-model D] [--layers L] [--vocab V] [--batch B ...] [--precision P]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import attnkit

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LAYER = {"mixer.output": "attn.c_proj", "feed_forward.input": "mlp.c_fc", "feed_forward.output": "mlp.c_proj"}
NORMS = {"mixer_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2"}


def decoders(chosen: argparse.Namespace, length: int) -> tuple[nn.Module, nn.Module, dict[str, Tensor]]:
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


def encoder_decoders(chosen: argparse.Namespace, length: int) -> tuple[nn.Module, nn.Module, dict[str, Tensor]]:
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
                here = {our: their for our, their in renames.items() if side == "decoder" or not our.startswith("cross")}
                table |= {f"stack.{side}.layers.{i}.{our}.{kind}": getattr(layer.get_submodule(their), kind) for our, their in here.items()}
    return theirs, ours, table


PROJECTIONS = {"query": "q", "key": "k", "value": "v", "output": "out"}


def random(model: Any) -> Any:
    """Draw weights that give spread logits."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.05)
    return model


def contestants(chosen: argparse.Namespace, theirs: Any, ours: Any) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return what is timed: from the prompt or source to the new tokens."""
    beams = 1 if chosen.kind == "greedy" else 5
    length = {"max_new_tokens": chosen.new, "min_new_tokens": chosen.new}

    def run_theirs(tokens: Tensor) -> Tensor:
        written = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, num_beams=beams, **length)
        return written[:, -chosen.new :]  # type: ignore[no-any-return]

    def run_ours(tokens: Tensor) -> Tensor:
        return ours.generate(tokens, beam_size=beams, max_length=chosen.new, min_length=chosen.new)  # type: ignore[no-any-return]

    return {"transformers": run_theirs, "attnkit": run_ours}


def main() -> None:
    """Print a line for each batch size: median milliseconds per step, and the median of their time over ours in the same round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("greedy", "beam"))
    for name, value in (("d-model", 512), ("layers", 6), ("vocab", 8192), ("prompt", 64), ("new", 64), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--precision", choices=DTYPES, default="fp32")
    parser.add_argument("--clock", choices=("wall", "thread"), default="wall", help="thread: processor time, for a machine with other load")
    chosen = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    clock = time.perf_counter if chosen.clock == "wall" else time.thread_time
    theirs, ours, table = (decoders if chosen.kind == "greedy" else encoder_decoders)(chosen, chosen.prompt + chosen.new + 1)
    assert table.keys() == dict(ours.named_parameters()).keys()
    for name, parameter in ours.named_parameters():
        parameter.data.copy_(table[name])
    for model in (theirs, ours):
        model.eval().to(DTYPES[chosen.precision])
    calls = contestants(chosen, theirs, ours)
    size = sum(p.numel() for p in ours.parameters()) / 1e6
    for batch in chosen.batch:
        tokens = torch.randint(3, chosen.vocab, (batch, chosen.prompt))
        written = {name: call(tokens) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(chosen.rounds):
            for name, call in calls.items():
                began = clock()
                call(tokens)
                times[name].append((clock() - began) / chosen.new * 1e3)
        ratio = statistics.median(a / b for a, b in zip(times["transformers"], times["attnkit"], strict=True))
        equal = "equal" if torch.equal(*written.values()) else "different"
        steps = ", ".join(f"{name} {statistics.median(ms):.2f}" for name, ms in times.items())
        what = f"{chosen.kind}, {size:.1f}M, {chosen.precision}, batch {batch}"
        print(f"{what}: ms per step: {steps}; {ratio:.2f} times as fast; {equal} tokens", flush=True)


if __name__ == "__main__":
    main()
