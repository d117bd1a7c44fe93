"""Shared by the claims: models, training, tables and verdicts, in English and Korean."""

import logging
import statistics
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Literal

import lightning
import torch

import attnkit
from attnkit.task import Task
from attnkit.task.parameters import parameter_groups
from story_pages.korean import CONDITIONS, HEADINGS

Rows = list[dict[str, Any]]

FOLDER = Path(__file__).parents[2] / "story"
SEEDS = (0, 1, 2)
SENTENCES = {"English": ["AI", "changes", "the", "world"], "Korean": ["AI가", "세상을", "바꾼다"]}


@dataclass(frozen=True)
class Language:
    """The wording of tables and verdicts in one language."""

    code: Literal["en", "ko"]

    def table(self, rows: Rows, columns: Sequence[str] | None = None) -> str:
        """Return rows as a Markdown table."""
        names = list(columns or rows[0])
        heads = [HEADINGS.get(name, name) if self.code == "ko" else name for name in names]
        lines = [heads, ["---"] * len(names), *([shown(row[name]) for name in names] for row in rows)]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def worked(self, tables: dict[str, Rows]) -> str:
        """Return a table for each sentence."""
        names = {"English": "영어 문장", "Korean": "한국어 문장"} if self.code == "ko" else {name: name for name in tables}
        return "\n\n".join(f"{names[name]}:\n\n{self.table(rows)}" for name, rows in tables.items())

    def by_seed(self, verdict: str, alone: dict[int, str]) -> str:
        """Return the verdicts of single seeds in words."""
        other = {seed: found.replace("**", "") for seed, found in alone.items() if found != verdict}
        if self.code == "ko":
            if not other:
                return "시드를 하나씩 따로 보아도 판정은 같습니다."
            changed = " ".join(f"시드 {seed}만 보면 판정이 달라집니다({found})." for seed, found in other.items())
            return changed + (" 나머지 시드는 하나씩 보아도 판정이 같습니다." if len(other) < len(alone) else "")
        if not other:
            return "Each seed alone gives this verdict, too."
        changed = " ".join(f"Seed {seed} alone would give a different verdict ({found})." for seed, found in other.items())
        return changed + (" Each of the others gives this one." if len(other) < len(alone) else "")

    def verdict(self, *, holds: bool, when: str = "") -> str:
        """Return the verdict in words."""
        if self.code == "ko":
            yes = f"**{CONDITIONS.get(when, when)} 성립합니다**" if when else "**성립합니다**"
            return yes if holds else "**여기서는 성립하지 않습니다**"
        return (f"**holds when** {when}" if when else "**holds**") if holds else "**does not hold here**"


def shown(value: Any) -> str:
    """Return a value with three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def percent(value: float) -> str:
    """Return a fraction in percent."""
    return f"{100 * value:.0f} %"


def means(rows: Rows, x: str) -> Rows:
    """Return the rows averaged over seeds."""
    groups: dict[tuple[Any, Any], Rows] = {}
    for row in rows:
        groups.setdefault((row["model"], row[x]), []).append(row)
    return [
        {name: statistics.fmean(row[name] for row in group) if isinstance(value, float) else value for name, value in group[0].items()}
        for group in groups.values()
    ]


def at(rows: Rows, model: str, x: str, value: Any, y: str) -> float:
    """Return the value of `y` of a model where `x` has a value."""
    return float(next(row[y] for row in rows if row["model"] == model and row[x] == value))


def wide(rows: Rows, x: str, y: str) -> Rows:
    """Return a row for each model, with the values of `y` in percent at each `x` as columns."""
    models: dict[str, dict[str, Any]] = {}
    for row in rows:
        models.setdefault(row["model"], {"model": row["model"]})[str(row[x])] = percent(row[y])
    return list(models.values())


def seven(*, d_model: int = 64, num_layers: int = 2, **options: Any) -> dict[str, dict[str, Any]]:
    """Return stacks that read a source and write a target: three cells, each without and with attention, and the Transformer.

    The recurrent encoders read forward only, so the distance to the end of the source is the distance to the target.
    """
    size = {"d_model": d_model, "num_layers": num_layers, "dropout": 0.0, **options}
    models: dict[str, dict[str, Any]] = {}
    for cell in ("rnn", "gru", "lstm"):
        recurrent = {"name": "recurrent_encoder_decoder", **size, "cell": cell, "bidirectional": False, "attention": None}
        models[cell.upper()] = recurrent
        models[f"{cell.upper()} + attention"] = {**recurrent, "attention": "dot_product"}
    models["Transformer"] = {"name": "encoder_decoder", **size, "num_heads": 2}
    return models


def task_of(stack: dict[str, Any], seed: int, **arguments: Any) -> Task:
    """Return a new task around a stack; its words are numbers."""
    tokenizer = attnkit.tokenizers.build("word").train([" ".join(map(str, range(50)))]).spec
    torch.manual_seed(seed)
    if "encoder_decoder" in stack["name"]:
        spec = {"name": "seq2seq", "src_tokenizer": tokenizer, "tgt_tokenizer": tokenizer, "metrics": []}
    else:
        spec = {"name": "causal_lm", "tokenizer": tokenizer}
    task: Task = attnkit.tasks.build({**spec, "stack": stack, **arguments})
    return task


def corpus_of(train: Iterable[tuple[str, str]], test: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the spec of a corpus of pairs of texts."""
    folder = Path(tempfile.mkdtemp())
    for name, pairs in (("train", train), ("test", test)):
        (folder / f"{name}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return {"name": str(folder / "train.tsv"), "test": str(folder / "test.tsv")}


def pairs_of(train: Iterable[tuple[str, str]], test: Iterable[tuple[str, str]], *, batch_tokens: int, tokenizer: str = "word") -> Any:
    """Return the data of pairs of texts."""
    spec = {"corpus": corpus_of(train, test), "src_tokenizer": tokenizer, "tgt_tokenizer": tokenizer, "batch_tokens": batch_tokens}
    return attnkit.datasets.build({"name": "text_pairs", **spec})


def trainable(stack: dict[str, Any], data: Any, seed: int, *, lr: float = 4e-3) -> Task:
    """Return a new task that reads and writes the words of the data."""
    torch.manual_seed(seed)
    training = {"optimizer": {"name": "adamw", "lr": lr}, "schedule": {"name": "linear", "warmup_steps": 0.1}, "stack": stack}
    if hasattr(data, "tokenizer"):
        spec = {"name": "causal_lm", "tokenizer": data.tokenizer_spec, "prompts": []}
    else:
        words = {"src_tokenizer": data.src_tokenizer_spec, "tgt_tokenizer": data.tgt_tokenizer_spec}
        spec = {"name": "seq2seq", **words, "label_smoothing": 0.0, "metrics": []}
    task: Task = attnkit.tasks.build({**spec, **training})
    return task


def fit(task: Task, data: Any, *, steps: int) -> None:
    """Train a task with Lightning."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        gradient_clip_val=1.0,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(task, data)


def train(task: Task, data: Any, *, steps: int) -> None:
    """Train a task that draws no random numbers without a trainer, whose overhead would take half of the time."""
    task.configure_model()
    optimizer: Any = attnkit.optimizers.build(task.optimizer, params=parameter_groups(task))
    schedule = attnkit.schedules.build(task.config.schedule, total_steps=steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.factor)
    batches = chain.from_iterable(data.train_dataloader() for _ in count())
    for batch in islice(batches, steps):
        sums = task.objective(batch)
        torch.autograd.backward(sums.loss / sums.targets)
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def prompts_of(train: Iterable[tuple[str, str]], test: Iterable[tuple[str, str]], *, batch_tokens: int) -> Any:
    """Return the data of prompts and answers."""
    corpus = corpus_of(train, test)
    return attnkit.datasets.build({"name": "prompted_text", "corpus": corpus, "tokenizer": "word", "batch_tokens": batch_tokens})
