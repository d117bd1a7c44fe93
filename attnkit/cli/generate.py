"""`attnkit generate`: generate text from input texts, using only a checkpoint."""

import codecs
import io
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence

from attnkit.decoding import Options
from attnkit.device import best_device
from attnkit.registry import ConfigurationError
from attnkit.task import Task
from attnkit.task.generating import TextGenerator
from attnkit.task.masked_lm import MaskedLM
from attnkit.task.texts import one_line
from attnkit.train.output import notes, output


def generate(checkpoint: str, texts: Sequence[str], options: Options, *, n_best: int | None, stream: bool, out: str | None) -> None:
    """Print the output for each of `texts`, or for each line of stdin if there are none, as soon as it is available.

    `options` go to the task's `generate`; text i is sampled with seed + i. Other arguments as on the command line.
    """
    if stream and (n_best is not None or out is not None):
        other = "--n_best ranks whole outputs" if n_best is not None else "the file of --out is created only when complete"
        raise ConfigurationError(f"--stream prints an output as it is generated, but {other}; remove one of them")
    task = Task.load(checkpoint).to(best_device())
    if not isinstance(task, TextGenerator | MaskedLM):
        raise ConfigurationError(f"the task {task.registered_name!r} of {checkpoint} does not turn text into text: see attnkit predict")
    if options.get("temperature") is not None and options.get("seed") is None and n_best is None:
        options = {**options, "seed": secrets.randbelow(2**31)}
        note = f"note: --seed {options['seed']} reproduces this output\n"
    else:
        note = ""
    done = 0
    with notes(), output(out) as file:
        for batch in _batches(texts, one_by_one=stream or (not texts and out is None)):
            seed = options.get("seed")
            chosen: Options = options if seed is None else {**options, "seed": seed + done}
            for piece in _pieces(task, batch, chosen, n_best=n_best, stream=stream):
                print(note, end="", file=sys.stderr, flush=True)  # only now, because options may be refused
                note = ""
                print(piece, end="", file=file, flush=True)
            done += len(batch)


def _batches(texts: Sequence[str], *, one_by_one: bool) -> Iterable[Sequence[str]]:
    """Return `texts`, or the lines of stdin if there are none, in one batch or one by one, each as soon as it is available."""
    if not texts and isinstance(sys.stdin, io.TextIOWrapper):
        is_ascii = codecs.lookup(sys.stdin.encoding).name == "ascii"  # an old locale, whose bytes beyond ASCII are UTF-8, as in files
        sys.stdin.reconfigure(encoding="utf-8" if is_ascii else None, errors="surrogateescape")  # the tokenizer names a text that is not
    lines = texts or (line.rstrip("\r\n").removeprefix("\ufeff") for line in sys.stdin or ())  # None if it was closed, as by `<&-`
    return ([line] for line in lines) if one_by_one else [list(lines)]


def _pieces(task: TextGenerator | MaskedLM, batch: Sequence[str], options: Options, *, n_best: int | None, stream: bool) -> Iterator[str]:
    """Yield the output for a batch, including line ends: outputs are one line each, but a stream shows their line breaks."""
    if stream:
        yield from task.stream(batch[0], **options)
        yield "\n"
    elif n_best is not None:
        yield from (f"{h.score:.4f}\t{one_line(h.text)}\n" for hypotheses in task.n_best(batch, n_best, **options) for h in hypotheses)
    else:
        yield from (f"{one_line(text)}\n" for text in task.generate(batch, **options))
