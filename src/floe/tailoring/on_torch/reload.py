"""A saved model loaded again, in a process that knows nothing but the folder.

Run as a module: `python -m floe.tailoring.on_torch.reload FOLDER IDS.json OUT.npz`.

Legend: T tokens, V rows of the vocabulary.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from floe.core.errors import BadModel
from floe.tailoring.on_torch.blocks import Model

Logits: TypeAlias = list[NDArray[np.float32]]
"""Log-probabilities (T, V) of each text."""
_TIMEOUT_S = 600.0


def log_probs_of(model: Model, texts: Sequence[Sequence[int]]) -> Logits:
    """Natural-log probabilities after every token, over all rows of the vocabulary."""
    found = []
    with torch.inference_mode():
        for text in texts:
            logits = model(input_ids=torch.tensor([list(text)]), use_cache=False).logits[0]
            found.append(torch.log_softmax(logits.float(), -1).numpy().copy())
    return found


def load_folder(folder: Path) -> Model:
    """The model of a folder in the precision it was saved in; code beside it is run.

    Only for folders that this process or its parent wrote: their code is ours.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", local_files_only=True, trust_remote_code=True
    )
    return model.eval().requires_grad_(False)


def reload_in_child(folder: Path, texts: Sequence[Sequence[int]]) -> Logits:
    """Log-probabilities of the folder's model, computed in a new process.

    Raises:
        BadModel: the process failed or took longer than ten minutes.
    """
    with tempfile.TemporaryDirectory(prefix="floe-reload-") as name:
        work = Path(name)
        ids, out = work / "ids.json", work / "out.npz"
        ids.write_text(json.dumps([list(map(int, text)) for text in texts]), encoding="utf-8")
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_MODULES_CACHE": str(work / "modules"),
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        }
        command = [sys.executable, "-m", __name__, str(folder), str(ids), str(out)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BadModel(f"{folder} could not be loaded again within ten minutes") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise BadModel(f"{folder} cannot be loaded again: {last[:300]}")
        with np.load(out, allow_pickle=False) as arrays:
            return [arrays[f"text{i}"] for i in range(len(texts))]


def main(arguments: Sequence[str]) -> None:
    """Write the log-probabilities of a folder's model on texts of ids."""
    folder, ids, out = map(Path, arguments)
    found = log_probs_of(load_folder(folder), json.loads(ids.read_text(encoding="utf-8")))
    arrays: dict[str, Any] = {f"text{i}": array for i, array in enumerate(found)}
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(sys.argv[1:])
