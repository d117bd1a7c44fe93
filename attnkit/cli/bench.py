"""`attnkit bench`: models timed in alternation, or the peak rates of this machine, as a table and as files."""

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from attnkit.cli.bench_models import is_spec, timed_model
from attnkit.cli.suggesting import SuggestingParser
from attnkit.device import best_device
from attnkit.drawing import draw_lines
from attnkit.models import DecoderModel, EncoderDecoderModel
from attnkit.position import Position
from attnkit.profile import bench as timing
from attnkit.profile.bench import WORKS, Plan, Row, measure
from attnkit.profile.ceilings import measure_machine
from attnkit.profile.contestants import Kind, common_kind
from attnkit.profile.peers import PEERS, peer
from attnkit.registry import ConfigurationError, require_at_least
from attnkit.task import Task
from attnkit.train.output import output

LENGTHS = (128, 512)
VOCABULARY, CLASSES = 8192, 2


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
    lengths = "tokens, or frames of sound, per row (default: 128 512, or the most that all positions hold)"
    models.add_argument("--lengths", type=int, nargs="+", metavar="T", help=lengths)
    models.add_argument("--batch", type=int, default=8, metavar="B", help="rows (default: 8)")
    models.add_argument("--vocab", type=int, metavar="V", help=f"vocabulary size, also of recipes (default: {VOCABULARY})")
    models.add_argument("--classes", type=int, metavar="C", help=f"number of classes of recipes (default: {CLASSES})")
    shape = "channels, height and width of the images of recipes (default: those of the data), or features of a frame (default: 40)"
    models.add_argument("--shape", type=int, nargs="+", metavar="N", help=shape)
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
    vocab, classes = chosen.vocab or VOCABULARY, chosen.classes or CLASSES
    lowest = {"batch": 1, "rounds": 1, "lengths": 1, "shape": 1, "classes": 2, "vocab": 6}
    for name, least in lowest.items():
        given = getattr(chosen, name)
        require_at_least(least, **{f"--{name}": min(given) if isinstance(given, list) else given})
    device = best_device()
    is_bare = bool(chosen.peers) or any(map(is_spec, chosen.subjects))
    models: dict[str, nn.Module] = {}
    for subject in chosen.subjects:
        if subject in models:
            raise ConfigurationError(f"{subject} is given twice")
        torch.manual_seed(0)
        models[subject] = timed_model(subject, vocab=vocab, classes=classes, shape=chosen.shape, recomputes=not is_bare).to(device)
    kind = common_kind(models)
    has_recipe = any(isinstance(model, Task) for model in models.values())
    read = {
        "lengths": kind.has_tokens, "vocab": kind.has_tokens, "shape": has_recipe and kind.shape is not None,
        "svg": kind.has_tokens and (kind.shape is None or {*chosen.work} != {"prefill"}),
        "classes": has_recipe and kind.targets.startswith("class"), "peers": kind == Kind(is_pair=kind.is_pair),
    }  # fmt: skip
    if unread := [name for name, is_read in read.items() if getattr(chosen, name) and not is_read]:
        raise ConfigurationError(f"--{unread[0]} does not apply to {next(iter(models))}, which maps {kind}: remove it")
    lengths = _lengths(chosen, models)
    if is_bare:
        models = {name: model.model if isinstance(model, Task) else model for name, model in models.items()}
    first: Any = next(iter(models.values()))
    for name in chosen.peers:
        models[name] = peer(name, first.spec, max_length=max(lengths) + 64).to(device)
    plan = Plan(
        works=chosen.work, lengths=lengths, batch=chosen.batch, vocab_size=vocab, precision=chosen.precision,
        is_compiled=chosen.compile, rounds=chosen.rounds,
    )  # fmt: skip
    ceiling, rows = measure(models, plan, device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    settings = f"{chosen.precision}, batch {chosen.batch}, {f'vocabulary {vocab}, ' if kind.has_tokens else ''}{chosen.rounds} rounds"
    settings += ", step and forward compiled" if chosen.compile else ""
    print(f"{where}; torch {torch.__version__}; {settings}; matrix products at {ceiling:.3g} TFLOP/s; {kind}\n")
    print(_table(rows))
    if has_recipe and is_bare:
        print("note: recipes are timed like specs and peers, as models under torch's cross-entropy, not as their tasks train them")
    for name in models:
        if absent := [work for work in chosen.work if not any((row.work, row.name) == (work, name) for row in rows)]:
            print(f"not timed, because the model cannot do it: {' and '.join(absent)} of {name}")
    if chosen.json is not None:
        found = {"command": chosen.command, "device": where, "torch": torch.__version__, "tflops": ceiling,
                 "compiled": chosen.compile, "batch": chosen.batch, "vocab": vocab if kind.has_tokens else None,
                 "precision": chosen.precision, "rounds": chosen.rounds, "task": str(kind), "as_trained": not is_bare,
                 "rows": [asdict(row) for row in rows]}  # fmt: skip
        with output(chosen.json) as file:
            file.write(json.dumps(found, indent=2) + "\n")
    if chosen.svg is not None:
        speeds = [{"length": row.length, row.work: row.tokens_per_second, "model": row.name} for row in rows]
        drawn = list(dict.fromkeys(row.work for row in rows if row.tokens_per_second is not None))
        with output(chosen.svg) as file:
            file.write(draw_lines(speeds, x="length", y=drawn, lines="model", log="xy", title="tokens per second"))


def _lengths(chosen: argparse.Namespace, models: Mapping[str, nn.Module]) -> list[int]:
    """Return the lengths to time; raise if positions end before one of them, or before the tokens that are decoded after it."""
    given, kind = chosen.lengths or LENGTHS, common_kind(models)
    rooms = [room for name, model in models.items() for room in _rooms(name, model, decodes="decode" in chosen.work)]
    if not rooms or not kind.has_tokens:
        return list(given)
    room, reason = min(rooms)
    if room < 1 or (chosen.lengths and max(given) > room):
        raise ConfigurationError(f"--lengths {max(given)}: {reason}")
    return list(given) if chosen.lengths else sorted({min(length, room) for length in given})


def _rooms(name: str, model: nn.Module, *, decodes: bool) -> Iterator[tuple[int, str]]:
    """Yield how many tokens the positions of a model allow in a row, each with the reason."""
    whole: Any = model.model if isinstance(model, Task) else model
    is_pair = isinstance(whole, EncoderDecoderModel)
    source = {*whole.stack.encoder.modules()} if is_pair and hasattr(whole.stack, "encoder") else set()
    new = timing.NEW_TOKENS if decodes and isinstance(whole, DecoderModel | EncoderDecoderModel) else 0
    for part in whole.modules():
        if not isinstance(part, Position) or part.max_length is None:
            continue
        reason = f"the positions of {name} end at {part.max_length}"
        if part in source:
            if whole.source_embedding.reads != "image":
                yield part.max_length * getattr(whole.source_embedding, "stacking", 1), reason
        elif is_pair:  # new tokens follow the source
            yield part.max_length * (part.max_length > new), reason + f", and decode writes {1 + new} tokens" * (new > 0)
        else:
            yield part.max_length - new, reason + f", and decode adds {new} tokens" * (new > 0)


def _table(rows: Sequence[Row]) -> str:
    """Return the results as text; times are medians with half their interquartile range."""
    width = max(len("contestant"), *(min(len(row.name), 48) for row in rows))
    lines = [
        f"{'work':<8}{'length':>7}  {'contestant':<{width}}{'params':>9}{'ms':>11}{'±':>6}{'rows/s':>10}{'tokens/s':>11}"
        f"{'speed':>7}{'MiB':>9}{'MFU':>6}"
    ]
    for row in rows:
        name = row.name if len(row.name) <= 48 else f"{row.name[:47]}…"
        used = "-" if row.utilisation is None else f"{row.utilisation:.0%}"
        length, tokens = ("-" if x is None else f"{x:,.0f}" for x in (row.length, row.tokens_per_second))
        lines.append(
            f"{row.work:<8}{length:>7}  {name:<{width}}{row.parameters / 1e6:>8.2f}M{row.milliseconds:>11.2f}{row.spread / 2:>6.0%}"
            f"{row.rows_per_second:>10,.1f}{tokens:>11}{row.relative:>6.2f}x{row.peak_mib:>9.1f}{used:>6}"
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
