"""What killed processes left behind in a store, and files that nothing points to."""

from __future__ import annotations

import shutil
from pathlib import Path

from floe.adapters.history import History
from floe.adapters.manifest import read_record
from floe.core.errors import BadAdapter


def sweep(manifests: Path, objects: Path, history: History) -> None:
    """Delete half-written files, and every object that neither a name nor its history needs."""
    for folder in (manifests, *objects.iterdir()):
        for leftover in folder.glob(".*") if folder.is_dir() else ():
            if leftover.is_file() or leftover.is_symlink():
                leftover.unlink()
    used: set[str] = set()
    for path in manifests.glob("*.json"):
        try:
            used.add(read_record(path).manifest.digest)
        except BadAdapter:
            return  # an entry that cannot be read may still point to any of the objects
        used |= history.kept(path.stem)
    for folder in objects.iterdir():
        if folder.name not in used and folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
