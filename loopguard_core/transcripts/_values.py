"""What every reader needs of the values in a recording: text, ids, counts. Nothing here raises on odd values."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loopguard_core._types import ToolCall, Usage

_MAX_COUNT = 10**15  # no model call has more tokens; a hostile integer may have thousands of digits
_TEXT_KEYS = ("text", "refusal")


class Unanswered:
    """The calls of a round that wait for their results; quick also for a round of very many.

    Args:
        calls: The calls, in order.
    """

    def __init__(self, calls: Sequence[ToolCall] = ()) -> None:
        self._calls = calls
        self._taken: set[int] = set()
        self._queues: dict[tuple[str, str], deque[int]] = {}
        for place, call in enumerate(calls):
            for queue in (("id", call.id), ("name", call.name), ("any", "")):
                self._queues.setdefault(queue, deque()).append(place)

    def take(self, call_id: str | None, name: str | None) -> str | None:
        """The id of the call a result answers: the one it names, else the next of that tool, else the next."""
        if call_id is not None:
            queues = [("id", call_id)]
        else:
            queues = [("any", "")] if name is None else [("name", name), ("any", "")]
        for queue in (self._queues.get(key, deque()) for key in queues):
            while queue:
                place = queue.popleft()
                if place not in self._taken:
                    self._taken.add(place)
                    return self._calls[place].id
        return None


def kind(part: Any) -> str | None:
    """The `type` of an object, where it has one."""
    return text_or_none(part.get("type")) if isinstance(part, dict) else None


def part_text(part: Any) -> str | None:
    """The text of a part; None if it is something else."""
    if isinstance(part, str):
        return part
    texts = (part.get(key) for key in _TEXT_KEYS) if isinstance(part, dict) else iter(())
    return next((text for text in texts if isinstance(text, str)), None)


def joined(content: Any) -> str:
    """The text of content that is text, null or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part_text(part) or "" for part in content) if isinstance(content, list) else ""


def tool_output(content: Any) -> Any:
    """A result as text; as recorded where it has a part that is no text: a new picture is a new result."""
    if isinstance(content, list):
        texts = [part_text(part) for part in content]
        return content if None in texts else "".join(text for text in texts if text)
    return content


def reasoning_text(part: Any) -> str:
    """The text of a block of reasoning, whichever of the providers' ways it is written in."""
    if not isinstance(part, dict):
        return ""
    texts = (joined(part.get(key)) for key in ("thinking", "reasoning", "content", "text", "summary"))
    return next((text for text in texts if text), "")


def text_or_none(value: Any) -> str | None:
    """Text that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def identifier(value: Any) -> str | None:
    """An id as text; some recorders number things."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_COUNT:
        return str(value)
    return text_or_none(value)


def count(value: Any) -> int | None:
    """A number of tokens, where it can be one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT else None


def table(value: Any) -> Mapping[str, Any]:
    """An object, or an empty one where there is none."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> Iterator[Mapping[str, Any]]:
    """The objects of a list; of anything else none."""
    return (member for member in value if isinstance(member, dict)) if isinstance(value, list) else iter(())


def usage(recorded: Any, sent: str, received: str) -> Usage | None:
    """Tokens and cost of a model call in one of OpenAI's two ways.

    Args:
        recorded: The usage block.
        sent: What it calls the tokens sent, `prompt_tokens` or `input_tokens`; `_details` follows for its parts.
        received: What it calls the tokens received.
    """
    if not isinstance(recorded, dict):
        return None
    return Usage(
        input_tokens=count(recorded.get(sent)),
        output_tokens=count(recorded.get(received)),
        cached_tokens=count(table(recorded.get(f"{sent}_details")).get("cached_tokens")),
        reasoning_tokens=count(table(recorded.get(f"{received}_details")).get("reasoning_tokens")),
        total_tokens=count(recorded.get("total_tokens")),
        cost=recorded.get("cost"),
        estimated=recorded.get("estimated") is True,
    )
