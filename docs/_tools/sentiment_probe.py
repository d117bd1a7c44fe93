"""How much a masked language model knows about sentiment before it sees a label: `python docs/_tools/sentiment_probe.py CHECKPOINT...`.

Fits a logistic regression to the mean over the tokens of a movie snippet: of the stack's outputs, and of the embeddings. Prints the
weighted F1 on the validation part as a Markdown table.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import multiclass_f1_score

import attnkit
from attnkit.task import Task

PARTS = ("stack", "embedding")
RIDGE = 1e-3  # factor of the sum of squared weights


def features(task: Task, tokens: Tensor) -> dict[str, Tensor]:
    """Return the output of each part for `tokens` [B, T], averaged over non-padding tokens: [B, D]."""
    found: dict[str, Tensor] = {}
    handles = [
        getattr(task.model, part).register_forward_hook(
            lambda module, inputs, output, part=part: found.update({part: output[0] if isinstance(output, tuple) else output})
        )
        for part in PARTS
    ]
    with torch.no_grad():
        task(tokens)
    for handle in handles:
        handle.remove()
    real = (tokens != 0)[..., None]  # [B, T, 1]
    return {part: (found[part] * real).sum(1) / real.sum(1) for part in PARTS}


def fit(x: Tensor, y: Tensor, classes: int) -> nn.Linear:
    """Return a logistic regression fitted to x [N, D] and y [N]."""
    probe = nn.Linear(x.shape[1], classes)
    nn.init.zeros_(probe.weight)
    optimizer = torch.optim.LBFGS(probe.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(probe(x), y) + RIDGE * probe.weight.square().sum()
        torch.autograd.backward(loss)
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return probe


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+")
    parser.add_argument("--folder", default="data", help="folder of the data")
    options = parser.parse_args()
    print("| checkpoint | " + " | ".join(PARTS) + " |\n|---|" + "---|" * len(PARTS))
    for checkpoint in options.checkpoints:
        task = Task.load(checkpoint).eval()
        data = attnkit.datasets.build(
            {
                "name": "labelled_text",
                "corpus": {"name": "movie_snippets", "folder": options.folder},
                "tokenizer": task.hparams["tokenizer"],
                "max_length": 128,
            }
        )
        x: dict[tuple[str, str], Tensor] = {}
        y: dict[str, Tensor] = {}
        for part, loader in (("train", data.train_dataloader()), ("validation", data.val_dataloader())):
            batches = list(loader)
            y[part] = torch.cat([batch["label"] for batch in batches])
            outputs = [features(task, batch["tokens"]) for batch in batches]
            x |= {(part, name): torch.cat([f[name] for f in outputs]) for name in PARTS}
        scores = []
        for name in PARTS:
            std, mean = torch.std_mean(x["train", name], 0)
            train, validation = ((x[part, name] - mean) / std for part in ("train", "validation"))
            answer = fit(train, y["train"], len(data.classes))(validation).argmax(-1)
            scores.append(float(multiclass_f1_score(answer, y["validation"], num_classes=len(data.classes), average="weighted")))
        print(f"| `{checkpoint}` | " + " | ".join(f"{score:.3f}" for score in scores) + " |", flush=True)


if __name__ == "__main__":
    main()
