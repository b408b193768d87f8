"""docs/compatibility.md names tests that are there, and leaves out none of tests/frameworks."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def names_in(path):
    """The names of a file's tests, behind the file's."""
    nodes = ast.parse(path.read_text()).body
    names = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    return {f"{path.name}::{name}" for name in names if name.startswith("test_")}


def test_tests_that_the_page_names_are_there():
    there = set().union(*(names_in(path) for path in (ROOT / "tests" / "frameworks").glob("test_*.py")))
    named = set(re.findall(r"`(test_\w+\.py::\w+)`", PAGE))
    assert named
    assert named - there == set()


def test_every_file_of_tests_is_on_the_page():
    files = {path.name for path in (ROOT / "tests" / "frameworks").glob("test_*.py")}
    assert files - set(re.findall(r"`(test_\w+\.py)::", PAGE)) == set()


def test_versions_are_those_that_are_installed():
    constraints = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    for name, written in (("deepspeed", "DeepSpeed"), ("megatron-core", "Megatron-core"), ("trl", "TRL")):
        assert f"{written} {constraints[name]}" in PAGE
