"""Escapes text for the formats of a report. Names come from study files and messages from runs; neither is markup."""

import re
from typing import Any

import pandas as pd


def markdown(text: str) -> str:
    r"""Escape text for a line of Markdown: HTML, code, emphasis, formulas and links become plain text.

    Example:
        >>> print(markdown("`a` <script> [x](y)"), markdown("p < 0.001 [1, 2]"), markdown("$_a_b_$"))
        \`a\` &lt;script> [x]\(y) p < 0.001 [1, 2] \$\_a_b\_\$
    """
    text = re.sub(r"[\\`*$~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", _line(text))
    text = re.sub(r"&(?=[#\w])", "&amp;", text)
    return re.sub(r"<(?=[\w/!?])", "&lt;", text).replace("](", "]\\(")


def markdown_item(text: str) -> str:
    r"""Return text as a list item; a leading + or -, as in the name of a cumulative step, would start a nested list.

    Example:
        >>> print(markdown_item("+ attention=additive is better"), markdown_item("baseline: 1 failed"), sep="\n")
        - \+ attention=additive is better
        - baseline: 1 failed
    """
    text = markdown(text)
    return f"- \\{text}" if text[:1] in ("-", "+", "#", ">", "|", "~", "=", "[") else f"- {text}"


def markdown_cell(text: str) -> str:
    r"""Escape text for a table cell.

    Example:
        >>> print(markdown_cell("a|b"))
        a\|b
    """
    return markdown(text).replace("|", "\\|")


def markdown_code(text: str) -> str:
    """Return text as code.

    Example:
        >>> markdown_code("attnkit list"), markdown_code("a`b")
        ('`attnkit list`', '`` a`b ``')
    """
    text = _line(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"`{text}`" if len(fence) == 1 else f"{fence} {text} {fence}"


def latex(text: str) -> str:
    r"""Escape the special characters of LaTeX.

    Example:
        >>> latex("a_b 5% < 1"), latex("[a]"), latex("a|b")
        ('a\\_b 5\\% $<$ 1', '{}[a]', 'a\\textbar{}b')
    """
    special = {c: f"\\{c}" for c in "_%&#${}"} | {"<": "$<$", ">": "$>$", "^": r"\^{}", "~": r"\~{}"}
    special |= {"\\": r"\textbackslash{}", "|": r"\textbar{}", "`": r"\textasciigrave{}"}
    escaped = "".join(special.get(c, c) for c in _line(text))
    return f"{{}}{escaped}" if escaped[:1] in ("[", "*") else escaped  # otherwise an argument of the previous row's \\


def csv(table: pd.DataFrame) -> str:
    """Return a table as CSV. Text that starts with =, +, - or @ gets a leading apostrophe, because spreadsheets would read it as a formula;
    a lone -, which stands for an undefined value, does not.

    Example:
        >>> csv(pd.DataFrame({"variant": ["=cmd()"], "mean": [-1.5], "verdict": ["-"]}))
        "variant,mean,verdict\\n'=cmd(),-1.5,-\\n"
    """
    return str(table.rename(columns=_cell).map(_cell).to_csv(index=False))


def _line(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]+", " ", text)


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value != "-" and value.lstrip()[:1] in ("=", "+", "-", "@") else value
