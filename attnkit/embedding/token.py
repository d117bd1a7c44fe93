# https://arxiv.org/abs/1608.05859
"""Token embeddings."""

import torch
from torch import Tensor, nn

from attnkit.embedding.base import Embedding, looked_up, refuse_segments
from attnkit.registry import check_positive, embeddings, require_at_least


@embeddings.register("token")
class Token(Embedding):
    r"""One vector per token of the vocabulary, scaled to unit variance. The model can tie the output projection to this table.

    Equation:
        $$x_t = \sqrt{d} \, E_{w_t} + S_{s_t}, \quad \mathrm{logits} = E h_t \ \text{(tied)}$$

    Paper: Press and Wolf 2017, https://arxiv.org/abs/1608.05859 (tying); Vaswani et al. 2017 (the factor); Devlin et al. 2019 (segments)

    BERT normalises embeddings after adding positions, so that norm belongs to the stack: `embedding_norm: true`.

    Initialisation: normal with standard deviation d^-1/2, so that tied logits start with unit variance; with `scale`, embeddings do too.
    Segments: normal with standard deviation 0.02, as in BERT.

    Args:
        vocab_size: Number of tokens V.
        d_model: Width D.
        scale: Whether to multiply the vectors by the square root of D (GPT-2 and Llama do not), or another factor (Granite).
        num_segments: Number of segments, each with a vector that is added to those of its tokens (BERT: 2, for sentences A and B). The task
            `question_answering` gives the first to the question, the second to the passage; all tokens of other tasks have the first.

    Raises:
        ValueError: `vocab_size` or a number `scale` is not positive, or `num_segments` is negative; or, in a call, the tokens are not
            integers [B, T].

    Example:
        >>> Token(vocab_size=10, d_model=4)(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 4])
    """

    weight: nn.Parameter

    def __init__(self, *, vocab_size: int, d_model: int, scale: bool | float = True, num_segments: int = 0) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size)
        require_at_least(0, num_segments=num_segments)
        if not isinstance(scale, bool):
            check_positive(scale=scale)
        self.factor = d_model ** (0.5 * scale) if isinstance(scale, bool) else float(scale)
        self.num_segments = num_segments
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.segment = nn.Parameter(torch.empty(num_segments, d_model)) if num_segments else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from a normal distribution with standard deviation d_model^-1/2, and segments with 0.02."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        if self.segment is not None:
            nn.init.normal_(self.segment, std=0.02)

    def forward(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        """Embed tokens [B, T] as [B, T, D], adding the vectors of their `segments` [B, T] (default: all 0)."""
        if inputs.dim() != 2 or inputs.is_floating_point():
            raise ValueError(f"tokens must be integers [B, T], but are {inputs.dtype} {list(inputs.shape)}")
        x = looked_up(inputs, self.weight) * self.factor
        if self.segment is None:
            refuse_segments(segments)
            return x
        return x + (self.segment[0] if segments is None else nn.functional.embedding(segments, self.segment))
