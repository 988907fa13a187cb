"""Records live sessions, one JSONL file each, which `loopguard replay` reads. A plugin; nothing is recorded without it.

```python
from loopguard_core import LoopGuard
from loopguard_core.recorder import FileRecorder

guard = LoopGuard(plugins=[FileRecorder("recordings")])
```

A line is a chat message, or has the role `loopguard`: the session, a verdict, its end. By default it holds names,
fingerprints, verdicts and usage. Arguments and results are recorded only where the policy puts them into events
(`privacy.include_arguments`, `privacy.include_results`), model text never.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from loopguard_core._events import (
    DoomLoopDetected,
    JudgedCall,
    PostModelCall,
    ResultRecorded,
    RoundJudged,
    SessionEnd,
)
from loopguard_core._hookspec import hookimpl
from loopguard_core._outcome import text_of
from loopguard_core._private_lines import PrivateLines
from loopguard_core._types import Usage, Verdict

__all__ = ["MAX_BYTES", "ROLE", "VERSION", "FileRecorder"]

ROLE = "loopguard"
"""Role of the lines that are no chat messages; readers of chat messages pass over roles they do not know."""

VERSION = 1

MAX_BYTES = 50_000_000
"""Bytes of one session's file; a longer one says so in its last line, and ends there."""

MAX_SESSIONS = 10_000
"""Sessions whose state is held at once; one that comes back later begins again with a line that names it."""

_MAX_RESULT = 64 * 1024
_LETTERS = str.maketrans("0123456789abcdef", "bcdfghjklmnpqrst")

_Event = PostModelCall | DoomLoopDetected | RoundJudged | ResultRecorded | SessionEnd
Redact = Callable[[dict[str, Any]], Mapping[str, Any] | None]


@dataclass(slots=True)
class _Running:
    """A session of which something was recorded.

    Attributes:
        call: A model call of which is not known yet whether it asked for tools.
        named: Whether its file says whose it is.
        lost: Lines that could not be written.
        full: Whether its file has reached its size.
    """

    call: PostModelCall | None = None
    named: bool = False
    lost: int = 0
    full: bool = False


class FileRecorder:
    """Writes what happens in each session to a file of its own.

    The directory is made for the owner alone (0700), files are readable for the owner alone (0600). What cannot be
    written is lost, counted in the file once it can be written again, and noted as a fault of this plugin; the run goes
    on. Writing is a plain append to a local file, on the thread of the run.

    Args:
        directory: Where the files go.
        redact: Called with every line before it is written, as a dict of plain JSON. What it returns is written, None
            drops the line. If it raises, the line is not written.
        max_bytes: Bytes of one session's file.

    Raises:
        ValueError: `max_bytes` is not positive, or `redact` cannot be called.
    """

    def __init__(
        self, directory: str | os.PathLike[str], redact: Redact | None = None, *, max_bytes: int = MAX_BYTES
    ) -> None:
        if redact is not None and not callable(redact):
            raise ValueError(f"redact must be a function of one line, not {type(redact).__name__}")
        if max_bytes <= 0:
            raise ValueError(f"max_bytes is {max_bytes!r}; give a positive number of bytes")
        self._files = PrivateLines(directory)
        self._redact = redact
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._running: OrderedDict[str, _Running] = OrderedDict()

    def path_of(self, session_id: str) -> str:
        """The file of a session, there or not."""
        return os.fspath(self._files.path_of(session_id))

    # -- hooks -------------------------------------------------------------------------------------------------

    @hookimpl
    def post_model_call(self, event: PostModelCall) -> None:
        """Keep the call until it is known whether it asked for tools."""
        running = self._of(event)
        before, running.call = running.call, event
        if before is not None:
            self._write(running, event, _answer(before))

    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> None:
        """A verdict, on a line of its own."""
        line = {"type": "verdict", **Verdict.as_dict(_bare(event)), "proposed": event.proposed.value}
        self._write(self._of(event), event, {"role": ROLE, **line})

    @hookimpl
    def round_judged(self, event: RoundJudged) -> None:
        """A response with its calls; refused calls have their answer at once."""
        running = self._of(event)
        if event.user_spoke:
            self._write(running, event, {"role": "user", "content": "(what the user said is not recorded)"})
        call, running.call = running.call, None
        self._write(running, event, _request(event, call))
        for judged in event.calls:
            if judged.blocked:
                line = {"role": "tool", "tool_call_id": judged.id, "content": judged.message}
                self._write(running, event, line)

    @hookimpl
    def result_recorded(self, event: ResultRecorded) -> None:
        """What a call returned, or a word that stands for it."""
        if event.output is not None:
            content = text_of(event.output)[:_MAX_RESULT]
        else:
            # In letters, because what looks like a hash is no change to a detector. Equal results have equal words.
            content = f"(not recorded: {event.fingerprint[:12].translate(_LETTERS)})"
        line: dict[str, Any] = {"role": "tool", "tool_call_id": event.call_id, "content": content}
        if event.failed:
            line["is_error"] = True
        self._write(self._of(event), event, line)

    @hookimpl
    def session_end(self, event: SessionEnd) -> None:
        """The end; a paused run goes on in the same file."""
        running = self._of(event)
        call, running.call = running.call, None
        if call is not None:
            self._write(running, event, _answer(call))
        self._write(running, event, _end(event))
        with self._lock:
            self._running.pop(event.session_id, None)

    # -- writing -----------------------------------------------------------------------------------------------

    def _of(self, event: _Event) -> _Running:
        with self._lock:
            running = self._running.setdefault(event.session_id, _Running())
            self._running.move_to_end(event.session_id)
            while len(self._running) > MAX_SESSIONS:
                self._running.popitem(last=False)
            return running

    def _write(self, running: _Running, event: _Event, line: dict[str, Any]) -> None:
        if running.full:
            return
        lost, running.lost = running.lost, running.lost + 1  # until it is known to be written
        # The line that names the session goes with the first one that can be written.
        lines = [line] if running.named else [_session(event), line]
        if lost:
            lines[-1] = {**lines[-1], "lost_before": lost}
        text = "".join(self._text(each) for each in lines)
        if not self._files.append(event.session_id, text, self._max_bytes):
            running.full = True
            self._files.append(event.session_id, json.dumps({"role": ROLE, "type": "full"}) + "\n", None)
        # A line that was dropped on purpose is none, and says nothing of those that were lost.
        running.lost = 0 if text else lost
        running.named = True

    def _text(self, line: dict[str, Any]) -> str:
        """The line as it is written; empty where it is dropped."""
        whole: dict[str, Any] = {**line, "at": datetime.now(UTC).isoformat(timespec="milliseconds")}
        kept = whole if self._redact is None else self._redact(whole)
        return "" if kept is None else json.dumps(dict(kept), default=str) + "\n"


def _session(event: _Event) -> dict[str, Any]:
    names = ("session_id", "parent_id", "agent", "adapter", "framework_run_id")
    return {"role": ROLE, "type": "session", "version": VERSION, **{name: getattr(event, name) for name in names}}


def _bare(event: DoomLoopDetected) -> Verdict:
    return Verdict(**{name: getattr(event, name) for name in Verdict.__dataclass_fields__})


def _request(event: RoundJudged, call: PostModelCall | None) -> dict[str, Any]:
    judged = [
        {"streak": c.streak, "action": None if c.action is None else c.action.value, "blocked": c.blocked}
        for c in event.calls
    ]
    return {
        "role": "assistant",
        "content": None,
        **_used(call),
        "tool_calls": [
            {"id": c.id, "type": "function", "function": {"name": c.tool, "arguments": _arguments(c)}}
            for c in event.calls
        ],
        "loopguard": {"round": event.turn, "calls": judged},
    }


def _arguments(call: JudgedCall) -> str:
    if call.arguments is not None:
        arguments = call.arguments
        return arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
    # Letters again: two hashes would look like one call with a nonce in it.
    mark = "" if call.fingerprint is None else call.fingerprint.translate(_LETTERS)
    return json.dumps({"not_recorded": mark})


def _answer(call: PostModelCall) -> dict[str, Any]:
    """A response that asked for nothing. Its text is not known here, and each is another one."""
    return {"role": "assistant", "content": f"(text of response {call.model_calls} not recorded)", **_used(call)}


def _used(call: PostModelCall | None) -> dict[str, Any]:
    if call is None:
        return {}
    fields: dict[str, Any] = {"model": call.model, "usage": _usage(call.usage)}
    return {**fields, "duration": call.duration} if call.duration is not None else fields


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "cost": None if usage.cost is None else str(usage.cost),
        "estimated": usage.estimated,
    }


def _end(event: SessionEnd) -> dict[str, Any]:
    return {
        "role": ROLE,
        "type": "end",
        "reason": event.reason,
        "message": event.message,
        "error": event.error,
        "turns": event.turns,
        "model_calls": event.model_calls,
        "tool_calls": event.tool_calls,
        "seconds": round(event.duration, 3),
        "usage": _usage(event.usage),
    }
