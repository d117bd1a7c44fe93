"""Sequence to sequence: mapping one text to another, or an image or sound to a text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

from attnkit.lightning_internals import trainer_of
from attnkit.registry import (
    ConfigurationError,
    EmbeddingSpec,
    OptimizerSpec,
    ScheduleSpec,
    TokenizerSpec,
    keywords_of,
    require_at_least,
    tasks,
)
from attnkit.task.config import default, trained_tokenizer
from attnkit.task.evaluation import scored, spread
from attnkit.task.generating import GeneratorConfig, TextGenerator, input_mask
from attnkit.task.loss import Sums
from attnkit.task.metrics import Mean, Perplexity, generation_metric
from attnkit.task.texts import marked, one_line
from attnkit.tokenizer import Tokenizer


class Prediction(NamedTuple):
    """A source and the model's output. As a string: both, each as `one_line`, separated by a tab."""

    source: str
    hypothesis: str

    def __str__(self) -> str:
        return f"{one_line(self.source)}\t{one_line(self.hypothesis)}"


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(GeneratorConfig):
    """The options of `seq2seq`.

    Args:
        stack: An encoder-decoder stack.
        src_tokenizer: Spec of the trained source tokenizer, or None if the source is not text (default: the data module's
            `src_tokenizer_spec`).
        tgt_tokenizer: Spec of the trained target tokenizer (default: the data module's `tgt_tokenizer_spec`).
        src_shape: The shape of a source that is not text: [channels, height, width] of images, or [features] of sound frames
            (default: the data module's).
        embedding: Embedding of both sides.
        src_embedding: Embedding of the source, such as `patch` for images and `frames` for sound (default: `embedding`).
        tie: Which tables are shared: `output` (target embedding and output), `inputs` (source and target embeddings), `all` (these and the
            output), `none`. `inputs` and `all` require the same tokenizer on both sides.
        metrics: Metrics of generated texts: `sequence_error_rate` (WER of pronunciations: the fraction of outputs that equal no reference,
            ignoring white space), `token_error_rate` (PER), `bleu`, `chrf`, `rouge1`, `rouge2`, `rougeL` (summaries). The first one
            selects the best checkpoint. If empty, validation and test generate nothing.
        samples: Number of outputs printed after a validation.
    """

    src_tokenizer: TokenizerSpec | None = None
    tgt_tokenizer: TokenizerSpec | None = None
    src_shape: list[int] | None = None
    src_embedding: EmbeddingSpec | None = None
    tie: Literal["none", "output", "inputs", "all"] = "output"
    label_smoothing: float = 0.1
    optimizer: OptimizerSpec = default("adamw", lr=1e-3, betas=[0.9, 0.98], weight_decay=0.01)
    schedule: ScheduleSpec = default("inverse_sqrt", warmup_steps=1000)
    metrics: Sequence[str] = ("sequence_error_rate", "token_error_rate")
    samples: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, samples=self.samples)
        if isinstance(self.metrics, str):
            raise ConfigurationError(f"metrics must be a list of names, as in [{self.metrics}], but is the string {self.metrics!r}")


@tasks.register("seq2seq")
class Seq2Seq(TextGenerator):
    """Maps a source to a target text: translation, pronunciation, transliteration, image captioning, speech recognition.

    A batch is a mapping of `src` and `tgt` [B, T] (bos, tokens, eos, padding); for evaluation also `source`, the texts or names of the
    sources, and `references`, all acceptable targets of each. `src` has the tokens, eos and padding of texts [B, S], images [B, C, H, W],
    or frames [B, S, F], with `src_mask` [B, S], True = real frame.

    Logged: `train/loss` and `train/perplexity`; in validation (`val/...`) and test (`test/...`) `loss`, `perplexity`, `token_accuracy`
    (given the true prefix), and the chosen `metrics` of generated texts. Loss is the negative log-likelihood per token in nats, without
    label smoothing. Error rates and accuracy are from 0 to 1, BLEU, chrF and ROUGE from 0 to 100. If the data are a `mixture`, the loss and
    the metrics of each of its corpora are also logged, as `val/PREFIX/loss`.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or a tokenizer is not trained.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("character").train(["attention"]).spec
        >>> task = Seq2Seq(
        ...     stack={"name": "encoder_decoder", "d_model": 16, "num_layers": 1, "num_heads": 2},
        ...     src_tokenizer=tokenizer, tgt_tokenizer=tokenizer, max_length=5)
        >>> len(task.generate(["net", "ten"]))
        2
    """

    from_data: ClassVar = {"src_tokenizer": "src_tokenizer_spec", "tgt_tokenizer": "tgt_tokenizer_spec", "src_shape": "src_shape"}
    config: Seq2SeqConfig

    @keywords_of(Seq2SeqConfig)
    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__(config)

    @override
    def derive(self) -> None:
        self.src_tokenizer = None if self.config.src_shape else trained_tokenizer(self.config.src_tokenizer, "src_tokenizer")
        self.tgt_tokenizer = trained_tokenizer(self.config.tgt_tokenizer, "tgt_tokenizer")
        if (tie := self.config.tie) in ("inputs", "all") and (
            self.src_tokenizer is None or self.src_tokenizer.spec != self.tgt_tokenizer.spec
        ):
            raise ConfigurationError(f"tie {tie!r} shares one table, so both sides need the same tokenizer; use one, or tie 'output'")
        self.source_tokenizer, self.output_tokenizer = self.src_tokenizer, self.tgt_tokenizer
        self.chosen = self.config.metrics
        self.prefixes: dict[str, Mapping[str, str]] = {}  # the prefixes of a mixture, by stage
        self._longest = 0  # tokens of the longest evaluated target, including the end
        super().derive()

    @override
    def configure_model(self) -> None:
        super().configure_model()
        prefixes = dict(getattr(getattr(trainer_of(self), "datamodule", None), "prefixes", {}))
        if prefixes == self.prefixes:
            return
        self.prefixes = prefixes
        for stage, names in prefixes.items():
            metrics = self.evaluation[stage]
            assert isinstance(metrics, nn.ModuleDict)
            for prefix in names:
                new = self.new_metrics()
                metrics.update({f"{prefix}/{name}": new[name] for name in ("loss", *self.config.metrics)})

    @property
    @override
    def sizes(self) -> dict[str, Any]:
        src = None if self.src_tokenizer is None else len(self.src_tokenizer)
        return {"src_vocab_size": src, "tgt_vocab_size": len(self.tgt_tokenizer)}

    @override
    def input_ids(self, text: str) -> list[int]:
        return [*self.input_tokenizer.encode(text), Tokenizer.eos_id]

    @override
    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V] for the token after each of `tgt` [B, T], given `src` (`src_mask` defaults to all but padding)."""
        # an end token is read only if another row is longer, and nothing is predicted after it: like padding, it is not reported
        real = (tgt != Tokenizer.pad_id) & (tgt != Tokenizer.eos_id) if self.model.reports else None
        logits: Tensor = self.model(src, tgt, src_mask=input_mask(src) if src_mask is None else src_mask, tgt_mask=real)
        return logits

    @override
    def objective(self, batch: dict[str, Any]) -> Sums:
        logits = self(batch["src"], batch["tgt"][:, :-1], batch.get("src_mask"))
        return self.summed(logits, batch["tgt"][:, 1:])

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Prediction]:
        return [Prediction(s, h) for s, h in zip(batch["source"], self._answers(batch, "source"), strict=True)]

    @override
    def samples(self) -> list[str]:
        chosen = spread(self.shown, self.config.samples)
        width = min(40, max((len(source) for source, *_ in chosen), default=0))  # aligns only short sources
        return [sample_line(*sample, width=width) for sample in chosen]

    @override
    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> dict[str, list[str]]:
        """Update and log the metrics of a stage; return the generated texts as `hypotheses`, if any metric needs them."""
        targets = batch["tgt"][:, 1:]
        logits = self(batch["src"], batch["tgt"][:, :-1], batch.get("src_mask"))
        scores = scored(logits, targets, pad_id=Tokenizer.pad_id)
        if self.by_row is not None:
            self.by_row.append(scores.by_row())
        hypotheses = self._answers(batch, "references") if self.config.metrics else []
        if self.config.metrics:
            self._longest = max(self._longest, int(scores.real.sum(1).max()))
        texts = (hypotheses, batch["references"])
        updates: dict[str, Any] = scores.updates() | dict.fromkeys(self.config.metrics, texts)
        for name, prefix in self.prefixes.get(stage, {}).items():
            rows = [i for i, source in enumerate(batch["source"]) if source.startswith(prefix)]
            answers = tuple([column[i] for i in rows if i < len(column)] for column in texts)
            own = (scores.nll[rows].sum(), scores.real[rows].sum())
            updates |= {f"{name}/loss": own} | {f"{name}/{metric}": answers for metric in self.config.metrics}
        self.log_metrics(stage, updates, rows=len(targets), shown=[self.monitor[0].partition("/")[2]])
        if stage == "val":
            self.shown += list(zip(batch["source"], *texts, strict=False))[: self.config.samples]
        return {"hypotheses": hypotheses}

    @override
    def on_validation_epoch_end(self) -> None:
        """Print, with a note if targets are too long to be generated."""
        super().on_validation_epoch_end()
        if not self.trainer.sanity_checking:
            self._note_limit()

    @override
    def on_test_epoch_end(self) -> None:
        """Print a note if targets are too long to be generated."""
        self._note_limit()

    def _note_limit(self) -> None:
        longest, self._longest = int(self.trainer.strategy.reduce(torch.tensor(self._longest, device=self.device), reduce_op="max")), 0
        if longest > (limit := self.config.max_length):
            self.print(
                f"note: a target has {longest} tokens, but outputs end after max_length={limit}, so its output counts as wrong: raise "
                f"model.max_length"
            )

    def _answers(self, batch: dict[str, Any], texts: str) -> list[str]:
        """Return the generated texts for those sources of a batch that have an entry in `texts`, one of the batch's keys."""
        count = len(batch[texts])
        mask = batch.get("src_mask")
        return self.decode(batch["src"][:count], None if mask is None else mask[:count]) if count > 0 else []

    @override
    def new_metrics(self) -> dict[str, Metric]:
        means: dict[str, Metric] = {"loss": Mean(), "perplexity": Perplexity(), "token_accuracy": Mean()}
        return means | {name: generation_metric(name, tokenize=self.reference_tokens) for name in self.config.metrics}

    def reference_tokens(self, text: str) -> list[object]:
        """Return the token ids of a text; unknown tokens are paired with the text, so that they equal none in another text."""
        ids = self.tgt_tokenizer.encode(text)
        return [(text, i) if token == Tokenizer.unk_id else token for i, token in enumerate(ids)]


def sample_line(source: str, hypothesis: str, references: Sequence[str], *, width: int = 0) -> str:
    """Return a line with an output and, if the output is wrong, the first reference.

    Example:
        >>> print(sample_line("tear", "T IH R", ["T EH R", "T IH R"], width=6))
        ok     tear   -> T IH R
        >>> print(sample_line("bow", "B IY", ["B AW", "B OW"]))
        wrong  bow -> B IY  (B AW)
    """
    right = hypothesis.split() in [r.split() for r in references]
    return marked(f"{source:<{width}} -> {hypothesis}", right=right, truth=references[0])
