"""`attnlab doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnlab.cli.show import print_json, print_rows


@dataclass(frozen=True)
class Doctor:
    """Show versions, devices and the store, and check the numerics in a few seconds."""

    out: Path | None = None
    """The store to look at (default: ATTNLAB_STORE, or the user's cache folder)."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        from attnlab.store import Store
        from attnlab.store.doctor import examine

        report = examine(Store(self.out))
        if self.json:
            print_json(report.to_dict())
        else:
            rows = [{"check": c.name, "value": c.value, "": "ok" if c.ok else "FAILED"} for c in report.checks]
            print_rows(rows, "attnlab doctor")
        return 0 if report.ok else 1
