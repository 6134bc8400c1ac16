"""README and docs do what they say: each page's blocks run in order as one script."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from floe.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROLOGUE = """set -euo pipefail
make() { command make -C "$REPOSITORY" --dry-run "$@"; }
"""


def script_of(page: Path) -> str:
    """The page's bash and python blocks as one bash script; empty when it has none."""
    parts = []
    for language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "bash":
            parts.append(body)
        elif language == "python":
            parts.append(f"python - <<'PYTHON'\n{body}PYTHON\n")
        else:
            assert language in ("text", "toml", "json"), f"{page.name}: untested {language!r} block"
    return PROLOGUE + "\n".join(parts) if parts else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_blocks_run(page: Path, models_home: Path, tmp_path: Path) -> None:
    script = script_of(page)
    if not script:
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "FLOE_HOME": str(models_home), "PATH": path, "REPOSITORY": str(ROOT)}
    log = tmp_path / "output.txt"
    with log.open("wb") as output:  # a pipe would stay open while a page's server runs
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(timeout=300)
    finally:
        _end_group(process.pid)
    assert code == 0, f"{page.name} failed:\n{log.read_text()[-4000:]}"


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # no server was left behind


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 200


def test_every_command_is_in_the_readme_with_an_example_in_its_help() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert f"`floe {name}" in readme, f"README lacks floe {name}"
        for one in getattr(command, "commands", {name: command}).values():
            assert "Example: floe" in (one.help or ""), f"{name}/{one.name} has no example"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
