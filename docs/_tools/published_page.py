"""Write the page of published architectures from the tables in tests/published/families.

python docs/_tools/published_page.py > docs/reference/published.md
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from published.engine import families
from published.family import Family
from published.fields import FIELDS, NO_OPTION
from published.options_of_x_transformers import ABSENT, DIFFERENT, OPTIONS, OURS

HEAD = """# Published architectures

{equal} published architectures as specs of names. Each takes the weights of [transformers](https://github.com/huggingface/transformers)'
implementation (version 5.23, in plain torch), copied by a table of invertible renames in `tests/published/families`, and then equals it
in float64: logits and the gradients of all parameters to 1e-10 of the largest value, logits of steps from a cache, greedy output, and the
logits of rows with padding. Encoders have no steps. A dagger marks rows without steps or greedy output (transformers has no cache there, or
the source is not text), a double dagger those whose padding transformers does not mask. {missing} further rows say what is missing.

A spec is that of a small test, not of a checkpoint: sizes, windows and lengths are small, and other numbers, such as `eps`, `base` and
factors, are mostly the defaults of transformers' class. [`attnkit import`](../how-to/import.md) reads the `config.json` of a few families;
for the others, take its values from there, by the [table of fields](#fields-of-configjson). The base of Qwen2's class is 10,000, for
example, that of its checkpoints 1,000,000; and a wrong number raises no error.

`pytest tests/published` checks the tables; `python docs/_tools/published_page.py` writes this page.
"""
FIELDS_HEAD = """## Fields of config.json

Each of these fields changes a model; tests set it to another value and compare the model with its option (`tests/published/fields.py`).
`mixer` is `multi_head` and its options, `mixer.scale: s` is `mixer: {name: multi_head, scale: s}`. Activations that are not listed have the
same name.
Dropout and `initializer_range` do not change what a trained model computes; unlike the dropout of OPT, Falcon and Phi, attnkit's `dropout`
also acts on embeddings. `pad_token_id` shifts the positions of RoBERTa and M2M-100, and transformers gives that token's embedding no
gradient."""
X_HEAD = """## Coming from x-transformers

With the same weights, these options compute the same as those of [x-transformers](https://github.com/lucidrains/x-transformers) 2.31.10 in
float64: logits, gradients, logits of steps from a cache, greedy output, and rows with padding (`tests/published/test_x_transformers.py`).
Each row adds to its defaults, with `use_abs_pos_emb=False`, which are here:

```yaml
{spec}
```

Sizes are those of the tests. `attn_dim_head` is `head_dim`: by default 64 in x-transformers, and `d_model / num_heads` here. In
x-transformers, the hidden layer has 4 `dim` units, also in a GLU (here 8/3); options `attn_...` also act on cross-attention (here `mixer`
and `cross_mixer` are two options); and norms store their weights minus one. `attn_dropout` is `attention_dropout`, `ff_dropout` the
`dropout` of `feed_forward`; `emb_dropout`, `attn_sublayer_dropout` and `ff_sublayer_dropout` together are `dropout`.
"""
KINDS = {"decoder": "Decoders", "encoder": "Encoders", "encoder_decoder": "Encoders with decoders"}


def main() -> None:
    """Print the page."""
    print(page(families()), end="")


def page(all_families: Sequence[Family]) -> str:
    """Return the page of these families."""
    equal, missing = [f for f in all_families if not f.missing], [f for f in all_families if f.missing]
    lines = [HEAD.format(equal=len(equal), missing=len(missing))]
    for kind, title in KINDS.items():
        rows = [family for family in equal if family.spec["stack"] == kind]
        if rows:
            lines += [f"## {title}", "", "| architecture | class of transformers | note |", "|---|---|---|"]
            lines += [f"| [{f.name}]({f.paper}){marks(f)} | {f.theirs[1]} | {f.note} |" for f in rows]
            lines.append("")
    if missing:
        lines += ["## Not covered", "", "| architecture | missing |", "|---|---|"]
        lines += [f"| [{family.name}]({family.paper}) | {family.missing} |" for family in missing]
        lines.append("")
    lines += [FIELDS_HEAD, "", "| field | option |", "|---|---|"]
    lines += [f"| {field.name} | {field.option} |" for field in FIELDS]
    lines += ["", "Without an option:", "", *(f"- {field}: {what}." for field, what in NO_OPTION.items()), ""]
    lines += coming_from_x_transformers()
    lines += ["## Specs", "", "Each is a call of `attnkit.compose`, or the section `model` of a recipe."]
    for family in equal:
        spec = yaml.safe_dump(dict(family.spec), sort_keys=False, default_flow_style=None, width=120)
        lines += ["", f"### {family.name}", "", "```yaml", spec.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def coming_from_x_transformers() -> list[str]:
    """Return the section for users of x-transformers."""
    spec = yaml.safe_dump({**OURS, "embedding": {"name": "token", "scale": False}}, sort_keys=False, default_flow_style=None, width=120)
    lines = [X_HEAD.format(spec=spec.rstrip()), "| there | here | note |", "|---|---|---|"]
    rows = [(f"`{option.name}`", f"`{option.here}`", option.note) for option in OPTIONS if option.name]
    rows += [("`Encoder`", "`stack: encoder`", ""), ("`XTransformer`", "`stack: encoder_decoder`", "")]
    lines += [f"| {there} | {here} | {note} |" for there, here, note in rows]
    lines += ["", "Similar, but not equal:", "", *(f"- `{name}`: {what}." for name, what in DIFFERENT.items()), ""]
    return [*lines, f"Without a counterpart: {', '.join(f'`{name}`' for name in ABSENT)}.", ""]


def marks(family: Family) -> str:
    """Return the marks for comparisons that are not possible."""
    decodes = family.decoding and family.front is None
    return ("" if decodes or family.spec["stack"] == "encoder" else " †") + ("" if family.padding else " ‡")


if __name__ == "__main__":
    main()
