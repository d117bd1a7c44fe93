"""`attnkit new KIND --train FILE`: inspect a file, and write a recipe that trains on it."""

import json
import math
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from attnkit.corpus.files import Files
from attnkit.corpus.inspection import Found, Side, inspect_table, inspect_text, is_number
from attnkit.registry import ConfigurationError
from attnkit.wording import counted

CHARACTERS, SHORT = 500, 60  # limits for one token per character: distinct characters, and the length of 95 % of the rows
STEPS = 3000  # target number of training steps
MANY = 20  # maximum number of classes that may be numbers
FEWEST = 4  # minimum number of distinct rows in a file


Size = tuple[int, int, int]  # width, layers, heads


def new(*, kind: str, train: str, validation: str | None, columns: Sequence[str], out: str | None) -> None:
    """Describe a file and write a recipe for it; arguments as on the command line."""
    path = Path(out or f"{kind}.yaml")
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigurationError(f"--out must end in .yaml, but is {str(path)!r}")
    if path.exists():
        raise ConfigurationError(f"{path} exists and is not overwritten: choose another name with --out")
    numbers: list[str | int] = [int(column) if column.isdigit() else column for column in columns]
    corpus = Files(train=train, validation=validation, columns=numbers or None, on_bad_rows="skip")
    corpus.check("train")
    corpus.check("validation")
    found = _inspected(corpus, kind)
    print(f"{train}: {counted(found.rows, 'document' if kind == 'language_model' else 'usable row')}")
    print("\n".join(f"  {line}" for line in (*(side.line for side in found.sides), *found.notes)))
    if validation is not None and Path(validation).exists() and Path(train).exists() and Path(validation).samefile(train):
        print("  the validation file is the training file, so validation shows what the model has memorised")
    if kind != "language_model" and found.distinct < FEWEST:
        raise ConfigurationError(f"{train} has fewer than {FEWEST} different rows: too few to train on some and validate on others")
    if kind == "classification" and len(found.classes) < 2:
        raise ConfigurationError(f"{train} has a single class, {found.classes[0]!r}: there is nothing to tell apart")
    if kind == "classification" and len(found.classes) > MANY and all(map(is_number, found.classes)):
        advice = f"for the task regression: attnkit new regression --train {shlex.quote(train)}"
        advice += f" --columns {shlex.join(columns)}" if columns else ""
        if len(found.classes) > found.rows / 2:
            raise ConfigurationError(f"the labels of {train} look like numbers ({len(found.classes):,} in {found.rows:,} rows); {advice}")
        print(f"  the labels look like numbers; {advice}")
    source: dict[str, object] = {"name": "files", "train": train}
    source |= {"columns": numbers} if columns else {}
    source |= {"on_bad_rows": "skip"} if found.bad_rows else {}
    source |= {"validation": validation} if validation else {"validation_fraction": _fraction(found, kind)}
    lines = [
        f"# attnkit fit --config {path}",
        f"# Written by attnkit new {kind} for {json.dumps(train, ensure_ascii=False)}: {counted(found.rows, 'row')}, "
        f"{sum(side.total for side in found.sides):,} characters. Every number may be changed.",
        *RECIPES[kind](found, json.dumps(source, ensure_ascii=False)),
    ]
    content = "\n".join([*lines, ""]).encode()  # before the file exists, because a name may not be text
    with path.open("xb") as file:
        file.write(content)
    print(f"Wrote {path}. Train: attnkit fit --config {path}")


def _inspected(corpus: Files, kind: str) -> Found:
    if kind == "language_model":
        return inspect_text(corpus)
    try:
        return inspect_table(corpus, labelled=kind != "translation", numbers=kind == "regression")
    except ConfigurationError as error:
        names = [str(column) for column in corpus.bad_rows["train"].columns] if corpus.columns is None else []
        wanted = ("source", "target") if kind == "translation" else ("text", "label")
        others = [name for name in names if name not in wanted]
        if len(names) < 2 or not others:
            raise
        chosen = [name if name in names else others.pop(0) for name in wanted if name in names or others]
        raise ConfigurationError(f"{error} Name yours, as in: --columns {shlex.join(chosen)}") from error


def _fraction(found: Found, kind: str) -> float:
    """Return the validation fraction: a twentieth, more for few rows and less for many."""
    rows = found.sides[0].total // 500 if kind == "language_model" else found.rows
    return round(min(0.25, max(0.01, 500 / max(rows, 1), 0.05 if rows < 50_000 else 0.01)), 3)


def _size(characters: int) -> tuple[Size, str]:
    if characters < 300_000:
        return (128, 2, 2), "under 300,000 characters: a small model; a larger one would memorise them"
    if characters < 10_000_000:
        return (192, 3, 3), "under 10 million characters: a few layers, which train on one machine without a GPU"
    return (512, 6, 8), "10 million characters or more: the size of the 2017 Transformer's base; use a GPU"


def _tokenizer(side: Side) -> tuple[str, str]:
    if len(side.characters) <= CHARACTERS and side.quantile(0.95) <= SHORT:
        return "character", f"{len(side.characters)} different characters and short rows: one token each"
    size = next(size for limit, size in ((100_000, 500), (1_000_000, 2000), (10_000_000, 8000), (math.inf, 16_000)) if side.total < limit)
    return f"{{name: bpe, vocab_size: {size}}}", f"long rows or many characters: parts of words, {size:,} for {side.total:,} characters"


def _tokens(side: Side, tokenizer: str) -> int:
    """Estimate the number of tokens of a side."""
    return max(1, side.total if tokenizer == "character" else side.total // 3)


def _epochs(tokens: int, batch_tokens: int) -> tuple[int, str]:
    steps = max(1, tokens // batch_tokens)
    epochs = min(200, max(1, round(STEPS / steps)))
    return epochs, f"about {counted(steps, 'step')} each"


def _stack(name: str, size: Size, *, position: str) -> list[str]:
    d_model, layers, heads = size
    return [
        "  stack:",
        f"    name: {name}",
        f"    d_model: {d_model}",
        f"    num_layers: {layers}",
        f"    num_heads: {heads}",
        f"    position: {position}",
        "    residual: pre_norm",
        "    dropout: 0.1",
    ]


def _power(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


def _translation(found: Found, corpus: str) -> list[str]:
    source, target = found.sides
    size, why = _size(source.total + target.total)
    tokenizers = [_tokenizer(side) for side in found.sides]
    longest = sum(side.longest_bytes + 2 for side in found.sides)
    batch = max(2048, _power(longest))
    epochs, steps = _epochs(sum(_tokens(side, name) for side, (name, _) in zip(found.sides, tokenizers, strict=True)), batch)
    length = min(512, max(16, _power(target.longest_bytes + 2)))
    metrics = "[token_error_rate, chrf]" if tokenizers[1][0] == "character" else "[chrf, bleu]"
    return [
        "model:",
        "  name: seq2seq",
        f"  # {why}",
        *_stack("encoder_decoder", size, position="sinusoidal"),
        f"  max_length: {length}  # of an output, in tokens; the longest target has {target.longest_bytes:,} bytes",
        f"  metrics: {metrics}  # the first one selects the best checkpoint",
        "  optimizer: {name: adamw, lr: 1e-3, betas: [0.9, 0.98], weight_decay: 0.01}",
        "  schedule: {name: linear, warmup_steps: 0.1}",
        "data:",
        "  name: text_pairs",
        f"  corpus: {corpus}",
        f"  src_tokenizer: {tokenizers[0][0]}  # {tokenizers[0][1]}",
        f"  tgt_tokenizer: {tokenizers[1][0]}  # {tokenizers[1][1]}",
        f"  batch_tokens: {batch}  # room for the longest pair",
        "  max_validation_sources: 500  # validation generates, which takes time",
        f"trainer: {{max_epochs: {epochs}, gradient_clip_val: 1.0}}  # {steps}",
    ]


def _language_model(found: Found, corpus: str) -> list[str]:
    text = found.sides[0]
    size, why = _size(text.total)
    name, reason = _tokenizer(text) if text.total >= 100_000 or len(text.characters) > CHARACTERS else ("character", "a short text")
    tokens = _tokens(text, name)
    context = min(256, max(4, _power(tokens // 40) // 2))
    batch = max(2048, context)
    epochs, steps = _epochs(tokens, batch)
    return [
        "model:",
        "  name: causal_lm",
        f"  # {why}",
        *_stack("decoder", size, position="rotary"),
        '  prompts: [""]  # continued after each validation',
        "  optimizer: {name: adamw, lr: 1e-3, betas: [0.9, 0.95], weight_decay: 0.1}",
        "data:",
        "  name: text",
        f"  corpus: {corpus}",
        f"  tokenizer: {name}  # {reason}",
        f"  context: {context}  # tokens in a window",
        f"  batch_tokens: {batch}",
        f"trainer: {{max_epochs: {epochs}, gradient_clip_val: 1.0}}  # {steps}",
    ]


def _labelled(found: Found, corpus: str, *, task: str, metrics: str, labels: str | None = None) -> list[str]:
    text = found.sides[0]
    size, why = _size(text.total)
    name, reason = _tokenizer(text)
    length = min(512, max(16, _power(text.quantile(0.95) + 2)))
    batch = max(2048, length)
    epochs, steps = _epochs(_tokens(text, name), batch)
    return [
        "model:",
        f"  name: {task}",
        f"  # {why}",
        *_stack("encoder", size, position="sinusoidal"),
        "  pooling: mean",
        f"  metrics: {metrics}  # the first one selects the best checkpoint",
        "data:",
        "  name: labelled_text",
        *([f"  labels: {labels}"] if labels else []),
        f"  corpus: {corpus}",
        f"  tokenizer: {name}  # {reason}",
        f"  batch_tokens: {batch}",
        f"  max_length: {length}  # longer texts are truncated; 95 % have at most {text.quantile(0.95):,} characters",
        f"trainer: {{max_epochs: {min(epochs, 20)}, gradient_clip_val: 1.0}}  # {steps}",
    ]


RECIPES: dict[str, Callable[[Found, str], list[str]]] = {
    "translation": _translation,
    "language_model": _language_model,
    "classification": partial(_labelled, task="classification", metrics="[f1, accuracy]"),
    "regression": partial(_labelled, task="regression", metrics="[mse, mae, pearson]", labels="number"),
}
