"""The options of `attnkit draw`."""

import argparse
from typing import Any

from attnkit.cli.suggesting import SuggestingParser, seed


def add_kinds(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each kind of picture."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND", parser_class=SuggestingParser)

    def add(kind: str, meaning: str, /, **options: Any) -> None:
        own = kinds.add_parser(kind, help=meaning, description=meaning, allow_abbrev=False)
        for flag, keywords in options.items():
            own.add_argument(flag, **keywords)
        own.add_argument("--out", required=True, metavar="FILE", help="a picture: .svg, .html or .png")

    def number(meaning: str, default: int | None = None) -> dict[str, Any]:
        shown = "" if default is None else f" (default: {default})"
        return {"type": int, "metavar": "N", "default": default, "help": meaning + shown}

    add(
        "position",
        "what a position encoding adds to the embeddings, rotates by, or adds to the logits",
        **{
            "name": {"help": "such as sinusoidal"},
            "--length": number("number of positions", 64),
            "--d_model": number("width of the embeddings", 64),
            "--num_heads": number("number of heads", 4),
            "--seed": number("seed of the weights of the position", 0) | {"type": seed},
        },
    )
    add(
        "mask",
        "which keys each query may attend to",
        **{
            "--length": number("number of tokens", 12),
            "--causal": {"action": "store_true", "help": "only itself and earlier tokens"},
            "--window": number("a sliding window of N keys on each side, the query's own included"),
            "--documents": {"type": int, "metavar": "N", "nargs": "+", "default": (), "help": "lengths of the documents of the row"},
            "--prefix": number("number of first tokens that all queries see", 0),
        },
    )
    add(
        "score",
        "the logits of a score over two-dimensional keys, for one query",
        **{"name": {"help": "such as additive"}, "--seed": number("seed of the weights of the score", 0) | {"type": seed}},
    )
    add(
        "step",
        "one step of decoding: its scores, coefficients, context and candidates",
        **{
            "checkpoint": {"help": "a .ckpt file, or a .safetensors file of `attnkit export`"},
            "--text": {"required": True, "help": "the input of the model"},
            "--target": {"help": "the target (default: the generated one), or for a language model the continuation of the text"},
            "--step": number("the step, from 0; negative: from the end", -1),
            "--layer": number("the layer, likewise", -1),
            "--head": number("the head, from 0", 0),
            "--candidates": number("number of next tokens to show, the most probable", 8),
        },
    )
