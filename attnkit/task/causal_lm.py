"""Language modelling: continuing a text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from attnkit.models import DecoderModel
from attnkit.multi_token.base import later
from attnkit.registry import (
    ConfigurationError,
    MultiTokenSpec,
    OptimizerSpec,
    ScheduleSpec,
    TokenizerSpec,
    keywords_of,
    multi_tokens,
    tasks,
)
from attnkit.task.config import default, trained_tokenizer
from attnkit.task.evaluation import scored
from attnkit.task.generating import GeneratorConfig, TextGenerator
from attnkit.task.loss import Sums, cross_entropy
from attnkit.task.metrics import Mean, Perplexity
from attnkit.task.texts import one_line
from attnkit.tokenizer import Tokenizer


class Continuation(NamedTuple):
    """A prompt and its continuation. As a string: both, each as `one_line`, separated by a tab."""

    prompt: str
    text: str

    def __str__(self) -> str:
        return f"{one_line(self.prompt)}\t{one_line(self.text)}"


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig(GeneratorConfig):
    """The options of `causal_lm`.

    Args:
        stack: A decoder stack.
        tokenizer: Spec of the trained tokenizer (default: the data module's `tokenizer_spec`).
        tie: `output`: the embedding and the output share a table; `none`: they do not.
        multi_token: The module that predicts further tokens in training (default: none). Generation does not use it.
        prompts: Texts whose continuations, sampled at temperature 0.8, are printed after each validation; "" is the start of a document.
    """

    tokenizer: TokenizerSpec | None = None
    tie: Literal["none", "output"] = "output"
    multi_token: MultiTokenSpec | None = None
    optimizer: OptimizerSpec = default("adamw", lr=1e-3, betas=[0.9, 0.95], weight_decay=0.1)
    schedule: ScheduleSpec = default("cosine", warmup_steps=0.05)
    prompts: Sequence[str] = ("",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.prompts, str):
            raise ConfigurationError(f"prompts must be a list of texts, as in [{self.prompts!r}], but is the string {self.prompts!r}")


@tasks.register("causal_lm")
class CausalLM(TextGenerator):
    r"""A language model: predicts each token from the preceding ones (GPT, Llama, or an LSTM).

    A batch is a mapping of `tokens` [B, T], the inputs, and `targets` [B, T], the token after each input, or padding where nothing is
    scored. Without `targets`, the target of a token is the next token in its row, except in rows with a negative `example` [B]. In
    evaluation, there may be `characters`, the number of characters that the scored targets represent, and `answers` [B], the number of
    answers in each row of prompts and answers.

    With `documents` [B, T] in a batch (`data.document_mask`), attention stays inside the document of a token. Positions do not restart
    with a document: this makes no difference to distances (rotary, alibi, relative, ...), but learned, sinusoidal and FIRE positions
    count from the start of the window, as rotary ones do before `query_key_norm_after_rotation`; `scale_growth` counts from the start of
    the document. A recurrent stack has no attention to restrict and rejects `documents`.

    Logged: `train/loss` and `train/perplexity`; in validation (`val/...`) and test (`test/...`) `loss`, `perplexity`, `token_accuracy`,
    `bits_per_character` (with `characters`), `exact_match` (with `answers`) and, with `multi_token`, `loss_2`, `loss_3`, ... of the
    further tokens. Loss is the negative log-likelihood per token in nats, without label smoothing. Bits per character are comparable across
    tokenizers: all bits, including those for the ends of documents, divided by the characters of the text. Exact match is the fraction of
    rows in which every scored target is the most probable token; for a row with one answer, this means that greedy decoding answers
    correctly.

    Equation:
        $$\mathrm{bits\ per\ character} = -\frac{1}{C} \sum_t \log_2 p(x_t \mid x_{<t})$$

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("character").train(["attention"]).spec
        >>> task = CausalLM(stack={"name": "decoder", "d_model": 16, "num_layers": 1, "num_heads": 2}, tokenizer=tokenizer, max_length=5)
        >>> len(task.generate(["atten", "ten"], temperature=1.0, seed=1))
        2
    """

    from_data: ClassVar = {"tokenizer": "tokenizer_spec"}
    config: CausalLMConfig
    tokenizer: Tokenizer

    @keywords_of(CausalLMConfig)
    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__(config)

    @override
    def derive(self) -> None:
        self.tokenizer = self.source_tokenizer = self.output_tokenizer = trained_tokenizer(self.config.tokenizer, "tokenizer")
        super().derive()

    @override
    def input_ids(self, text: str) -> list[int]:
        return [Tokenizer.bos_id, *self.tokenizer.encode(text)]

    @override
    def build_model(self) -> DecoderModel:
        model: Any = super().build_model()
        if not isinstance(model, DecoderModel):
            raise ConfigurationError(
                f"causal_lm needs a decoder stack, in which tokens do not attend to later ones, such as decoder or recurrent_decoder, "
                f"not {model.spec['stack']!r}"
            )
        return model

    @override
    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V] for the token after each of `tokens` [B, T], within its document if `documents` are given."""
        logits: Tensor = self._scores(tokens, documents)
        return logits

    def _scores(self, tokens: Tensor, documents: Tensor | None, *, further: bool = False) -> Any:
        # padding is on the right, where no real token attends to it, but layers must not include it in their reports
        real = tokens != Tokenizer.pad_id if self.model.reports else None
        return self.model(tokens, real, documents=documents, further=further)

    @override
    def objective(self, batch: dict[str, Any]) -> Sums:
        tokens, targets, documents = _read(batch)
        if (multi_token := cast(DecoderModel, self.model).multi_token) is None:
            return self.summed(self(tokens, documents), targets)
        first, *further = self._scores(tokens, documents, further=True)
        sums = self.summed(first, targets)
        others = [self.summed(logits, _later(targets, offset, documents)) for offset, logits in enumerate(further, start=1)]
        return sums._replace(loss=sums.loss + multi_token.weighted(others))

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Continuation]:
        return [Continuation(prompt, text) for prompt, text in zip(batch["text"], self.decode(batch["tokens"]), strict=True)]

    @property
    @override
    def printed(self) -> Sequence[str]:
        return [name for name, metric in self.metrics("val").items() if metric.update_called]

    @override
    def samples(self) -> list[str]:
        """Return the continuations of the prompts."""
        continuations = self.generate(self.config.prompts, temperature=0.8, beam_size=1, seed=0)
        pairs = zip(self.config.prompts, continuations, strict=True)
        return [f"{prompt}|{text}".replace("\n", "\n    ") for prompt, text in pairs]

    @override
    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> None:
        tokens, targets, documents = _read(batch)
        has_further = self.config.multi_token is not None
        logits, *further = self._scores(tokens, documents, further=True) if has_further else [self(tokens, documents)]
        scores = scored(logits, targets, pad_id=Tokenizer.pad_id)
        updates, rows = scores.updates(), scores.by_row()
        for offset, ahead in enumerate(further, start=1):
            found = cross_entropy(ahead, _later(targets, offset, documents), pad_id=Tokenizer.pad_id)
            updates[f"loss_{offset + 1}"] = (found.nll, found.targets)
        if "characters" in batch:
            updates["bits_per_character"] = (scores.nll.sum() / math.log(2), batch["characters"])
        if "answers" in batch:
            has_answers = batch["answers"] > 0
            is_exact = (scores.right | ~scores.real).all(-1)
            updates["exact_match"] = ((is_exact & has_answers).sum(), has_answers.sum())
            rows["exact_match"] = (is_exact & has_answers, has_answers)
        if self.by_row is not None:
            self.by_row.append(rows)
        self.log_metrics(stage, updates, rows=len(tokens), shown=["loss", "bits_per_character"])

    @override
    def on_validation_epoch_end(self) -> None:
        """Raise if the data have no targets for one of the offsets, and print."""
        if not self.trainer.sanity_checking:  # sanity checking reads only a few batches
            self._require_targets("val")
        super().on_validation_epoch_end()

    @override
    def on_test_epoch_end(self) -> None:
        """Raise if the data have no targets for one of the offsets."""
        self._require_targets("test")

    def _require_targets(self, stage: str) -> None:
        for name, metric in self.metrics(stage).items():
            if name.startswith("loss_") and metric.update_called:
                with metric.sync_context():  # over all ranks
                    is_empty = metric.count == 0
                if is_empty:
                    offset = int(name.removeprefix("loss_"))
                    raise ConfigurationError(
                        f"no row of the {stage} data has a target {offset} tokens ahead, which multi_token predicts: set its num_tokens "
                        f"below {offset}, or use longer rows"
                    )

    @override
    def new_metrics(self) -> dict[str, Metric]:
        names = ["loss", "perplexity", "token_accuracy", "bits_per_character", "exact_match"]
        if self.config.multi_token is not None:
            offsets = range(2, 1 + multi_tokens.resolve(self.config.multi_token)["num_tokens"])
            names += [f"loss_{offset}" for offset in offsets]
        return {name: Perplexity() if name == "perplexity" else Mean() for name in names}


def _read(batch: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the inputs, the targets and the documents (if any) of a batch."""
    tokens = batch["tokens"]
    if "targets" in batch:
        return tokens, batch["targets"], batch.get("documents")
    targets = tokens[:, 1:]
    if "example" in batch:
        targets = targets.masked_fill((batch["example"] < 0)[:, None], Tokenizer.pad_id)
    return tokens[:, :-1], targets, None


def _later(targets: Tensor, offset: int, documents: Tensor | None) -> Tensor:
    """Return the targets [B, T] that come `offset` tokens later in the same document, or padding."""
    found = later(targets, offset, fill=Tokenizer.pad_id)
    return found if documents is None else found.masked_fill(later(documents, offset, fill=-1) != documents, Tokenizer.pad_id)
