"""`attnlab data`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnlab.cli.show import print_json, print_rows, say


@dataclass(frozen=True)
class DataSets:
    """List the image sets: what they are, where each is looked for, and whether it is there. Nothing is downloaded."""

    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from attnlab.data.imagesets import image_sets

        known = image_sets()
        if self.json:
            print_json(known)
            return 0
        print_rows([_row(one) for one in known], "Image sets")
        if any(not split["found"] for one in known for split in one["splits"].values()):
            say("ATTNLAB_DATA=FOLDER names a folder of yours; al.data.mnist() and the like download what is missing")
        return 0


def _row(one: dict[str, Any]) -> dict[str, Any]:
    splits = one["splits"]
    there = all(split["found"] for split in splits.values())
    folders = dict.fromkeys(split.get("folder", one["looked_in"][0]) for split in splits.values())
    return {
        "name": one["name"],
        "images": f"{' x '.join(map(str, one['shape']))}, {one['classes']} classes",
        "train": _found(splits["train"]),
        "test": _found(splits["test"]),
        "where it is, or was looked for": "\n".join(folders if there else one["looked_in"]),
    }


def _found(split: dict[str, Any]) -> str:
    if not split["found"]:
        return "missing"
    return "there" if split["images"] is None else f"{split['images']}"
