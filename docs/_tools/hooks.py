"""MkDocs hooks: catalogue pages, equations as MathML (no script, no font, no network), and the two languages."""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from verdicts import answered  # in this folder, which MkDocs puts on the path

from attnkit.catalogue import page
from attnkit.registry import FAMILIES


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each registry, and the repository's SECURITY.md."""
    security = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "security.md", content=security.replace("(docs/", "(")))
    for registry in FAMILIES:
        files.append(File.generated(config, f"reference/catalogue/{registry.attribute}.md", content=page(registry)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Answer the queries in study pages from the values of their runs."""
    uri = page.file.src_uri
    return answered(markdown, Path(uri).stem) if uri.startswith("results/ablations/") else markdown


def on_page_content(content: str, **_: object) -> str:
    r"""Replace arithmatex's `\(...\)` and `\[...\]` with MathML, which browsers render natively, and keep each flag of a command whole."""
    content = re.sub(r'<div class="language-(?:bash|console) highlight">.*?</div>', _keep_flags_whole, content, flags=re.S)
    content = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', lambda m: convert(html.unescape(m[1])), content, flags=re.S)
    return re.sub(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', _display, content, flags=re.S)


def on_page_context(context: Any, *, page: Page, config: MkDocsConfig, nav: Navigation) -> Any:
    """Set the language of a page and of the theme's own words, and point the other languages at the same page, or at their first."""
    uri = page.file.src_uri
    config.theme["language"] = "ko" if uri.startswith("ko/") else "en"
    same = {"en": uri.removeprefix("ko/"), "ko": f"ko/{uri.removeprefix('ko/')}"}
    pages = {other.file.src_uri: other.file.url for other in nav.pages}
    for language, first in zip(config.extra["alternate"], ("index.md", "ko/index.md"), strict=True):
        language["link"] = pages.get(same[language["lang"]], pages[first])
    return context


def on_post_page(output: str, **_: object) -> str:
    """Leave out the head's links to other languages: the theme's script would request a sitemap for each of them."""
    return re.sub(r'<link rel="alternate"[^>]*>', "", output)


def on_post_template(output_content: str, **_: object) -> str:
    """Leave these links out of the 404 page, too."""
    return on_post_page(output_content)


def _keep_flags_whole(block: re.Match[str]) -> str:
    """Return a block of commands in which lines do not break at the hyphens of `--flag`."""
    return re.sub(r"(?<=[\s>\[])--[\w.+-]+", r'<span class="flag">\g<0></span>', block[0])


def _display(equation: re.Match[str]) -> str:
    return f'<div class="equation">{convert(html.unescape(equation[1]), display="block")}</div>'
