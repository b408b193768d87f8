"""What the pages show can be imported, and where they point there is something."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
OURS = ("bitstash", "golden", "torch_bridge", "gen", "rtl")


def anchor(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_imports_is_there(page):
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        for module, names in re.findall(r"^from ([\w.]+) import ([\w, ]+)$", code, re.M):
            if module.partition(".")[0] in OURS:
                found = importlib.import_module(module)
                missing = [name for name in names.split(", ") if not hasattr(found, name)]
                assert missing == [], f"{module} has no {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, place = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{target} is not there"
        if place:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
            assert place in {anchor(heading) for heading in headings}, f"{target} is no heading"
