"""Pages of docs/ with tables that programs write."""

from __future__ import annotations

import os
import re
from pathlib import Path


def fill(page: Path, name: str, text: str) -> None:
    """Put a text between ``<!-- name -->`` and the next ``<!-- end -->``.

    Raises:
        ValueError: the page does not have just one such place.
    """
    old = page.read_text()
    new, found = re.subn(
        rf"(<!-- {name} -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}{text}\n{match[2]}",
        old,
        flags=re.DOTALL,
    )
    if found != 1:
        raise ValueError(f"{page} must have one place for the {name}, not {found}")
    write(page, new)


def write(path: Path, text: str) -> None:
    """All of a file or nothing, whoever ends this or writes the same one."""
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(text)
    new.replace(path)
