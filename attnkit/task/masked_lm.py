# https://arxiv.org/abs/1810.04805
"""The task of telling the hidden tokens of a text."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchmetrics import Metric
from typing_extensions import Unpack, override

import attnkit
from attnkit.decoding import Options
from attnkit.models.base import generating
from attnkit.registry import (
    ConfigurationError,
    EmbeddingSpec,
    OptimizerSpec,
    ScheduleSpec,
    StackSpec,
    TokenizerSpec,
    stacks,
    tasks,
    tokenizers,
)
from attnkit.stack import EncoderStack
from attnkit.strategy import ActivationCheckpointing
from attnkit.task.base import Task
from attnkit.task.filling import Candidate, Filled, best_fillings
from attnkit.task.generating import Hypothesis
from attnkit.task.loss import Sums, cross_entropy
from attnkit.task.masking import Masked, mask_tokens
from attnkit.task.metrics import Mean, Perplexity
from attnkit.task.unknown import warn_of_unknown
from attnkit.tokenizer import Tokenizer

MASK = "<mask>"
BATCH = 64  # texts that are filled at once


@tasks.register("masked_lm")
class MaskedLM(Task):
    """Tells hidden tokens of a text from what stands on both sides of them, as BERT is pre-trained.

    Of the tokens 15 % are chosen anew at each step; 80 % of these are hidden behind `<mask>`, 10 % behind a random token, and 10 % are
    left as they are. The loss is over the chosen tokens only. Special, unknown and extra tokens are never chosen. What is chosen is a
    function of the seed, the epoch and the example; in validation and test of the example alone, so that losses can be compared between
    epochs and between models.

    Paper: Devlin et al. 2019, https://arxiv.org/abs/1810.04805

    A batch is a mapping with `tokens` [B, T], and with `example` [B], a number for each example; a row whose number is negative is not
    scored. Without `example`, a row is known by the batch, the process and its place there. For prediction there is also `text`, the texts
    with `<mask>` in them.

    Logged: `train/loss` and `train/perplexity`; in validation (`val/...`) and test (`test/...`) `loss`, `perplexity` and
    `masked_accuracy`. Loss is the negative log-likelihood per chosen token in nats; accuracy is from 0 to 1.

    Args:
        stack: An encoder stack.
        tokenizer: Spec of the trained tokenizer (a tokenizer's `.spec`); `<mask>` is among its extra tokens.
        embedding: The embedding.
        tie: Whether the output shares the embedding's table (`output`) or not (`none`).
        head_transform: Whether BERT's dense layer, GELU and norm stand before the output map, and it has a bias.
        masking: Whether single tokens (`token`) or all tokens of a word (`whole_word`) are chosen together.
        mask_probability: Of a token, or word, to be chosen, between 0 and 1.
        seed: Of the choice in training, at least 0; global random states play no part.
        init_from: A checkpoint whose embedding and stack a fit starts from, if they are the same composition (default: none).
        optimizer: The optimizer.
        schedule: The learning rate over the optimizer's steps.
        activation_checkpointing: What the backward pass computes again, to save memory: `none`, each `layer`, `attention` (the part that
            grows with the square of the length), or `feed_forward`. Results are the same.
        compile: Whether torch.compile translates each layer for training. Results are the same but for rounding.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or the tokenizer is not trained or has no `<mask>`.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build({"name": "word", "extra_tokens": ["<mask>"]}).train(["the cat sat"])
        >>> stack = {"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2}
        >>> task = MaskedLM(stack=stack, tokenizer=tokenizer.spec)
        >>> (mask,) = task.fill(["the <mask> sat"], top=2)[0]
        >>> len(mask), 0 < mask[1].probability <= mask[0].probability
        (2, True)
    """

    from_data: ClassVar = {"tokenizer": "tokenizer_spec"}

    def __init__(
        self,
        *,
        stack: StackSpec,
        tokenizer: TokenizerSpec,
        embedding: EmbeddingSpec = "token",
        tie: Literal["none", "output"] = "output",
        head_transform: bool = True,
        masking: Literal["token", "whole_word"] = "token",
        mask_probability: float = 0.15,
        seed: int = 0,
        init_from: str | None = None,
        optimizer: OptimizerSpec = {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.01},  # noqa: B006
        schedule: ScheduleSpec = {"name": "linear", "warmup_steps": 0.05},  # noqa: B006
        activation_checkpointing: ActivationCheckpointing = "none",
        compile: bool = False,
    ) -> None:
        super().__init__(
            optimizer=optimizer,
            schedule=schedule,
            init_from=init_from,
            activation_checkpointing=activation_checkpointing,
            compile=compile,
        )
        self.store_arguments(locals())
        if not 0 < mask_probability < 1:
            raise ConfigurationError(f"mask_probability must be above 0 and below 1, but is {mask_probability}")
        if seed < 0:
            raise ConfigurationError(f"seed must be at least 0, but is {seed}")
        name = stacks.resolve(stack).name
        if not issubclass(stacks.get(name), EncoderStack):
            raise ConfigurationError(f"masked_lm reads both sides of a hidden token, so it needs an encoder stack, but {name!r} is none")
        self.stack, self.embedding, self.tie, self.head_transform = stack, embedding, tie, head_transform
        self.tokenizer: Tokenizer = tokenizers.build(tokenizer)
        if not self.tokenizer.trained:
            raise ConfigurationError("tokenizer is not trained; pass the .spec of a trained one, such as data.tokenizer_spec")
        self.mask_id = self.tokenizer.id_of(MASK)
        self.first_id = len(Tokenizer.special_tokens) + len(self.tokenizer.extra_tokens)
        if self.first_id == len(self.tokenizer):
            raise ConfigurationError("the tokenizer has no tokens but special and extra ones, so there is nothing to hide")
        self.masking, self.mask_probability, self.seed = masking, mask_probability, seed
        begins = self.tokenizer.begins_word(range(len(self.tokenizer))) if masking == "whole_word" else None
        self.register_buffer("_begins_word", None if begins is None else torch.tensor(begins), persistent=False)
        self.evaluation = nn.ModuleDict({"val": _metrics(), "test": _metrics()})
        self.require_buildable()

    @property
    def monitor(self) -> tuple[str, Literal["min", "max"]]:
        """What tells the best checkpoint, and whether it is the smallest or the largest."""
        return "val/loss", "min"

    @override
    def build_model(self) -> nn.Module:
        model = attnkit.compose(
            stack=attnkit.stacks.resolve(self.stack),
            vocab_size=len(self.tokenizer),
            embedding=self.embedding,
            tie=self.tie,
            head_transform=self.head_transform,
            pad_id=Tokenizer.pad_id,
            bos_id=Tokenizer.bos_id,
            eos_id=Tokenizer.eos_id,
        )
        assert isinstance(model, nn.Module)
        return model

    @override
    def forward(self, tokens: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V] of the tokens that stand, or should stand, at each of `tokens` [B, T].

        With `chosen` [B, T] bool: of these N places only, [N, V].
        """
        logits: Tensor = self.model(tokens, key_mask=tokens != Tokenizer.pad_id, chosen=chosen)
        return logits

    def hide(self, batch: Mapping[str, Any], batch_idx: int, stage: Literal["fit", "evaluation"]) -> Masked:
        """Choose tokens of a batch and hide them, as in this epoch of training (`fit`), or in any validation or test."""
        keys = self.row_keys(batch, batch_idx, *((self.seed, self.current_epoch) if stage == "fit" else ()))
        masked = mask_tokens(
            batch["tokens"],
            probability=self.mask_probability,
            mask_id=self.mask_id,
            first_id=self.first_id,
            vocab_size=len(self.tokenizer),
            begins_word=cast(Tensor | None, self._begins_word),
            keys=keys,
        )
        if "example" not in batch:
            return masked
        return masked._replace(chosen=masked.chosen & (batch["example"] >= 0)[:, None])

    @override
    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        return super().training_step({**batch, "masked": self.hide(batch, batch_idx, "fit")}, batch_idx)

    @override
    def objective(self, batch: dict[str, Any]) -> Sums:
        masked: Masked = batch["masked"]
        return cross_entropy(self(*masked), batch["tokens"][masked.chosen], pad_id=Tokenizer.pad_id)

    @override
    def training_log(self, nll: Tensor) -> dict[str, Tensor]:
        return {"loss": nll, "perplexity": nll.exp()}

    @override
    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate(batch, batch_idx, "val")

    @override
    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self._evaluate(batch, batch_idx, "test")

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Filled]:
        if not batch["text"]:  # no text of the batch is left for this process
            return []
        rows = self._filled(batch["tokens"], n=1)
        return [Filled(text, filled, math.exp(score)) for text, ((filled, score),) in zip(batch["text"], rows, strict=True)]

    def fill(self, texts: Sequence[str], *, top: int = 5) -> list[list[list[Candidate]]]:
        """Return, for each text, for each `<mask>` in it, the most probable tokens, best first.

        Tokens are written as the tokenizer decodes them: those of `bpe` with the space before them. Special and extra tokens are no
        candidates; the probabilities of all others sum to 1.

        Args:
            texts: Texts with `<mask>` in them; one without has no candidates.
            top: Candidates for each mask (fewer if the vocabulary has fewer tokens).

        Raises:
            ConfigurationError: `top` is below 1.
            TypeError: `texts` is a single string.
        """
        if top < 1:
            raise ConfigurationError(f"top must be at least 1, but is {top}")
        rows = [row for tokens in self._batches(texts) for row in self._candidates(tokens, top=top)]
        return [[[Candidate(self.tokenizer.tokens([i])[0], math.exp(p)) for i, p in mask] for mask in row] for row in rows]

    def generate(self, texts: Sequence[str], **options: Unpack[Options]) -> list[str]:
        """Return each text with its masks filled by the most probable tokens; one without masks stays as it is.

        Args:
            texts: Texts with `<mask>` in them.
            **options: None: they are for tasks that generate token after token.

        Raises:
            ConfigurationError: An option is given.
            TypeError: `texts` is a single string.
        """
        return [hypothesis.text for (hypothesis,) in self.n_best(texts, 1, **options)]

    def n_best(self, texts: Sequence[str], n: int, **options: Unpack[Options]) -> list[list[Hypothesis]]:
        """Return the `n` most probable ways to fill the masks of each text, best first, with their log-probabilities.

        Args:
            texts: Texts with `<mask>` in them.
            n: How many for each text; fewer only where no more are possible.
            **options: None, as in `generate`.

        Raises:
            ConfigurationError: An option is given, or `n` is below 1.
            TypeError: `texts` is a single string.
        """
        if options:
            raise ConfigurationError(f"masked_lm fills masks all at once, so {', '.join(options)} does not apply: leave it out")
        if n < 1:
            raise ConfigurationError(f"n_best must be at least 1, but is {n}")
        rows = [row for tokens in self._batches(texts) for row in self._filled(tokens, n=n)]
        return [[Hypothesis(text, score) for text, score in row] for row in rows]

    def stream(self, text: str, **options: Unpack[Options]) -> Iterator[str]:
        """Raise: nothing of the output is known before the rest.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError("masked_lm fills masks all at once, so there is nothing to stream: leave --stream out")

    def _batches(self, texts: Sequence[str]) -> Iterator[Tensor]:
        """Yield the ids [B, T] of some of the texts, in turn."""
        if isinstance(texts, str):
            raise TypeError(f"texts must be a list, as in [{texts!r}], but is one string")
        self.configure_model()
        warn_of_unknown(self.tokenizer, texts)
        for start in range(0, len(texts), BATCH):
            chunk = texts[start : start + BATCH]
            ids = [torch.tensor([Tokenizer.bos_id, *self.tokenizer.encode(text), Tokenizer.eos_id]) for text in chunk]
            yield pad_sequence(ids, batch_first=True, padding_value=Tokenizer.pad_id).to(self.device)

    def _filled(self, tokens: Tensor, *, n: int) -> list[list[tuple[str, float]]]:
        """Return the `n` most probable fillings of each row of `tokens` [B, T], with their log-probabilities."""
        rows = zip(tokens.tolist(), self._candidates(tokens, top=n), strict=True)
        fillings = [best_fillings(row, masks, n=n, mask_id=self.mask_id) for row, masks in rows]
        return [[(self.tokenizer.decode(ids), score) for ids, score in best] for best in fillings]

    def _candidates(self, tokens: Tensor, *, top: int) -> list[list[list[tuple[int, float]]]]:
        """Return, for each row of `tokens` [B, T], for each mask in it, the best ids and their log-probabilities."""
        masks = tokens == self.mask_id
        with generating(self.model):
            logits = self(tokens, masks)[:, self.first_id :].float()  # [N, V - first_id]
        best = logits.log_softmax(-1).topk(min(top, logits.shape[-1]))
        ids = (best.indices + self.first_id).tolist()
        pairs = iter([list(zip(*row, strict=True)) for row in zip(ids, best.values.tolist(), strict=True)])
        return [list(islice(pairs, count)) for count in masks.sum(1).tolist()]

    def _evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> None:
        masked = self.hide(batch, batch_idx, "evaluation")
        logits, targets = self(*masked), batch["tokens"][masked.chosen]
        sums = cross_entropy(logits, targets, pad_id=Tokenizer.pad_id)
        totals = {"loss": sums.nll, "perplexity": sums.nll, "masked_accuracy": (logits.argmax(-1) == targets).sum()}
        for name, metric in cast(nn.ModuleDict, self.evaluation[stage]).items():
            cast(Metric, metric).update(totals[name], sums.targets)
            self.log(f"{stage}/{name}", cast(Metric, metric), batch_size=len(batch["tokens"]), prog_bar=name == "loss")


def _metrics() -> nn.ModuleDict:
    return nn.ModuleDict({"loss": Mean(), "perplexity": Perplexity(), "masked_accuracy": Mean()})
