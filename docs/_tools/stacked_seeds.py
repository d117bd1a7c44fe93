"""Does it pay to train several seeds of one variant as one batch of models? `python docs/_tools/stacked_seeds.py [SEEDS] [STEPS]`.

The parameters of SEEDS models (4) are stacked, and one step is the forward and backward pass of all of them by `torch.func`: `vmap` over
`grad` of `functional_call`, each model with its own batch. It is compared with the same passes one after another, which is what a warm
worker does, on one thread. Optimizers and data are left out, since both ways need them, and so is dropout: the printed speed-up is the most
that stacking could gain. Models and shapes of batches are those of shipped studies.
"""

import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import attnkit

Batch = tuple[Tensor, ...]
SMALL = {"d_model": 64, "num_layers": 2, "feed_forward": {"name": "mlp", "ffn_dim": 256, "activation": "relu"}, "num_heads": 1}
MODELS: dict[str, tuple[dict[str, Any], tuple[tuple[int, int], ...]]] = {
    "ablations/mixers_recall": (
        {"stack": "decoder", **SMALL, "num_heads": 2, "vocab_size": 40},
        ((64, 16),),
    ),
    "ablations/attention": ({"stack": "encoder_decoder", **SMALL, "src_vocab_size": 32, "tgt_vocab_size": 72}, ((128, 10), (128, 9))),
}


def loss(model: nn.Module, weights: dict[str, Tensor], batch: Batch) -> Tensor:
    """Return the loss of a model with these weights: each token predicts the next."""
    logits = functional_call(model, weights, tuple(batch))
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[-1][:, 1:].flatten())


def plain_attention(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step with attention as two matrix products, which can be batched over models."""

    def run(*arguments: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return step(*arguments)

    return run


def measured(step: Callable[[], Any], steps: int) -> float:
    """Return the median of the processor times of a step, in milliseconds."""
    spent = []
    for _ in range(steps + 3):
        began = time.process_time()
        step()
        spent.append(1000 * (time.process_time() - began))
    return median(spent[3:])


def main(seeds: int, steps: int) -> None:
    """Print the processor time of a step of all seeds both ways, and the largest difference of their gradients."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{seeds} seeds, one thread, median of {steps} steps, ms of processor time")
    for name, (spec, shapes) in MODELS.items():
        models = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            models.append(attnkit.compose(**spec))
        stacked, _ = stack_module_state(models)
        batches = [torch.randint(4, 30, (seeds, *shape)) for shape in shapes]
        one = grad(lambda weights, *batch, model=models[0]: loss(model, weights, batch))
        together = plain_attention(vmap(one))  # torch's kernel has no rule for batches of models, and would run them one by one
        alone = [{key: value.detach() for key, value in model.named_parameters()} for model in models]

        def apart(alone: Any = alone, batches: Any = batches, models: Any = models) -> list[dict[str, Tensor]]:
            found = []
            for i, (weights, model) in enumerate(zip(alone, models, strict=True)):
                named = {key: value.requires_grad_() for key, value in weights.items()}
                grads = torch.autograd.grad(loss(model, named, tuple(b[i] for b in batches)), list(named.values()))
                found.append(dict(zip(named, grads, strict=True)))
            return found

        ours, theirs = together(stacked, *batches), apart()
        pairs = [(ours[key][i], g) for i, gs in enumerate(theirs) for key, g in gs.items()]
        gap = max(float((a - g).abs().max()) for a, g in pairs) / max(float(g.abs().max()) for _, g in pairs)
        t = [measured(step, steps) for step in (apart, lambda f=together, s=stacked, b=batches: f(s, *b))]
        print(f"{name}: one after another {t[0]:.1f}, stacked {t[1]:.1f}: {t[0] / t[1]:.2f} x; gradients differ by {gap:.1e}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:] or ("4", "40")))
