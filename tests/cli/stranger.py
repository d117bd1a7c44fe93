"""A user's repository: its own LightningModule, data module and attention, a three-line `main.py` and a recipe with `imports`."""

import sys
from importlib import import_module
from typing import Any

import attnkit
from attnkit.cli import AttnkitCLI

ATTENTION = """
import attnkit
from attnkit.attention import Attention

@attnkit.attentions.register("manhattan")
class Manhattan(Attention):
    r'''Minus the sum of absolute differences.

    Equation:
        $$e = -\\\\sum_i |q_i - k_i|$$

    Paper: Nobody 2026, https://example.org

    Args:
        head_dim: Width of a head.
        num_heads: Query heads.
        num_kv_heads: Key and value heads (default: as many).
        width: The divisor of the sum.

    Example:
        >>> Manhattan(head_dim=4).width
        1.0
    '''

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None, width: float = 1.0) -> None:
        super().__init__(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.width = width

    def score(self, query, key):
        return -(query[..., :, None, :] - key[..., None, :, :]).abs().sum(-1) / self.width
"""

MODEL = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import attnkit
from attnkit.registry import AttentionSpec


class Numbers(LightningDataModule):
    '''Which of two numbers occurs more often.'''

    num_classes = 2

    def __init__(self, *, size: int = 16, batch_size: int = 4, shuffle: bool = False) -> None:
        super().__init__()
        self.size, self.batch_size, self.shuffle = size, batch_size, shuffle

    def loader(self, shuffle=False):
        numbers = torch.randint(3, 5, (self.size, 5), generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(numbers, (numbers == 4).sum(1) // 3), batch_size=self.batch_size, shuffle=shuffle)

    def train_dataloader(self):
        return self.loader(self.shuffle)

    val_dataloader = test_dataloader = loader


class Net(LightningModule):
    def __init__(self, num_classes: int, *, d_model: int = 8, rate: float = 0.1, attention: AttentionSpec = "additive",
                 dropout: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = attnkit.compose(
            stack="encoder", d_model=d_model, num_layers=1, num_heads=2, attention=attention, vocab_size=5, num_classes=num_classes,
            dropout=dropout,
        )
        self.rate = rate

    def step(self, batch, name):
        loss = functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log(f"{name}/loss", loss)
        return loss

    def training_step(self, batch, batch_idx):
        return self.step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self.step(batch, "val")

    def test_step(self, batch, batch_idx):
        self.step(batch, "test")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


class Wider(Net):
    pass


class Noisy(Net):
    monitor = ("val/loss", "min")

    def __init__(self, num_classes: int, *, d_model: int = 8) -> None:
        assert d_model < 64, "too wide"
        super().__init__(num_classes, d_model=d_model)

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(functional.dropout(self.model(batch[0]), 0.2), batch[1])


class Shuffled(Numbers):
    def setup(self, stage):
        self.order = torch.randperm(self.size)

    def train_dataloader(self):
        return DataLoader([self.loader().dataset[i] for i in self.order], batch_size=self.batch_size, shuffle=True)


class Holder(LightningModule):
    '''Takes objects, which it leaves out of its hyperparameters or not.'''

    def __init__(self, net: torch.nn.Module, *, more: list[torch.nn.Module] | None = None, ignores: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["net", "more"] if ignores else ["more"])
        self.net, self.more = net, torch.nn.ModuleList(more or [])
        self.head = torch.nn.Linear(5, 2)

    def training_step(self, batch, batch_idx):
        x = self.net(batch[0].float())
        for module in self.more:
            x = module(x)
        return functional.cross_entropy(self.head(x), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.training_step(batch, batch_idx))

    def test_step(self, batch, batch_idx):
        self.log("test/loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Alone(LightningModule):
    def __init__(self, *, lazy: bool = False, late: bool = False, from_values: bool = False, width: int = 1) -> None:
        super().__init__()
        self.layer = torch.nn.LazyLinear(1) if lazy else torch.nn.Linear(3, width)
        self.late, self.size = late, int(torch.ones(()).item()) if from_values else 1

    def setup(self, stage):
        if self.late and not hasattr(self, "more"):
            self.more = torch.nn.Linear(1, 2)

    def train_dataloader(self):
        return DataLoader(torch.ones(4, 3), batch_size=2)

    val_dataloader = train_dataloader

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""

MAIN = """
from attnkit.cli import AttnkitCLI
from stranger_model import Net, Numbers
if __name__ == "__main__": AttnkitCLI(Net, Numbers)
"""

RECIPE = """
imports: [stranger_attention]
model: {attention: {class_path: manhattan, init_args: {width: 2.0}}, rate: 0.05}
trainer: {accelerator: cpu, enable_progress_bar: false, log_every_n_steps: 1}
fit:
  data: {size: 12}
  trainer: {max_epochs: 1}
"""


def forget() -> None:
    for name in ("stranger_attention", "stranger_model"):
        sys.modules.pop(name, None)
    attnkit.attentions._classes.pop("manhattan", None)


def stranger(*args: str, run: bool = True, cli: type[AttnkitCLI] = AttnkitCLI, **options: Any) -> AttnkitCLI:
    module = import_module("stranger_model")
    return cli(module.Net, module.Numbers, args=args, run=run, **options)
