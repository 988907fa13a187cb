"""What an operator sees of a loop, and the call that is let through all the same."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from scripted_rounds import Run

from loopguard_core import Action, Decision, LoopGuard, Session, SessionEnd, ToolCall, Usage, hookimpl

DETERMINISTIC = {"privacy": {"fingerprint_key": "a key of the tests"}}
USED = Usage(input_tokens=90, output_tokens=10, cost=Decimal("0.02"))


def go(session: Session, name: str, arguments: Any = None, result: str = "no", usage: Usage | None = USED) -> Decision:
    session.before_model_call()
    session.after_model_call(usage=usage)
    (decision,) = session.begin_round([ToolCall("c", name, arguments or {})])
    session.record_result("c", decision.message if decision.blocked else result)
    return decision


class TestEvidence:
    def test_it_names_the_rounds_and_what_asking_again_has_cost(self) -> None:
        session = LoopGuard().session()
        go(session, "find")
        go(session, "read", result="a long text about something else")
        go(session, "find")
        decision = go(session, "find")
        assert decision.verdict is not None
        evidence = decision.verdict.evidence
        assert evidence["at_rounds"] == [1, 3, 4]
        assert (evidence["wasted_tokens"], evidence["wasted_cost"]) == (200, "0.04")

    def test_what_is_not_known_is_left_out_and_is_not_zero(self) -> None:
        session = LoopGuard().session()
        decisions = [go(session, "find", usage=None) for _ in range(3)]
        assert decisions[-1].verdict is not None
        assert set(decisions[-1].verdict.evidence) == {"rounds", "since_round", "at_rounds"}

    def test_of_a_tool_that_fails_with_other_arguments_each_time_all_its_rounds_are_named(self) -> None:
        run = Run({})
        found = []
        for number in range(5):
            found.append(run("fetch", {"n": number}, "Error: connection refused", failed=True))
            run("note", {"n": number * 7}, "kept" * number)
        last = [decision.verdict for decision in found if decision.verdict][-1]
        assert last.detector == "repeated_failure"
        assert last.evidence["at_rounds"] == [1, 3, 5, 7, 9]

    def test_of_a_cycle_all_steps_are_named(self) -> None:
        run = Run({"detectors": {"repeated_call": {"enabled": False}}})
        for _ in range(2):
            run("a", {}, "the same answer of the one tool")
            run("b", {}, "the same answer of the other tool")
        decision = run("a", {}, "the same answer of the one tool")
        decision = run("b", {}, "the same answer of the other tool")
        assert decision.verdict is not None
        assert decision.verdict.detector == "cycle"
        assert decision.verdict.evidence["at_rounds"] == [1, 2, 3, 4, 5, 6]

    def test_it_is_bounded(self) -> None:
        session = LoopGuard({"ladder": {"observe": 2, "steer": False, "block": False, "stop": False}}).session()
        decisions = [go(session, "find") for _ in range(300)]
        assert decisions[-1].verdict is not None
        assert decisions[-1].verdict.evidence["at_rounds"] == list(range(269, 301))
        assert len(json.dumps(session.save())) < 8 * 1024

    def test_it_goes_on_after_a_resume(self) -> None:
        guard = LoopGuard()
        session = guard.session("one")
        for _ in range(2):
            go(session, "find")
        session = guard.session("two", state=json.loads(json.dumps(session.save())))
        decision = go(session, "find")
        assert decision.verdict is not None
        assert decision.verdict.evidence["at_rounds"] == [1, 2, 3]
        assert decision.verdict.evidence["wasted_cost"] == "0.04"

    @pytest.mark.parametrize("damaged", [None, 7, [[1]], [[1, 2, "x"]], [["a", 1, "1"]], {"a": 1}])
    def test_a_damaged_record_of_what_was_spent_starts_afresh(self, damaged: Any) -> None:
        guard = LoopGuard()
        state = guard.session("one").save() | {"spending": damaged}
        session = guard.session("two", state=state)
        assert go(session, "find").action is None


class TestAllow:
    def fingerprint(self, guard: LoopGuard) -> str:
        session = guard.session()
        decision = [go(session, "find") for _ in range(3)][-1]
        session.end()
        assert decision.blocked
        assert decision.verdict is not None
        assert decision.verdict.fingerprint is not None
        return decision.verdict.fingerprint

    def test_an_allowed_call_is_observed_and_runs(self) -> None:
        guard = LoopGuard()
        guard.allow(self.fingerprint(guard))
        session = guard.session()
        decisions = [go(session, "find") for _ in range(12)]
        assert {decision.action for decision in decisions} == {None, Action.OBSERVE}
        assert not any(decision.blocked for decision in decisions)
        assert session.before_model_call().steer == ()
        assert decisions[-1].verdict is not None
        assert decisions[-1].verdict.message.endswith("This call was allowed: otherwise the action would be stop.")
        assert [go(session, "search").blocked for _ in range(3)] == [False, False, True], "another call is not"

    def test_a_number_of_times_counts_only_what_would_have_been_refused(self) -> None:
        guard = LoopGuard()
        guard.allow(self.fingerprint(guard), times=2)
        session = guard.session()
        assert [go(session, "find").blocked for _ in range(5)] == [False, False, False, False, True]

    def test_it_holds_in_sessions_that_run_already_and_for_other_arguments_not(self) -> None:
        guard = LoopGuard()
        session = guard.session()
        decisions = [go(session, "find", {"q": 1}) for _ in range(3)]
        assert decisions[-1].verdict is not None
        guard.allow(str(decisions[-1].verdict.fingerprint))
        assert not go(session, "find", {"q": 1}).blocked
        assert [go(session, "find", {"q": 2}).blocked for _ in range(3)] == [False, False, True]

    def test_a_plugin_may_still_refuse_it(self) -> None:
        class Refuses:
            @hookimpl
            def doom_loop_detected(self, event: Any) -> Action | None:
                return Action.BLOCK if event.streak >= 3 else None

        guard = LoopGuard(plugins=[Refuses()])
        guard.allow(self.fingerprint(guard))
        session = guard.session()
        assert [go(session, "find").blocked for _ in range(3)] == [False, False, True]

    def test_limits_hold(self) -> None:
        guard = LoopGuard({"limits": {"turns": 4}, **DETERMINISTIC})
        guard.allow(self.fingerprint(LoopGuard(DETERMINISTIC)))
        session = guard.session()
        for _ in range(4):
            assert not go(session, "find").blocked
        stop = session.before_model_call().stop
        assert stop is not None
        assert stop.reason == "max_turns"

    @pytest.mark.parametrize("fingerprint", ["", None, 3])
    def test_what_is_no_fingerprint_is_refused(self, fingerprint: Any) -> None:
        with pytest.raises(ValueError, match=r"fingerprint = .* give the `fingerprint` of a verdict"):
            LoopGuard().allow(fingerprint)

    @pytest.mark.parametrize("times", [0, -1, 1.5, True, "2"])
    def test_a_number_of_times_is_a_whole_number(self, times: Any) -> None:
        with pytest.raises(ValueError, match=r"times = .* whole number"):
            LoopGuard().allow("f", times)

    def test_what_is_allowed_is_bounded(self) -> None:
        guard = LoopGuard()
        for number in range(3_000):
            guard.allow(str(number))
        assert len(guard._allowed._left) == 1_000


class TestSaving:
    def test_shadow_mode_says_what_it_would_have_saved(self) -> None:
        ends: list[SessionEnd] = []
        session = LoopGuard("observe", on_end=ends.append).session()
        for _ in range(7):
            assert not go(session, "find").blocked
        session.after_model_call(usage=USED)
        session.end()
        saving = ends[0].saving
        assert saving is not None
        assert (saving.action, saving.detector, saving.round, saving.rounds) == (Action.BLOCK, "repeated_call", 3, 4)
        assert (saving.tokens, saving.cost) == (500, Decimal("0.10"))

    def test_it_goes_on_after_a_resume(self) -> None:
        guard = LoopGuard("observe")
        session = guard.session("one")
        for _ in range(4):
            go(session, "find")
        session = guard.session("two", state=json.loads(json.dumps(session.save())))
        go(session, "find")
        saving = session.end().saving
        assert saving is not None
        assert (saving.round, saving.rounds, saving.tokens) == (3, 2, 200)

    def test_a_healthy_run_has_nothing_to_save_and_a_real_guard_says_nothing(self) -> None:
        session = LoopGuard("observe").session()
        go(session, "find")
        assert session.end().saving is None
        session = LoopGuard().session()
        for _ in range(6):
            go(session, "find")
        assert session.end().saving is None
