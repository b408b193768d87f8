"""Tables that programs write into pages."""

import pytest

from bench.page import fill


def test_what_is_between_the_marks_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- one -->\nold\n<!-- end -->\nb\n<!-- two -->\n<!-- end -->\n")
    fill(page, "one", r"| \1 |")
    fill(page, "two", "new")
    assert page.read_text() == "a\n<!-- one -->\n| \\1 |\n<!-- end -->\nb\n<!-- two -->\nnew\n<!-- end -->\n"
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize("places", [0, 2])
def test_a_page_has_one_such_place(places, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table -->\n<!-- end -->\n" * places)
    with pytest.raises(ValueError, match=f"must have one place for the table, not {places}"):
        fill(page, "table", "new")
