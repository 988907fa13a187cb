"""The OpenTelemetry plugin against the real SDK with exporters that keep everything in memory."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")

import opentelemetry.sdk._logs.export as log_export
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from loopguard_core import Action, LoopGuard, Policy, ToolCall, Usage, hookimpl
from loopguard_core import _otel_names as names
from loopguard_core.otel import MAX_VALUES, OpenTelemetryPlugin

SECRET = "hunter2"


@dataclass
class Telemetry:
    """Everything that was emitted."""

    spans: InMemorySpanExporter
    logs: Any
    metrics: InMemoryMetricReader
    tracer: trace.Tracer
    options: dict[str, Any]

    def plugin(self, **options: Any) -> OpenTelemetryPlugin:
        return OpenTelemetryPlugin(**self.options, **options)

    @property
    def events(self) -> list[Any]:
        return [record.log_record for record in self.logs.get_finished_logs()]

    def span(self, name: str) -> Any:
        (found,) = [span for span in self.spans.get_finished_spans() if span.name == name]
        return found

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Labels of a metric with their points."""
        data = self.metrics.get_metrics_data()
        found = [
            (dict(point.attributes), point)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return sorted(found, key=lambda row: json.dumps(row[0], sort_keys=True))

    def counts(self, name: str) -> dict[tuple[Any, ...], Any]:
        return {tuple(labels.values()): point.value for labels, point in self.points(name)}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    # The newer name first.
    logs = getattr(log_export, "InMemoryLogRecordExporter", None) or log_export.InMemoryLogExporter
    kept = logs()
    tracers, meters, loggers = TracerProvider(), MeterProvider([reader]), LoggerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    loggers.add_log_record_processor(SimpleLogRecordProcessor(kept))
    options = {"tracer_provider": tracers, "meter_provider": meters, "logger_provider": loggers}
    yield Telemetry(spans, kept, reader, tracers.get_tracer("tests"), options)
    for provider in (tracers, meters, loggers):
        provider.shutdown()


def run(guard: LoopGuard, rounds: int = 6, tool: str = "fetch_invoice", **session: Any) -> None:
    with guard.session("run-1", agent="billing", **session) as opened:
        for number in range(1, rounds + 1):
            opened.before_model_call("scripted-1")
            opened.feed_text(SECRET)
            opened.end_message()
            opened.after_model_call("scripted-1", Usage(100, 10, cost="0.25"))  # type: ignore[arg-type]
            (decision,) = opened.begin_round([ToolCall(f"c{number}", tool, {"password": SECRET})])
            if not decision.blocked:
                opened.record_result(f"c{number}", f"Error: {SECRET}")


def test_every_verdict_is_an_event_in_its_span(telemetry: Telemetry) -> None:
    with telemetry.tracer.start_as_current_span("invoke_agent billing") as span:
        run(LoopGuard(plugins=[telemetry.plugin()]))
    detected = [event for event in telemetry.events if event.event_name == names.DETECTED_EVENT]
    assert [(e.attributes[names.ACTION], e.attributes[names.COUNT]) for e in detected] == [
        ("observe", 2),
        ("block", 3),
        ("block", 4),
        ("block", 5),
        ("stop", 6),
    ]
    assert [event.severity_number.name for event in detected] == ["INFO"] + ["WARN"] * 4
    assert {event.span_id for event in detected} == {span.get_span_context().span_id}
    told = dict(detected[1].attributes)
    assert len(told.pop(names.FINGERPRINT)) == 32
    assert told == {
        names.CONVERSATION_ID: "run-1",
        names.AGENT_NAME: "billing",
        names.OPERATION: "execute_tool",
        names.TOOL_NAME: "fetch_invoice",
        names.TOOL_CALL_ID: "c3",
        names.DETECTOR: "repeated_call",
        names.ACTION: "block",
        names.PROPOSED: "block",
        names.COUNT: 3,
        names.ROUND: 3,
    }
    assert detected[1].body.startswith("[loopguard] This call was not executed")


def test_the_span_around_it_says_why_the_run_was_ended(telemetry: Telemetry) -> None:
    with telemetry.tracer.start_as_current_span("invoke_agent billing"):
        run(LoopGuard(plugins=[telemetry.plugin()]))
    attributes = dict(telemetry.span("invoke_agent billing").attributes)
    assert attributes[names.STOP_REASON] == attributes[names.END_REASON] == "doom_loop"
    assert (attributes[names.ACTION], attributes[names.COUNT]) == ("stop", 6)
    (ended,) = [event for event in telemetry.events if event.event_name == names.END_EVENT]
    assert (ended.severity_number.name, ended.attributes[names.TURNS]) == ("WARN", 6)


def test_a_healthy_run_has_no_stop_reason(telemetry: Telemetry) -> None:
    with telemetry.tracer.start_as_current_span("invoke_agent billing"):
        run(LoopGuard(plugins=[telemetry.plugin()]), rounds=1)
    attributes = dict(telemetry.span("invoke_agent billing").attributes)
    assert attributes == {names.END_REASON: "complete"}
    assert [event.severity_number.name for event in telemetry.events] == ["INFO"]


def test_refused_calls_have_a_span_that_says_so(telemetry: Telemetry) -> None:
    with telemetry.tracer.start_as_current_span("invoke_agent billing") as outer:
        run(LoopGuard(plugins=[telemetry.plugin()]))
    refused = [span for span in telemetry.spans.get_finished_spans() if span.name == "execute_tool fetch_invoice"]
    assert [span.attributes[names.TOOL_CALL_ID] for span in refused] == ["c3", "c4", "c5", "c6"]
    assert {span.attributes[names.ERROR_TYPE] for span in refused} == {"loopguard.blocked"}
    assert {span.parent.span_id for span in refused} == {outer.get_span_context().span_id}
    assert {span.status.status_code for span in refused} == {trace.StatusCode.ERROR}


def test_a_call_that_has_a_span_is_marked_in_it(telemetry: Telemetry) -> None:
    guard = LoopGuard(plugins=[telemetry.plugin()])
    with guard.session() as session:
        for number in range(3):
            attributes = {names.OPERATION: names.EXECUTE_TOOL}
            with telemetry.tracer.start_as_current_span(f"call {number}", attributes=attributes):
                session.begin_round([ToolCall(f"c{number}", "fetch", {})])
                session.record_result(f"c{number}", "Error: timed out")
    assert telemetry.span("call 2").attributes[names.ERROR_TYPE] == "loopguard.blocked"
    assert len(telemetry.spans.get_finished_spans()) == 3


def test_metrics_count_detections_calls_sessions_and_cost(telemetry: Telemetry) -> None:
    run(LoopGuard(plugins=[telemetry.plugin()]))
    assert telemetry.counts(names.DETECTIONS) == {
        ("repeated_call", "observe", "fetch_invoice"): 1,
        ("repeated_call", "block", "fetch_invoice"): 3,
        ("repeated_call", "stop", "fetch_invoice"): 1,
    }
    assert telemetry.counts(names.TOOL_CALLS) == {("fetch_invoice", False): 2, ("fetch_invoice", True): 4}
    assert telemetry.counts(names.SESSIONS) == {("doom_loop",): 1}
    assert telemetry.counts(names.COST) == {("scripted-1",): 1.5}
    ((_, turns),) = telemetry.points(names.SESSION_TURNS)
    assert (turns.count, turns.sum) == (1, 6)


def test_labels_never_hold_ids(telemetry: Telemetry) -> None:
    run(LoopGuard(plugins=[telemetry.plugin()]))
    labels = {
        name
        for metric in (names.DETECTIONS, names.TOOL_CALLS, names.SESSIONS, names.SESSION_TURNS, names.COST)
        for attributes, _ in telemetry.points(metric)
        for name in attributes
    }
    allowed = {names.DETECTOR, names.ACTION, names.TOOL_NAME, names.REFUSED, names.END_REASON, names.RESPONSE_MODEL}
    assert labels <= allowed


def test_unknown_tools_share_one_label(telemetry: Telemetry) -> None:
    guard = LoopGuard(plugins=[telemetry.plugin(tools=["fetch_invoice"])])
    run(guard, 2)
    for number in range(20):
        run(guard, 1, tool=f"invented_{number}")
    assert {key[0] for key in telemetry.counts(names.TOOL_CALLS)} == {"fetch_invoice", "_OTHER"}


def test_without_a_list_the_number_of_labels_is_bounded(telemetry: Telemetry) -> None:
    guard = LoopGuard(plugins=[telemetry.plugin()])
    for number in range(3 * MAX_VALUES):
        run(guard, 1, tool=f"tool_{number}")
    counts = telemetry.counts(names.TOOL_CALLS)
    assert len(counts) == MAX_VALUES + 1
    assert counts["_OTHER", False] == 2 * MAX_VALUES


def test_names_of_spans_are_bounded_as_labels_are(telemetry: Telemetry) -> None:
    guard = LoopGuard(plugins=[telemetry.plugin(tools=["fetch_invoice"])])
    run(guard, 3)
    run(guard, 3, tool="made_up")
    refused = {span.name: span.attributes[names.TOOL_NAME] for span in telemetry.spans.get_finished_spans()}
    assert refused == {"execute_tool fetch_invoice": "fetch_invoice", "execute_tool _OTHER": "made_up"}


def test_nothing_emitted_holds_arguments_results_or_texts(telemetry: Telemetry) -> None:
    with telemetry.tracer.start_as_current_span("invoke_agent billing"):
        run(LoopGuard({"privacy": {"include_arguments": True, "include_results": True}}, plugins=[telemetry.plugin()]))
    said = [event.body for event in telemetry.events] + [dict(event.attributes) for event in telemetry.events]
    said += [span.to_json() for span in telemetry.spans.get_finished_spans()]
    assert SECRET not in repr(said)


def test_a_hostile_tool_name_is_short_and_printable(telemetry: Telemetry) -> None:
    with telemetry.tracer.start_as_current_span("invoke_agent billing"):
        run(LoopGuard(plugins=[telemetry.plugin()]), tool="\u202e\x00" + "x" * 10_000)
    (labels, *_) = [labels for labels, _ in telemetry.points(names.TOOL_CALLS)]
    assert len(labels[names.TOOL_NAME]) == 64
    assert labels[names.TOOL_NAME].isprintable()
    assert max(len(span.name) for span in telemetry.spans.get_finished_spans()) < 80


def test_an_override_is_what_is_told(telemetry: Telemetry) -> None:
    class Lenient:
        @hookimpl
        def doom_loop_detected(self) -> Action:
            return Action.OBSERVE

    run(LoopGuard(plugins=[Lenient(), telemetry.plugin()]))
    told = [event for event in telemetry.events if event.event_name == names.DETECTED_EVENT]
    assert {event.attributes[names.ACTION] for event in told} == {"observe"}
    assert told[-1].attributes[names.PROPOSED] == "stop"
    assert telemetry.spans.get_finished_spans() == ()


def test_text_loops_have_no_tool(telemetry: Telemetry) -> None:
    with LoopGuard(plugins=[telemetry.plugin()]).session() as session:
        session.before_model_call()
        session.feed_text("The sky is blue. " * 400)
        session.end_message()
    (labels, *_) = [labels for labels, _ in telemetry.points(names.DETECTIONS)]
    assert set(labels) == {names.DETECTOR, names.ACTION}


def test_without_an_sdk_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    guard = LoopGuard(plugins=[OpenTelemetryPlugin()])
    with caplog.at_level(logging.WARNING, "loopguard"):
        run(guard)
    assert guard.faults.counts == {}
    assert caplog.records == []


def test_without_the_api_the_error_names_the_command() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import loopguard_core.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'loopguard-core[otel]'" in done.stderr


def test_every_name_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
    emitted = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert [value for value in sorted(emitted - {names.SCOPE}) if f"`{value}`" not in page] == []


def test_a_langchain_agent_in_a_trace(telemetry: Telemetry) -> None:
    pytest.importorskip("langchain")
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from loopguard_langchain import LoopGuardMiddleware

    from loopguard_core.testing import ScriptedServer, never_listens

    @tool
    def fetch_invoice(invoice_id: str) -> str:
        """Read an invoice."""
        with telemetry.tracer.start_as_current_span("tool body"):
            return "Error: 504 Gateway Timeout"

    guard = LoopGuard(Policy(), plugins=[telemetry.plugin(tools=["fetch_invoice"])])
    with ScriptedServer(never_listens("fetch_invoice", {"invoice_id": SECRET})) as server:
        model = ChatOpenAI(model="scripted-1", base_url=server.base_url, api_key="none")
        agent = create_agent(model, [fetch_invoice], middleware=[LoopGuardMiddleware(guard)])
        with telemetry.tracer.start_as_current_span("invoke_agent") as outer:
            agent.invoke({"messages": [("user", "Is it paid?")]})
    assert guard.faults.counts == {}
    trace_id = outer.get_span_context().trace_id
    assert {event.trace_id for event in telemetry.events} == {trace_id}
    assert [e.attributes[names.ACTION] for e in telemetry.events if e.event_name == names.DETECTED_EVENT] == [
        "observe",
        "block",
        "block",
        "block",
        "stop",
    ]
    spans = telemetry.spans.get_finished_spans()
    assert {span.context.trace_id for span in spans} == {trace_id}
    assert [span.name for span in spans].count("tool body") == 2
    assert [span.name for span in spans].count("execute_tool fetch_invoice") == 4
    assert telemetry.span("invoke_agent").attributes[names.STOP_REASON] == "doom_loop"
    assert telemetry.counts(names.SESSIONS) == {("doom_loop",): 1}
