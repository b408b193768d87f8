"""What benches leave for the runner that started them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Noting:
    """What a simulator run is about, and where its measurements go.

    Attributes:
        results: path of a file of JSON, a line for each note.
    """

    results: str

    def note(self, **figures: Any) -> None:
        """Leave measurements for the runner: a line for each call."""
        with Path(self.results).open("a") as file:
            file.write(json.dumps(figures) + "\n")
