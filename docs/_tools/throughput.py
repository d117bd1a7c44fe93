"""Training speed on this machine, with the variants alternating: `python docs/_tools/throughput.py` prints a Markdown table.

Each step is forward, backward and optimizer on random tokens of 240 words (9 source and 8 target positions, no padding), in bf16
autocast. Ratios are medians over rounds in which every variant takes one step, so other load on the machine affects all variants alike.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnkit
from attnkit.recipe import read_recipe

BATCH, S, T, VOCABULARY, ROUNDS = 240, 9, 8, 44, 15
SIZES = {"d_model": 256, "num_layers": 3, "num_heads": 4, "dropout": 0.1}


class Plain(nn.Module):
    """torch's own Transformer of the same size."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 256)
        self.transformer = nn.Transformer(256, 4, 3, 3, 1024, 0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(256, VOCABULARY)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return the logits [B, T, V]."""
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
        x = self.transformer(self.embedding(src), self.embedding(tgt), tgt_mask=causal, tgt_is_causal=True)
        logits: Tensor = self.head(x)
        return logits


def composed(**changes: Any) -> nn.Module:
    """Return the same model built by attnkit."""
    vocabulary = {"src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY, "tie": "output"}
    model: nn.Module = attnkit.compose(stack={"name": "encoder_decoder", **SIZES, **changes}, **vocabulary)
    return model


def stepper(model: nn.Module, *, muon: bool = False) -> Callable[[], None]:
    """Return a function that takes one training step."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embedding" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embedding" in n]
    groups = [{"params": matrices, "matrices": True}, {"params": others, "matrices": False}]
    optimizer = attnkit.optimizers.build({"name": "muon"} if muon else {"name": "adamw", "fused": True}, params=groups)
    src, tgt = (torch.randint(4, VOCABULARY, (BATCH, length)) for length in (S, T))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(src, tgt)
        torch.autograd.backward(F.cross_entropy(logits.float().flatten(0, 1), tgt.flatten()))
        optimizer.step()
        optimizer.zero_grad()

    return step


torch.manual_seed(0)
steps = {
    "`nn.Transformer`, AdamW": stepper(Plain()),
    "attnkit, `backend: sdpa`, AdamW": stepper(composed(backend="sdpa")),
    "attnkit, AdamW": stepper(composed()),
    "attnkit, Muon": stepper(composed(), muon=True),
    "attnkit, `rotary` (self and cross), AdamW": stepper(composed(position="rotary", cross_position="rotary")),
    "attnkit, `additive`, AdamW": stepper(composed(attention="additive")),
    "attnkit, d_model 192, Muon": stepper(composed(d_model=192, num_heads=3), muon=True),
    "attnkit, d_model 128, Muon": stepper(composed(d_model=128, num_heads=2), muon=True),
}
times: dict[str, list[float]] = {name: [] for name in steps}
for _ in range(ROUNDS):
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        times[name].append(time.perf_counter() - start)

first = next(iter(times))
print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n")
print("| variant | tokens/s | ratio |\n|---|---|---|")
for name, seconds in times.items():
    ratio = statistics.median(a / b for a, b in zip(times[first][3:], seconds[3:], strict=True))  # the first rounds are warm-up
    print(f"| {name} | {BATCH * (S + T) / statistics.median(seconds[3:]):,.0f} | {ratio:.2f} |")

data = attnkit.datasets.build({**read_recipe("g2p/transformer")["data"], "batch_tokens": 4096})
sides = [batch[side] for batch in data.train_dataloader() for side in ("src", "tgt")]
share = sum(int((ids == 0).sum()) for ids in sides) / sum(ids.numel() for ids in sides)
print(f"\nPadding in the batches of CMUdict's training part: {100 * share:.1f} % of the positions")
