"""The vectors of a letter depend on its word, and say more about its sound with each layer."""

from typing import Any

import torch
from torch import Tensor

import attnkit
from attnkit.models.base import generating
from attnkit.probe.linear import ridge
from attnkit.probe.reading import layer_outputs
from attnkit.task import Task
from story_pages.base import SEEDS, SENTENCES, Language, Rows, percent, shown
from story_pages.sounds import STEPS, trained

FIGURE: dict[str, Any] = {"x": "layer", "y": ["accuracy", "cosine"]}
PENALTY = 0.01
ALIKE, DIFFERENT = 0.999, 0.95  # of the cosine: above at the embedding, below at the last layer
GAIN = 0.05  # minimum gain of accuracy from the embedding to the last layer


def soft_and_hard() -> list[tuple[str, int]]:
    """Return half of the test words with one c, and whether it is hard (K) or soft (S); no other letter has these sounds."""
    words = attnkit.corpora.build("cmudict").references("test")
    found = []
    for word, references in words.items():
        sounds = references[0].split()
        if word.isalpha() and word.count("c") == 1 and not set(word) & set("skqxz") and ("K" in sounds) != ("S" in sounds):
            found.append((word, int("K" in sounds)))
    return found[::2]


def vectors_of_c(task: Task, words: list[str]) -> list[Tensor]:
    """Return the vectors [N, D] of the c of each word, at each layer of the encoder."""
    model: Any = task.model
    tokenizer: Any = task.hparams["src_tokenizer"]
    tokenizer = attnkit.tokenizers.build(tokenizer)
    found: dict[str, list[Tensor]] = {}
    for word in words:
        ids = torch.tensor([[*tokenizer.encode(word), tokenizer.eos_id]])
        with generating(task), layer_outputs(model) as outputs:
            model(ids, ids[:, :1])
        for path, output in outputs.items():
            if output.shape[1] == ids.shape[1]:
                found.setdefault(path, []).append(output[0, word.index("c")].double())
    paths = sorted(found, key=lambda path: ("layers" in path, path))  # the embedding comes first
    return [torch.stack(found[path]) for path in paths]


def measure() -> Rows:
    """Return how well a linear map reads the sound of c off its vector, and how alike its vectors are in two words, by layer."""
    words = soft_and_hard()
    hard = torch.tensor([is_hard for _, is_hard in words])
    half = len(words) // 2
    rows = []
    for seed in SEEDS:
        for layer, x in enumerate(vectors_of_c(trained("Transformer", seed), [word for word, _ in words])):
            weights = ridge(x[:half], 2.0 * hard[:half, None].double() - 1, PENALTY)
            answer = torch.cat([x[half:], torch.ones_like(x[half:, :1])], 1) @ weights
            unit = torch.nn.functional.normalize(x, dim=-1)
            row = {"model": "sound of c", "seed": seed, "layer": layer, "words": len(words)}
            right = ((answer[:, 0] > 0).int() == hard[half:]).double().mean()
            cosine = ((unit @ unit.T).sum() - len(x)) / (len(x) * (len(x) - 1))
            majority = max(hard[half:].double().mean(), 1 - hard[half:].double().mean())
            rows.append({**row, "accuracy": float(right), "cosine": float(cosine), "majority": float(majority)})
    return rows


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    first, last = rows[0], rows[-1]
    depends = first["cosine"] > ALIKE and last["cosine"] < DIFFERENT
    return language.verdict(holds=depends and last["accuracy"] > first["accuracy"] + GAIN)


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    first, last = rows[0], rows[-1]
    tables = {
        name: [{"word": word, "context": " ".join([*words[:i], "___", *words[i + 1 :]])} for i, word in enumerate(words)]
        for name, words in SENTENCES.items()
    }
    return {
        "worked": language.worked(tables),
        "table": language.table(
            [
                {
                    "layer": row["layer"],
                    "sound read": percent(row["accuracy"]),
                    "most frequent": percent(row["majority"]),
                    "cosine": row["cosine"],
                }
                for row in rows
            ]
        ),
        "words": str(first["words"]),
        "first": percent(first["accuracy"]),
        "last": percent(last["accuracy"]),
        "majority": percent(first["majority"]),
        "first_cosine": shown(first["cosine"]),
        "last_cosine": shown(last["cosine"]),
        "alike": str(ALIKE),
        "different": str(DIFFERENT),
        "gain": f"{100 * GAIN:.0f}",
        "steps": str(STEPS),
    }
