"""`floe power` as typed: this machine or a made-up one, and simulated boards."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from floe.cli import power
from floe.core.errors import FloeError
from floe.power.build import controller_for, own_policy
from floe.power.hold import holder
from floe.testing.fake_sysfs import (
    cpu_policy,
    devfreq_gpu,
    rapl_zone,
    supply_chip,
    write_tree,
)

runner = CliRunner()


def run(*arguments: object) -> Any:
    return runner.invoke(power.app, [str(a) for a in arguments], catch_exceptions=True)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A Jetson-like machine: supplies, a RAPL zone, CPU and GPU clocks, a temperature."""
    root = tmp_path / "root"
    supply_chip(root, {"VDD_IN": (5000, 2000), "VDD_CPU": (5000, 400)})
    rapl_zone(root, "intel-rapl:0", "package-0", 5_000_000)
    cpu_policy(root)
    devfreq_gpu(root)
    write_tree(
        root,
        {
            "sys/class/thermal/thermal_zone0/type": "soc-thermal",
            "sys/class/thermal/thermal_zone0/temp": 45_000,
        },
    )
    return root


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLOE_API_KEY", "")


def bounds(root: Path) -> list[str]:
    policy = root / "sys/devices/system/cpu/cpufreq/policy0"
    return [(policy / n).read_text().strip() for n in ("scaling_min_freq", "scaling_max_freq")]


FREE = ["600000", "1500000"]


def test_e05_e14_the_doctor_tells_everything_that_was_looked_for(board: Path) -> None:
    rows = json.loads(run("doctor", "--json", "--root", board).stdout)
    by_name = {(row["kind"], row["name"]): row for row in rows}
    assert by_name["hwmon ina3221", "ina3221 VDD_IN"]["usable"]
    assert by_name["energy counter", "rapl package-0"]["usable"]
    assert by_name["temperature", "soc-thermal"]["place"].endswith("thermal_zone0/temp")
    assert by_name["clocks", "cpufreq"]["usable"]
    assert by_name["clocks", "cpufreq"]["reason"] == "cpu 600 to 1500 in 4 steps"
    assert by_name["clocks", "nvpmodel"]["reason"].endswith("lists no power mode")
    assert by_name["battery", "battery"]["reason"] == "no battery there"
    assert by_name["energy, measured", "meter hwmon"]["usable"]
    lines = run("doctor", "--root", board).stdout.splitlines()
    assert len(lines) == len(rows)
    assert any(re.match(r"ok +ina3221 VDD_IN +hwmon ina3221 ", line) for line in lines)


def test_e08_e11_e19_missing_rights_are_said_with_what_to_do(
    board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.access  # root may read everything: this machine's root may nothing

    def access(path: Any, mode: int, **more: Any) -> bool:
        return not str(path).startswith(f"{board}/") and real(path, mode, **more)

    monkeypatch.setattr(os, "access", access)
    rows = json.loads(run("doctor", "--json", "--root", board).stdout)
    told = {row["name"]: row for row in rows}
    assert told["rapl package-0"]["reason"] == "unavailable: permission"
    assert told["rapl package-0"]["todo"].startswith("sudo chmod a+r /sys/class/powercap")
    assert told["ina3221 VDD_IN"]["todo"].startswith("sudo chmod a+r ")
    assert "no right to write" in told["cpufreq"]["reason"]
    assert told["cpufreq"]["todo"] == "run as root to set them; until then they are only advised"
    assert told["meter none"]["reason"] == "no sensor gives joules here: energy is unknown"
    line = next(
        one for one in run("doctor", "--root", board).stdout.splitlines() if "rapl pack" in one
    )
    assert line.startswith("-") and "-> sudo chmod" in line


def test_status_of_a_machine(board: Path, tmp_path: Path) -> None:
    status = json.loads(run("status", "--json", "--seconds", "0.05", "--root", board).stdout)
    assert (status["from"], status["label"], status["holder"]) == ("this machine", "measured", None)
    assert status["clocks_mhz"] == {"cpu": 1200, "gpu": 612}
    assert status["temperatures_c"] == {"soc-thermal": 45}
    assert status["power_w"] == pytest.approx(10.0)
    shown = run("status", "--seconds", "0.05", "--root", board).stdout
    assert "(measured)" in shown and "nobody holds clocks" in shown
    bare = run("status", "--seconds", "0.05", "--root", tmp_path / "bare").stdout
    assert "energy       unknown (no sensor: see floe power doctor)" in bare
    assert not re.search(r"\d J\b", bare)


@pytest.fixture
def metrics() -> Iterator[str]:
    """Something that answers /metrics like a server."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(
                b"# TYPE floe_power_joules_total counter\n"
                b'floe_power_joules_total{label="measured",while="serving"} 12.5\n'
                b"floe_power_decisions_total 3.0\nfloe_requests_total 9.0\n"
            )

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_status_of_a_server(metrics: str) -> None:
    found = json.loads(run("status", "--url", metrics, "--json").stdout)
    assert found["series"] == {
        'power_joules_total{label="measured",while="serving"}': 12.5,
        "power_decisions_total": 3.0,
    }
    shown = run("status", "--url", metrics).stdout
    assert re.search(r'^joules_total\{label="measured",while="serving"\} +12.5$', shown, re.M)
    assert "no Floe server at" in str(run("status", "--url", "http://127.0.0.1:9").exception)


def test_controllers_are_compared_beside_the_optimum() -> None:
    arguments = ("simulate", "odroid-xu3", "--jobs", 6, "--controller")
    found = json.loads(run(*arguments, "performance, learned,fixed-best", "--json").stdout)
    assert (found["label"], found["jobs"], found["queue"]) == ("modelled", 6, False)
    rows = {row["controller"]: row for row in found["controllers"]}
    assert rows["performance"]["vs_performance"] == rows["performance"]["gap_to_optimum"] == 1.0
    assert found["optimum_vs_performance"] < rows["learned"]["vs_performance"] < 0.9
    assert (
        run(*arguments, "performance", "--json").stdout
        == run(*arguments, "performance", "--json").stdout
    )
    table = run(*arguments, "performance,powersave", "--queue").stdout
    assert "6 requests in a queue. All joules are modelled." in table
    assert [line.split()[0] for line in table.splitlines()[2:]] == [
        "powersave", "performance", "optimum",
    ]  # fmt: skip
    boards = run("simulate", "list").stdout
    assert re.search(
        r"^odroid-xu3 +5 settings: cpu 1000 to 2000 MHz; latency within ", boards, re.M
    )


def test_training_leaves_a_policy_where_the_server_looks(tmp_path: Path) -> None:
    done = run("train", "--board", "odroid-xu3", "--generations", 2, "--jobs", 2)
    assert done.exception is None, done.output
    assert "generation 2 of 2" in done.stderr
    assert "(modelled)" in done.stderr
    home = tmp_path / "home"
    card = json.loads(own_policy(home).read_text())["card"]
    assert card["generations"] == 2
    from floe.power.boards.catalogue import fitted

    assert controller_for("learned", fitted("odroid-xu3").model, home=home).name == "learned"


def test_a_command_runs_under_held_clocks_and_they_are_put_back(
    board: Path, tmp_path: Path
) -> None:
    script = (
        "import sys, pathlib; p = pathlib.Path(sys.argv[1]); "
        "print(p.read_text().strip()); sys.exit(7)"
    )
    low = board / "sys/devices/system/cpu/cpufreq/policy0/scaling_min_freq"
    out, log = tmp_path / "cost.json", tmp_path / "seen.txt"
    with log.open("w") as seen:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "floe", "power", "run", "--root", str(board)),
                *("--clock", "cpu=900", "-o", str(out), "--"),
                *(sys.executable, "-c", script, str(low)),
            ],
            stdout=seen,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 7, done.stderr
    assert log.read_text().strip() == "900000"
    assert bounds(board) == FREE and holder(tmp_path / "home/power") is None
    assert re.search(r"energy [\d.]+ J in [\d.]+ s = [\d.]+ W \(measured\)", done.stderr)
    found = json.loads(out.read_text())
    assert (found["label"], found["exit_code"], found["meter"]) == ("measured", 7, "hwmon")
    assert found["clocks_mhz"] == {"cpu": 900}


def test_e17_a_killed_run_ends_its_command_and_puts_clocks_back(
    board: Path, tmp_path: Path
) -> None:
    script = "import time; print('up', flush=True)\nwhile True: time.sleep(60)"
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "floe", "power", "run", "--root", str(board)),
            *("--controller", "powersave", "--", sys.executable, "-c", script),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            assert bounds(board) == ["600000", "600000"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 128 + signal.SIGTERM
            assert process.stdout.readline() == ""  # the command has gone as well
        finally:
            process.kill()
    assert bounds(board) == FREE


def test_e17_reset_puts_back_what_a_killed_holder_left(board: Path, tmp_path: Path) -> None:
    assert run("reset", "--root", board).stdout == "nothing was left behind\n"
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "floe", "power", "run", "--root", str(board)),
            *("--clock", "cpu=600", "--", sys.executable, "-c", "print('up'); input()"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        alive = run("reset", "--root", board)
        assert "the clocks are held by process" in str(alive.exception)
        process.kill()
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)
    assert bounds(board) == ["600000", "600000"]
    done = json.loads(run("reset", "--json", "--unlock", "--root", board).stdout)
    assert done == {"state": "clocks of a killed holder were put back", "faults": []}
    assert bounds(board) == FREE


def test_what_reset_cannot_put_back_is_an_error(board: Path, tmp_path: Path) -> None:
    folder = tmp_path / "home/power"
    folder.mkdir(parents=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    saved = [{"place": "/etc/passwd", "value": "x"}]
    lease = {"version": 1, "pid": 1, "boot_id": boot, "saved": saved}
    (folder / "lease.json").write_text(json.dumps(lease))
    done = run("reset", "--root", board)
    assert isinstance(done.exception, FloeError) and done.exception.exit_code == 11
    assert re.search("not put back: /etc/passwd: not one of", done.exception.message)
    assert done.exception.message.endswith("lease.json keeps them: remove it to give them up")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("simulate", "odroid"), "no board 'odroid'; known: orin-nano-super"),
        (("simulate", "odroid-xu3", "--controller", "perf"), "no controller 'perf'; known: "),
        (("simulate", "odroid-xu3", "--controller", "dqn"), "no Q network was trained for the"),
        (("report", "-o", "x.html", "--board", "x"), "no board 'x'"),
        (("train", "--board", "x", "--generations", 1), "no board 'x'"),
        (("run", "--clock", "gpu", "--", "true"), "--clock must be NAME=MHZ, such as gpu=612"),
        (("run", "--controller", "learned", "--", "true"), "--controller must be performance or"),
        (
            ("run", "--controller", "powersave", "--clock", "gpu=1", "--", "true"),
            "give --clock or --controller, not both",
        ),
        (("run", "--knobs", "x", "--", "true"), "power.knobs must be one of auto, cpufreq"),
        (("run", "--meter", "x", "--", "true"), "power.meter must be one of auto, hwmon"),
        (("run", "--json", "--", "true"), "no such option: --json"),
        (("simulate", "odroid-xu3", "--controller", "x"), "lowest-meeting, learned, dqn"),
        (("run", "--", "/no/such/command"), "cannot run /no/such/command: No such file"),
        (("run", "--knobs", "noop", "--clock", "cpu=1", "--", "true"), "clocks cannot be held: "),
    ],
)
def test_what_cannot_be_done_is_said(arguments: tuple[object, ...], said: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, FloeError), done.output
    assert said in done.exception.message


@pytest.mark.parametrize("what", ["run", "report", "train"])
def test_a_file_that_cannot_be_written_is_known_before_the_work(what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done_mark = tmp_path / "ran"
    for output, said in (
        (tmp_path / "file" / "x", "cannot be written: "),
        (tmp_path, "cannot be written: it is a folder"),
    ):
        rest = ("--", "touch", str(done_mark)) if what == "run" else ()
        done = run(what, "-o", output, *rest)
        assert isinstance(done.exception, FloeError), done.output
        assert said in done.exception.message and str(output) in done.exception.message
    assert not done_mark.exists()


def test_boards_as_json_have_units() -> None:
    rows = {row["board"]: row for row in json.loads(run("simulate", "list", "--json").stdout)}
    assert rows["odroid-xu3"]["domains"][0] == {
        "name": "cpu", "unit": "MHz", "low": 1000.0, "high": 2000.0,
    }  # fmt: skip
    assert rows["a40"]["domains"][0]["unit"] == "W" and rows["a40"]["settings"] == 7


def test_e17_status_tells_of_a_lease_that_nobody_holds(board: Path, tmp_path: Path) -> None:
    lease = tmp_path / "home" / "power" / "lease.json"
    lease.parent.mkdir(parents=True)
    lease.write_text("{}")
    told = run("status", "--root", board, "--seconds", 0.05).stdout
    assert "lease        clocks of a killed holder are still in force: floe power reset" in told
    lease.unlink()
    assert "nobody holds clocks" in run("status", "--root", board, "--seconds", 0.05).stdout


def test_a_clock_out_of_bounds_changes_nothing(board: Path) -> None:
    done = run("run", "--root", board, "--clock", "cpu=9000", "--", "true")
    assert "cpu = 9000 MHz is outside 600 to 1500 MHz" in str(done.exception)
    assert bounds(board) == FREE


def test_the_report_shows_time_and_the_curve_and_says_that_it_is_modelled(tmp_path: Path) -> None:
    out = tmp_path / "power.html"
    done = run("report", "--board", "odroid-xu3", "--jobs", 3, "-o", out)
    assert done.exception is None and f"wrote {out}" in done.stderr
    page = out.read_text()
    for title in (
        *("cpu clock, MHz", "power (modelled), W", "temperature (modelled), C"),
        *("first token, share of its goal", "tokens, share of their goal"),
        *("latency against energy", "are no claim about any machine", "optimum"),
    ):
        assert title in page
    ElementTree.fromstring(page)  # well-formed, for any reader
    assert page.count("<svg ") == 6 and page.count("</svg>") == 6
    assert "http" not in re.sub(
        r"http://www.w3.org/(2000/svg|1999/xhtml)", "", page
    )  # it stands alone
    assert "nan" not in page
