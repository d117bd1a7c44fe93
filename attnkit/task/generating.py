"""The base class of tasks that generate text from text: batches of texts, n-best lists and streams."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, Unpack, cast

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.corpus.tables import unified
from attnkit.decoding import Generation, Options
from attnkit.head import Head
from attnkit.registry import ConfigurationError, HeadSpec, heads, require_at_least
from attnkit.task.composed import ComposedConfig, ComposedTask
from attnkit.task.config import require_smoothing
from attnkit.task.loss import Sums, cross_entropy
from attnkit.task.texts import in_batches, warn_of_unknown
from attnkit.tokenizer import Tokenizer

T = TypeVar("T")

UNFINISHED = "\ufffd"  # stands for bytes that do not form a character yet


class Hypothesis(NamedTuple):
    """An output for a text and its score: the log-probability in nats divided by length ** length_penalty."""

    text: str
    score: float


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig(ComposedConfig):
    """The options of tasks that generate text.

    Args:
        head: The map to the logits.
        label_smoothing: Probability mass spread over all tokens except padding and those that the head excludes, in [0, 1).
        z_loss: Coefficient of the squared logsumexp of the logits, at least 0 (PaLM: 1e-4).
        beam_size: Number of beams in generation; 1 is greedy.
        max_length: Maximum number of tokens to generate, including the end token.
        length_penalty: Exponent p: the log-probability of a beam is divided by its length to the power p.
    """

    head: HeadSpec = "linear"
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    beam_size: int = 1
    max_length: int = 64
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        require_smoothing(self.label_smoothing)
        require_at_least(0, z_loss=self.z_loss)
        if Tokenizer.eos_id in (heads.resolve(self.head).get("excluded") or ()):
            raise ConfigurationError(f"head: excluded has {Tokenizer.eos_id}, the id of <eos>, which ends every text that the model learns")
        Generation(beam_size=self.beam_size, max_length=self.max_length, length_penalty=self.length_penalty)  # checks the arguments


class TextGenerator(ComposedTask):
    """A task whose model generates text from text, such as a translator or a language model.

    A subclass implements `input_ids` and sets its tokenizers in `derive`; the source's is None if the inputs are not text. It gets
    `generate`, `n_best` and `stream` for texts, which warn about unknown characters, and `decode` for batches of token ids, as in its
    validation. An encoder-decoder reads the input as its source, a decoder as its prompt; outputs exclude the prompt.
    """

    config: GeneratorConfig
    source_tokenizer: Tokenizer | None
    output_tokenizer: Tokenizer

    @classmethod
    @override
    def unread(cls, arguments: Mapping[str, Any]) -> dict[str, str]:
        ranks = arguments["beam_size"] > 1 or arguments["length_penalty"] == 1
        own = {} if ranks else {"length_penalty": "it ranks the outputs of a beam search, but beam_size is 1"}
        return super().unread(arguments) | own

    def summed(self, logits: Tensor, targets: Tensor) -> Sums:
        """Return the sums of the training loss over the targets [B, T], with label smoothing and z-loss as configured."""
        smoothing, z_loss = self.config.label_smoothing, self.config.z_loss
        excluded = cast(Head, self.model.head).excluded
        return cross_entropy(logits, targets, label_smoothing=smoothing, z_loss=z_loss, pad_id=Tokenizer.pad_id, excluded=excluded)

    @override
    def training_log(self, nll: Tensor) -> dict[str, Tensor]:
        return {"loss": nll, "perplexity": nll.exp()}

    @property
    def input_tokenizer(self) -> Tokenizer:
        """The tokenizer of the input; raises a `ConfigurationError` if the inputs are not text."""
        if self.source_tokenizer is None:
            raise ConfigurationError("this model reads images or sound, not texts: use attnkit predict, or `decode` with a batch of them")
        return self.source_tokenizer

    @abstractmethod
    def input_ids(self, text: str) -> list[int]:
        """Return the ids that the model reads for a text, including special tokens: at least one id, and no padding."""

    def generate(self, texts: Sequence[str], **options: Unpack[Options]) -> list[str]:
        """Return the model's output for each text. Outputs do not depend on how texts are batched.

        Args:
            texts: The inputs.
            **options: The fields of `attnkit.decoding.Generation`, such as `beam_size=4` or `temperature=0.8` (defaults: the task's
                own `beam_size`, `max_length` and `length_penalty`). With a seed, text i is sampled with seed + i.

        Raises:
            ConfigurationError: An option is wrong.
            TypeError: `texts` is a single string.

        Example:
            >>> import attnkit
            >>> tokenizer = attnkit.tokenizers.build("character").train(["attention"]).spec
            >>> task = attnkit.tasks.build({"name": "seq2seq", "src_tokenizer": tokenizer, "tgt_tokenizer": tokenizer, "max_length": 5,
            ...     "stack": {"name": "encoder_decoder", "d_model": 16, "num_layers": 1, "num_heads": 2}})
            >>> task.generate(["net", "ten"], temperature=0.9, seed=1) == task.generate(["net", "ten"], temperature=0.9, seed=1)
            True
        """
        return self._in_batches(texts, self.decode, self.completed(options))

    def n_best(self, texts: Sequence[str], n: int, **options: Unpack[Options]) -> list[list[Hypothesis]]:
        """Return the `n` best outputs that a beam search finds for each text, best first.

        Args:
            texts: The inputs.
            n: Number of outputs for each text; fewer are returned only if no more exist. Outputs with different tokens may have the same
                text.
            **options: As in `generate`; `beam_size` is at least `n` (default: the task's, or `n` if that is larger).

        Raises:
            ConfigurationError: An option is wrong, or `n` is not from 1 to `beam_size`.
            TypeError: `texts` is a single string.
        """
        if options.get("temperature") is not None:
            raise ConfigurationError("n_best ranks the outputs of a beam search, but a temperature samples one at random; remove either")
        options = {"beam_size": max(n, self.config.beam_size), "length_penalty": self.config.length_penalty, **options}
        if not 1 <= n <= options["beam_size"]:
            raise ConfigurationError(f"n_best must be from 1 to beam_size ({options['beam_size']}), but is {n}")

        def search(inputs: Tensor, **options: Unpack[Options]) -> list[list[Hypothesis]]:
            found = cast(Any, self.model).n_best(inputs, inputs != Tokenizer.pad_id, **options)
            ranked = (zip(*row, strict=True) for row in zip(found.tokens[:, :n].tolist(), found.scores[:, :n].tolist(), strict=True))
            return [[Hypothesis(self.output_tokenizer.decode(ids), score) for ids, score in row if score > float("-inf")] for row in ranked]

        return self._in_batches(texts, search, self.completed(options))

    def stream(self, text: str, **options: Unpack[Options]) -> Iterator[str]:
        """Yield the output for one text in pieces as they are generated; joined, they equal the output of `generate`.

        A character appears once all of its bytes are known. Beam search cannot be streamed: its output is known only at the end.

        Args:
            text: The input.
            **options: As in `generate`; `beam_size` is 1.

        Raises:
            ConfigurationError: An option is wrong.
        """
        completed = self.completed({"beam_size": 1, **options})
        self.configure_model()
        text = unified(text)
        warn_of_unknown(self.input_tokenizer, [text])
        inputs = torch.tensor([self.input_ids(text)], device=self.device)
        tokens = cast(Any, self.model).stream(inputs, **completed)
        return text_pieces((int(token) for token in tokens), self.output_tokenizer)

    def decode(self, inputs: Tensor, mask: Tensor | None = None, **options: Unpack[Options]) -> list[str]:
        """Return the output for each row of `inputs`; options as in `generate`.

        Args:
            inputs: Token ids [B, T], with padding on either side, or whatever else the model reads.
            mask: [B, T] bool, True = real (default: all but padding tokens).
            **options: As in `generate`.
        """
        completed = self.completed(options)
        generated = cast(Any, self.model).generate(inputs, input_mask(inputs) if mask is None else mask, **completed)
        return [self.output_tokenizer.decode(row) for row in generated.tolist()]

    def completed(self, options: Options) -> Options:
        """Return `options`, completed with the task's own; sampling has no beams."""
        samples = options.get("temperature") is not None
        beams = options.get("beam_size", 1 if samples else self.config.beam_size)
        own: Options = {"beam_size": beams, "max_length": self.config.max_length}
        if beams > 1:  # otherwise nothing is ranked
            own["length_penalty"] = self.config.length_penalty
        return {**own, **options}

    def _in_batches(self, texts: Sequence[str], answer: Callable[..., list[T]], options: Options) -> list[T]:
        """Return the answers `answer(inputs, **options)` for all texts, in the order of the texts."""
        generation = Generation.of(options)

        def answered(rows: list[int], inputs: Tensor) -> list[T]:
            return answer(inputs, **(options if generation.seed is None else {**options, "seed": generation.seed + rows[0]}))

        self.configure_model()  # first, because it reports missing arguments, such as tokenizers
        sort = not generation.samples  # row i of a batch is sampled with seed + i, so batches must keep the order of the texts
        return in_batches(self, self.input_tokenizer, texts, self.input_ids, answered, sort=sort)


def input_mask(inputs: Tensor) -> Tensor | None:
    """Return which of the tokens [B, T] are not padding; None for images and frames, all of which are real."""
    return None if inputs.is_floating_point() else inputs != Tokenizer.pad_id


def text_pieces(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the text of `tokens` in pieces, each as soon as later tokens cannot change it.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 260}).train(["a"])
        >>> list(text_pieces(tokenizer.encode("a\u00e9"), tokenizer))  # two bytes are one character
        ['a', 'é']
    """
    ids: list[int] = []
    written = 0
    for token in tokens:
        ids.append(token)
        text = tokenizer.decode(ids).rstrip(UNFINISHED)
        if len(text) > written:
            yield text[written:]
            written = len(text)
    if rest := tokenizer.decode(ids)[written:]:
        yield rest
