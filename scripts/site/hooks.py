"""MkDocs calls these: they add generated pages and pages from outside docs/, and adapt all to Python-Markdown."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.site.gfm import adapt
from scripts.site.reference import pages as reference_pages

ROOT = Path(__file__).resolve().parents[2]
# Pages outside docs/, and where the site has them.
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "examples/README.md": "examples.md",
    "examples/django_shop/README.md": "example-django.md",
    "examples/celery_later/README.md": "example-celery.md",
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_EXAMPLES = "examples"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation: formats and decisions, and pages that mkdocs.yml does not name."""
    nav = config.nav
    assert isinstance(nav, list)
    for title, folder in (("Formats", "formats"), ("Decisions", "adr")):
        paths = sorted(Path(config.docs_dir, folder).glob("*.md"), key=lambda path: (path.name != "README.md", path))
        nav.append({title: [f"{folder}/{path.name}" for path in paths]})
    named = set(_named(nav))
    all_pages = sorted(str(path.relative_to(config.docs_dir)) for path in Path(config.docs_dir).rglob("*.md"))
    if others := [path for path in all_pages if path not in named]:
        nav.append({"More": others})
    return config


def _named(nav: object) -> Iterator[str]:
    """The paths in a part of the navigation."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list):
        for part in nav:
            yield from _named(part)
    elif isinstance(nav, dict):
        yield from _named(list(nav.values()))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for path, text in {**reference_pages(), **outside_pages()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt a page, and the links that lead out of docs/."""
    return adapt(_with_links(markdown, page.file.src_uri, f"docs/{page.file.src_uri}"))


def outside_pages() -> dict[str, str]:
    """The pages outside docs/ by their paths in the site, with links as from there."""
    found = {}
    for source, path in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.startswith(_EXAMPLES):
            text += "".join(
                _program(program, posixpath.dirname(source))
                for program in sorted((ROOT / _EXAMPLES).rglob("*.py"))
                if _page_with(str(program.relative_to(ROOT))) == path and program.name != "__init__.py"
            )
        found[path] = _with_links(text, path, source)
    return found


def _page_with(program: str) -> str:
    """Return the page that shows a program: that of the nearest folder above it that has one."""
    folder = posixpath.dirname(program)
    while f"{folder}/README.md" not in OUTSIDE:
        folder = posixpath.dirname(folder)
    return OUTSIDE[f"{folder}/README.md"]


def _program(path: Path, folder: str) -> str:
    name = path.relative_to(ROOT / folder)
    return f"\n## {name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"


def _with_links(text: str, path: str, source: str) -> str:
    """Rewrite links to files of the repository. `path` is the page's place in the site, `source` in the repository."""

    def rewritten(link: re.Match[str]) -> str:
        target = link[2]
        if ":" in target:
            return link[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        anchor = link[3] or ""
        if place.startswith(f"{_EXAMPLES}/") and place.endswith(".py"):
            found = _page_with(place)
            [folder] = (posixpath.dirname(one) for one, page in OUTSIDE.items() if page == found)
            anchor = f"#{re.sub(r'[^a-z0-9_-]', '', posixpath.relpath(place, folder).lower())}"
        elif f"{place}/README.md" in OUTSIDE:
            found = OUTSIDE[f"{place}/README.md"]
        elif place in OUTSIDE:
            found = OUTSIDE[place]
        elif place.startswith("docs/"):
            found = place.removeprefix("docs/")
        elif (ROOT / place).exists():
            return link[1]  # a file that is not in the site
        else:
            return link[0]
        return f"[{link[1]}]({posixpath.relpath(found, posixpath.dirname(path) or '.')}{anchor})"

    return _LINK.sub(rewritten, text)
