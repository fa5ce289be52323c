"""`attnlab data`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnlab.cli.show import print_json, print_rows, print_text, say


@dataclass(frozen=True)
class DataSets:
    """List image sets, text sets and language models: where each is looked for, and whether it is there.

    Nothing is downloaded.
    """

    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from attnlab.data.imagesets import image_sets
        from attnlab.data.textsets import text_sets

        known, texts = image_sets(), text_sets()
        if self.json:
            print_json([*known, *texts])
            return 0
        print_rows([_row(one) for one in known], "Image sets")
        print_text("\n".join(filter(None, map(_place, known))))
        print_rows([_row_of_texts(one) for one in texts], "Texts and language models")
        print_text("\n".join(map(_place_of_texts, texts)))
        if any(not split["found"] for one in known for split in one["splits"].values()):
            say("ATTNLAB_DATA=FOLDER names a folder of yours; al.data.mnist() and the like download what is missing")
        return 0


def _row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": one["name"],
        "images": f"{' x '.join(map(str, one['shape']))}, {one['classes']} classes",
        "train": _found(one["splits"]["train"]),
        "test": _found(one["splits"]["test"]),
    }


def _row_of_texts(one: dict[str, Any]) -> dict[str, Any]:
    files = one.get("files", {})
    there = "there" if one["found"] else "missing"
    return {"name": one["name"], "what": f"{one['title']}: {one['about']}", "found": files.get("train", there)}


def _place_of_texts(one: dict[str, Any]) -> str:
    if one["found"]:
        return f"{one['name']} is in {one['folder']}"
    return "\n".join(f"{one['name']} was looked for in {place}" for place in one["looked_in"])


def _found(split: dict[str, Any]) -> str:
    if not split["found"]:
        return "missing"
    return "there" if split["images"] is None else f"{split['images']}"


def _place(one: dict[str, Any]) -> str:
    """Where the set is, and if a part is missing, where it was looked for. Not in the table, which cuts long paths."""
    folders = dict.fromkeys(split["folder"] for split in one["splits"].values() if "folder" in split)
    missing = not all(split["found"] for split in one["splits"].values())
    lines = [f"{one['name']} is in {folder}" for folder in folders]
    lines += [f"{one['name']} was looked for in {place}" for place in one["looked_in"] if missing]
    return "\n".join(lines)
