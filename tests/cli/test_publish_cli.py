"""`floe adapters publish`: what one device writes, another one serves from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from floe.adapters.remote import Remote
from floe.adapters.remote_index import INDEX, MAX_INDEX_BYTES, parse_index
from floe.testing.tiny_model import make_tiny_adapter, make_tiny_model


def test_a_store_is_published_whole(tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path)
    make_tiny_adapter(tmp_path / "letters", seed=3)

    def floe(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "floe", "adapters", *words, "--model", str(tiny.gguf)]
        env = {**os.environ, "FLOE_HOME": str(tmp_path)}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)

    assert floe("add", str(tmp_path / "letters")).returncode == 0
    done = floe("publish", str(tmp_path / "out"))
    assert done.stdout == f"published 1 adapters to {tmp_path / 'out'}\n", done.stderr
    data = Remote((tmp_path / "out").as_uri()).read(INDEX, max_bytes=MAX_INDEX_BYTES)
    [record] = parse_index(data, source="out")
    assert record.manifest.name == "letters"
    refused = floe("publish", str(tiny.gguf))
    assert refused.returncode == 2 and "is not a folder; name one to publish to" in refused.stderr
