# https://arxiv.org/abs/1810.04805
"""Masked language modelling: predicting hidden tokens of a text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from attnkit import draws
from attnkit.head import Head
from attnkit.registry import (
    ConfigurationError,
    HeadSpec,
    OptimizerSpec,
    ScheduleSpec,
    TokenizerSpec,
    keywords_of,
    require_at_least,
    stacks,
    tasks,
)
from attnkit.stack import EncoderStack
from attnkit.task.composed import ComposedConfig
from attnkit.task.config import default, trained_tokenizer
from attnkit.task.evaluation import scored
from attnkit.task.filling import MaskFiller
from attnkit.task.loss import Sums, cross_entropy
from attnkit.task.metrics import Mean, Perplexity
from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.base import MASK

MASKED, REPLACED = 0.8, 0.1  # fractions of the chosen tokens; the rest stay unchanged


class Masked(NamedTuple):
    """A batch with hidden tokens."""

    tokens: Tensor  # [B, T] int64, the input of the model
    chosen: Tensor  # [B, T] bool, the tokens to predict; some of them are still in `tokens`


def mask_tokens(
    tokens: Tensor, *, probability: float, mask_id: int, first_id: int, vocab_size: int, begins_word: Tensor | None, keys: Tensor
) -> Masked:
    """Choose tokens and hide most of them: 80 % become `<mask>`, 10 % a random token, and 10 % stay unchanged.

    Each token, or whole word, is chosen with the same probability, independently of the others. (BERT chooses a fixed number per text.)
    The fate of each chosen token is drawn separately, even within a whole word, as in BERT's code.

    Paper: Devlin et al. 2019, section 3.1, https://arxiv.org/abs/1810.04805

    Args:
        tokens: [B, T] int64.
        probability: Probability that a token, or a word, is chosen.
        mask_id: The id of `<mask>`.
        first_id: Ids below this are never chosen and never replace another: special, unknown and extra tokens.
        vocab_size: Number of ids V; random tokens are from `first_id` to V - 1, all equally likely.
        begins_word: [V] bool, the ids that begin a word, to choose whole words; None: choose single tokens.
        keys: [B] int64, a random key for each row (`attnkit.draws`): the result for a row depends only on its key and its tokens, not
            on padding or other rows.

    Example:
        >>> tokens = torch.tensor([[1, 7, 8, 9, 7, 2, 0]])
        >>> ids = {"mask_id": 4, "first_id": 5, "vocab_size": 10, "begins_word": None}
        >>> masked = mask_tokens(tokens, probability=0.5, **ids, keys=torch.tensor([3]))
        >>> masked.chosen
        tensor([[False, False, False, False,  True, False, False]])
        >>> masked.tokens
        tensor([[1, 7, 8, 9, 4, 2, 0]])
    """
    chances, fates, others = (draws.uniform(keys, draws.site(f"masking.{what}"), tokens.shape[1]) for what in ("choice", "fate", "other"))
    others = first_id + (others * (vocab_size - first_id)).long()  # [B, T], like the others
    ordinary = tokens >= first_id
    if begins_word is not None:
        follows = torch.nn.functional.pad(ordinary[:, :-1], (1, 0))  # [B, T]
        word = (begins_word[tokens] | ~follows).cumsum(1) - 1  # [B, T], the number of the word in its row
        chances = chances.gather(1, word)  # one draw for all tokens of a word
    chosen = ordinary & (chances < probability)
    hidden = torch.where(fates < MASKED, mask_id, torch.where(fates < MASKED + REPLACED, others, tokens))
    return Masked(torch.where(chosen, hidden, tokens), chosen)


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig(ComposedConfig):
    """The options of `masked_lm`.

    Args:
        stack: An encoder stack.
        tokenizer: Spec of the trained tokenizer, with `<mask>` among its extra tokens (default: the data module's `tokenizer_spec`).
        tie: Whether the output shares the embedding's table (`output`) or not (`none`).
        head: The map to the logits.
        z_loss: Coefficient of the squared logsumexp of the logits, at least 0.
        masking: Whether to choose single tokens (`token`) or all tokens of a word together (`whole_word`).
        mask_probability: Probability that a token, or a word, is chosen, between 0 and 1.
        seed: Seed of the choice in training, at least 0; global random states have no effect.
    """

    tokenizer: TokenizerSpec | None = None
    tie: Literal["none", "output"] = "output"
    head: HeadSpec = "bert"
    z_loss: float = 0.0
    masking: Literal["token", "whole_word"] = "token"
    mask_probability: float = 0.15
    seed: int = 0
    optimizer: OptimizerSpec = default("adamw", lr=1e-3, betas=[0.9, 0.98], weight_decay=0.01)
    schedule: ScheduleSpec = default("linear", warmup_steps=0.05)

    def __post_init__(self) -> None:
        require_at_least(0, z_loss=self.z_loss, seed=self.seed)
        if not 0 < self.mask_probability < 1:
            raise ConfigurationError(f"mask_probability must be above 0 and below 1, but is {self.mask_probability}")


@tasks.register("masked_lm")
class MaskedLM(MaskFiller):
    """Predicts hidden tokens of a text from the context on both sides, as in the pre-training of BERT.

    Each step chooses 15 % of the tokens; `<mask>` replaces 80 % of these, a random token replaces 10 %, and 10 % stay unchanged. The loss
    is over the chosen tokens only. Special, unknown and extra tokens are never chosen. The choice is a function of the seed, the epoch and
    the example; in validation and test, it depends only on the example, so that losses are comparable across epochs and models.

    Paper: Devlin et al. 2019, https://arxiv.org/abs/1810.04805

    A batch is a mapping with `tokens` [B, T] and `example` [B], the number of each example; rows with a negative number are not scored.
    Without `example`, a row is identified by the batch, the process and its index there. In validation and test, a token whose entry in
    `targets` [B, T] is padding is not scored, because another window of the running text scores it. For prediction, there is also `text`,
    texts that contain `<mask>`. Windows are read as a whole: `documents` (`data.document_mask`) are rejected, as are `answers` in
    validation and test.

    Logged: `train/loss` and `train/perplexity`; in validation (`val/...`) and test (`test/...`) `loss`, `perplexity` and
    `masked_accuracy`. Loss is the negative log-likelihood per chosen token in nats; accuracy is from 0 to 1.

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
    config: MaskedLMConfig

    @keywords_of(MaskedLMConfig)
    def __init__(self, config: MaskedLMConfig) -> None:
        super().__init__(config)

    @override
    def derive(self) -> None:
        name = stacks.resolve(self.config.stack).name
        if not issubclass(stacks.get(name), EncoderStack):
            raise ConfigurationError(f"masked_lm reads both sides of a hidden token, so it needs an encoder stack, not {name!r}")
        self.tokenizer = trained_tokenizer(self.config.tokenizer, "tokenizer")
        self.mask_id = self.tokenizer.id_of(MASK)
        self.first_id = len(Tokenizer.special_tokens) + len(self.tokenizer.extra_tokens)
        if self.first_id == len(self.tokenizer):
            raise ConfigurationError("the tokenizer has only special and extra tokens, so there is nothing to hide")
        begins = self.tokenizer.begins_word(range(len(self.tokenizer))) if self.config.masking == "whole_word" else None
        self.register_buffer("_begins_word", None if begins is None else torch.tensor(begins), persistent=False)
        super().derive()

    @override
    def forward(self, tokens: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V] for the original token at each of `tokens` [B, T].

        With `chosen` [B, T] bool, return the logits for the N chosen tokens only, [N, V].
        """
        logits: Tensor = self.model(tokens, key_mask=tokens != Tokenizer.pad_id, chosen=chosen)
        return logits

    def hide(self, batch: Mapping[str, Any], batch_idx: int, stage: Literal["fit", "evaluation"]) -> Masked:
        """Choose tokens of a batch and hide them, as in the current epoch of training (`fit`) or in every validation and test."""
        if "documents" in batch:
            raise ConfigurationError("masked_lm reads each window as a whole, with all of its documents: set data.document_mask to false")
        if "answers" in batch:  # whose targets say which next tokens are scored
            raise ConfigurationError("masked_lm does not tell answers from prompts, as prompted_text does for causal_lm: use labelled_text")
        keys = self.row_keys(batch, batch_idx, *((self.config.seed, self.current_epoch) if stage == "fit" else ()))
        masked = mask_tokens(
            batch["tokens"],
            probability=self.config.mask_probability,
            mask_id=self.mask_id,
            first_id=self.first_id,
            vocab_size=len(self.tokenizer),
            begins_word=cast(Tensor | None, self._begins_word),
            keys=keys,
        )
        chosen = masked.chosen
        if "example" in batch:
            chosen = chosen & (batch["example"] >= 0)[:, None]
        if stage == "evaluation" and "targets" in batch:
            chosen = chosen & (batch["targets"] != Tokenizer.pad_id)
        return masked._replace(chosen=chosen)

    @override
    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        return super().training_step({**batch, "masked": self.hide(batch, batch_idx, "fit")}, batch_idx)

    @override
    def objective(self, batch: dict[str, Any]) -> Sums:
        masked: Masked = batch["masked"]
        targets, excluded = batch["tokens"][masked.chosen], cast(Head, self.model.head).excluded
        return cross_entropy(self(*masked), targets, z_loss=self.config.z_loss, pad_id=Tokenizer.pad_id, excluded=excluded)

    @override
    def training_log(self, nll: Tensor) -> dict[str, Tensor]:
        return {"loss": nll, "perplexity": nll.exp()}

    @override
    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> None:
        masked = self.hide(batch, batch_idx, "evaluation")
        updates = scored(self(*masked), batch["tokens"][masked.chosen], pad_id=Tokenizer.pad_id).updates()
        updates["masked_accuracy"] = updates.pop("token_accuracy")
        self.log_metrics(stage, updates, rows=len(batch["tokens"]), shown=["loss"])

    @override
    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": Mean(), "perplexity": Perplexity(), "masked_accuracy": Mean()}
