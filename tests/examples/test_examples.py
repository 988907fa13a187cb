"""The examples run as their README says, without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PLUGIN = EXAMPLES / "plugin" / "loopguard-acme-alerts"
HOST = EXAMPLES / "plugin" / "billing-host"


def run(*command, cwd, python_path=()):
    # A proxy nobody listens at: whatever leaves loopback through it fails.
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("LOOPGUARD_", "OPENAI_"))},
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "PYTHONPATH": os.pathsep.join([*map(str, python_path), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
        "COLUMNS": "200",
    }
    environment.pop("ACME_ALERTS_FILE", None)
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def installed(tmp_path):
    """A directory that is to Python what an installed plugin is: its package, and the metadata pip would write."""
    site = tmp_path / "site"
    shutil.copytree(PLUGIN / "src", site, ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    header = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (metadata / "METADATA").write_text(header, encoding="utf-8")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("".join(lines), encoding="utf-8")
    return site


@pytest.fixture
def workplace(tmp_path):
    """A directory with the host's policy, as its README has it."""
    directory = tmp_path / "work"
    directory.mkdir()
    policy = directory / "loopguard.toml"
    shutil.copyfile(HOST / "loopguard.toml", policy)
    policy.chmod(0o644)  # a policy that others can write is warned about, and checkouts differ
    return directory


def test_billing_agent_runs_without_options(tmp_path):
    done = run(str(EXAMPLES / "billing_agent.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith(("DoomLoopDetected", "SessionEnd"))] == [
        "DoomLoopDetected: observe (streak 2)",
        "DoomLoopDetected: block (streak 3)",
        "SessionEnd: complete",
    ]
    assert sum("runs: timed out" in line for line in lines) == 2
    assert lines[-1] == "Answer: I could not read INV-2291: the billing service times out."


def test_billing_agent_stays_short_enough_to_copy():
    assert len((EXAMPLES / "billing_agent.py").read_text(encoding="utf-8").splitlines()) < 120


def test_the_host_calls_the_plugin_its_policy_names(installed, workplace):
    done = run("-m", "billing_host", cwd=workplace, python_path=[installed, HOST / "src"])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "plugin acme-alerts (entry point): doom_loop_detected, session_end"
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("round")] == ["ran"] * 2 + ["refused"] * 4
    assert lines[-1] == "SessionEnd: doom_loop"
    alerts = [json.loads(line) for line in (workplace / "acme-alerts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(alert["alert"], alert.get("action"), alert.get("streak")) for alert in alerts] == [
        ("loop", "block", 3),
        ("loop", "block", 4),
        ("loop", "block", 5),
        ("loop", "stop", 6),
        ("run ended", None, None),
    ]
    assert {alert["agent"] for alert in alerts} == {"billing"}


def test_what_the_readme_shows_is_what_the_host_prints(installed, workplace):
    done = run("-m", "billing_host", cwd=workplace, python_path=[installed, HOST / "src"])
    readme = (EXAMPLES / "plugin" / "README.md").read_text(encoding="utf-8")
    assert f"```\n{done.stdout}```" in readme


def test_the_host_names_a_plugin_that_is_not_installed(workplace):
    done = run("-m", "billing_host", cwd=workplace, python_path=[HOST / "src"])
    assert done.returncode == 2
    assert done.stderr.startswith("billing-host: plugins: no plugin 'acme-alerts' is installed")


def test_an_installed_plugin_does_nothing_until_a_policy_names_it(installed, workplace):
    (workplace / "loopguard.toml").write_text("", encoding="utf-8")
    done = run("-m", "billing_host", cwd=workplace, python_path=[installed, HOST / "src"])
    assert done.returncode == 0, done.stderr
    assert not (workplace / "acme-alerts.jsonl").exists()


def test_loopguard_plugins_lists_it(installed, workplace):
    main = "import sys; from loopguard_core.cli import main; sys.exit(main())"
    done = run("-c", main, "plugins", "--check", cwd=workplace, python_path=[installed])
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if "acme-alerts" in line)
    cells = [cell.strip() for cell in re.split("[│|]", row) if cell.strip()]
    assert cells == ["acme-alerts", "loopguard-acme-alerts 0.1.0", "yes", "doom_loop_detected, session_end"]


LADDER = [
    "DoomLoopDetected: observe (streak 2)",
    *(f"DoomLoopDetected: block (streak {n})" for n in (3, 4, 5)),
    "DoomLoopDetected: stop (streak 6)",
    "SessionEnd: doom_loop",
]


@pytest.mark.parametrize("example", ["openai_hand_loop.py", "openai_agents_billing.py", "llama_index_billing.py"])
def test_the_same_loop_ends_the_same_way_on_other_clients(example):
    if example.startswith("llama_index"):
        missing = "the real client is not installed: pip install llama-index-llms-openai (it needs openai 1 or 2)"
        pytest.importorskip("llama_index.llms.openai", reason=missing)
    done = run(EXAMPLES / example, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith(("DoomLoop", "SessionEnd"))] == LADDER
    assert sum("runs: timed out" in line for line in lines) == 2
    assert "[loopguard]" in lines[-1]


def test_the_alert_hook_posts_where_detection_ended_a_run():
    done = run(EXAMPLES / "alert_hook.py", cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("alert received: Agent billing was stuck") == 1
    assert "INV-2291" not in done.stdout


def test_one_policy_does_the_same_in_three_sdks():
    for sdk in ("langchain_openai", "agents", "llama_index.core"):
        pytest.importorskip(sdk)
    done = run(EXAMPLES / "one_policy_three_sdks.py", cwd=EXAMPLES)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = [re.split("[│|┃]", line) for line in done.stdout.splitlines()]
    rows = {row[1].strip(): [cell.strip() for cell in row[2:5]] for row in cells if len(row) == 6 and row[1].strip()}
    assert rows["round 3"] == ["fetch_invoice: block at 3"] * 3
    assert rows["round 7"] == ["ledger: stop at 4"] * 3
    assert rows["really ran"] == ["fetch_invoice 2 x, ledger 2 x"] * 3
    assert rows["SessionEnd"] == ["doom_loop: 7 rounds, 7 model calls, 4 tool runs"] * 3
    assert done.stdout.splitlines()[-1] == "The three columns are the same."
