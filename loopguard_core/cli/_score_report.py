"""What `loopguard score` found out, printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loopguard_core.cli._console import Terminal
from loopguard_core.cli._recordings import printable
from loopguard_core.cli._score_counts import Ablation, ByDetector, Report, Scored

_STYLES = {
    "caught": "green",
    "left alone": "green",
    "nagged": "yellow",
    "early": "red",
    "late": "red",
    "missed": "red",
    "false alarm": "bold red",
}


# -- json --------------------------------------------------------------------------------------------------------------


def print_json(report: Report, *, good: bool) -> None:
    """Print the report as one object."""
    row = {
        "policy": report.policy,
        "good": good,
        "total": report.tally().row(),
        "excused": sum(1 for case in report.cases if case.label.excused),
        "unread": report.unread,
        "kinds": {kind: tally.row() for kind, tally in report.kinds().items()},
        "detectors": {name: _fields(row) for name, row in report.detectors().items()},
        "ablation": [_fields(row) for row in report.ablations()],
        "cases": [_case(case) for case in report.cases],
    }
    print(json.dumps(row), flush=True)  # ASCII: whatever the encoding is, and whatever a model put into a name


def _fields(row: Ablation | ByDetector) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def _case(case: Scored) -> dict[str, Any]:
    judgement, verdict = case.judgement, case.judgement.verdict
    return {
        "file": case.file,
        "id": case.name,
        "kind": case.label.kind,
        "loop": case.label.loop,
        "preset": case.label.preset,
        "excused": case.label.excused,
        "rounds": case.rounds,
        "messages": case.messages,
        "passed": judgement.passed,
        "result": judgement.result,
        "reason": judgement.reason,
        "detector": None if verdict is None else verdict.detector,
        "action": None if verdict is None else verdict.action.value,
        "round": None if verdict is None else verdict.round,
        "message": None if verdict is None else verdict.message_index,
        "char": None if verdict is None else verdict.char,
        "rounds_saved": judgement.saved.rounds,
        "calls_saved": judgement.saved.calls,
        "rounds_after_stop": judgement.saved.rounds_after_stop,
    }


# -- tables ------------------------------------------------------------------------------------------------------------


def print_tables(report: Report, *, good: bool, everything: bool) -> None:
    """Print the report for people."""
    console = Terminal(file=sys.stdout, highlight=False)

    def block(title: str, content: RenderableType) -> None:
        console.print(Text(title, style="bold"))
        console.print(Padding(content, (0, 0, 1, 2)))

    shown = [case for case in report.cases if everything or _remarkable(case)]
    if shown:
        block("every case" if everything else "not as wished", _case_table(shown))
    if report.cases:
        block("by kind", _kind_table(report))
    if rows := report.detectors():
        block("by detector", _detector_table(rows))
    if rows_without := report.ablations():
        block("without each detector in turn", _ablation_table(rows_without))
        for line in _ablation_lines(rows_without):
            console.print(line, soft_wrap=True)
    for line in _summary(report, good):
        console.print(line, soft_wrap=True)


def _remarkable(case: Scored) -> bool:
    return not case.judgement.passed or case.judgement.result == "nagged" or bool(case.label.excused)


def _columns(*columns: str) -> Table:
    """A table; columns whose name begins with `>` hold figures."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        figures = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if figures else "left", overflow="fold")
    return table


def _case_table(cases: Iterable[Scored]) -> Table:
    table = _columns("result", "case", "kind", ">rounds", ">rounds saved", "why")
    for case in cases:
        judgement = case.judgement
        reason = judgement.reason
        if not judgement.passed and case.label.why:
            reason = f"{reason}. {case.label.why}"
        if case.label.excused:
            reason = f"{reason} (not counted: {case.label.excused})".lstrip()
        table.add_row(
            Text(judgement.result, style="dim" if case.label.excused else _STYLES[judgement.result]),
            # Names come from files: shown as they are, never read as markup.
            Text(printable(case.name)),
            Text(printable(case.label.kind)),
            str(case.rounds),
            str(judgement.saved.rounds) if case.label.loop else "-",
            Text(printable(reason)),
        )
    return table


def _kind_table(report: Report) -> Table:
    table = _columns("kind", ">loops", ">in time", ">healthy", ">left alone", ">nagged", ">rounds saved")
    for kind, tally in report.kinds().items():
        figures = [tally.loops, tally.caught, tally.healthy, tally.alone, tally.nagged, tally.rounds_saved]
        here = [tally.loops, tally.loops, tally.healthy, tally.healthy, tally.healthy, tally.loops]
        styles = ["", _worse(tally.caught, tally.loops), "", _worse(tally.alone, tally.healthy), "", ""]
        cells = [
            Text(str(figure) if shown else "-", style=style)
            for figure, shown, style in zip(figures, here, styles, strict=True)
        ]
        table.add_row(Text(printable(kind)), *cells)
    return table


def _worse(reached: int, wanted: int) -> str:
    return "red" if reached < wanted else ""


def _detector_table(rows: dict[str, ByDetector]) -> Table:
    table = _columns("detector", ">loops in time", ">too early or late", ">false alarms", ">healthy runs nagged")
    for name, row in rows.items():
        table.add_row(
            Text(printable(name)),
            str(row.caught),
            Text(str(row.wrong_time), style="red" if row.wrong_time else ""),
            Text(str(row.false_alarms), style="bold red" if row.false_alarms else ""),
            str(row.nagged),
        )
    return table


_CHANGES: tuple[tuple[str, Callable[[Ablation], list[str]]], ...] = (
    ("loops lost", lambda row: row.lost),
    ("loops gained", lambda row: row.found),
    ("false alarms gone", lambda row: row.alarms_gone),
    ("false alarms new", lambda row: row.alarms_new),
    ("nags gone", lambda row: row.nags_gone),
)


def _ablation_table(rows: Iterable[Ablation]) -> Table:
    table = _columns("without", *(f">{title}" for title, _ in _CHANGES))
    for row in rows:
        table.add_row(Text(printable(row.detector)), *(str(len(names(row))) for _, names in _CHANGES))
    return table


def _ablation_lines(rows: Iterable[Ablation]) -> Iterator[Text]:
    for row in rows:
        for title, names in _CHANGES:
            if cases := names(row):
                yield Text.assemble(
                    (f"without {printable(row.detector)}, {title}: ", "dim"), printable(", ".join(cases))
                )
    yield Text()


def _summary(report: Report, good: bool) -> Iterator[Text]:
    total = report.tally()
    excused = sum(1 for case in report.cases if case.label.excused)
    yield Text(f"policy: {printable(report.policy)}", style="dim")
    parts = [
        f"loops caught in time {total.caught}/{total.loops}",
        f"healthy runs left alone {total.alone}/{total.healthy}, {total.nagged} of them nagged",
    ]
    line = Text("; ".join(parts), style="bold green" if good else "bold red")
    if excused:
        line.append(f"; {excused} excused")
    if report.unread:
        line.append(f"; {report.unread} not read", style="bold red")
    yield line
    if total.loops:
        yield Text(
            f"saved: {total.rounds_saved} rounds and {total.calls_saved} calls after the first block or stop,"
            f" {total.rounds_after_stop} rounds of them after a stop"
        )
