"""Sequence to sequence: mapping one text to another."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, cast

from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

import attnkit
from attnkit.registry import ConfigurationError, EmbeddingSpec, OptimizerSpec, ScheduleSpec, StackSpec, TokenizerSpec, tasks
from attnkit.strategy import ActivationCheckpointing
from attnkit.task.arguments import require_smoothing, trained_tokenizer
from attnkit.task.generating import TextGenerator
from attnkit.task.loss import Sums, cross_entropy
from attnkit.task.metrics import Mean, Perplexity, generation_metric
from attnkit.tokenizer import Tokenizer


class Prediction(NamedTuple):
    """A source and the model's output. As a string: both, separated by a tab."""

    source: str
    hypothesis: str

    def __str__(self) -> str:
        return f"{self.source}\t{self.hypothesis}"


@tasks.register("seq2seq")
class Seq2Seq(TextGenerator):
    """Maps a source text to a target text: translation, pronunciation, transliteration.

    A batch is a mapping of `src` [B, S] (tokens, eos, padding) and `tgt` [B, T] (bos, tokens, eos, padding); for evaluation also
    `source`, the texts, and `references`, all acceptable targets of each.

    Logged: `train/loss` and `train/perplexity`; in validation (`val/...`) and test (`test/...`) `loss`, `perplexity`, `token_accuracy`
    (given the true prefix), and the chosen `metrics` of generated texts. Loss is the negative log-likelihood per token in nats, without
    label smoothing. Error rates and accuracy are from 0 to 1, BLEU and chrF from 0 to 100.

    Args:
        stack: An encoder-decoder stack.
        src_tokenizer: Spec of the trained source tokenizer (a tokenizer's `.spec`).
        tgt_tokenizer: Spec of the trained target tokenizer.
        embedding: Embedding of both sides.
        tie: Which tables are shared: `output` (target embedding and output), `all` (the source embedding too; needs one tokenizer), `none`.
        label_smoothing: Probability mass that is spread over all non-padding tokens, at least 0 and below 1.
        optimizer: The optimizer.
        schedule: The learning rate over the optimizer's steps.
        beam_size: Beams of generation; 1 is greedy.
        max_length: The most tokens to generate, including the end.
        length_penalty: Exponent of the length by which the log-probability of a beam is divided.
        metrics: Metrics of generated texts: `sequence_error_rate` (WER of pronunciations), `token_error_rate` (PER), `bleu`, `chrf`. The
            first one selects the best checkpoint. If there are none, validation and test generate nothing.
        samples: Outputs printed after a validation.
        activation_checkpointing: What the backward pass recomputes to save memory: `none`, each `layer`, `mixer` (the part that grows
            with the square of the length), or `feed_forward`. Results are the same.
        compile: Whether torch.compile translates each layer for training. Results are the same up to rounding.

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

    from_data: ClassVar = {"src_tokenizer": "src_tokenizer_spec", "tgt_tokenizer": "tgt_tokenizer_spec"}

    def __init__(
        self,
        *,
        stack: StackSpec,
        src_tokenizer: TokenizerSpec,
        tgt_tokenizer: TokenizerSpec,
        embedding: EmbeddingSpec = "token",
        tie: Literal["none", "output", "all"] = "output",
        label_smoothing: float = 0.1,
        optimizer: OptimizerSpec = {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.01},  # noqa: B006
        schedule: ScheduleSpec = {"name": "inverse_sqrt", "warmup_steps": 1000},  # noqa: B006
        beam_size: int = 1,
        max_length: int = 64,
        length_penalty: float = 1.0,
        metrics: Sequence[str] = ("sequence_error_rate", "token_error_rate"),
        samples: int = 8,
        activation_checkpointing: ActivationCheckpointing = "none",
        compile: bool = False,
    ) -> None:
        super().__init__(locals())
        require_smoothing(label_smoothing)
        if samples < 0:
            raise ConfigurationError(f"samples must be at least 0, but is {samples}")
        if isinstance(metrics, str):
            raise ConfigurationError(f"metrics must be a list of names, as in [{metrics}], but is the string {metrics!r}")
        self.stack, self.embedding, self.tie = stack, embedding, tie
        self.src_tokenizer = trained_tokenizer(src_tokenizer, "src_tokenizer")
        self.tgt_tokenizer = trained_tokenizer(tgt_tokenizer, "tgt_tokenizer")
        if tie == "all" and self.src_tokenizer.spec != self.tgt_tokenizer.spec:
            raise ConfigurationError("tie 'all' shares one table, so both sides need the same tokenizer; use tie 'output', or share it")
        self.label_smoothing = label_smoothing
        self.metric_names, self.samples = tuple(metrics), samples
        self.evaluation = nn.ModuleDict({"val": self._metrics(), "test": self._metrics()})
        self._shown: list[tuple[str, str, list[str]]] = []
        self.require_buildable()

    @property
    def monitor(self) -> tuple[str, Literal["min", "max"]]:
        """The metric that selects the best checkpoint, and whether smaller or larger is better."""
        if not self.metric_names:
            return "val/loss", "min"
        metric = cast(Metric, cast(nn.ModuleDict, self.evaluation["val"])[self.metric_names[0]])
        return f"val/{self.metric_names[0]}", "max" if metric.higher_is_better else "min"

    @override
    def build_model(self) -> nn.Module:
        model = attnkit.compose(
            stack=attnkit.stacks.resolve(self.stack),
            src_vocab_size=len(self.src_tokenizer),
            tgt_vocab_size=len(self.tgt_tokenizer),
            embedding=self.embedding,
            tie=self.tie,
        )
        assert isinstance(model, nn.Module)
        return model

    @property
    @override
    def output_tokenizer(self) -> Tokenizer:
        return self.tgt_tokenizer

    @property
    @override
    def input_tokenizer(self) -> Tokenizer:
        return self.src_tokenizer

    @override
    def input_ids(self, text: str) -> list[int]:
        return [*self.src_tokenizer.encode(text), Tokenizer.eos_id]

    @override
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the token after each of `tgt` [B, T], given `src` [B, S]."""
        logits: Tensor = self.model(src, tgt, src_mask=src != Tokenizer.pad_id)
        return logits

    @override
    def objective(self, batch: dict[str, Any]) -> Sums:
        logits = self(batch["src"], batch["tgt"][:, :-1])
        return cross_entropy(logits, batch["tgt"][:, 1:], label_smoothing=self.label_smoothing, pad_id=Tokenizer.pad_id)

    @override
    def training_log(self, nll: Tensor) -> dict[str, Tensor]:
        return {"loss": nll, "perplexity": nll.exp()}

    @override
    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, list[str]]:
        """Return the `hypotheses` of a batch, for callbacks."""
        hypotheses = self._evaluate(batch, "val")
        self._shown += list(zip(batch["source"], hypotheses, batch["references"], strict=False))[: self.samples]
        return {"hypotheses": hypotheses}

    @override
    def test_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, list[str]]:
        """Return the `hypotheses` of a batch, for callbacks."""
        return {"hypotheses": self._evaluate(batch, "test")}

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Prediction]:
        return [Prediction(s, h) for s, h in zip(batch["source"], self._answers(batch, "source"), strict=True)]

    @override
    def on_validation_epoch_start(self) -> None:
        self._shown = []

    @override
    def on_validation_epoch_end(self) -> None:
        """Print the metrics of generated texts, and a few of the texts, spread over the validation set."""
        if self.trainer.sanity_checking or not self.metric_names:
            return
        metrics = cast(nn.ModuleDict, self.evaluation["val"])
        values = {name: cast(Metric, metrics[name]).compute() for name in self.metric_names}  # on every rank: it is reduced over them
        chosen = self._shown[:: max(1, -(-len(self._shown) // max(1, self.samples)))]
        width = min(40, max((len(source) for source, *_ in chosen), default=0))  # only short texts are aligned
        self.print_validation(values, [f"  {sample_line(*sample, width=width)}" for sample in chosen])

    def _evaluate(self, batch: dict[str, Any], stage: str) -> list[str]:
        """Update and log the metrics of a stage; return the generated texts, if any metric needs them."""
        targets = batch["tgt"][:, 1:]
        logits = self(batch["src"], batch["tgt"][:, :-1])
        sums = cross_entropy(logits, targets, pad_id=Tokenizer.pad_id)
        right = ((logits.argmax(-1) == targets) & (targets != Tokenizer.pad_id)).sum()
        metrics = dict(cast(nn.ModuleDict, self.evaluation[stage]).items())
        hypotheses = self._answers(batch, "references") if self.metric_names else []
        for name, metric in metrics.items():
            if name in self.metric_names:
                cast(Metric, metric).update(hypotheses, batch["references"])
            else:
                cast(Metric, metric).update(right if name == "token_accuracy" else sums.nll, sums.targets)
            self.log(f"{stage}/{name}", cast(Metric, metric), batch_size=len(targets), prog_bar=name == self.monitor[0].partition("/")[2])
        return hypotheses

    def _answers(self, batch: dict[str, Any], texts: str) -> list[str]:
        """Return the generated texts for the sources of a batch that have one of its `texts`."""
        count = len(batch[texts])
        return self.decode(batch["src"][:count]) if count > 0 else []

    def _metrics(self) -> nn.ModuleDict:
        means: dict[str, Metric] = {"loss": Mean(), "perplexity": Perplexity(), "token_accuracy": Mean()}
        return nn.ModuleDict(means | {name: generation_metric(name, tokenize=self.reference_tokens) for name in self.metric_names})

    def reference_tokens(self, text: str) -> list[object]:
        """Return the token ids of a text; an unknown token is paired with the text, so that it equals no unknown token of another."""
        ids = self.tgt_tokenizer.encode(text)
        return [(text, i) if token == Tokenizer.unk_id else token for i, token in enumerate(ids)]


def sample_line(source: str, hypothesis: str, references: Sequence[str], *, width: int = 0) -> str:
    """Return a line with an output, and with the first reference if the output is wrong.

    Example:
        >>> print(sample_line("tear", "T IH R", ["T EH R", "T IH R"], width=6))
        ok     tear   -> T IH R
        >>> print(sample_line("bow", "B IY", ["B AW", "B OW"]))
        wrong  bow -> B IY  (B AW)
    """
    right = hypothesis.split() in [r.split() for r in references]
    return f"{'ok' if right else 'wrong':<5}  {source:<{width}} -> {hypothesis}" + ("" if right else f"  ({references[0]})")
