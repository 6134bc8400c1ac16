"""The commands as a user types them, in their own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def floe(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "floe", *arguments],
        env={**os.environ, "FLOE_HOME": str(home), **env},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


HEAVY = ("numpy", "torch", "httpx", "starlette", "uvicorn", "rich", "tokenizers", "onnxruntime")


def test_help_imports_nothing_heavy(home: Path) -> None:
    code = (
        "import sys\nfrom floe.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=home)
    assert "Usage" in done.stdout
    assert done.stderr.strip() == "[]"


def test_version(home: Path) -> None:
    assert floe(home, "--version").stdout.startswith("floe 0.")


def test_an_error_is_one_line_with_its_exit_code(home: Path) -> None:
    done = floe(home, "pull", "smollm2-135m-instrct")
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith("floe: ")
    assert "smollm2-135m-instruct" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(home: Path) -> None:
    done = floe(home, "--debug", "pull", "smollm2-135m-instrct")
    assert "Traceback" in done.stderr


def test_unknown_configuration_keys_stop_serving(home: Path) -> None:
    (home / "bad.toml").write_text("[serve]\nprot = 1\n")
    done = floe(home, "serve", "--config", "bad.toml")
    assert done.returncode == 2
    assert 'did you mean "port"' in done.stderr


def test_init_writes_once(home: Path) -> None:
    assert floe(home, "init").returncode == 0
    again = floe(home, "init")
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert floe(home, "init", "--force").returncode == 0


def test_doctor_speaks_json(home: Path) -> None:
    done = floe(home, "doctor", "--json")
    lines = json.loads(done.stdout)
    assert {"machine", "llama.cpp", "model (SLM)"} <= {line["about"] for line in lines}
    absent = next(line for line in lines if line["about"] == "model (SLM)")
    assert absent["todo"] == "floe pull smollm2-135m-instruct"


def test_pull_list_shows_licences(home: Path) -> None:
    rows = json.loads(floe(home, "pull", "--list", "--json").stdout)
    known = {row["name"]: row for row in rows}
    assert known["smollm2-135m-instruct"]["licence"] == "Apache-2.0"
    assert not known["smollm2-135m-instruct"]["present"]


def test_a_missing_model_file_is_said_plainly(home: Path) -> None:
    done = floe(home, "serve", "--model", "nowhere.gguf")
    assert done.returncode == 4
    assert "nowhere.gguf" in done.stderr


def test_a_text_file_is_not_a_model(home: Path) -> None:
    (home / "notes.gguf").write_text("these are notes")
    done = floe(home, "serve", "--model", "notes.gguf")
    assert done.returncode == 6
    assert "not a GGUF file" in done.stderr


def test_no_open_door_without_a_key(home: Path) -> None:
    done = floe(home, "cloud", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "FLOE_CLOUD_KEY" in done.stderr


def test_an_empty_ledger(home: Path) -> None:
    said = floe(home, "privacy", "ledger").stdout.strip()
    assert said.startswith("no ledger at ")
    assert said.endswith(": nothing was recorded as sent")


def test_chat_without_a_server(home: Path) -> None:
    done = floe(home, "chat", "hello", "--url", "http://127.0.0.1:9")
    assert done.returncode == 4
    assert "floe up" in done.stderr


def test_explain_and_adapters(models_home: Path) -> None:
    said = floe(models_home, "explain", "My IBAN is DE89 3704 0044 0532 0130 00", "--json")
    data = json.loads(said.stdout)
    assert data["verdict"] == "local"
    assert data["findings"][0]["entity"] == "IBAN_CODE"
    assert data["cloud"] is None
    listed = json.loads(floe(models_home, "adapters", "list", "--json").stdout)
    assert {"maths", "code", "medicine", "law", "finance"} <= {row["name"] for row in listed}
    assert all(row["state"] != "failed" for row in listed)
    absent = floe(models_home, "adapters", "inspect", "poetry")
    assert absent.returncode == 4
    assert "maths" in absent.stderr


def test_a_port_that_is_none_is_refused_in_one_line(home: Path) -> None:
    done = floe(home, "cloud", "--model", "none", "--port", "70000")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_explain_knows_what_the_router_has_learned(own_home: Path) -> None:
    text = "What is 6 times 7?"  # the router's choice is maths as long as nothing is learned
    script = f"""
import asyncio
from floe.answer import answer
from floe.assemble import edge
from floe.core.config import Config, Secrets, home
from floe.core.sections import ModelConfig
from floe.core.request import Request, Sampling

async def down(parts):
    for n in range(12):
        short = Sampling(max_tokens=1)
        request = Request(id=str(n), prompt={text!r}, model="maths", sampling=short)
        async for _ in answer(request, parts.parts):
            pass
        await parts.polar.settled()
        assert parts.polar.feedback(str(n), thumbs=-1)

with edge(Config(model=ModelConfig(threads=1)), Secrets(), home=home()) as parts:
    asyncio.run(down(parts))
"""
    env = {**os.environ, "FLOE_HOME": str(own_home)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, cwd=own_home)
    after = json.loads(floe(own_home, "explain", text, "--json").stdout)
    assert "nearest adapter maths" in after["route"]["reason"]
    assert "maths learned -" in after["route"]["reason"]
    assert all(adapter["id"] != "maths" for adapter in after["adapters"])
