import builtins
import re
from doctest import DocTestParser, DocTestRunner
from pathlib import Path

import pytest

from attnkit.catalogue import explanation_of, page, section
from attnkit.registry import FAMILIES, Registry, attentions, mixers, norms, optimizers, positions, stacks
from attnkit.registry.docstrings import argument_docs, section_of
from attnkit.registry.examples import example_of, free_names

ROOT = Path(__file__).parents[1]


@pytest.fixture(params=FAMILIES, ids=lambda registry: registry.attribute)
def registry(request: pytest.FixtureRequest) -> Registry:
    return request.param


def test_a_page_names_every_component_of_its_family_once(registry: Registry) -> None:
    text = page(registry)
    headings = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    torch_own = re.search(r"^From torch, which documents them: (.*)\.$", text, re.MULTILINE)
    named = re.findall(r"`(\w+)`", torch_own[1]) if torch_own else []
    assert sorted(headings + named) == registry.names()


def test_every_argument_of_a_described_component_has_a_row_with_a_meaning(registry: Registry) -> None:
    for name in re.findall(r"^## (\w+)$", page(registry), re.MULTILINE):
        description = registry.describe(name)
        table = section(description).partition("| argument |")[2]  # a docstring may have tables of its own before it
        rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", table, re.MULTILINE))
        assert set(rows) == {a.name for a in description.arguments}, name
        assert all(rows.values()), f"{registry.family} {name}: an argument without a meaning in {rows}"


def test_every_example_imports_the_names_it_uses(registry: Registry) -> None:
    for name in re.findall(r"^## (\w+)$", page(registry), re.MULTILINE):
        description = registry.describe(name)
        assert f"```python\n{description.example}\n```" in section(description) or not description.example
        assert free_names(description.example) <= vars(builtins).keys(), name
        exec("\n".join(re.findall(r"^>>> ((?:from|import) .*)", description.example, re.MULTILINE)), {})


def test_examples_run_as_printed() -> None:
    failures: list[str] = []
    example = mixers.describe("delta_rule").example
    DocTestRunner(verbose=False).run(DocTestParser().get_doctest(example, {}, "delta_rule", None, 0), out=failures.append)
    assert not failures


def test_an_example_that_is_not_python_is_shown_unchanged() -> None:
    assert example_of("Norm.\n\nExample:\n    >>> see the paper\n", __name__) == ">>> see the paper"


def test_arguments_passed_by_the_parent_are_listed_separately() -> None:
    text = section(attentions.describe("additive"))
    assert "| `hidden_dim` |" in text
    assert "| `head_dim` |" not in text
    assert "The parent passes `head_dim`, `num_heads`, `num_kv_heads`." in text


def test_a_slot_links_to_its_family_and_shows_its_default() -> None:
    text = section(stacks.describe("encoder"))
    assert "| `attention` | [attention](attentions.md) | `'scaled_dot_product'` |" in text
    assert "| `d_model` | `int` | required |" in text


def test_equations_become_latex_blocks_with_or_without_dollar_signs() -> None:
    for registry in FAMILIES:
        for name in [n for n in registry.names() if registry is not optimizers and registry.describe(n).equation]:
            blocks = re.findall(r"^\$\$\n(.*?)\n\$\$$", section(registry.describe(name)), re.MULTILINE | re.DOTALL)
            assert len(blocks) == 1, name
            assert "$" not in blocks[0], name


def test_papers_are_links_and_sources_are_repository_files() -> None:
    for registry in (attentions, positions, norms):
        for name in registry.names():
            text = section(registry.describe(name))
            assert re.search(r"Paper: .*<https://\S+>", text), name
            file, line = re.search(r"Source: `(\S+):(\d+)`", text).groups()
            assert f'.register("{name}")' in (ROOT / file).read_text().splitlines()[int(line) - 1], name


def test_a_component_of_another_package_is_described(tmp_path: Path) -> None:
    class Stranger:
        """A stranger with a pipe | in it.

        Args:
            width: Either `a|b` or c|d,
                on two lines.
        """

        def __init__(self, *, width: int | None = None) -> None: ...

    registry = Registry("strangers", family="stranger", package="attnkit.stranger")
    registry.register("stranger")(Stranger)
    text = page(registry)
    assert "| `width` | `int | None` | `None` | Either `a|b` or c\\|d, on two lines. |" in text
    assert "Source: `" in text


def test_docstring_sections_are_separated() -> None:
    documentation = (
        "One.\n\nTwo\nlines.\n\nEquation:\n    $$a$$\n\nPaper: A 2020, https://a.b; B 2021,\nhttps://b.c\n\n"
        "Args:\n    x: X.\n    y: Y\n        z.\n\nThree.\n"
    )
    assert explanation_of(documentation).split() == ["Two", "lines.", "Three."]
    assert argument_docs(documentation) == {"x": "X.", "y": "Y z."}
    assert section_of(documentation, "Example") == ""
