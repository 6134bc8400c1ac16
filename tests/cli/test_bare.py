"""A box that only serves has neither torch nor Flower nor what else learning and tailoring need."""

from __future__ import annotations

import subprocess
import sys

ABSENT = (
    "torch", "transformers", "peft", "opacus", "dp_accounting", "scipy", "flwr", "ray",
    "cryptography", "optuna", "gguf", "onnxruntime", "huggingface_hub",
)  # fmt: skip
CODE = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None  # as if it were not installed
import floe.assemble, floe.serving.app, floe.serving.logits_app, floe.testing.live_server
from floe.cli.main import main
main(sys.argv[1:])
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, timeout=120
    )


def test_serving_opens_without_the_packages_of_learning() -> None:
    for command in ("serve", "tailor"):
        found = run(command, "--help")
        assert found.returncode == 0, found.stderr
        assert "Usage" in found.stdout


def test_a_command_that_needs_them_says_what_to_install() -> None:
    found = run("fed", "epsilon", "--noise", "1", "--rate", "0.01", "--rounds", "10")
    assert found.returncode == 8, found.stderr
    assert "pip install" in found.stderr
    assert "Traceback" not in found.stderr


def test_what_no_part_explains_is_explained_by_the_command_line() -> None:
    found = run("tailor", "build", "--plan", "none.json", "--out", "small")
    assert found.returncode == 8, found.stderr
    assert found.stderr.startswith("floe: this needs ")
    assert "pip install 'floe[train]'" in found.stderr
