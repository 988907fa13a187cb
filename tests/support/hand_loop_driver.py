"""A driver without any SDK: the loop everybody writes first, around a session. The smallest driver there can be."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loopguard_core import LoopGuardStop, Session, Stop, Surface, ToolCall, Usage
from loopguard_core._surface import ANYWHERE
from loopguard_core.testing.conformance import Agent, Conversation, Driver, ToolSpec, Turn
from loopguard_core.testing.conformance._driver import PARAMETERS

PIECE = 16


class ProviderError(OSError):
    """A provider's answer that is an error: its status, and what it says."""

    def __init__(self, error: urllib.error.HTTPError) -> None:
        super().__init__(str(error))
        self.status_code, self.body = error.code, error.read()


class HandLoop:
    """One conversation."""

    def __init__(self, agent: Agent, surface: Surface, parent: Session | None = None) -> None:
        self._agent, self._surface, self._parent = agent, surface, parent
        self._tools = {spec.name: spec for spec in agent.tools}
        self._messages: list[dict[str, Any]] = []

    def send(self, text: str) -> Turn:
        self._messages.append({"role": "user", "content": text})
        strong = self._agent.strong_model
        session = self._agent.guard.session(parent=self._parent, surface=self._surface, escalation_model=strong)
        try:
            with session:
                return Turn(text=self._run(session))
        except Exception as error:  # noqa: BLE001
            return Turn(error=error)

    def _run(self, session: Session) -> str:
        model = self._agent.model
        while True:
            directive = session.before_model_call(model, self._sent(), self._agent.max_tokens)
            if directive.stop is not None:
                return self._closing(session, directive.stop)
            told = [{"role": "user", "content": text} for text in directive.steer]
            try:
                message = self._ask(directive.model or model, [*self._messages, *told], session)
            except OSError as error:
                session.model_call_failed(error)
                if directive.model is None:
                    raise
                continue
            self._messages.append(message)
            if session.stop is not None:
                continue
            calls = message.get("tool_calls") or []
            if not calls and not message.get("cut") and self._is_answer(message):
                return str(message["content"])
            if calls:
                self._answer(session, calls)

    def _is_answer(self, message: Mapping[str, Any]) -> bool:
        """Some loops take any text for the answer; this one goes on until a text is not a promise."""
        return "I will" not in str(message["content"])

    def _ask(self, model: str, messages: Sequence[Mapping[str, Any]], session: Session) -> dict[str, Any]:
        raw = self._post(model, messages, tools=True)
        message = raw["choices"][0]["message"]
        text = message.get("content") or ""
        for at in range(0, len(text), PIECE):  # as a stream would bring it
            verdict = session.feed_text(text[at : at + PIECE])
            if verdict is not None and verdict.abort:
                message = {"role": "assistant", "content": text[: verdict.char], "cut": True}
                break
        session.end_message(raw["choices"][0]["finish_reason"])
        session.after_model_call(model, _usage(raw))
        return message

    def _post(self, model: str, messages: Sequence[Mapping[str, Any]], *, tools: bool) -> Any:
        body: dict[str, Any] = {"model": model, "messages": list(messages)}
        if self._agent.max_tokens is not None:
            body["max_tokens"] = self._agent.max_tokens
        if tools:
            functions = [{"name": name, "parameters": dict(PARAMETERS)} for name in self._tools]
            body["tools"] = [{"type": "function", "function": function} for function in functions]
        request = urllib.request.Request(
            f"{self._agent.base_url}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise ProviderError(error) from error

    def _sent(self) -> int:
        """Tokens about to be sent, from above: three bytes each."""
        tools = [{"name": name, "parameters": dict(PARAMETERS)} for name in self._tools]
        return len(json.dumps([self._messages, tools])) // 3

    def _answer(self, session: Session, calls: Sequence[Mapping[str, Any]]) -> None:
        wanted = [ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
        for call, decision in zip(wanted, session.begin_round(wanted), strict=True):
            content: Any = decision.message
            if not decision.blocked:
                content, failed = self._execute(call, session)
                session.record_result(call.id, content, failed)
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": str(content)})

    def _execute(self, call: ToolCall, session: Session) -> tuple[Any, bool | None]:
        spec = self._tools.get(call.name)
        if spec is None:
            return f"Error: {call.name} is not a tool", True
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            return "Error: the arguments are not valid JSON", True
        if spec.agent is not None:
            turn = HandLoop(spec.agent, self._surface, session).send(str(arguments.get("query")))
            return (turn.text, None) if turn.error is None else (str(turn.error), True)
        try:
            return spec.body(arguments), None
        except Exception as error:  # noqa: BLE001
            return f"Error: {error}", True

    def _closing(self, session: Session, stop: Stop) -> str:
        how = self._agent.on_stop or self._agent.guard.policy.on_stop.how
        if how == "raise":
            raise LoopGuardStop(stop)
        text = stop.message
        if how == "answer":
            raw = self._post(self._agent.model, self._messages, tools=False)
            session.after_model_call(self._agent.model, _usage(raw))
            text = raw["choices"][0]["message"]["content"]
        self._messages.append({"role": "assistant", "content": text})
        return text

    def approve(self) -> Turn:
        raise NotImplementedError

    def history(self) -> Sequence[Mapping[str, Any]] | None:
        return self._messages


class HandLoopDriver:
    """The loop, with everything a session can do, or on a surface that can do less."""

    mode = "in pieces"
    executes_stopped_round = False
    features = frozenset(
        {
            *("history", "usage", "cost", "unknown_tool", "invalid_json", "tool_errors", "nested", "on_stop", "raise"),
            *("fan_out", "tool_names", "reads_text", "sees_answers", "text", "asks_on"),
            *("asks_first", "model_errors", "max_tokens"),
        }
    )

    def __init__(self, surface: Surface = ANYWHERE) -> None:
        self.surface = surface

    def build(self, agent: Agent) -> Callable[[], Conversation]:
        return lambda: HandLoop(agent, self.surface)


def _usage(raw: Mapping[str, Any]) -> Usage:
    used = raw["usage"]
    return Usage(
        input_tokens=used["prompt_tokens"],
        output_tokens=used["completion_tokens"],
        total_tokens=used["total_tokens"],
        cost=used.get("cost"),
    )


__all__ = ["Driver", "HandLoop", "HandLoopDriver", "ToolSpec"]
