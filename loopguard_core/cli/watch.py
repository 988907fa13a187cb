"""`loopguard watch`: reads a stream from standard input and says when and why it would be cut.

`some-local-model | loopguard watch` passes the text through as it comes; what it has to say goes to standard error.
"""

from __future__ import annotations

import argparse
import codecs
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from rich.text import Text

from loopguard_core._guard import LoopGuard
from loopguard_core._session import Session
from loopguard_core._types import Action, Verdict
from loopguard_core.cli._console import Terminal
from loopguard_core.cli._recordings import complain, named_policy, printable
from loopguard_core.detectors.text_repetition import TextRepetition

CLEAN, WOULD_CUT, NOTHING_WATCHED = 0, 1, 2

_CHUNK = 64 * 1024


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `watch` to the parser of `loopguard`."""
    parser = subparsers.add_parser(
        "watch",
        help="say when and why a stream of text would be cut",
        description="Pass standard input through to standard output and say on standard error when and why the stream "
        "would be cut. Exit status 0: it would not; 1: it would; 2: the policy does not look at this text.",
    )
    parser.add_argument("--policy", metavar="F", help="policy file; by default the one loopguard finds")
    parser.add_argument(
        "--preset", metavar="P", help="with --policy, in place of its preset; without it, this preset alone"
    )
    parser.add_argument(
        "--channel",
        choices=("content", "reasoning", "arguments"),
        default="content",
        help="what the text is to be taken for; default: content",
    )
    parser.add_argument(
        "--cut", action="store_true", help="stop reading at the cut, which ends a program that writes into the pipe"
    )
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Watch standard input to its end, or to the cut.

    Returns:
        0 if nothing was to be cut, 1 if it was, 2 if the policy does not look at such text.
    """
    policy = named_policy(args.policy, args.preset)
    if not policy.detector_enabled(TextRepetition.name) or args.channel not in policy.text.channels:
        switch = "detectors.text_repetition.enabled" if args.channel in policy.text.channels else "text.channels"
        complain("watch", f"this policy does not look at {args.channel}: see {switch}")
        return NOTHING_WATCHED
    would_cut = False
    policy = policy.model_copy(update={"key": None})  # no model call is made here
    with LoopGuard(policy) as guard, guard.session() as session:
        for verdict in _verdicts(session, args.channel):
            cuts = verdict.abort or verdict.action is Action.STOP
            would_cut |= cuts
            _say(verdict, cuts=cuts)
            if cuts and args.cut:
                break
    return WOULD_CUT if would_cut else CLEAN


def _verdicts(session: Session, channel: Any) -> Iterator[Verdict]:
    """What the session says of the text, each piece of which is passed on before it is judged."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for data in _passed_through(sys.stdin.buffer, sys.stdout.buffer):
        verdict = session.feed_text(decoder.decode(data), channel)
        if verdict is not None:
            yield verdict
    last = session.end_message()
    if last is not None:
        yield last


def _passed_through(source: BinaryIO, target: BinaryIO) -> Iterator[bytes]:
    # What there is, not a full buffer: whoever reads along wants to see the text as it is written.
    read = getattr(source, "read1", source.read)
    while data := read(_CHUNK):
        target.write(data)
        target.flush()
        yield data


def _say(verdict: Verdict, *, cuts: bool) -> None:
    head = "would cut" if cuts else "noticed"
    at = "" if verdict.char is None else f" at character {verdict.char:,}"
    figures = ", ".join(f"{name} {value}" for name, value in verdict.evidence.items() if name != "channel")
    line = Text.assemble(
        ("loopguard watch: ", "bold"),
        (f"{head}{at}", "bold red" if cuts else "yellow"),
        f"  {printable(verdict.message)}",
        (f"  [{verdict.detector}, {verdict.action.value}; {figures}]", "dim"),
    )
    Terminal(stderr=True, highlight=False).print(line, soft_wrap=True)
