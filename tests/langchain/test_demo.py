"""`loopguard demo`: the figures, the lines others search for, and output that fits where it goes."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from decimal import Decimal
from xml.etree import ElementTree as ET

import pytest
from loopguard_langchain._billing_agent import Run, Spent
from loopguard_langchain._demo_chart import Axis, Curve, text_chart
from loopguard_langchain._demo_figures import money, saved
from loopguard_langchain._demo_svg import svg_chart
from loopguard_langchain.demo import command

from loopguard_core.testing import Reply, ScriptedServer, script

SVG = "{http://www.w3.org/2000/svg}"

EVENTS = [
    "SessionEnd: max_turns",
    "DoomLoopDetected: observe (streak 2)",
    "DoomLoopDetected: block (streak 3)",
    "DoomLoopDetected: block (streak 4)",
    "DoomLoopDetected: block (streak 5)",
    "DoomLoopDetected: stop (streak 6)",
    "SessionEnd: doom_loop",
    "DoomLoopDetected: observe (streak 2)",
    "DoomLoopDetected: block (streak 3)",
    "SessionEnd: complete",
]
EVENT = re.compile(r"(?:DoomLoopDetected: \w+ \(streak \d+\)|SessionEnd: \w+)(?=\s|$)")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("LOOPGUARD_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def shown():
    """What `loopguard demo` writes when piped."""
    executable = shutil.which("loopguard", path=sysconfig.get_path("scripts"))
    assert executable is not None
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LOOPGUARD_", "OPENAI_")) and name not in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS")
    }
    done = subprocess.run(
        [executable, "demo"],
        env={**kept, "PYTHONIOENCODING": "utf-8", "HTTP_PROXY": "http://127.0.0.1:9"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout.decode("utf-8")


def test_events_are_printed_in_order_and_nothing_is_missing(shown):
    printed = [match[0] for line in shown.splitlines() if (match := EVENT.match(line))]
    assert printed == EVENTS


def test_piped_output_has_no_escape_sequences_and_fits_80_columns(shown):
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_table_has_the_figures_of_each_run(shown):
    rows = [line.split() for line in shown.splitlines() if re.match(r"[123] (un)?guarded", line)]
    assert [row[-6:-3] + row[-1:] for row in rows] == [
        ["40", "40", "40", "max_turns"],
        ["6", "2", "6", "doom_loop"],
        ["3", "2", "4", "complete"],
    ]


def test_the_tool_runs_are_shown_as_they_happen(shown):
    unguarded, *guarded = re.split(r"^[23]\. ", shown, flags=re.MULTILINE)
    assert "." * 40 + "\n" in unguarded
    assert [part.count("fetch_invoice runs: timed out") for part in guarded] == [2, 2]


def test_the_answer_and_the_saving_are_one_line_each(shown):
    lines = shown.splitlines()
    assert [line for line in lines if line.startswith("Answer: ")] == [
        "Answer: I could not read INV-2291: billing times out. I paid nothing."
    ]
    assert re.fullmatch(
        r"Guarded, the run cost \d % of the unguarded one: \$0\.\d{4} instead of \$0\.\d{4}\.", lines[-1]
    )


def test_the_curve_has_both_axes_and_a_mark_for_each_run(shown):
    chart = shown[shown.index("dollars spent after each model call") :]
    assert re.search(r"^\$0\.00 ┤[⠁-⣿ox]+$", chart, re.MULTILINE)
    assert re.search(r"^ +model calls$", chart, re.MULTILINE)
    for legend in ("── unguarded: 40 model calls", " x guarded, never listens: 6", " o guarded, gives up: 4"):
        assert legend in chart


def test_everything_is_ascii_where_the_output_takes_nothing_else(monkeypatch):
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii", write_through=True))
    assert command([]) == 0
    text = output.getvalue().decode("ascii")
    assert max(map(len, text.splitlines())) <= 80
    assert "* unguarded: 40 model calls" in text
    assert [match[0] for line in text.splitlines() if (match := EVENT.match(line))] == EVENTS


def test_json_has_the_figures_and_nothing_else_is_printed(capsys, tmp_path):
    picture = tmp_path / "curve.svg"
    assert command(["--json", "--svg", str(picture)]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    data = json.loads(written.out)
    figures = [(r["attempts"], r["executions"], r["model_calls"], r["ended"]) for r in data["runs"]]
    assert figures == [(40, 40, 40, "max_turns"), (6, 2, 6, "doom_loop"), (3, 2, 4, "complete")]
    assert [[(e["action"], e["streak"]) for e in r["events"]] for r in data["runs"]] == [
        [],
        [("observe", 2), ("block", 3), ("block", 4), ("block", 5), ("stop", 6)],
        [("observe", 2), ("block", 3)],
    ]
    unguarded, guarded, gives_up = data["runs"]
    for run in data["runs"]:
        costs = [point["cost"] for point in run["curve"]]
        assert len(costs) == run["model_calls"]
        assert costs == sorted(costs)
        assert costs[-1] == run["cost"] > 0
    assert gives_up["cost"] < guarded["cost"] < unguarded["cost"] / 20
    assert data["saved"].startswith("Guarded, the run cost ")

    root = ET.fromstring(picture.read_text(encoding="utf-8"))
    assert root.tag == f"{SVG}svg"
    assert [len(line.get("points").split()) for line in root.iter(f"{SVG}polyline")] == [41, 7, 5]
    assert {"model calls", "dollars spent so far", "$0.00"} <= {text.text for text in root.iter(f"{SVG}text")}
    assert "prefers-color-scheme: dark" in root.find(f"{SVG}style").text


def test_command_runs_in_process(capsys):
    assert command([]) == 0
    written = capsys.readouterr()
    assert [match[0] for line in written.out.splitlines() if (match := EVENT.match(line))] == EVENTS
    assert written.err == ""


def test_help_is_one_of_the_demos_own(capsys):
    with pytest.raises(SystemExit) as ended:
        command(["--help"])
    assert ended.value.code == 0
    assert "loopguard demo" in capsys.readouterr().out


def test_help_is_reached_through_loopguard():
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from loopguard_core.cli import main; sys.exit(main())", "demo", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "usage: loopguard demo" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("name", ["langchain_openai", "langchain"])
def test_a_missing_library_is_named_with_what_to_install(name, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    assert command([]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err == f"loopguard demo: {name} is not installed: pip install 'loopguard-core[demo]'\n"


def test_loopguard_switched_off_is_said(monkeypatch, capsys):
    monkeypatch.setenv("LOOPGUARD_ENABLED", "0")
    assert command([]) == 2
    assert "LOOPGUARD_ENABLED" in capsys.readouterr().err


def test_an_svg_that_cannot_be_written_is_said(tmp_path, capsys):
    with ScriptedServer(script([Reply(text="Done.")])) as server:
        missing = tmp_path / "missing" / "curve.svg"
        assert command(["--base-url", server.base_url, "--model", "m", "--svg", str(missing)]) == 2
    assert "cannot be written" in capsys.readouterr().err


# -- a real endpoint -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["--model", "m"], ["--base-url", "http://127.0.0.1:9/v1"], ["--api-key-env", "KEY"]],
    ids=["no-url", "no-model", "key-alone"],
)
def test_a_real_model_needs_its_endpoint_and_its_name(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        command(arguments)
    assert ended.value.code == 2
    assert "--base-url" in capsys.readouterr().err


def test_a_real_model_runs_unguarded_and_guarded(capsys):
    with ScriptedServer(script([Reply(text="Nothing \x1b[31mto do.\nDone.")])) as server:
        assert command(["--base-url", server.base_url, "--model", "some-model"]) == 0
        assert [request["model"] for request in server.requests] == ["some-model", "some-model"]
    text = capsys.readouterr().out
    assert text.count("SessionEnd: complete") == 2
    assert "Answer: Nothing ?[31mto do. Done." in text
    # No cost was reported: it is unknown, and tokens are compared instead.
    assert "unknown" in text
    assert "tokens spent after each model call" in text
    assert text.splitlines()[-1].endswith("there was nothing to save.")


def test_the_key_comes_from_the_named_variable(monkeypatch, capsys):
    assert command(["--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--api-key-env", "DEMO_KEY"]) == 2
    assert "DEMO_KEY is not set" in capsys.readouterr().err


def test_an_endpoint_that_refuses_is_one_line(capsys):
    with ScriptedServer(script([Reply(status=401, error={"message": "no such key"})])) as server:
        assert command(["--base-url", server.base_url, "--model", "m"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "no such key" in lines[0]


# -- the parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, 2, 3, 6, 7, 11, 40, 41, 399])
def test_axis_of_calls_has_whole_round_ticks(value):
    axis = Axis.reaching(value, 5, whole=True)
    assert axis.top >= value
    assert len(axis.ticks) <= 6
    assert all(tick == int(tick) for tick in axis.ticks)


@pytest.mark.parametrize("value", [1e-7, 0.0101, 0.2753, 1.0, 99_999.0])
def test_axis_of_values_reaches_what_is_drawn(value):
    axis = Axis.reaching(value, 4)
    assert value * (1 - 1e-9) <= axis.top <= 4 * value
    assert len(axis.ticks) <= 5


def test_legend_goes_below_where_a_curve_is_in_the_way():
    steep = Curve("steep, with a long name", (9.0, 9.5, 9.6, 9.7))
    lines = text_chart([steep, Curve("flat", (1.0, 2.0))], lambda value, _: f"{value:g}", width=60, unicode=False)
    assert [line.strip() for line in lines[-2:]] == ["* steep, with a long name", "x flat"]
    assert max(map(len, lines)) <= 60


def test_svg_escapes_names():
    text = svg_chart([Curve("<run> & co", (1.0,))], lambda value, _: f"{value:g}", title="a < b", unit="dollars")
    names = [element.text for element in ET.fromstring(text).iter(f"{SVG}text")]
    assert "<run> & co" in names
    assert "a < b" in names


def test_small_amounts_keep_their_digits():
    amounts = (None, "0", "0.0004", "0.0101", "0.5", "1234.5")
    texts = [money(None if amount is None else Decimal(amount)) for amount in amounts]
    assert texts == ["unknown", "$0.0000", "$0.000400", "$0.0101", "$0.5000", "$1,234.50"]


def test_runs_without_any_figures_claim_no_saving():
    run = Run("unguarded", 0, 0, (), "complete", "", (Spent(None, None),))
    assert saved([run, run]).endswith("nothing can be said about savings.")
