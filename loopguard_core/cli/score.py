"""`loopguard score`: how many labelled loops a policy catches in time, and whom it disturbs meanwhile."""

from __future__ import annotations

import argparse
import difflib
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopguard_core._errors import PolicyError
from loopguard_core._guard import LoopGuard
from loopguard_core._ladder import DEFAULT_LADDERS, DETECTORS
from loopguard_core._policy import DetectorSettings, Policy
from loopguard_core._policy_file import find_policy
from loopguard_core.cli._recordings import complain, expanded, named_policy, watched
from loopguard_core.cli._score_counts import Ablation, Report, Scored
from loopguard_core.cli._score_report import print_json, print_tables
from loopguard_core.transcripts import (
    LABEL_SUFFIX,
    Label,
    Transcript,
    TranscriptError,
    find_label,
    guard_for_replay,
    judge,
    play,
    read_recording,
)

PASSED, FAILED, UNREADABLE = 0, 1, 2

_NO_PATH = """\
loopguard score: name labelled transcripts, or a folder of them: loopguard score FOLDER
  Your own recordings of healthy runs need no label: loopguard score --healthy FOLDER
  A checkout of loopguard has labelled ones: loopguard score corpus
  docs/score.md says what a label looks like."""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `score` to the parser of `loopguard`."""
    parser = subparsers.add_parser(
        "score",
        help="judge a policy on labelled transcripts",
        description="Judge a policy on recorded conversations of which it is known whether they are loops.",
        epilog="Exit status: 0 no healthy run was blocked or stopped, at most --max-soft were nagged, and --min-loops"
        " of the loops were caught in time; 1 otherwise; 2 something could not be read or judged.",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="a labelled transcript, or a directory of them with all its subdirectories",
    )
    parser.add_argument(
        "--healthy",
        action="append",
        default=[],
        metavar="PATH",
        help="recordings of healthy runs, which need no label; may be given several times",
    )
    parser.add_argument("--policy", metavar="F", help="policy file; by default the one loopguard finds")
    parser.add_argument(
        "--preset", metavar="P", help="with --policy, in place of its preset; without it, this preset alone"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="json: one object; default: table")
    parser.add_argument("--list", action="store_true", help="show every case, not only those that are not as wished")
    parser.add_argument(
        "--min-loops",
        type=_share,
        default=1.0,
        metavar="X",
        help="share of the loops to be caught in time, 0 to 1; default 1",
    )
    parser.add_argument(
        "--max-soft", type=_count, default=3, metavar="N", help="healthy runs that may be nagged; default 3"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="DETECTOR",
        help="switch a detector, or one row of it, off; may be given several times",
    )
    parser.add_argument(
        "--ablation", action="store_true", help="also say what would be lost without each detector in turn"
    )
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Judge every transcript and print what came of it.

    Returns:
        0 if all is as wished, 1 if not, 2 if something could not be read or judged.
    """
    if not args.paths and not args.healthy:
        print(_NO_PATH, file=sys.stderr)
        return UNREADABLE
    files, failed = _files(args.paths, args.healthy)
    report = Report(unread=failed)
    with ExitStack() as stack:
        guards = _Guards(args, stack)
        report.policy = guards.name
        for file in watched(files, "score", hidden=args.format == "json" and sys.stdout.isatty()):
            try:
                _score(file, guards, report, ablation=args.ablation)
            except TranscriptError as error:
                _complain(str(error))
                report.unread += 1
            except PolicyError as error:
                _complain(f"{file.name}: cannot be judged: {error}")
                report.unread += 1
    good = report.good(min_loops=args.min_loops, max_soft=args.max_soft)
    if args.format == "json":
        print_json(report, good=good)
    else:
        print_tables(report, good=good, everything=args.list)
    return UNREADABLE if report.unread else PASSED if good else FAILED


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    healthy: bool


def _files(paths: Sequence[str], healthy: Sequence[str]) -> tuple[list[_File], int]:
    """All files once each, and how many directories gave none; what is named healthy is so wherever else it lies."""
    found: dict[str, _File] = {}
    failed = 0
    for named, known in ((healthy, True), (paths, False)):
        files, empty = expanded(named, complain=_complain, deep=True, ignored=LABEL_SUFFIX)
        failed += empty
        for file in files:
            found.setdefault(file, _File(file, known))
    return list(found.values()), failed


def _score(file: _File, guards: _Guards, report: Report, *, ablation: bool) -> None:
    document, transcript = read_recording(file.name)
    label = find_label(file.name, document)
    if label is None:
        if not file.healthy:
            raise TranscriptError("has no label; name healthy recordings with --healthy", file=file.name)
        label = Label(loop=False, kind="healthy")
    scored, fired = _judged(file.name, label, transcript, guards.of(label.preset))
    report.cases.append(scored)
    if not ablation:
        return
    for detector in fired:  # one that said nothing cannot be missed
        other, _ = _judged(file.name, label, transcript, guards.of(label.preset, detector))
        report.ablation.setdefault(detector, Ablation(detector)).add(scored, other)


def _judged(file: str, label: Label, transcript: Transcript, guard: LoopGuard) -> tuple[Scored, list[str]]:
    replayed = play(transcript, guard)
    name = label.id or transcript.id or Path(file).stem
    scored = Scored(file, name, label, judge(label, transcript, replayed), replayed.rounds, replayed.messages)
    return scored, list(dict.fromkeys(verdict.detector for verdict in replayed.verdicts))


class _Guards:
    """The guards that are needed, each made once.

    Args:
        args: What the command was given: `policy`, `preset`, `without`.
        stack: Closes them.

    Raises:
        PolicyError: What was given cannot be used.
    """

    def __init__(self, args: argparse.Namespace, stack: ExitStack) -> None:
        self._stack = stack
        self._explicit = args.policy is not None or args.preset is not None
        self._policy = named_policy(args.policy, args.preset)
        self._without = tuple(args.without)
        for name in self._without:
            self._check(name)
        self._made: dict[tuple[str | None, str | None], LoopGuard] = {}
        self.name = self._named(args)
        self.of(None)

    def _named(self, args: argparse.Namespace) -> str:
        found = args.policy or (None if self._explicit else find_policy())
        parts = [str(found)] if found else []
        parts.append(f"preset {self._policy.preset}")
        parts += [f"without {name}" for name in self._without]
        if self._policy.shadow:
            parts.append("judged by what it would have done")
        return ", ".join(parts)

    def _check(self, name: str) -> None:
        known = [*DETECTORS, *DEFAULT_LADDERS]
        if name in known or self._policy.plugins:  # plugins may bring detectors of any name
            return
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise PolicyError(f"--without {name}: there is no such detector; {hint}known: {', '.join(DETECTORS)}")

    def of(self, preset: str | None, without: str | None = None) -> LoopGuard:
        """The guard for a case.

        Args:
            preset: The preset the case names; it counts only where the command names neither policy nor preset.
            without: A further detector to switch off.

        Raises:
            PolicyError: There is no such preset.
        """
        key = (None if self._explicit else preset, without)
        if key not in self._made:
            policy = self._policy if key[0] is None else Policy.from_mapping({"preset": key[0]}, "its label")
            policy = _switched_off(policy, [*self._without, *([without] if without else [])])
            with _unheard() if without or preset else nullcontext():
                self._made[key] = self._stack.enter_context(guard_for_replay(policy))
        return self._made[key]


@contextmanager
def _unheard() -> Iterator[None]:
    """Without the warnings about a policy: they were given once, and a variant's mean nothing."""
    logger = logging.getLogger("loopguard")
    logger.disabled, before = True, logger.disabled
    try:
        yield
    finally:
        logger.disabled = before


def _switched_off(policy: Policy, names: Sequence[str]) -> Policy:
    """The policy without some detectors; not in shadow, where a guard would only observe."""

    def settings() -> Iterator[tuple[str, DetectorSettings]]:
        for name in names:
            yield name, policy.detectors.get(name, DetectorSettings()).model_copy(update={"enabled": False})

    return policy.model_copy(update={"shadow": False, "detectors": {**policy.detectors, **dict(settings())}})


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1")
    return share


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _complain(text: str) -> None:
    complain("score", text)
