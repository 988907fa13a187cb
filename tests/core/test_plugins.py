"""Plugins: what is refused at registration, whose answer counts, and that none of them can break a run."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import pathlib
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest

from loopguard_core import (
    Action,
    Channel,
    Decision,
    Detector,
    DoomLoopDetected,
    Finding,
    LoopGuard,
    ObservedCall,
    PluginError,
    PostModelCall,
    Session,
    SessionEnd,
    ToolCall,
    Usage,
    hookimpl,
)
from loopguard_core._ladder import Ladder

CALL = ToolCall("1", "tool", {"n": 1})


def repeat(session: Session, times: int, call: ToolCall = CALL) -> Decision:
    decision = session.begin_round([call])[0]
    for _ in range(times - 1):
        decision = session.begin_round([call])[0]
    return decision


def answering(answer: Any) -> object:
    """A plugin that always gives this action."""

    class Answers:
        @hookimpl
        def doom_loop_detected(self, event: DoomLoopDetected) -> Any:
            return answer

    return Answers()


class TestRegistration:
    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("doom_loop_detect", "doom_loop_detected"),
            ("doom_loops_detected", "doom_loop_detected"),
            ("DoomLoopDetected", "doom_loop_detected"),
            ("SessionEnd", "session_end"),
            ("sesion_end", "session_end"),
            ("PostModelCall", "post_model_call"),
            ("on_model_call", "post_model_call"),
            ("loopkey", "loop_key"),
            ("detector", "detectors"),
            ("stop_if", "stop_when"),
        ],
    )
    def test_a_misspelt_hook_is_an_error_that_names_the_right_one(self, name: str, meant: str) -> None:
        def hook(self: object) -> None:
            """Never called."""

        plugin = type("Alerts", (), {name: hookimpl(hook)})()
        with pytest.raises(PluginError, match=rf"Alerts.*{name}.*{meant}"):
            LoopGuard(plugins=[plugin])

    def test_a_name_unlike_any_hook_is_answered_with_all_of_them(self) -> None:
        plugin = type("Alerts", (), {"zzzzzz": hookimpl(lambda self: None)})()
        with pytest.raises(PluginError, match=r"zzzzzz.*doom_loop_detected.*session_end.*stop_when"):
            LoopGuard(plugins=[plugin])

    def test_a_class_is_refused_because_it_would_be_called_without_an_instance(self) -> None:
        with pytest.raises(PluginError, match=r"Answers.*instance, Answers\(\)"):
            LoopGuard(plugins=[type(answering(None))])

    def test_a_plugin_without_a_decorator_is_refused_because_it_would_do_nothing(self) -> None:
        class Alerts:
            def session_end(self, event: SessionEnd) -> None:
                """Not decorated."""

        with pytest.raises(PluginError, match=r"Alerts.*decorate session_end with @hookimpl"):
            LoopGuard(plugins=[Alerts()])

    def test_an_object_without_hooks_is_refused(self) -> None:
        with pytest.raises(PluginError, match=r"no hook; hooks are doom_loop_detected"):
            LoopGuard(plugins=[object()])

    def test_a_plain_function_is_told_where_it_belongs(self) -> None:
        with pytest.raises(PluginError, match=r"on_loop="):
            LoopGuard(plugins=[lambda event: None])

    @pytest.mark.parametrize("given", [5, "acme-alerts", object()])
    def test_plugins_that_are_no_list_are_refused(self, given: Any) -> None:
        with pytest.raises(PluginError, match=r"plugins is a list of plugins, not a \w+; write plugins=\[...\]"):
            LoopGuard(plugins=given)

    def test_the_name_of_an_installed_plugin_is_told_where_it_belongs(self) -> None:
        with pytest.raises(PluginError, match=r"named in the policy: plugins = \['acme-alerts'\]"):
            LoopGuard(plugins=["acme-alerts"])

    def test_a_hook_may_take_fewer_arguments(self) -> None:
        class Keys:
            @hookimpl
            def loop_key(self, tool: str) -> str:
                return tool

            @hookimpl
            def session_end(self) -> None:
                seen.append("end")

        seen: list[str] = []
        session = LoopGuard(plugins=[Keys()]).session()
        session.begin_round([ToolCall("1", "tool", 1)])
        assert session.begin_round([ToolCall("1", "tool", 2)])[0].streak == 2
        session.end()
        assert seen == ["end"]

    def test_an_argument_the_hook_does_not_give_is_an_error(self) -> None:
        class Alerts:
            @hookimpl
            def session_end(self, evnt: SessionEnd) -> None:
                """Never called."""

        told = re.escape("Alerts: session_end is given no argument 'evnt'; write def session_end(self, event)")
        with pytest.raises(PluginError, match=told):
            LoopGuard(plugins=[Alerts()])

    @pytest.mark.parametrize("kind", ["wrapper", "hookwrapper"])
    def test_wrappers_are_refused(self, kind: str) -> None:
        class Wraps:
            @hookimpl(**{kind: True})
            def session_end(self, event: SessionEnd) -> Iterator[None]:
                yield

        with pytest.raises(PluginError, match="wrapper"):
            LoopGuard(plugins=[Wraps()])

    @pytest.mark.parametrize("hook", ["doom_loop_detected", "loop_key", "detectors", "stop_when"])
    def test_async_is_refused_where_the_result_decides(self, hook: str) -> None:
        async def implementation(self: object) -> None:
            """Never called."""

        plugin = type("Alerts", (), {hook: hookimpl(implementation)})()
        with pytest.raises(PluginError, match=rf"{hook}.*plain `def`"):
            LoopGuard(plugins=[plugin])

    def test_async_callables_of_every_kind_are_refused_as_on_loop(self) -> None:
        async def on_loop(event: DoomLoopDetected) -> None:
            """Never called."""

        class Callable_:  # noqa: N801
            async def __call__(self, event: DoomLoopDetected) -> None:
                """Never called."""

        for function in (on_loop, Callable_(), functools.partial(on_loop)):
            with pytest.raises(PluginError, match="plain `def`"):
                LoopGuard(on_loop=function)

    def test_a_callback_must_be_callable(self) -> None:
        with pytest.raises(PluginError, match=r"session_end.*callable, not str"):
            LoopGuard(on_end="log it")  # type: ignore[arg-type]

    def test_another_name_for_a_hook_may_be_given_with_specname(self) -> None:
        class Alerts:
            @hookimpl(specname="session_end")
            def shout(self, event: SessionEnd) -> None:
                seen.append(event)

        seen: list[SessionEnd] = []
        LoopGuard(plugins=[Alerts()]).session().end()
        assert len(seen) == 1

    def test_a_module_is_a_plugin_too(self) -> None:
        module = types.ModuleType("acme_alerts")
        seen: list[SessionEnd] = []
        module.session_end = hookimpl(lambda event: seen.append(event))  # type: ignore[attr-defined]
        LoopGuard(plugins=[module]).session().end()
        assert len(seen) == 1

    def test_plugins_of_one_guard_do_not_reach_another(self) -> None:
        seen: list[SessionEnd] = []
        LoopGuard(on_end=seen.append)
        LoopGuard().session().end()
        assert not seen

    def test_what_is_registered_can_be_listed(self) -> None:
        guard = LoopGuard(plugins=[answering(None)], on_end=print)
        assert [(info.name, info.hooks, info.origin) for info in guard.registered_plugins] == [
            ("Answers", ("doom_loop_detected",), "code"),
            ("callbacks", ("session_end",), "code"),
        ]


class TestEntryPoints:
    @pytest.fixture(autouse=True)
    def _acme(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An installed distribution with two plugins, as `pip` would have left it."""
        (tmp_path / "acme_loopguard.py").write_text(
            "from loopguard_core import hookimpl\n"
            "ends = []\n"
            "class Alerts:\n"
            "    @hookimpl\n"
            "    def session_end(self, event):\n"
            "        ends.append(event)\n"
        )
        info = tmp_path / "acme_loopguard-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-loopguard\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[loopguard]\nacme-alerts = acme_loopguard:Alerts\nacme-broken = acme_missing:Plugin\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(__import__("sys").modules, "acme_loopguard", raising=False)

    def test_a_named_one_is_loaded(self) -> None:
        guard = LoopGuard({"plugins": ["acme-alerts"]})
        guard.session().end()
        (info,) = guard.registered_plugins
        assert (info.name, info.origin) == ("acme-alerts", "entry point")
        import acme_loopguard

        assert len(acme_loopguard.ends) == 1

    def test_one_that_is_not_named_is_not_even_imported(self) -> None:
        import sys

        LoopGuard()
        assert "acme_loopguard" not in sys.modules

    def test_a_name_nobody_installed_is_an_error_with_the_nearest(self) -> None:
        with pytest.raises(PluginError, match=r"'acme-alert'.*'acme-alerts'"):
            LoopGuard({"plugins": ["acme-alert"]})

    def test_one_that_cannot_be_loaded_is_an_error_that_names_it(self) -> None:
        with pytest.raises(PluginError, match=r"'acme-broken'.*ModuleNotFoundError"):
            LoopGuard({"plugins": ["acme-broken"]})


class TestOverrides:
    @pytest.mark.parametrize(
        ("streak", "override", "action", "blocked"),
        [
            (2, Action.STOP, Action.STOP, True),
            (2, Action.BLOCK, Action.BLOCK, True),
            (3, Action.OBSERVE, Action.OBSERVE, False),
            (3, "steer", Action.STEER, False),
            (6, Action.BLOCK, Action.BLOCK, True),
            (6, Action.OBSERVE, Action.OBSERVE, False),
            (3, None, Action.BLOCK, True),
        ],
    )
    def test_an_action_replaces_the_verdict_s_weaker_or_stronger(
        self, streak: int, override: Any, action: Action, blocked: bool
    ) -> None:
        def on_loop(event: DoomLoopDetected) -> Any:
            return override if event.streak == streak else Action.OBSERVE

        session = LoopGuard(on_loop=on_loop).session()
        decision = repeat(session, streak)
        assert (decision.action, decision.blocked) == (action, blocked)
        assert decision.verdict is not None
        assert decision.verdict.action is action
        assert (session.stop is not None) is (action is Action.STOP)
        assert session.verdict is (decision.verdict if action is Action.STOP else None)

    def test_an_overridden_steer_tells_the_model(self) -> None:
        session = LoopGuard(on_loop=lambda _: Action.STEER).session()
        repeat(session, 3)
        assert len(session.before_model_call().steer) == 1

    def test_a_weakened_verdict_has_no_effect_of_its_ladder_left(self) -> None:
        guard = LoopGuard({"ladder": {"steer": 2, "block": 2}}, on_loop=lambda _: Action.OBSERVE)
        session = guard.session()
        repeat(session, 5)
        directive = session.before_model_call()
        assert (directive.stop, directive.steer) == (None, ())

    def test_the_first_in_registration_order_wins_and_later_ones_see_its_choice(self) -> None:
        class Sees:
            @hookimpl
            def doom_loop_detected(self, event: DoomLoopDetected) -> None:
                seen.append((event.action, event.proposed))

        seen: list[tuple[Action, Action]] = []
        plugins = [answering(None), answering(Action.STEER), Sees(), answering(Action.STOP)]
        decision = repeat(LoopGuard(plugins=plugins, on_loop=lambda _: Action.STOP).session(), 2)
        assert decision.action is Action.STEER
        assert seen == [(Action.STEER, Action.OBSERVE)]

    def test_a_plugin_that_asks_to_be_last_does_not_come_first(self) -> None:
        class Last:
            @hookimpl(trylast=True)
            def doom_loop_detected(self, event: DoomLoopDetected) -> Action:
                return Action.STOP

        try:
            guard = LoopGuard(plugins=[answering(Action.STEER), Last()])
        except PluginError:
            return  # refusing it is an answer too
        assert repeat(guard.session(), 2).action is Action.STEER

    @pytest.mark.parametrize(
        "answer", ["stopp", 3, True, [], {}, object(), Exception("secret")], ids=lambda answer: type(answer).__name__
    )
    def test_an_invalid_answer_is_ignored_counted_and_logged_once(
        self, answer: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        guard = LoopGuard(plugins=[answering(answer), answering(Action.STEER)])
        assert repeat(guard.session(), 4).action is Action.STEER
        assert list(guard.faults.counts.values()) == [3]
        (record,) = caplog.records
        assert "Answers" in record.getMessage()
        assert "secret" not in record.getMessage()

    def test_an_answer_that_cannot_be_compared_is_ignored_too(self) -> None:
        class Odd:
            def __eq__(self, other: object) -> bool:
                raise RuntimeError

            def __hash__(self) -> int:
                raise RuntimeError

        guard = LoopGuard(plugins=[answering(Odd())])
        assert repeat(guard.session(), 3).action is Action.BLOCK

    def test_limits_cannot_be_overridden(self) -> None:
        session = LoopGuard({"limits": {"turns": 1}}, on_loop=lambda _: Action.OBSERVE).session()
        repeat(session, 1)
        assert session.before_model_call().stop is not None
        assert repeat(session, 1).blocked


class TestEvents:
    def test_there_is_one_event_per_identity_and_round_from_the_lowest_rung_on(self) -> None:
        events: list[DoomLoopDetected] = []
        guard = LoopGuard(on_loop=events.append)
        session = guard.session("run-1", agent="planner")
        for _ in range(3):
            session.begin_round([CALL, ToolCall("2", "other"), ToolCall("3", "tool", {"n": 1})])
        assert [(event.tool, event.streak, event.call_id, event.turn, event.round) for event in events] == [
            ("tool", 2, "1", 2, 2),
            ("other", 2, "2", 2, 2),
            ("tool", 3, "1", 3, 3),
            ("other", 3, "2", 3, 3),
        ]
        assert {(event.session_id, event.agent, event.detector) for event in events} == {
            ("run-1", "planner", "repeated_call")
        }
        assert all(event.proposed is event.action for event in events)

    def test_an_event_is_a_value(self) -> None:
        events: list[DoomLoopDetected] = []
        repeat(LoopGuard(on_loop=events.append).session(), 2)
        with pytest.raises(AttributeError):
            events[0].action = Action.STOP  # type: ignore[misc]

    def test_every_successful_model_call_is_an_event(self) -> None:
        events: list[PostModelCall] = []
        session = LoopGuard(on_model_call=events.append).session("run-1")
        for _ in range(2):
            session.before_model_call("big")
            session.model_call_failed(TimeoutError())
            session.before_model_call("big")
            session.after_model_call("big", Usage(input_tokens=3, output_tokens=1, cost="0.1"), 0.5)
        assert [(event.model, event.model_calls, event.total.total_tokens, event.duration) for event in events] == [
            ("big", 1, 4, 0.5),
            ("big", 2, 8, 0.5),
        ]
        assert str(events[1].total.cost) == "0.2"


class TestFaults:
    def test_one_that_raises_is_logged_once_with_its_name_and_the_others_still_run(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken:
            @hookimpl
            def doom_loop_detected(self, event: DoomLoopDetected) -> None:
                raise ValueError(str(event.tool) + "secret")

            @hookimpl
            def session_end(self, event: SessionEnd) -> None:
                raise ValueError

            @hookimpl
            def post_model_call(self, event: PostModelCall) -> None:
                raise ValueError

            @hookimpl
            def stop_when(self, session: Session) -> None:
                raise ValueError

            @hookimpl
            def loop_key(self, tool: str, arguments: Any) -> None:
                raise ValueError

        ends: list[SessionEnd] = []
        guard = LoopGuard(plugins=[Broken(), answering(Action.STEER)], on_end=ends.append)
        session = guard.session()
        for _ in range(4):
            session.before_model_call()
            session.after_model_call()
            decision = session.begin_round([CALL])[0]
        session.end()
        assert (decision.streak, decision.action) == (4, Action.STEER)
        assert len(ends) == 1
        assert sum(guard.faults.counts.values()) == 3 + 1 + 4 + 4 + 4
        records = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(records) == 1
        assert "Broken" in records[0].getMessage()
        assert "ValueError" in records[0].getMessage()
        assert "toolsecret" not in records[0].getMessage()

    def test_interrupts_are_not_swallowed(self) -> None:
        def on_loop(event: DoomLoopDetected) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            repeat(LoopGuard(on_loop=on_loop).session(), 2)


class TestAsync:
    async def test_async_observers_run_on_the_caller_s_loop_and_async_callers_wait_for_them(self) -> None:
        class Sends:
            @hookimpl
            async def post_model_call(self, event: PostModelCall) -> None:
                await asyncio.sleep(0)
                seen.append((asyncio.get_running_loop(), threading.get_ident()))

        seen: list[Any] = []
        session = LoopGuard(plugins=[Sends()]).session()
        await session.abefore_model_call()
        await session.aafter_model_call(usage=Usage(total_tokens=1))
        assert seen == [(asyncio.get_running_loop(), threading.get_ident())]

    async def test_the_guard_waits_for_all_of_them(self) -> None:
        async def on_end(event: SessionEnd) -> None:
            await asyncio.sleep(0)
            seen.append(event)

        seen: list[SessionEnd] = []
        guard = LoopGuard(on_end=on_end)
        for _ in range(3):
            guard.session().end()
        assert not seen
        await guard.adrain()
        assert len(seen) == 3

    def test_without_a_loop_they_run_on_a_thread_of_ours_and_close_waits_for_them(self) -> None:
        async def on_end(event: SessionEnd) -> None:
            await asyncio.sleep(0)
            seen.append(threading.get_ident())

        seen: list[int] = []
        with LoopGuard(on_end=on_end) as guard:
            guard.session().end()
        assert len(seen) == 1
        assert seen != [threading.get_ident()]

    async def test_one_that_raises_is_logged_and_counted(self, caplog: pytest.LogCaptureFixture) -> None:
        async def on_end(event: SessionEnd) -> None:
            raise ValueError

        guard = LoopGuard(on_end=on_end)
        guard.session().end()
        guard.session().end()
        await guard.adrain()
        assert list(guard.faults.counts.values()) == [2]
        assert len(caplog.records) == 1

    def test_one_that_raises_without_a_loop_is_logged_and_counted(self) -> None:
        async def on_end(event: SessionEnd) -> None:
            raise ValueError

        with LoopGuard(on_end=on_end) as guard:
            guard.session().end()
        assert list(guard.faults.counts.values()) == [1]

    def test_sys_exit_in_one_ends_neither_the_thread_nor_what_comes_after(self) -> None:
        async def on_end(event: SessionEnd) -> None:
            if event.session_id == "first":
                sys.exit(3)
            seen.append(event.session_id)

        seen: list[str] = []
        guard = LoopGuard(on_end=on_end)
        for name in ("first", "second"):
            guard.session(name).end()
            guard.close()
        assert seen == ["second"]
        assert list(guard.faults.counts.values()) == [1]

    @pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
    def test_they_run_in_a_forked_child(self) -> None:
        async def on_end(event: SessionEnd) -> None:
            seen.append(os.getpid())

        seen: list[int] = []
        guard = LoopGuard(on_end=on_end)
        guard.session().end()
        guard.close()
        assert seen == [os.getpid()]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                guard.session().end()
                guard.close()
                code = 0 if seen[1:] == [os.getpid()] else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    @pytest.mark.parametrize("kind", ["partial", "lambda", "object"])
    async def test_async_callables_of_every_kind_observe(self, kind: str) -> None:
        async def on_end(event: SessionEnd) -> None:
            seen.append(event)

        class Observes:
            async def __call__(self, event: SessionEnd) -> None:
                seen.append(event)

        seen: list[SessionEnd] = []
        kinds: dict[str, Callable[[SessionEnd], object]] = {
            "partial": functools.partial(on_end),
            "lambda": lambda event: on_end(event),
            "object": Observes(),
        }
        guard = LoopGuard(on_end=kinds[kind])
        guard.session().end()
        await guard.adrain()
        assert len(seen) == 1


class TestEndsNobodySaw:
    def test_sys_exit_in_a_hook_does_not_keep_later_ends_from_being_told(self) -> None:
        class Owner:
            pass

        told: list[str] = []
        exits = LoopGuard(on_end=lambda event: sys.exit(3))
        works = LoopGuard(on_end=lambda event: told.append(event.reason))
        for guard in (exits, works):
            owner = Owner()
            guard.end_with(owner, guard.session(), lambda: "error")
            del owner
            gc.collect()
            guard.close()
        assert told == ["error"]
        assert exits.faults.counts == {"end": 1}


class TestLoopKey:
    @staticmethod
    def keyed_by(key: Callable[[str, Any], Any]) -> object:
        class Keys:
            @hookimpl
            def loop_key(self, tool: str, arguments: Any) -> Any:
                return key(tool, arguments)

        return Keys()

    def streaks(self, plugins: Sequence[object], *arguments: Any, policy: Any = None) -> list[int]:
        session = LoopGuard(policy or {}, plugins=plugins).session()
        return [session.begin_round([ToolCall("1", "tool", each)])[0].streak for each in arguments]

    def test_the_first_opinion_identifies_the_call(self) -> None:
        plugins = [
            self.keyed_by(lambda tool, arguments: None),
            self.keyed_by(lambda tool, arguments: arguments["q"]),
            self.keyed_by(lambda tool, arguments: "never asked"),
        ]
        assert self.streaks(plugins, {"q": 1, "n": 1}, {"q": 1, "n": 2}, {"q": 2, "n": 2}) == [1, 2, 1]

    def test_false_exempts_the_call(self) -> None:
        plugin = self.keyed_by(lambda tool, arguments: False if arguments["poll"] else None)
        assert self.streaks([plugin], *[{"poll": True}] * 3, *[{"poll": False}] * 2) == [0, 0, 0, 1, 2]

    def test_json_text_is_parsed_for_it(self) -> None:
        plugin = self.keyed_by(lambda tool, arguments: arguments["q"])
        assert self.streaks([plugin], '{"q": 1, "n": 1}', '{"n": 2, "q": 1}') == [1, 2]

    def test_it_is_not_asked_about_tools_the_policy_speaks_of(self) -> None:
        plugin = self.keyed_by(lambda tool, arguments: "all the same")
        policy = {"tools": {"tool": {"loop_key": ["q"]}}}
        assert self.streaks([plugin], {"q": 1}, {"q": 2}, {"q": 2, "n": 1}, policy=policy) == [1, 1, 2]

    def test_one_that_raises_leaves_the_full_arguments(self) -> None:
        plugin = self.keyed_by(lambda tool, arguments: arguments["absent"])
        assert self.streaks([plugin], {"q": 1}, {"q": 1}, {"q": 2}) == [1, 2, 1]

    def test_a_careless_one_does_not_change_what_the_tool_is_called_with(self) -> None:
        """As a function in the policy does not: detection changes a run only through its declared actions."""
        plugin = self.keyed_by(lambda tool, arguments: arguments.pop("nonce") and arguments)
        arguments = {"q": 1, "nonce": 5}
        assert self.streaks([plugin], arguments) == [1]
        assert arguments == {"q": 1, "nonce": 5}


class Counts(Detector):
    """Fires on any tool called `spin`, with a ladder of its own."""

    name: ClassVar[str] = "acme.spin"
    ladder: ClassVar[Ladder] = Ladder(observe=1, steer=2, stop=4)

    def __init__(self) -> None:
        self.seen = 0
        self.closed: list[Any] = []

    def describe(self, finding: Finding, tool: str | None) -> str:
        return f"`{tool}` spins"

    def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Sequence[Finding]:
        found = []
        for call in calls:
            if call.tool == "spin":
                self.seen += 1
                found.append(Finding(self.seen, 1, identity=call.identity, evidence={"spins": self.seen}))
        return found

    def close_round(self, calls: Sequence[ObservedCall]) -> None:
        self.closed.extend(call.outcome for call in calls)

    def save(self) -> Any:
        return self.seen

    def restore(self, state: Any) -> None:
        self.seen = int(state)


class Hears(Detector):
    """Fires on a shout, and on a provider's own word for repetition."""

    name: ClassVar[str] = "acme.shout"
    ladder: ClassVar[Ladder] = Ladder(steer=1, stop=2)

    def __init__(self) -> None:
        self.heard = 0

    def feed_text(self, delta: str, channel: Channel) -> Finding | None:
        if "AAA" not in delta:
            return None
        self.heard += 1
        return Finding(self.heard, 1, char=delta.index("AAA"), abort=True)

    def end_message(self, finish_reason: str | None) -> Finding | None:
        return Finding(1, 1) if finish_reason == "repetition" else None


def adding(*make: Callable[[], Any]) -> object:
    class Adds:
        @hookimpl
        def detectors(self) -> Any:
            return [each() for each in make]

    return Adds()


def new_spin(session: Session) -> list[Decision]:
    """Never twice the same arguments, so that only the plugin's detector has a say."""
    return session.begin_round([ToolCall("1", "spin", session.turns), ToolCall("2", "other", session.turns)])


class TestDetectors:
    def test_a_third_party_detector_acts_by_its_own_ladder(self) -> None:
        events: list[DoomLoopDetected] = []
        session = LoopGuard(plugins=[adding(Counts)], on_loop=events.append).session()
        decisions = [new_spin(session) for _ in range(4)]
        assert [spin.action for spin, _ in decisions] == [Action.OBSERVE, Action.STEER, Action.STEER, Action.STOP]
        assert [other.action for _, other in decisions] == [None] * 4
        assert [event.detector for event in events] == ["acme.spin"] * 4
        assert events[1].evidence == {"spins": 2}
        assert "`spin` spins" in events[3].message
        assert session.verdict is not None
        assert session.verdict.detector == "acme.spin"

    def test_the_evidence_names_the_row_whose_ladder_it_was(self) -> None:
        events: list[DoomLoopDetected] = []
        session = LoopGuard(on_loop=events.append).session()
        for number in range(6):
            session.begin_round([ToolCall(f"c{number}", "job_status", {"job": 7})])
            session.record_result(f"c{number}", "still running")
        assert [(event.streak, event.evidence["row"]) for event in events] == [(6, "repeated_call.poll")]

    def test_its_steering_reaches_the_model_once_per_streak(self) -> None:
        alone = {"detectors": {"repeated_call": {"enabled": False}}}
        session = LoopGuard(alone, plugins=[adding(Counts)]).session()
        seen = []
        for _ in range(4):
            seen.append(session.before_model_call().steer)
            session.after_model_call()
            session.begin_round([ToolCall("1", "spin")])
        assert [len(steer) for steer in seen] == [0, 0, 1, 0]
        assert seen[2][0].startswith("[loopguard] `spin` spins")

    def test_the_policy_changes_its_ladder_rung_by_rung_and_switches_it_off(self) -> None:
        settings = {"detectors": {"acme.spin": {"ladder": {"steer": False, "stop": 3}}}}
        session = LoopGuard(settings, plugins=[adding(Counts)]).session()
        assert [new_spin(session)[0].action for _ in range(3)] == [Action.OBSERVE, Action.OBSERVE, Action.STOP]
        settings = {"detectors": {"acme.spin": {"enabled": False}}}
        session = LoopGuard(settings, plugins=[adding(Counts)]).session()
        assert [new_spin(session)[0].action for _ in range(4)] == [None] * 4

    def test_the_strongest_of_several_wins_and_ties_go_to_the_earlier(self) -> None:
        settings = {"ladder": {"observe": 3, "block": False, "stop": 5}}
        events: list[DoomLoopDetected] = []
        session = LoopGuard(settings, plugins=[adding(Counts)], on_loop=events.append).session()
        spin = ToolCall("1", "spin")
        for _ in range(5):
            session.begin_round([spin])
        assert [(event.detector, event.action.value) for event in events] == [
            ("acme.spin", "observe"),
            ("acme.spin", "steer"),
            ("acme.spin", "steer"),
            ("acme.spin", "stop"),
            ("repeated_call", "stop"),
        ]

    def test_each_session_has_its_own(self) -> None:
        guard = LoopGuard(plugins=[adding(Counts)])
        first, second = guard.session(), guard.session()
        for _ in range(3):
            new_spin(first)
        assert new_spin(second)[0].action is Action.OBSERVE

    def test_its_state_is_saved_and_restored(self) -> None:
        guard = LoopGuard(plugins=[adding(Counts)])
        session = guard.session()
        for _ in range(3):
            new_spin(session)
        again = guard.session(state=session.save())
        assert new_spin(again)[0].action is Action.STOP

    def test_it_hears_text_and_its_verdict_says_where(self) -> None:
        session = LoopGuard(plugins=[adding(Hears)]).session()
        session.begin_round([CALL])
        assert session.feed_text("quiet", "reasoning") is None
        verdict = session.feed_text("xx AAA", "reasoning")
        assert verdict is not None
        assert (verdict.action, verdict.channel, verdict.char, verdict.abort, verdict.message_index, verdict.round) == (
            *(Action.STEER, "reasoning", 3, True),
            *(2, 1),
        )
        assert (verdict.tool, verdict.call_id, verdict.fingerprint) == (None, None, None)
        assert len(session.before_model_call().steer) == 1
        stopping = session.feed_text("AAA", "content")
        assert session.verdict is stopping is not None
        assert session.end().reason == "doom_loop"

    def test_it_hears_the_end_of_a_message(self) -> None:
        session = LoopGuard(plugins=[adding(Hears)]).session()
        assert session.end_message("stop") is None
        verdict = session.end_message("repetition")
        assert verdict is not None
        assert verdict.action is Action.STEER

    def test_in_shadow_nothing_is_cut(self) -> None:
        session = LoopGuard("observe", plugins=[adding(Hears)]).session()
        verdict = session.feed_text("AAA")
        assert verdict is not None
        assert (verdict.action, verdict.abort) == (Action.OBSERVE, False)

    @pytest.mark.parametrize(
        "step", ["begin_round", "close_round", "user_turn", "compacted", "feed_text", "end_message"]
    )
    def test_one_that_raises_is_switched_off_and_the_others_go_on(
        self, step: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(self: object, *_: Any) -> Any:
            raise ValueError("secret")

        kind = type("Broken", (Counts,), {"name": "acme.broken", step: broken})
        guard = LoopGuard(plugins=[adding(kind, Counts)])
        session = guard.session()
        session.begin_round([CALL])
        session.feed_text("x")
        session.end_message()
        session.user_turn()
        session.compacted()
        assert new_spin(session)[0].action is Action.OBSERVE
        assert [new_spin(session)[0].verdict for _ in range(3)][-1] is session.verdict is not None
        assert session.verdict.detector == "acme.spin"
        assert guard.faults.counts == {"detector acme.broken": 1}
        assert [record.levelno for record in caplog.records] == [logging.ERROR]

    @pytest.mark.parametrize(
        "findings",
        [
            pytest.param(lambda call: Finding(9, 1, identity=call.identity), id="one that is no list"),
            pytest.param(lambda call: [None], id="None in a list"),
            pytest.param(lambda call: [object()], id="no finding"),
            pytest.param(lambda call: [Finding("9", 1, identity=call.identity)], id="a streak that is no number"),  # type: ignore[arg-type]
            pytest.param(lambda call: [Finding(9, 1, identity=call.identity, evidence=None)], id="no evidence"),  # type: ignore[arg-type]
            pytest.param(lambda call: [Finding(9, 1, identity=[])], id="an identity that is none"),  # type: ignore[arg-type]
            pytest.param(lambda call: (1 / 0 for _ in "x"), id="a generator that raises"),
        ],
    )
    def test_one_that_reports_nonsense_does_not_keep_the_others_from_judging(
        self, findings: Callable[[ObservedCall], Any]
    ) -> None:
        class Nonsense(Detector):
            name: ClassVar[str] = "acme.nonsense"
            ladder: ClassVar[Ladder] = Ladder(observe=1)

            def begin_round(self, calls: Sequence[ObservedCall], number: int) -> Any:
                return findings(calls[0])

        guard = LoopGuard(plugins=[adding(Nonsense)])
        session = guard.session()
        assert repeat(session, 3).action is Action.BLOCK
        assert repeat(session, 3).action is Action.STOP
        assert session.before_model_call().stop is not None
        assert "begin_round" not in guard.faults.counts

    @pytest.mark.parametrize("answer", [None, 5, b""], ids=lambda answer: type(answer).__name__)
    def test_one_that_cannot_describe_itself_does_not_keep_the_others_from_judging(self, answer: Any) -> None:
        class Speechless(Counts):
            name: ClassVar[str] = "acme.speechless"

            def describe(self, finding: Finding, tool: str | None) -> str:
                if answer is None:
                    raise ValueError
                return answer  # type: ignore[no-any-return]

        session = LoopGuard(plugins=[adding(Speechless)]).session()
        decision = repeat(session, 6, ToolCall("1", "spin"))
        assert (decision.action, decision.blocked) == (Action.STOP, True)

    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda: object(), id="no detector"),
            pytest.param(lambda: None, id="None"),
            pytest.param(lambda: Detector(), id="without a name"),
            pytest.param(lambda: Counts, id="a class"),
        ],
    )
    def test_what_is_no_detector_is_left_out_and_noted(self, make: Callable[[], Any]) -> None:
        guard = LoopGuard(plugins=[adding(make, Counts)])
        session = guard.session()
        assert new_spin(session)[0].action is Action.OBSERVE
        assert repeat(session, 3).action is Action.BLOCK
        assert guard.faults.counts

    @pytest.mark.parametrize(
        ("wrong", "told"),
        [
            pytest.param({"ladder": {"observe": 1}}, "acme.spin with a ladder that is a dict; write", id="ladder"),
            pytest.param({"name": "cycle"}, "cycle, which is a name of loopguard's own", id="name"),
        ],
    )
    def test_a_mistake_of_its_author_is_told_and_nothing_else_stops(
        self, wrong: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        session = LoopGuard(plugins=[adding(type("Wrong", (Counts,), wrong), Counts)]).session()
        assert told in caplog.text
        assert new_spin(session)[0].action is Action.OBSERVE

    def test_one_detector_need_not_be_in_a_list(self) -> None:
        class Adds:
            @hookimpl
            def detectors(self) -> Any:
                return Counts()

        assert new_spin(LoopGuard(plugins=[Adds()]).session())[0].action is Action.OBSERVE

    @pytest.mark.parametrize("kind", ["raises", "no list", "raises midway"])
    def test_a_hook_that_gives_no_detectors_leaves_the_session_usable(self, kind: str) -> None:
        class Adds:
            @hookimpl
            def detectors(self, policy: Any) -> Any:
                if kind == "raises":
                    raise ValueError
                if kind == "no list":
                    return 5
                return (Counts() if number == 0 else 1 / 0 for number in range(2))

        guard = LoopGuard(plugins=[Adds()])
        assert repeat(guard.session(), 3).action is Action.BLOCK
        assert guard.faults.counts

    @pytest.mark.parametrize(
        "state", ["raises", object(), {1, 2}, float("nan"), ["x" * 100_000]], ids=lambda state: type(state).__name__
    )
    def test_state_that_cannot_be_saved_costs_only_that_detector(self, state: Any) -> None:
        import json

        class Hoards(Counts):
            name: ClassVar[str] = "acme.hoards"

            def save(self) -> Any:
                if state == "raises":
                    raise ValueError
                return state

        guard = LoopGuard(plugins=[adding(Hoards, Counts)])
        session = guard.session()
        repeat(session, 2)
        new_spin(session)
        saved = session.save()
        text = json.dumps(saved, allow_nan=False)
        assert len(text) <= 32 * 1024
        again = guard.session(state=json.loads(text))
        assert repeat(again, 1).streak == 3


class TestStopWhen:
    @staticmethod
    def stopping(*answers: Any) -> list[object]:
        def plugin(answer: Any) -> object:
            class Stops:
                @hookimpl
                def stop_when(self, session: Session) -> Any:
                    return answer(session) if callable(answer) else answer

            return Stops()

        return [plugin(answer) for answer in answers]

    def test_the_first_reason_ends_the_run_before_its_next_model_call(self) -> None:
        session = LoopGuard(plugins=self.stopping(None, "", "  ", " enough ", "too late")).session()
        stop = session.before_model_call().stop
        assert stop is not None
        assert (stop.reason, stop.verdict) == ("custom", None)
        assert "enough" in stop.message
        assert session.end().reason == "custom"

    def test_it_sees_the_session(self) -> None:
        session = LoopGuard(
            plugins=self.stopping(lambda s: "poor" if s.usage.cost and s.usage.cost > 1 else None)
        ).session()
        assert session.before_model_call().stop is None
        session.after_model_call(usage=Usage(cost="2"))
        assert session.before_model_call().stop is not None

    def test_limits_and_verdicts_come_first(self) -> None:
        session = LoopGuard(plugins=self.stopping("enough")).session()
        repeat(session, 6)
        stop = session.before_model_call().stop
        assert stop is not None
        assert stop.reason == "doom_loop"

    @pytest.mark.parametrize("answer", [True, 5, ["x"], object()], ids=lambda answer: type(answer).__name__)
    def test_what_is_no_text_is_ignored_and_counted(self, answer: Any) -> None:
        guard = LoopGuard(plugins=self.stopping(answer))
        assert guard.session().before_model_call().stop is None
        assert list(guard.faults.counts.values()) == [1]

    def test_an_answer_that_cannot_be_judged_does_not_swallow_the_directive(self) -> None:
        class Odd:
            def __bool__(self) -> bool:
                raise ValueError

        guard = LoopGuard({"ladder": {"steer": 2}}, plugins=self.stopping(Odd()))
        session = guard.session()
        repeat(session, 2)
        assert len(session.before_model_call().steer) == 1

    def test_a_nested_run_ended_so_ends_the_outer_one(self) -> None:
        guard = LoopGuard(plugins=self.stopping(lambda s: "enough" if s.id == "inner" else None))
        outer = guard.session("outer")
        inner = guard.session("inner", parent=outer)
        assert outer.before_model_call().stop is None
        outer.after_model_call()
        assert inner.before_model_call().stop is not None
        stop = outer.before_model_call().stop
        assert stop is not None
        assert stop.reason == "custom"
