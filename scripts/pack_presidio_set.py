"""Write src/floe/evaluation/data/privacy_presidio.json.xz from Presidio's research set.

Run: python scripts/pack_presidio_set.py ../shared/data/privacy_presidio/synth_dataset_v2.json
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

TARGET = Path(__file__).parents[1] / "src/floe/evaluation/data/privacy_presidio.json.xz"


def main(source: Path) -> None:
    rows = [
        [
            row["template_id"],
            row["full_text"],
            [[s["entity_type"], s["start_position"], s["end_position"]] for s in row["spans"]],
        ]
        for row in json.loads(source.read_text(encoding="utf-8"))
    ]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    TARGET.write_bytes(lzma.compress(text.encode(), preset=9))
    print(f"{len(rows)} sentences, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
