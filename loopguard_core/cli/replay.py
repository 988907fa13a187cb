"""`loopguard replay`: what a policy would have said of recorded conversations."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from loopguard_core._types import Action, Verdict
from loopguard_core.cli._console import Terminal
from loopguard_core.cli._recordings import complain, expanded, named_policy, printable, watched
from loopguard_core.report import Reporter, Story, page
from loopguard_core.transcripts import Replayed, TranscriptError, play, read_transcript

OK, UNREADABLE = 0, 2

_STYLES = {
    Action.OBSERVE: "dim",
    Action.STEER: "yellow",
    Action.ESCALATE: "magenta",
    Action.BLOCK: "red",
    Action.STOP: "bold white on red",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `replay` to the parser of `loopguard`."""
    parser = subparsers.add_parser(
        "replay",
        help="run recorded conversations through a policy",
        description="Say what a policy would have done in recorded conversations. Exit status 2 if one cannot be read.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a recorded conversation (chat messages, Responses items, Anthropic or LangChain messages), or a directory"
        " of *.json and *.jsonl",
    )
    parser.add_argument("--policy", metavar="F", help="policy file; by default the one loopguard finds")
    parser.add_argument(
        "--preset", metavar="P", help="with --policy, in place of its preset; without it, this preset alone"
    )
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="json: one object a file; default: table"
    )
    parser.add_argument("--html", metavar="F", help="write a report as one HTML page into this file as well")
    parser.add_argument(
        "--show-arguments",
        action="store_true",
        help="put the arguments of calls into the report: cut, and without what looks like a secret by its name",
    )
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Replay every file in turn.

    Returns:
        0, or 2 if a file could not be read or the report not be written; the others are replayed all the same.

    Raises:
        PolicyError: The policy cannot be used.
    """
    if args.show_arguments and args.html is None:
        _complain("--show-arguments is for the report; add --html FILE")
        return UNREADABLE
    files, failed = expanded(args.files, complain=_complain)
    printer: _Json | _Tables = _Json() if args.format == "json" else _Tables()
    stories: list[Story] = []
    with Reporter(named_policy(args.policy, args.preset), arguments=args.show_arguments) as reporter:
        for file in watched(files, "replay", hidden=args.format == "json" and sys.stdout.isatty()):
            try:
                replayed = _told(file, reporter, None if args.html is None else stories)
            except TranscriptError as error:
                _complain(str(error))
                failed += 1
            else:
                printer.add(file, replayed)
    printer.close(failed)
    if args.html is not None and not _written(args.html, page(stories, policy=_policy_words(args))):
        failed += 1
    return UNREADABLE if failed else OK


def _told(file: str, reporter: Reporter, stories: list[Story] | None) -> Replayed:
    """Play a file, and keep its story where a page is wanted: working out costs takes longer than playing."""
    if stories is None:
        return play(read_transcript(file), reporter.guard)
    stories.append(reporter.story(file))
    return stories[-1].replayed


def _written(file: str, text: str) -> bool:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        _complain(f"{file}: the report cannot be written ({reason})")
        return False
    return True


def _policy_words(args: argparse.Namespace) -> str:
    named = [("policy", args.policy), ("preset", args.preset)]
    return ", ".join(f"{kind} {Path(value).name}" for kind, value in named if value) or "the policy found here"


def _complain(text: str) -> None:
    complain("replay", text)


class _Json:
    """One JSON object a file, written as soon as it is known."""

    def add(self, file: str, replayed: Replayed) -> None:
        """Write the file's row."""
        row = {
            "file": file,
            "id": replayed.id,
            "rounds": replayed.rounds,
            "messages": replayed.messages,
            "ended": replayed.ended,
            "verdicts": [_verdict(verdict) for verdict in replayed.verdicts],
        }
        # ASCII: whatever the terminal's or the pipe's encoding is, and whatever a model put into a name.
        print(json.dumps(row), flush=True)

    def close(self, failed: int) -> None:
        """Nothing is left to write."""


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "round": verdict.round,
        "message": verdict.message_index,
        "detector": verdict.detector,
        "action": verdict.action.value,
        "streak": verdict.streak,
        "tool": verdict.tool,
        "call_id": verdict.call_id,
        "channel": verdict.channel,
        "char": verdict.char,
        "fingerprint": verdict.fingerprint,
        "text": verdict.message,
    }


class _Tables:
    """A block a file, and a summary; written at the end, because a progress bar may hold the screen until then."""

    def __init__(self) -> None:
        self._blocks: list[Text | Padding] = []
        self._ends: Counter[str] = Counter()
        self._forced = 0

    def add(self, file: str, replayed: Replayed) -> None:
        """Keep what is to be shown."""
        self._ends[replayed.ended] += 1
        self._forced += any(verdict.action in (Action.BLOCK, Action.STOP) for verdict in replayed.verdicts)
        self._blocks.append(_heading(file, replayed))
        if replayed.verdicts:
            self._blocks.append(Padding(_table(replayed.verdicts), (0, 0, 0, 2)))

    def close(self, failed: int) -> None:
        """Write everything."""
        console = Terminal(file=sys.stdout, highlight=False)
        for block in self._blocks:
            console.print(block, soft_wrap=isinstance(block, Text))
        console.print(self._summary(failed), soft_wrap=True)

    def _summary(self, failed: int) -> Text:
        early = {reason: count for reason, count in self._ends.most_common() if reason != "complete"}
        reasons = f" ({', '.join(f'{reason} {count}' for reason, count in early.items())})" if early else ""
        parts = [
            _counted(self._ends.total(), "conversation"),
            f"{sum(early.values())} ended early{reasons}",
            f"{self._forced} with a call refused or the run stopped by detection",
        ]
        summary = Text(", ".join(parts), style="bold")
        return summary.append(f", {failed} not read", style="bold red") if failed else summary


def _heading(file: str, replayed: Replayed) -> Text:
    heading = Text.assemble(
        (printable(file), "bold"),
        f"  {_counted(replayed.rounds, 'round')}, {_counted(replayed.messages, 'message')}, ",
        (replayed.ended, "green" if replayed.stop is None else "bold red"),
    )
    return heading if replayed.stop_round is None else heading.append(f" at round {replayed.stop_round}")


@dataclass(slots=True)
class _Row:
    """Verdicts that differ only in how far the streak has come: a loop of an hour is one line."""

    first: Verdict
    last: Verdict


def _table(verdicts: Iterable[Verdict]) -> Table:
    rows: list[_Row] = []
    latest: dict[tuple[str | None, ...], _Row] = {}
    for verdict in verdicts:
        key = (verdict.detector, verdict.action, verdict.tool, verdict.fingerprint, verdict.channel)
        row = latest.get(key)
        if row is not None and verdict.streak > row.last.streak:
            row.last = verdict
        else:
            row = latest[key] = _Row(verdict, verdict)
            rows.append(row)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("round", "message", "streak"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("action", "detector"):
        table.add_column(name, no_wrap=True)
    table.add_column("tool or text", overflow="fold")
    for row in rows:
        first, last = row.first, row.last
        table.add_row(
            _span(first.round, last.round),
            _span(first.message_index, last.message_index),
            _span(first.streak, last.streak),
            Text(first.action.value, style=_STYLES[first.action]),
            # Names from plugins and models are shown as they are, never read as markup.
            Text(printable(first.detector)),
            Text(printable(_subject(first))),
        )
    return table


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _subject(verdict: Verdict) -> str:
    if verdict.tool is not None:
        return verdict.tool
    return verdict.channel or "" if verdict.char is None else f"{verdict.channel}, character {verdict.char}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
