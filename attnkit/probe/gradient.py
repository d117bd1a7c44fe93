# https://doi.org/10.1109/72.279181
"""How far back a gradient reaches."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.embedding import Embedding
from attnkit.models.encoder_decoder import EncoderDecoderModel
from attnkit.probe.base import Probe, Row, vocabulary_of
from attnkit.registry import ConfigurationError, probes
from attnkit.task import Task
from attnkit.tokenizer import Tokenizer


@probes.register("gradient")
class Gradient(Probe):
    r"""The gradient of the loss at the last token with respect to the embedding of each earlier one, by distance.

    Limits: It shows how strongly a small change of an input at random tokens would change the loss now, not whether training uses it, nor
    what the model has learned on real text.

    It is computed in float64 without dropout, on random tokens with a random target, and its norms are averaged over rows. For an
    encoder-decoder, the distance is counted from the end of the source, and the loss is that of the first target token.

    Equation:
        $$g_d = \operatorname{mean} \lVert \partial L_T / \partial x_{T-d} \rVert$$

    Paper: Bengio et al. 1994, https://doi.org/10.1109/72.279181; Pascanu et al. 2013, https://arxiv.org/abs/1211.5063

    Args:
        length: Number of tokens T.
        rows: Number of random rows.
        seed: Seed of the rows.

    Example:
        >>> import attnkit
        >>> tokenizer = attnkit.tokenizers.build("character").train(["attention"]).spec
        >>> for stack in ({"name": "recurrent_decoder", "cell": "rnn"}, {"name": "decoder", "num_heads": 2}):
        ...     _ = torch.manual_seed(0)
        ...     stack |= {"d_model": 16, "num_layers": 1}
        ...     task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": tokenizer})
        ...     first, *_, last = Gradient(length=50)(task).rows
        ...     last["gradient"] < first["gradient"] * 1e-6
        True
        False
    """

    x = "distance"
    y = ("gradient",)
    log = "y"
    needs_data = False

    def __init__(self, *, length: int = 100, rows: int = 8, seed: int = 0) -> None:
        if length < 2 or rows < 1:
            raise ConfigurationError(f"length must be at least 2 and rows at least 1, but they are {length} and {rows}")
        self.length, self.row_count, self.seed = length, rows, seed

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        size = vocabulary_of(task)
        model: Any = deepcopy(task.model).double().eval()
        generator = torch.Generator().manual_seed(self.seed)
        tokens = torch.randint(len(Tokenizer.special_tokens), size, (self.row_count, self.length), generator=generator).to(task.device)
        embedded: list[Tensor] = []

        def keep(module: Embedding, arguments: Any, output: Tensor) -> None:
            if output.shape[1] == self.length:
                embedded.append(output)

        for module in model.modules():
            if isinstance(module, Embedding):
                module.register_forward_hook(keep)
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # its recurrent kernels have no backward pass in eval mode
            output = (
                model(tokens, torch.full_like(tokens[:, :1], model.bos_id)) if isinstance(model, EncoderDecoderModel) else model(tokens)
            )
            logits = output[:, -1] if output.ndim == 3 else output
            target = torch.randint(logits.shape[-1], (self.row_count,), generator=generator).to(task.device)
            loss = torch.nn.functional.cross_entropy(logits, target, reduction="sum")
            norms = torch.autograd.grad(loss, embedded[0])[0].norm(dim=-1).mean(0).flip(0).tolist()
        return [{"distance": d, "gradient": norms[d]} for d in distances(self.length)]


def distances(length: int) -> list[int]:
    """Return 0, the powers of two below `length`, and `length` - 1.

    Example:
        >>> distances(10)
        [0, 1, 2, 4, 8, 9]
    """
    return sorted({0, length - 1, *(2**i for i in range((length - 1).bit_length()))})
