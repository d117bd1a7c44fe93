# https://arxiv.org/abs/1310.4546
"""Word vectors: words used in similar ways get vectors that are close to each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torchmetrics import Metric
from typing_extensions import override

from attnkit import draws
from attnkit.embedding.similarity import Neighbour, WordSpace
from attnkit.models.word_vectors import WordVectorModel
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
from attnkit.task.config import TaskConfig, default, trained_tokenizer
from attnkit.task.evaluation import EvaluatedTask
from attnkit.task.loss import Sums
from attnkit.task.metrics import Mean
from attnkit.task.words import word_vectors
from attnkit.tokenizer import Tokenizer

NOISE_POWER = 0.75


class Answer(NamedTuple):
    """A question and the words whose vectors are nearest to its answer. As a string: both, separated by a tab."""

    question: str
    words: Sequence[Neighbour]

    def __str__(self) -> str:
        return f"{self.question}\t{', '.join(f'{word} {cosine:.2f}' for word, cosine in self.words)}"


class Neighbourhoods(NamedTuple):
    """The words of a batch and the words around them."""

    centres: Tensor  # [B, T] int64; padding where there is no word
    contexts: Tensor  # [B, T, 2W] int64: the words around each centre
    used: Tensor  # [B, T, 2W] bool: whether centre and context are a pair


def neighbourhoods(tokens: Tensor, *, window: int, keep: Tensor, keys: Tensor, counted: Tensor | None = None) -> Neighbourhoods:
    """Return the words around each word of a document.

    Frequent words are randomly dropped first, which moves the others closer together. Then the reach of each word is drawn from 1 to
    `window`, so that nearer words count more.

    Paper: Mikolov et al. 2013, section 2.3, https://arxiv.org/abs/1310.4546

    Args:
        tokens: [B, T] int64; bos at the start of a document. Special tokens are not words.
        window: The largest reach W.
        keep: [V] float64, the probability of keeping a word.
        keys: [B] int64, the key of each row (`attnkit.draws`).
        counted: [B, T] bool, the words whose pairs count (default: all).

    Example:
        >>> tokens = torch.tensor([[1, 7, 8, 1, 9]])
        >>> found = neighbourhoods(tokens, window=1, keep=torch.ones(10, dtype=torch.float64), keys=torch.tensor([0]))
        >>> found.centres.tolist(), found.contexts[found.used].tolist()
        ([[7, 8, 9, 0, 0]], [8, 7])
    """
    width = tokens.shape[1]
    dropping, reaching = (draws.uniform(keys, draws.site(f"word_vectors.{what}"), width) for what in ("drop", "reach"))
    kept = (tokens >= len(Tokenizer.special_tokens)) & (dropping < keep[tokens])  # [B, T]
    order = (~kept).int().argsort(dim=1, stable=True)
    documents = (tokens == Tokenizer.bos_id).cumsum(1).gather(1, order)
    kept = kept.gather(1, order)
    centres = tokens.gather(1, order).where(kept, Tokenizer.pad_id)
    offsets = torch.tensor([o for o in range(-window, window + 1) if o != 0], device=tokens.device)  # [2W]
    places = torch.arange(width, device=tokens.device)[:, None] + offsets  # [T, 2W]
    inside = (places >= 0) & (places < width)
    places = places.clamp(0, width - 1)
    reach = 1 + (reaching * window).long()  # [B, T]
    used = inside & (offsets.abs() <= reach[..., None]) & (documents[:, places] == documents[..., None])
    own = kept if counted is None else kept & counted.gather(1, order)
    return Neighbourhoods(centres, centres[:, places], used & kept[:, places] & own[..., None])


def draw_noise(cumulative: Tensor, shape: torch.Size, count: int, keys: Tensor) -> Tensor:
    """Return noise words [B, T, count], drawn in proportion to the increments of `cumulative` [V] (float64, ending at 1)."""
    chances = draws.uniform(keys, draws.site("word_vectors.noise"), shape[1] * count).view(*shape, count)
    return torch.searchsorted(cumulative, chances, right=True).clamp(max=len(cumulative) - 1)


@dataclass(frozen=True, kw_only=True)
class WordVectorsConfig(TaskConfig):
    """The options of `word_vectors`.

    Args:
        tokenizer: Spec of the trained tokenizer (default: the data module's `tokenizer_spec`).
        counts: Number of occurrences of each token in the training text (default: the data module's `token_counts`).
        d_model: Width of a vector.
        objective: `skip_gram`: a word predicts each word around it; `cbow`: the mean of the words around it predicts the word.
        window: The largest distance between two words of a pair; for each word it is drawn from 1 to `window`.
        negatives: Number of noise words for each word, drawn in proportion to their counts to the power 3/4.
        subsample: The frequency t above which words are randomly dropped in training: a word of frequency f is kept with probability
            sqrt(t / f). 0 keeps all.
        embedding: The table of vectors.
        questions: Questions printed with their answers after each validation: a word, for its neighbours, or three words, as in "man king
            woman" (man is to king as woman is to ...). Questions with words outside the vocabulary are skipped.
        samples: Number of words in an answer.
    """

    tokenizer: TokenizerSpec | None = None
    counts: list[int] | None = None
    d_model: int = 100
    objective: Literal["skip_gram", "cbow"] = "skip_gram"
    window: int = 5
    negatives: int = 5
    subsample: float = 1e-3
    embedding: EmbeddingSpec = default("token", scale=False)
    optimizer: OptimizerSpec = default("adam", lr=2e-3)
    schedule: ScheduleSpec = default("linear", warmup_steps=0.05)
    questions: Sequence[str] = ()
    samples: int = 8

    def __post_init__(self) -> None:
        require_at_least(0, samples=self.samples, subsample=self.subsample)
        require_at_least(1, d_model=self.d_model, window=self.window, negatives=self.negatives)
        if isinstance(self.questions, str):
            raise ConfigurationError(f"questions must be a list, as in [{self.questions!r}], but is the string {self.questions!r}")
        for question in self.questions:
            _words(question)


@tasks.register("word_vectors")
class WordVectors(EvaluatedTask):
    r"""Skip-gram and CBOW with negative sampling (word2vec): a vector for each word, from the words around it.

    Equation:
        $$-\log \sigma(u_o^\top h) - \sum_{k=1}^{K} \log \sigma(-u_{n_k}^\top h), \quad n_k \sim \mathrm{count}(n)^{3/4}$$

    where $h = v_c$ is the vector of the word and $o$ each word around it (skip-gram), or $h$ is the mean of the vectors around the word $o$
    (CBOW).

    Paper: Mikolov et al. 2013, https://arxiv.org/abs/1310.4546; https://arxiv.org/abs/1301.3781

    A batch is a mapping with `tokens` [B, T], as from the data module `text`, with bos at the start of a document; pairs stay within a
    document and a row, so `documents` (`data.document_mask`) are rejected. With `example` [B], rows with a negative number do not count. In
    validation and test, words whose entry in `targets` [B, T] is padding do not count either, because another window has them too. In
    prediction, there is `text`, one question per row. All pairs of a word share its noise words; a noise word that equals the word to
    predict does not count. (word2vec draws noise words for each pair, from a table; the expected loss is the same.)

    Logged: `train/loss`; in validation (`val/...`) and test (`test/...`) `loss`, the equation's sum per predicted word, in nats, with all
    words kept. It is comparable only between runs of equal `objective`, `window`, `negatives` and vocabulary.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("word").train(["one fish two fish"])
        >>> task = WordVectors(tokenizer=tokenizer.spec, counts=[0, 0, 0, 0, 2, 1, 1], d_model=4)
        >>> [word for word, _ in task.answer("fish", 1).words] in (["one"], ["two"])
        True
    """

    from_data: ClassVar = {"tokenizer": "tokenizer_spec", "counts": "token_counts"}
    config: WordVectorsConfig
    chosen = ("loss",)
    keep: Tensor
    everything: Tensor
    noise: Tensor

    @keywords_of(WordVectorsConfig)
    def __init__(self, config: WordVectorsConfig) -> None:
        super().__init__(config)

    @override
    def derive(self) -> None:
        self.tokenizer = trained_tokenizer(self.config.tokenizer, "tokenizer")
        counts = torch.tensor(self.config.counts or [], dtype=torch.float64)
        if len(counts) != len(self.tokenizer):
            raise ConfigurationError(f"there are {len(counts)} counts, but the tokenizer has {len(self.tokenizer)} tokens")
        counts[: len(Tokenizer.special_tokens)] = 0
        if not any((self.config.counts or [])[len(Tokenizer.special_tokens) :]):  # not from `counts`, which may be on the meta device
            raise ConfigurationError("the training text has no word of the vocabulary")
        frequency = counts / counts.sum()
        keep = (self.config.subsample / frequency.clamp(min=1e-300)).sqrt() if self.config.subsample else torch.ones_like(counts)
        noise = counts**NOISE_POWER
        for name, values in (("keep", keep), ("everything", torch.ones_like(keep)), ("noise", noise.cumsum(0) / noise.sum())):
            self.register_buffer(name, values, persistent=False)
        super().derive()

    @override
    def build_model(self) -> nn.Module:
        return WordVectorModel(vocab_size=len(self.tokenizer), d_model=self.config.d_model, embedding=self.config.embedding)

    @property
    def predictions(self) -> int:
        """The number of words that each word of a text is compared with."""
        return (2 * self.config.window if self.config.objective == "skip_gram" else 1) + self.config.negatives

    def sums(self, tokens: Tensor, keys: Tensor, keep: Tensor, counted: Tensor | None = None) -> Sums:
        """Return the sums of the loss over the words of `tokens` [B, T], or over those in `counted` [B, T].

        `keep` [V] holds the probability of keeping each word.
        """
        centres, contexts, used = neighbourhoods(tokens, window=self.config.window, keep=keep, keys=keys, counted=counted)
        embed: Any = self.model.embedding
        if self.config.objective == "skip_gram":
            x, answers = embed(centres), contexts  # [B, T, D], [B, T, 2W]
        else:
            around = embed(contexts.flatten(1)).unflatten(1, contexts.shape[1:])  # [B, T, 2W, D]
            number = used.sum(-1, keepdim=True)
            x = (around * used[..., None]).sum(-2) / number.clamp(min=1)
            answers, used = centres[..., None], number > 0  # [B, T, 1]
        noise = draw_noise(self.noise, centres.shape, self.config.negatives, keys)  # [B, T, K]
        times = (used[..., None, :] & (noise[..., None] != answers[..., None, :])).sum(-1)  # [B, T, K]: the number of pairs that use it
        wide = torch.promote_types(x.dtype, torch.float32)
        right, wrong = (self.model(x, words).to(wide) for words in (answers, noise))
        loss = softplus(-right).where(used, 0).sum() + (softplus(wrong) * times).sum()
        return Sums(loss=loss, nll=loss.detach(), targets=used.sum())

    @override
    def objective(self, batch: dict[str, Any]) -> Sums:
        keys = draws.current()
        assert keys is not None  # set by the training step
        return self.sums(_tokens(batch), keys, self.keep)

    @override
    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> None:
        counted = batch["targets"] != Tokenizer.pad_id if "targets" in batch else None  # the other words count in another window
        sums = self.sums(_tokens(batch), self.row_keys(batch, batch_idx), self.everything, counted)
        self.log_metrics(stage, {"loss": (sums.nll, sums.targets)}, rows=len(batch["tokens"]), shown=["loss"])

    @override
    def new_metrics(self) -> dict[str, Metric]:
        return {"loss": Mean()}

    @property
    def space(self) -> WordSpace:
        """The words, compared by their vectors."""
        return WordSpace(*word_vectors(self))

    def answer(self, question: str, count: int | None = None) -> Answer:
        """Return the answer to a question (the neighbours of a word, or an analogy for three) as `count` words (default: `samples`).

        Raises:
            ConfigurationError: A word has no vector, or there are not one or three words.
        """
        return _answer(self.space, question, self.config.samples if count is None else count)

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> list[Answer]:
        space = self.space
        return [_answer(space, text, self.config.samples) for text in batch["text"]]

    @override
    def samples(self) -> list[str]:
        space = self.space
        known = set(space.words)
        questions = [question for question in self.config.questions if known.issuperset(question.split())]
        return [str(_answer(space, question, self.config.samples)).replace("\t", ": ") for question in questions]


def _tokens(batch: Mapping[str, Any]) -> Tensor:
    """Return the tokens [B, T] of a batch; a row with a negative `example` becomes all padding, so that it has no words."""
    if "documents" in batch:
        raise ConfigurationError("word_vectors only pairs words of the same document anyway: set data.document_mask to false")
    tokens: Tensor = batch["tokens"]
    return tokens.masked_fill((batch["example"] < 0)[:, None], Tokenizer.pad_id) if "example" in batch else tokens


def _words(question: str) -> list[str]:
    words = question.split()
    if len(words) not in (1, 3):
        raise ConfigurationError(f"a question must be one word, or three as in 'man king woman', but is {question!r}")
    return words


def _answer(space: WordSpace, question: str, count: int) -> Answer:
    words = _words(question)
    found = space.neighbours(words[0], count) if len(words) == 1 else space.analogy(words[0], words[1], words[2], count)
    return Answer(question, found)
