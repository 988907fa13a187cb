"""OpenTelemetry: what loopguard detects as events, span attributes and metrics. A plugin; needs the extra `otel`.

```python
from loopguard_core import LoopGuard
from loopguard_core.otel import OpenTelemetryPlugin

guard = LoopGuard(plugins=[OpenTelemetryPlugin(tools=["fetch_invoice", "web_search"])])
```

Only the API is used: without an SDK configured by the program all of it does nothing. No arguments, results or texts
are in anything that is emitted. `docs/telemetry.md` lists the names.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from loopguard_core import _otel_names as names
from loopguard_core._events import DoomLoopDetected, PostModelCall, RoundJudged, SessionEnd
from loopguard_core._hookspec import hookimpl
from loopguard_core._identity import display_name
from loopguard_core._types import Action

try:
    from opentelemetry import metrics, trace
except ImportError as error:
    raise ImportError("loopguard_core.otel needs opentelemetry-api: pip install 'loopguard-core[otel]'") from error

try:  # its name says that it may change
    _logs: Any = importlib.import_module("opentelemetry._logs")
except ImportError:
    _logs = None

__all__ = ["MAX_VALUES", "OpenTelemetryPlugin"]

MAX_VALUES = 32
"""Different values of one label of a metric; the rest are counted as `_OTHER`."""

_NOT_OURS = frozenset({"complete", "paused", "error", "cancelled"})
_REFUSES = frozenset({Action.BLOCK, Action.STOP})


class OpenTelemetryPlugin:
    """Emits what loopguard does into OpenTelemetry.

    Register it after plugins that override actions: it tells what it is told.

    Args:
        tools: Names of the tools there are. Metrics count every other name as `_OTHER`, because names come from the
            model. None takes the first 32 names that occur.
        tracer_provider: None for the global one; likewise the next two.
        meter_provider: See there.
        logger_provider: See there.
    """

    def __init__(
        self,
        *,
        tools: Iterable[str] | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        logger_provider: Any = None,
    ) -> None:
        self._tracer = trace.get_tracer(names.SCOPE, tracer_provider=tracer_provider)
        self._logger = None if _logs is None else _logs.get_logger(names.SCOPE, logger_provider=logger_provider)
        meter = metrics.get_meter(names.SCOPE, meter_provider=meter_provider)
        self._detections = meter.create_counter(names.DETECTIONS, "{detection}", "Verdicts of detectors")
        self._tool_calls = meter.create_counter(names.TOOL_CALLS, "{call}", "Tool calls that were judged")
        self._sessions = meter.create_counter(names.SESSIONS, "{session}", "Sessions that ended or paused")
        self._turns = meter.create_histogram(names.SESSION_TURNS, "{round}", "Rounds of a session")
        self._duration = meter.create_histogram(names.SESSION_DURATION, "s", "Active seconds of a session")
        self._cost = meter.create_counter(names.COST, "{USD}", "Cost of model calls, where known")
        self._tools = _Bounded(None if tools is None else {display_name(tool) for tool in tools})
        self._detectors, self._models = _Bounded(), _Bounded()

    # -- hooks -------------------------------------------------------------------------------------------------

    @hookimpl
    def doom_loop_detected(self, event: DoomLoopDetected) -> None:
        """A verdict: an event, attributes of the span it happened in, and a count."""
        attributes = _present({
            **_origin(event),
            names.OPERATION: None if event.tool is None else names.EXECUTE_TOOL,
            names.TOOL_NAME: event.tool,
            names.TOOL_CALL_ID: None if event.call_id is None else display_name(event.call_id),
            names.DETECTOR: event.detector,
            names.ACTION: event.action.value,
            names.PROPOSED: event.proposed.value,
            names.COUNT: event.streak,
            names.FINGERPRINT: event.fingerprint,
            names.ROUND: event.round,
        })  # fmt: skip
        labels = {names.DETECTOR: self._detectors.of(event.detector), names.ACTION: event.action.value}
        if event.tool is not None:
            labels[names.TOOL_NAME] = self._tools.of(event.tool)
        self._detections.add(1, labels)
        span = trace.get_current_span()
        self._emit(span, names.DETECTED_EVENT, attributes, event.message, warn=event.action is not Action.OBSERVE)
        about = (names.DETECTOR, names.ACTION, names.COUNT, names.FINGERPRINT)
        span.set_attributes({name: attributes[name] for name in about if name in attributes})
        if event.tool is not None and event.action in _REFUSES:
            self._refused(span, event.tool, attributes)

    @hookimpl
    def round_judged(self, event: RoundJudged) -> None:
        """Counts calls, so that refusals can be seen against all of them."""
        for call in event.calls:
            self._tool_calls.add(1, {names.TOOL_NAME: self._tools.of(call.tool), names.REFUSED: call.blocked})

    @hookimpl
    def post_model_call(self, event: PostModelCall) -> None:
        """Counts dollars. Tokens are left to the SDK's own instrumentation, which has a convention for them."""
        if event.usage.cost is not None and event.usage.cost >= 0:
            model = self._models.of(names.OTHER if event.model is None else display_name(event.model))
            self._cost.add(float(event.usage.cost), {names.RESPONSE_MODEL: model})

    @hookimpl
    def session_end(self, event: SessionEnd) -> None:
        """The end of a session: an event, attributes of the span around it, and counts."""
        ended = {names.END_REASON: event.reason}
        if event.reason not in _NOT_OURS:
            ended[names.STOP_REASON] = event.reason
        self._sessions.add(1, {names.END_REASON: event.reason})
        self._turns.record(event.turns)
        self._duration.record(event.duration)
        attributes = _present({
            **_origin(event),
            **ended,
            names.TURNS: event.turns,
            names.MODEL_CALLS: event.model_calls,
            names.ERROR_TYPE: event.error,
        })  # fmt: skip
        span = trace.get_current_span()
        self._emit(span, names.END_EVENT, attributes, event.message or None, warn=names.STOP_REASON in ended)
        span.set_attributes(ended)

    # -- emitting ----------------------------------------------------------------------------------------------

    def _refused(self, span: trace.Span, tool: str, attributes: Mapping[str, Any]) -> None:
        """Mark the call's span as refused; one that has none, because it never ran, gets one."""
        known: Any = getattr(span, "attributes", None) or {}  # the API's spans have none to read
        if known.get(names.OPERATION) == names.EXECUTE_TOOL:
            span.set_attribute(names.ERROR_TYPE, names.BLOCKED)
            return
        whole = {**attributes, names.ERROR_TYPE: names.BLOCKED}
        name = f"{names.EXECUTE_TOOL} {self._tools.of(tool)}"  # spans are grouped by name, so it is bounded too
        with self._tracer.start_as_current_span(name, attributes=whole) as refused:
            refused.set_status(trace.StatusCode.ERROR, "refused by loopguard")

    def _emit(self, span: trace.Span, name: str, attributes: dict[str, Any], body: str | None, *, warn: bool) -> None:
        try:
            level = _logs.SeverityNumber.WARN if warn else _logs.SeverityNumber.INFO
            record = _logs.LogRecord(event_name=name, severity_number=level, body=body, attributes=attributes)
        except (AttributeError, TypeError):  # a version without events in logs: the older way to say it
            span.add_event(name, attributes)
            return
        if self._logger is not None:
            self._logger.emit(record)


class _Bounded:
    """Values a label may have.

    Args:
        known: The only ones; None for the first `MAX_VALUES` that come.
    """

    def __init__(self, known: set[str] | None = None) -> None:
        self._open = known is None
        self._known = set() if known is None else known
        self._lock = threading.Lock()

    def of(self, value: str) -> str:
        """The value, or what stands for the many others."""
        if value in self._known:
            return value
        with self._lock:
            if self._open and len(self._known) < MAX_VALUES:
                self._known.add(value)
                return value
        return names.OTHER


def _origin(event: DoomLoopDetected | SessionEnd) -> dict[str, Any]:
    return {
        names.CONVERSATION_ID: display_name(event.session_id),
        names.PARENT_ID: None if event.parent_id is None else display_name(event.parent_id),
        names.AGENT_NAME: None if event.agent is None else display_name(event.agent),
        names.ADAPTER: event.adapter,
    }


def _present(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
