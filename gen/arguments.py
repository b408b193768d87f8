"""What command lines have in common."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # as shells report a program that Ctrl-C ended


def at_least(least: int) -> Callable[[str], int]:
    """An argument's type: a whole number from here on."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {text!r}")
        return number

    return parse


def add_jobs(parser: argparse.ArgumentParser, what: str) -> None:
    """The option ``--jobs``."""
    text = f"{what} at a time (default: cores)"
    parser.add_argument("--jobs", type=at_least(1), default=os.cpu_count(), help=text)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C inside, or the end of a time limit, ends the program with a line."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)
