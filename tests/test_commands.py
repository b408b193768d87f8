"""The command lines of the pages: their programs are there, and take the arguments that stand there."""

import contextlib
import io
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
CODE = re.compile(r"^ *```sh\n(.*?)^ *```", re.M | re.S)


def commands():
    """Every command line of a page: its words, without assignments before it."""
    found = {}
    for page in sorted(PAGES):
        for block in CODE.findall(page.read_text()):
            for line in re.sub(r"\\\n", " ", block).splitlines():
                for part in re.split(r"&&|;|\|", line.partition("  #")[0]):
                    try:
                        words = shlex.split(part, comments=True)
                    except ValueError:
                        continue  # a script of several lines
                    while words and re.fullmatch(r"[A-Z_]+=.*|\$\(.*|nice", words[0]):
                        words = words[1:]
                    if words:
                        found.setdefault(tuple(words), page.relative_to(ROOT))
    return found


COMMANDS = commands()
PACKAGES = ("torch_bridge", "bitstash", "gen", "cocotb_tests", "bench")
PYTHON = ("python", ".venv/bin/python", "python3")


def of(*programs):
    return [pytest.param(words, id=shlex.join(words)[:80]) for words in COMMANDS if words[0] in programs]


@pytest.mark.parametrize("words", of("make"))
def test_make_has_the_target(words):
    if "-C" in words:
        return  # another project's
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {word for word in words[1:] if "=" not in word and not word.startswith("-")} <= targets


@pytest.mark.parametrize("words", of(*PYTHON))
def test_python_finds_the_program(words):
    if words[1] == "-m":
        path = ROOT / words[2].replace(".", "/")
        is_ours = words[2].split(".")[0] in PACKAGES
        assert not is_ours or path.with_suffix(".py").exists() or (path / "__main__.py").exists()
    elif words[1] != "-c":
        assert (ROOT / words[1]).exists()


def help_of(module, commands):
    """What a program of ours says of its arguments."""
    said = io.StringIO()
    before, sys.argv = sys.argv, [module, *commands, "--help"]
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            runpy.run_module(module, run_name="__main__", alter_sys=False)
    finally:
        sys.argv = before
    return said.getvalue()


OURS = [
    words
    for words in COMMANDS
    if words[0] in PYTHON and words[1] == "-m" and words[2].split(".")[0] in PACKAGES
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [pytest.param(words, id=shlex.join(words[2:])[:80]) for words in OURS])
def test_the_program_takes_the_arguments(words):
    module, rest = words[2], words[3:]
    options = {word.partition("=")[0] for word in rest if word.startswith("--")} - {"--help"}
    if not options:
        return
    names = [word for word in rest[:2] if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
    said = help_of(module, names[:1]) + help_of(module, names) + help_of(module, [])
    assert {option for option in options if option not in said} == set()
