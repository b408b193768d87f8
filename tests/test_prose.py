"""Pages for readers with ten seconds: short sentences, few numbers, at most so many words."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
NAMES = ("quickstart", "choosing", "concepts", "glossary", "integration", "architecture", "cost")
PLAIN = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES), *GUIDES]
MOST_WORDS_OF_A_SENTENCE = 30
MOST_NUMBERS = 4  # of a hundred words


def prose(text):
    """The running text of a page: paragraphs and items of lists, without code, tables and headings."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    lines = [line for line in text.splitlines() if not re.match(r"\s*(\||#|!\[)", line)]
    text = "\n".join(lines)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "code", text)


def sentences(text):
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        paragraph = re.sub(r"^\s*(?:[-*]|\d+\.) ", "", " ".join(paragraph.split()))
        yield from (part for part in re.split(r"(?<=[.:!?])\s+", paragraph) if part)


def words(text):
    return re.findall(r"[^\W\d_][\w'-]*", text)


def numbers(text):
    return re.findall(r"(?<![\w.-])\d[\d.,]*(?:x|%)?(?![\w-])", text)


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.stem)
def test_no_sentence_is_long(page):
    long = [one for one in sentences(prose(page.read_text())) if len(words(one)) > MOST_WORDS_OF_A_SENTENCE]
    assert long == []


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.stem)
def test_numbers_stand_in_tables(page):
    text = prose(page.read_text())
    found = numbers(text)
    assert len(found) <= max(1, MOST_NUMBERS * len(words(text)) / 100), found


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_is_read_in_two_minutes(page):
    assert len(page.read_text().split()) <= 400


def test_the_glossary_has_at_most_twenty_entries():
    rows = re.findall(r"^\| (?!word |---)", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    assert 10 < len(rows) <= 20


# The project's words for these stand in the glossary.
OLD = r"\b(stash(?:e[sd]|ing)?|deriv(?:e|es|ed)|hostile|starting points?|raw (?:bytes|block|memory|values))\b"
WORDS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", WORDS, ids=lambda page: page.stem)
def test_pages_use_the_words_of_the_glossary(page):
    assert re.findall(OLD, prose(page.read_text()), re.I) == []


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 600
    assert len(numbers(prose(text))) <= 10


@pytest.mark.parametrize(
    ("text", "long"),
    [("word " * 30 + ".", 0), ("word " * 31 + ".", 1), ("word " * 20 + "done. " + "word " * 20, 0)],
)
def test_long_sentences_are_found(text, long):
    assert sum(len(words(one)) > MOST_WORDS_OF_A_SENTENCE for one in sentences(prose(text))) == long


def test_numbers_are_found():
    assert numbers("3.2x of 90 MB, not GPT-2 or bf16, 12 % and 1,024") == ["3.2x", "90", "12", "1,024"]
