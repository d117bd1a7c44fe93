"""`attnkit bench`: models timed in alternation, or the peak rates of this machine, as a table and as files."""

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from attnkit.cli.suggesting import SuggestingParser
from attnkit.device import best_device
from attnkit.drawing import draw_lines
from attnkit.models import compose
from attnkit.profile.bench import WORKS, Plan, Row, measure
from attnkit.profile.ceilings import measure_machine
from attnkit.profile.peers import PEERS, peer
from attnkit.recipe import merged, read_layers, read_yaml
from attnkit.registry import ConfigurationError, embeddings, require_at_least, tasks
from attnkit.train.output import output

MODEL_KEYS = ("stack", "embedding", "tie", "head", "multi_token", "init")  # task options that are arguments of `attnkit.compose`


def bench(arguments: list[str]) -> None:
    """Run `attnkit bench`."""
    parser = SuggestingParser(prog="attnkit bench", description=(__doc__ or "")[16:], allow_abbrev=False)
    parser.add_argument(
        "subjects",
        nargs="*",
        metavar="RECIPE",
        help="recipes, or specs such as '{stack: decoder, d_model: 64, num_layers: 2, num_heads: 4}' (default: this machine's peak rates)",
    )
    models = parser.add_argument_group("models")
    models.add_argument("--work", nargs="+", choices=WORKS, default=[*WORKS], help="what to time (default: all)")
    models.add_argument("--lengths", type=int, nargs="+", default=[128, 512], metavar="T", help="tokens per row (default: 128 512)")
    models.add_argument("--batch", type=int, default=8, metavar="B", help="rows (default: 8)")
    models.add_argument("--vocab", type=int, default=8192, metavar="V", help="vocabulary size (default: 8192)")
    models.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16 is autocast (default: fp32)")
    models.add_argument("--compile", action="store_true", help="compile the models that step and forward call")
    models.add_argument("--rounds", type=int, default=9, metavar="N", help="number of times each implementation is timed (default: 9)")
    others = "also other implementations of a decoder or an encoder-decoder, with the first model's sizes and dropout"
    models.add_argument("--peers", nargs="+", choices=[*PEERS], default=[], help=others)
    models.add_argument("--svg", metavar="FILE", help="also draw the tokens per second over the lengths")
    machine = parser.add_argument_group("the machine's rates")
    machine.add_argument("--processes", type=int, metavar="N", help="processes of an all-reduce on this machine (default: its GPUs)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to this file; rates are for attnkit plan --machine FILE")
    chosen = parser.parse_args(arguments)
    unread = [action.dest for action in (machine if chosen.subjects else models)._group_actions]
    if found := [name for name in unread if getattr(chosen, name) != parser.get_default(name)]:
        parser.error(f"--{found[0]} is for {'the rates of the machine: name no recipe' if chosen.subjects else 'models: name a recipe'}")
    if chosen.compile and not {"step", "forward"} & set(chosen.work):
        parser.error(f"--compile has no effect on {' and '.join(chosen.work)}: remove it, or time step or forward")
    chosen.command = shlex.join(["attnkit", "bench", *arguments])
    (_models if chosen.subjects else _machine)(chosen)


def _models(chosen: argparse.Namespace) -> None:
    if min(chosen.batch, chosen.rounds, *chosen.lengths) < 1 or chosen.vocab < 4:
        raise ConfigurationError("--batch, --rounds and --lengths must be at least 1, and --vocab at least 4")
    device = best_device()
    models: dict[str, nn.Module] = {}
    for subject in chosen.subjects:
        if subject in models:
            raise ConfigurationError(f"{subject} is given twice")
        torch.manual_seed(0)
        models[subject] = _model(subject, chosen.vocab).to(device)
    first: Any = next(iter(models.values()))
    for name in chosen.peers:
        models[name] = peer(name, first.spec, max_length=max(chosen.lengths) + 64).to(device)
    plan = Plan(
        works=chosen.work, lengths=chosen.lengths, batch=chosen.batch, vocab_size=chosen.vocab, precision=chosen.precision,
        is_compiled=chosen.compile, rounds=chosen.rounds,
    )  # fmt: skip
    ceiling, rows = measure(models, plan, device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    settings = f"{chosen.precision}, batch {chosen.batch}, vocabulary {chosen.vocab}, {chosen.rounds} rounds"
    settings += ", step and forward compiled" if chosen.compile else ""
    print(f"{where}; torch {torch.__version__}; {settings}; matrix products at {ceiling:.3g} TFLOP/s\n")
    print(_table(rows))
    if chosen.json is not None:
        found = {"command": chosen.command, "device": where, "torch": torch.__version__, "tflops": ceiling,
                 "compiled": chosen.compile, "batch": chosen.batch, "vocab": chosen.vocab, "precision": chosen.precision,
                 "rounds": chosen.rounds, "rows": [asdict(row) for row in rows]}  # fmt: skip
        with output(chosen.json) as file:
            file.write(json.dumps(found, indent=2) + "\n")
    if chosen.svg is not None:
        speeds = [{"length": row.length, row.work: row.tokens_per_second, "model": row.name} for row in rows]
        with output(chosen.svg) as file:
            file.write(draw_lines(speeds, x="length", y=chosen.work, lines="model", log="xy", title="tokens per second"))


def _model(subject: str, vocab: int) -> nn.Module:
    """Return the model of a recipe or of a spec, with random weights."""
    if subject.lstrip().startswith("{"):
        found: Any = read_yaml(subject, where="bench")
    else:
        found = _composition(subject)
    if not isinstance(found, Mapping) or "stack" not in found:
        raise ConfigurationError(f"{subject} names no stack to build")
    stack = found["stack"]
    name = stack["name"] if isinstance(stack, Mapping) else stack
    sizes = {"src_vocab_size": vocab, "tgt_vocab_size": vocab} if "encoder_decoder" in name else {"vocab_size": vocab}
    if other := [key for key in sizes if found.get(key, vocab) != vocab]:
        raise ConfigurationError(f"{subject} has {other[0]}, but --vocab {vocab} is the vocabulary of all models: make the two agree")
    if found.get("num_classes") is not None:
        raise ConfigurationError(f"{subject} has num_classes, but bench times models with logits for each token: remove it")
    return compose(**{**sizes, **found})  # type: ignore[no-any-return]


def _composition(recipe: str) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for the model of a recipe, with the defaults of its task."""
    task = tasks.resolve(merged(read_layers([recipe])).get("model", {}))
    reads_tokens = task.get("src_embedding") is None and (
        "embedding" not in task or embeddings.get(task["embedding"].name).reads == "tokens"
    )
    if "stack" in task and not ("tie" in task and reads_tokens):
        raise ConfigurationError(
            f"{recipe} trains a model that does not predict tokens from tokens ({task.name}), which bench cannot time; to time its stack "
            f"alone, write it as a spec"
        )
    return {key: value for key, value in task.plain().items() if key in MODEL_KEYS and value is not None}


def _table(rows: Sequence[Row]) -> str:
    """Return the results as text; times are medians with half their interquartile range."""
    width = max(len("contestant"), *(min(len(row.name), 48) for row in rows))
    lines = [
        f"{'work':<8}{'length':>7}  {'contestant':<{width}}{'params':>9}{'ms':>11}{'±':>6}{'tokens/s':>11}{'speed':>7}{'MiB':>9}{'MFU':>6}"
    ]
    for row in rows:
        name = row.name if len(row.name) <= 48 else f"{row.name[:47]}…"
        used = "-" if row.utilisation is None else f"{row.utilisation:.0%}"
        lines.append(
            f"{row.work:<8}{row.length:>7}  {name:<{width}}{row.parameters / 1e6:>8.2f}M{row.milliseconds:>11.2f}{row.spread / 2:>6.0%}"
            f"{row.tokens_per_second:>11,.0f}{row.relative:>6.2f}x{row.peak_mib:>9.1f}{used:>6}"
        )
    return "\n".join(lines)


def _machine(chosen: argparse.Namespace) -> None:
    processes = chosen.processes if chosen.processes is not None else max(torch.cuda.device_count(), 1)
    require_at_least(1, **{"--processes": processes})
    machine = measure_machine(processes=processes)
    print(machine.device)
    for kind, rate in machine.tflops.items():
        print(f"  {f'{kind} matrix products, TFLOP/s':<46}{rate:>12,.3f}")
    print(f"  {'memory bandwidth (reads and writes), GB/s':<46}{machine.memory_bandwidth or 0:>12,.1f}")
    print(f"  {'memory, GB':<46}{(machine.memory or 0) / 1e9:>12,.1f}")
    if machine.bandwidth is not None:
        print(f"  {f'all-reduce, sent by each of {processes} processes, GB/s':<46}{machine.bandwidth:>12,.2f}")
    if chosen.json is not None:
        with output(chosen.json) as file:
            file.write(machine.as_json())
