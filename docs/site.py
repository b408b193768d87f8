"""Hooks of MkDocs: pages of the site that lie elsewhere in the repository, and links between the two.

README.md, CONTRIBUTING.md, CHANGELOG.md and the programs of examples/ become pages. A link from a page to any
other file outside docs/ becomes the file's name, for the site has no place for it. The theme would load
the worker of its offline search from another server; pages have docs/scripts/worker.js in its place.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
_WORKER, _OUR_WORKER = "https://unpkg.com/iframe-worker/shim", "scripts/worker.js"
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_HOME = {origin: page for page, origin in PAGES.items()}


def on_files(files, config):
    """Add the pages that lie outside docs/."""
    for page, origin in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / origin).read_text()))
    for program in sorted((ROOT / "examples").glob("*.py")):
        _HOME[f"examples/{program.name}"] = page = f"examples/{program.stem}.md"
        text = f"# {program.name}\n\n```python\n{program.read_text()}```\n"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Point links to where things are in the site."""
    here = page.file.src_uri
    origin = PAGES.get(here, f"docs/{here}")  # in the repository

    def moved(match):
        image, text, target, anchor = match.groups()
        if not target or "://" in target:
            return match[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        place = _HOME.get(there) or (there.removeprefix("docs/") if there.startswith("docs/") else None)
        if place is None or files.get_file_from_path(place) is None:
            return match[0] if image else text
        return f"{image}[{text}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor or ''})"

    return _LINK.sub(moved, markdown)


def on_post_page(output, page, config):
    """Load nothing from elsewhere."""
    here = posixpath.dirname(page.file.dest_uri) or "."
    return output.replace(_WORKER, posixpath.relpath(_OUR_WORKER, here))


def on_post_template(output_content, template_name, config):
    """Likewise the page for what is not there."""
    return output_content.replace(_WORKER, _OUR_WORKER)
