"""One figure, one home: no measurement stands on two pages; what is shown twice, a program writes."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from bench import peaks

from .test_prose import numbers, prose

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Whose prose has no measurement at all: figures stand in the tables that they link to.
READERS = ["README", "quickstart", "choosing", "concepts", "glossary", "architecture"]
# Sizes, rates, years and versions: not measured.
CONSTANTS = {"1,024", "2,000", "2,048", "2,500", "1.625", "2023", "3.11", "2503.18869"}
# Different quantities that happen to have the same three digits.
CHANCE = {"5.23": "a version of transformers, seconds of a step"}
# Where figures of three digits are looked for, too: pages that others' figures are copied to.
READ_FIRST = {"README.md", *(f"docs/{name}.md" for name in (*READERS[1:], "compatibility", "integration"))}


def by_hand(text):
    """What no program writes of a page."""
    text = re.sub(r"<!-- (?!end)[\w-]+ -->.*?<!-- end -->", "", text, flags=re.S)
    return re.sub(r"^## Appendix: .*", "", text, flags=re.M | re.S)


def figures(text):
    """Numbers with three significant digits and more, outside code and links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|\b\d+\.\d+\.\d+\b", "", text)
    found = re.findall(r"(?<![\w./-])\d[\d,]*(?:\.\d+)?(?![\w/-]|\.\d)", text)
    found = {one.rstrip(",") for one in found}
    return {one for one in found if re.search("[.,]", one) and digits(one) > 2}


def digits(figure):
    return len(re.sub("[.,]", "", figure).lstrip("0"))


def on_two_pages(pages):
    where = defaultdict(set)
    for name, text in pages.items():
        for figure in figures(by_hand(text)):
            where[figure].add(name)
    return {
        figure: sorted(names)
        for figure, names in where.items()
        if len(names) > 1 and (digits(figure) > 3 or names & READ_FIRST)
    }


def test_no_measurement_stands_on_two_pages():
    """Where this fails, link to the page that has the figure; chance is told in ``CHANCE``."""
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
    found = on_two_pages(texts)
    assert {one: names for one, names in found.items() if one not in CONSTANTS | CHANCE.keys()} == {}


def test_a_figure_on_two_pages_is_found():
    pages = {
        "docs/cost.md": "| kept | 1,269.9 | 90.9 |",
        "docs/x.md": "1,269.9 and 90.9",
        "docs/y.md": "`1,269.9`",
    }
    assert on_two_pages(pages) == {"1,269.9": ["docs/cost.md", "docs/x.md"]}
    pages["docs/choosing.md"] = "<!-- x -->\n1,269.9\n<!-- end -->\n90.9 MB"
    assert on_two_pages(pages)["90.9"] == ["docs/choosing.md", "docs/cost.md", "docs/x.md"]


def test_what_readme_and_picture_show_is_what_the_table_says():
    found = peaks.rows((ROOT / peaks.COST).read_text())
    assert f"<!-- costs -->\n{peaks.table(found)}\n<!-- end -->" in (ROOT / peaks.README).read_text()
    assert (ROOT / peaks.PICTURE).read_text() == peaks.bars(found)


def test_a_row_that_is_missing_is_named():
    text = (ROOT / peaks.COST).read_text()
    with pytest.raises(ValueError, match="must have a row of bit-plane format"):
        peaks.rows(text.replace("**bit-plane format, 3.2x, nothing recomputed**", "something else"))


@pytest.mark.parametrize("name", READERS)
def test_prose_has_no_measurement(name):
    page = ROOT / ("README.md" if name == "README" else f"docs/{name}.md")
    text = re.sub(r"\d+\.\d+\.\d+|10\.\d+/\S+", "", prose(page.read_text()))
    measured = [one for one in numbers(text) if re.search(r"\.\d|x$|%$", one.rstrip(".,"))]
    assert [one for one in measured if one.rstrip(".,") not in CONSTANTS | RATES] == []


RATES = {"3.2x", "8x", "16x", "1.2", "2.6"}  # of formats; a limit that an example sets; PyTorch's version
