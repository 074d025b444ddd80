"""What MkDocs does with this project beyond its own: the gallery is made, documents outside docs/ join the site, formulas become
MathML, and links into the repository lead to pages of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from docs.site import gallery

ROOT = Path(__file__).parent.parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
EXAMPLES = ("demo", "flax_layers", "equinox_layers")


def on_files(files: Files, config: Any) -> Files:
    for path, content in [*gallery.pages(), *outside()]:
        files.append(File.generated(config, path, content=content))
    return files


def outside() -> list[tuple[str, str | bytes]]:
    """Documents that lie outside docs/, by their paths in the site."""
    found: list[tuple[str, str | bytes]] = [(page, (ROOT / name).read_text()) for name, page in PAGES.items()]
    for path in sorted((ROOT / "benchmarks").rglob("*")):
        if path.suffix in (".md", ".png", ".json") and path.is_file():
            found.append(
                (path.relative_to(ROOT).as_posix(), path.read_bytes() if path.suffix == ".png" else path.read_text())
            )
    for name in EXAMPLES:
        source = (ROOT / f"examples/{name}.py").read_text()
        found.append((f"examples/{name}.md", f"# {name}.py\n\n```python\n{source}```\n"))
    return found


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    text = re.sub(r"^```math\n(.*?)^```$", formula, markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^```yaml spec (\S+)$", r'```yaml title="\1"', text, flags=re.MULTILINE)
    text = re.sub(r"^```python (generated/\S+)$", r'```python title="\1"', text, flags=re.MULTILINE)
    text = re.sub(r"^```(\w+) \w+$", r"```\1", text, flags=re.MULTILINE)
    up = "../" * page.file.src_uri.count("/")
    return re.sub(r"\]\(([^)#:]+)(#[^)]*)?\)", lambda m: f"]({inside(m[1], page.file.src_uri, up)}{m[2] or ''})", text)


def formula(found: re.Match[str]) -> str:
    return f'<div class="formula">{convert(" ".join(found[1].split()), display="block")}</div>'


def inside(target: str, source: str, up: str) -> str:
    """A link of a document in the repository as one of the site."""
    at_root = source in PAGES.values()
    if at_root and target.startswith("docs/"):
        return target.removeprefix("docs/")
    if not at_root and target.startswith("../" * (source.count("/") + 1)):
        target, at_root = target.removeprefix("../" * (source.count("/") + 1)), True
    if not at_root:
        return target
    if target in PAGES:
        return up + PAGES[target]
    if target in ("specs", "generated"):
        return up + "ops/index.md"
    if target.startswith("examples"):
        return up + (target.replace(".py", ".md") if target.endswith(".py") else "examples/demo.md")
    return up + target if target.startswith("benchmarks/") else target
