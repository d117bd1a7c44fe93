"""Language modelling: continuing a text."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, cast

from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

import attnkit
from attnkit.models import DecoderModel
from attnkit.registry import ConfigurationError, EmbeddingSpec, OptimizerSpec, ScheduleSpec, StackSpec, TokenizerSpec, tasks
from attnkit.strategy import ActivationCheckpointing
from attnkit.task.arguments import require_smoothing, trained_tokenizer
from attnkit.task.generating import TextGenerator
from attnkit.task.loss import Sums, cross_entropy
from attnkit.task.metrics import Mean, Perplexity
from attnkit.tokenizer import Tokenizer


class Continuation(NamedTuple):
    """A prompt and its continuation. As a string: both on one line, separated by a tab, with line ends written as `\\n`."""

    prompt: str
    text: str

    def __str__(self) -> str:
        return f"{self.prompt}\t{self.text}".replace("\n", "\\n")


@tasks.register("causal_lm")
class CausalLM(TextGenerator):
    r"""A language model: predicts each token from the preceding ones (GPT, Llama, or an LSTM).

    A batch is a mapping of `tokens` [B, T], the inputs, and `targets` [B, T], the token after each of them, padding where nothing is
    scored. Without `targets`, the target of a token is the next one of its row. In evaluation there may be `characters`, the number of
    characters that the scored targets stand for.

    With `documents` [B, T] in a batch (`data.document_mask`), attention stays inside the document of a token. Positions do not restart
    with a document: this makes no difference for distances (rotary, alibi, relative, ...), but learned, sinusoidal and FIRE's positions
    count from the start of the window. A recurrent stack has no attention to restrict, and refuses `documents`.

    Logged: `train/loss` and `train/perplexity`; in validation (`val/...`) and test (`test/...`) `loss`, `perplexity`, `token_accuracy` and
    `bits_per_character`. Loss is the negative log-likelihood per token in nats, without label smoothing. Bits per character are comparable
    between tokenizers: all bits, including those of the ends of documents, divided by the characters of the text.

    Equation:
        $$\mathrm{bits\ per\ character} = -\frac{1}{C} \sum_t \log_2 p(x_t \mid x_{<t})$$

    Args:
        stack: A decoder stack.
        tokenizer: Spec of the trained tokenizer (a tokenizer's `.spec`).
        embedding: The embedding.
        tie: `output`: embedding and output share a table; `none`: they do not.
        label_smoothing: Probability mass that is spread over all non-padding tokens, at least 0 and below 1.
        optimizer: The optimizer.
        schedule: The learning rate over the optimizer's steps.
        beam_size: Beams of generation; 1 is greedy.
        max_length: The most tokens to generate, including the end.
        length_penalty: Exponent of the length by which the log-probability of a beam is divided.
        prompts: Texts whose continuation, drawn at temperature 0.8, is printed after each validation; "" is the start of a document.
        activation_checkpointing: What the backward pass recomputes to save memory: `none`, each `layer`, `mixer` (the part that grows
            with the square of the length), or `feed_forward`. Results are the same.
        compile: Whether torch.compile translates each layer for training. Results are the same up to rounding.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or the tokenizer is not trained.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("character").train(["attention"]).spec
        >>> task = CausalLM(stack={"name": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2}, tokenizer=tokenizer, max_length=5)
        >>> len(task.generate(["atten", "ten"], temperature=1.0, seed=1))
        2
    """

    from_data: ClassVar = {"tokenizer": "tokenizer_spec"}
    monitor: ClassVar[tuple[str, Literal["min", "max"]]] = ("val/loss", "min")

    def __init__(
        self,
        *,
        stack: StackSpec,
        tokenizer: TokenizerSpec,
        embedding: EmbeddingSpec = "token",
        tie: Literal["none", "output"] = "output",
        label_smoothing: float = 0.0,
        optimizer: OptimizerSpec = {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1},  # noqa: B006
        schedule: ScheduleSpec = {"name": "cosine", "warmup_steps": 0.05},  # noqa: B006
        beam_size: int = 1,
        max_length: int = 64,
        length_penalty: float = 1.0,
        prompts: Sequence[str] = ("",),
        activation_checkpointing: ActivationCheckpointing = "none",
        compile: bool = False,
    ) -> None:
        super().__init__(locals())
        require_smoothing(label_smoothing)
        if isinstance(prompts, str):
            raise ConfigurationError(f"prompts must be a list of texts, as in [{prompts!r}], but is the string {prompts!r}")
        self.stack, self.embedding, self.tie = stack, embedding, tie
        self.tokenizer = trained_tokenizer(tokenizer, "tokenizer")
        self.label_smoothing = label_smoothing
        self.prompts = tuple(prompts)
        self.evaluation = nn.ModuleDict({"val": _metrics(), "test": _metrics()})
        self.require_buildable()

    @property
    @override
    def output_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    @property
    @override
    def input_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    @override
    def input_ids(self, text: str) -> list[int]:
        return [Tokenizer.bos_id, *self.tokenizer.encode(text)]

    @override
    def build_model(self) -> nn.Module:
        model = attnkit.compose(
            stack=attnkit.stacks.resolve(self.stack),
            vocab_size=len(self.tokenizer),
            embedding=self.embedding,
            tie=self.tie,
        )
        if not isinstance(model, DecoderModel):
            raise ConfigurationError(
                f"causal_lm needs a decoder stack, in which no token attends to later ones, such as decoder or recurrent_decoder, "
                f"not {model.spec['stack']!r}"
            )
        return model

    @override
    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V] of the token after each of `tokens` [B, T], inside its own document if `documents` are given."""
        logits: Tensor = self.model(tokens, documents=documents)  # padding is on the right, where no other token attends to it
        return logits

    @override
    def objective(self, batch: dict[str, Any]) -> Sums:
        tokens, targets, documents = _read(batch)
        return cross_entropy(self(tokens, documents), targets, label_smoothing=self.label_smoothing, pad_id=Tokenizer.pad_id)

    @override
    def training_log(self, nll: Tensor) -> dict[str, Tensor]:
        return {"loss": nll, "perplexity": nll.exp()}

    @override
    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate(batch, "val")

    @override
    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate(batch, "test")

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Continuation]:
        return [Continuation(prompt, text) for prompt, text in zip(batch["text"], self.decode(batch["tokens"]), strict=True)]

    @override
    def on_validation_epoch_end(self) -> None:
        """Print the metrics, and the continuations of the prompts."""
        if self.trainer.sanity_checking:
            return
        metrics = {name: cast(Metric, metric) for name, metric in cast(nn.ModuleDict, self.evaluation["val"]).items()}
        values = {name: metric.compute() for name, metric in metrics.items() if metric.update_called}  # on every rank: it is reduced
        continuations = self.generate(self.prompts, temperature=0.8, beam_size=1, seed=0)
        pairs = zip(self.prompts, continuations, strict=True)
        self.print_validation(values, [f"  {prompt}|{text}".replace("\n", "\n    ") for prompt, text in pairs])

    def _evaluate(self, batch: dict[str, Any], stage: str) -> None:
        """Update and log the metrics of a stage."""
        tokens, targets, documents = _read(batch)
        logits = self(tokens, documents)
        sums = cross_entropy(logits, targets, pad_id=Tokenizer.pad_id)
        right = ((logits.argmax(-1) == targets) & (targets != Tokenizer.pad_id)).sum()
        updates = {"loss": (sums.nll, sums.targets), "perplexity": (sums.nll, sums.targets), "token_accuracy": (right, sums.targets)}
        if "characters" in batch:
            updates["bits_per_character"] = (sums.nll / math.log(2), batch["characters"])
        metrics = cast(nn.ModuleDict, self.evaluation[stage])
        for name, (total, count) in updates.items():
            metric = cast(Metric, metrics[name])
            metric.update(total, count)
            self.log(f"{stage}/{name}", metric, batch_size=len(tokens), prog_bar=name in ("loss", "bits_per_character"))


def _metrics() -> nn.ModuleDict:
    return nn.ModuleDict({"loss": Mean(), "perplexity": Perplexity(), "token_accuracy": Mean(), "bits_per_character": Mean()})


def _read(batch: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the inputs, the targets and, if any, the documents of a batch."""
    tokens = batch["tokens"]
    if "targets" in batch:
        return tokens, batch["targets"], batch.get("documents")
    return tokens[:, :-1], tokens[:, 1:], None
