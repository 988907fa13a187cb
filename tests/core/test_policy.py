from __future__ import annotations

import copy
import hashlib
import json
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from loopguard_core import LoopGuard, ToolCall
from loopguard_core._errors import PolicyError
from loopguard_core._ladder import DEFAULT_LADDERS, DETECTORS, FOLLOWING_ROWS, Ladder, LadderSettings, split_row
from loopguard_core._policy import Limits, Policy, ToolSettings
from loopguard_core._policy_file import load_policy
from loopguard_core._policy_resolve import MAX_CACHED, MAX_CACHED_NAME
from loopguard_core._presets import PRESETS
from loopguard_core._types import Action

DEFAULT = Ladder(observe=2, block=3, stop=6)


def errors_of(**written: Any) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        Policy(**written)
    return str(caught.value).splitlines()


def error_of(**written: Any) -> str:
    lines = errors_of(**written)
    assert len(lines) == 1, lines
    return lines[0]


# -- values ----------------------------------------------------------------------------------------------------


def test_the_default_policy_caps_nothing_and_has_no_hazards() -> None:
    policy = Policy()
    assert policy.limits == Limits(turns=None, cost=None, tokens=None, seconds=None, tool_calls=None)
    assert (policy.enabled, policy.shadow, policy.outcomes, policy.fingerprints) == (True, False, "aware", "xxh3_128")
    assert policy.key is None
    assert policy.hazards() == []
    assert all(policy.detector_enabled(name) for name in DETECTORS)


@pytest.mark.parametrize(
    ("written", "amount"), [(0.1, "0.1"), ("0.50", "0.50"), (3, "3"), (Decimal("1.10"), "1.10"), ("1e2", "1E+2")]
)
def test_an_amount_of_money_is_taken_exactly_as_written(written: Any, amount: str) -> None:
    cost = Policy(limits={"cost": written}).limits.cost
    assert str(cost) == amount


@pytest.mark.parametrize("value", [0, -1, "0", True, "a lot", "$5", float("nan"), float("inf"), [1], "1_000_0x"])
def test_an_impossible_amount_of_money_is_an_error(value: Any) -> None:
    assert "limits.cost" in (line := error_of(limits={"cost": value}))
    assert "a plain number such as 0.50" in line


@pytest.mark.parametrize("value", [0, -1, "900", True, float("nan"), float("inf"), 10**400])
def test_impossible_seconds_are_an_error(value: Any) -> None:
    assert "must be a number of seconds above 0" in error_of(limits={"seconds": value})


def test_seconds_may_be_whole_or_broken() -> None:
    assert Policy(limits={"seconds": 900}).limits.seconds == 900.0
    assert Policy(limits={"seconds": Decimal("0.5")}).limits.seconds == 0.5


@pytest.mark.parametrize("value", ["40", True, 40.0, 0, -3, [40]])
@pytest.mark.parametrize("name", ["turns", "tokens", "tool_calls"])
def test_a_count_is_a_whole_number_above_zero(name: str, value: Any) -> None:
    assert f"limits.{name} = " in error_of(limits={name: value})


def test_text_in_place_of_a_number_is_told_how_to_write_it() -> None:
    line = error_of(limits={"turns": "40"})
    assert line == 'Policy(...): limits.turns = "40": must be a whole number, without quotes or decimal point; write 40'


@pytest.mark.parametrize("value", [1, 0, "true", "yes"])
def test_a_switch_is_true_or_false(value: Any) -> None:
    assert "must be true or false" in error_of(enabled=value)


def test_tables_may_be_given_as_models() -> None:
    policy = Policy(
        limits=Limits(turns=40), tools={"bash": ToolSettings(loop_key=False)}, ladder=LadderSettings(stop=9)
    )
    assert policy == Policy(limits={"turns": 40}, tools={"bash": {"loop_key": False}}, ladder={"stop": 9})


@pytest.mark.parametrize("value", ["query", [], [""], [1], True, 3, {"a": 1}])
def test_a_loop_key_is_a_list_of_names_or_false(value: Any) -> None:
    line = error_of(tools={"web_search": {"loop_key": value}})
    assert "tools.web_search.loop_key = " in line
    assert "list of argument names" in line


def test_a_function_as_loop_key_survives_and_the_schema_and_json_still_work() -> None:
    def loop_key(arguments: Any) -> Any:
        return arguments

    policy = Policy(tools={"web_*": {"loop_key": loop_key}})
    assert policy.tool("web_search").loop_key is loop_key
    assert "function" in json.loads(policy.model_dump_json())["tools"]["web_*"]["loop_key"]
    assert Policy.model_json_schema()["$defs"]["ToolSettings"]["properties"]["loop_key"]["anyOf"][0]["type"] == "array"


# -- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "better"),
    [
        ({"max_turns": 40}, "limits.turns"),
        ({"max_iterations": 40}, "limits.turns"),
        ({"maxTurns": 40}, "limits.turns"),
        ({"recursion_limit": 40}, "limits.turns"),
        ({"max_cost": 1}, "limits.cost"),
        ({"budget": 1}, "limits.cost"),
        ({"max_tokens": 1}, "limits.tokens"),
        ({"timeout": 1}, "limits.seconds"),
        ({"max_tool_calls": 1}, "limits.tool_calls"),
        ({"turns": 40}, "limits.turns"),
        ({"limits.turns": 40}, "limits.turns"),
        ({"limits": {"max_turns": 40}}, "limits.turns"),
        ({"limits": {"turn": 40}}, "limits.turns"),
        ({"limit": {"turns": 40}}, "limits"),
        ({"onStop": {}}, "on_stop"),
        ({"doomLoop": {}}, "ladder"),
        ({"thresholds": {}}, "ladder"),
        ({"dry_run": True}, "shadow"),
        ({"ladder": {"blok": 3}}, "ladder.block"),
        ({"ladder": {"warn": 3}}, "ladder.observe"),
        ({"ladder": {"halt": 3}}, "ladder.stop"),
        ({"block": 3}, "ladder.block"),
        ({"detectors": {"cycle": {"block": 3}}}, "detectors.cycle.ladder.block"),
        ({"detectors": {"cycle": {"ladder": {"stp": 3}}}}, "detectors.cycle.ladder.stop"),
        ({"detectors": {"repeated_call": {"poll": {}}}}, 'detectors."repeated_call.poll"'),
        ({"loop_keys": ["a"]}, "tools.<tool>.loop_key"),
        ({"tools": {"check_*": {"loop_keys": ["a"]}}}, 'tools."check_*".loop_key'),
        ({"tools": {"bash": {"observe": 3}}}, "tools.bash.ladder.observe"),
        ({"min_chars": 3}, "text.min_chars"),
        ({"fingerprint_key": "x"}, "privacy.fingerprint_key"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value),
)
def test_an_unknown_key_suggests_the_one_that_was_meant(written: dict[str, Any], better: str) -> None:
    line = error_of(**written)
    assert "unknown key" in line
    assert line.endswith(f"did you mean {better}?")


def test_an_unknown_key_like_no_other_lists_what_there_is() -> None:
    assert error_of(limits={"zzz": 1}).endswith(
        "limits.zzz = 1: unknown key; there are: turns, cost, tokens, seconds, tool_calls, reserve, unpriced"
    )


def test_every_problem_has_a_line_with_source_key_and_value() -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.from_mapping({"max_turns": 40, "limits": {"cost": -1}, "ladder": {"block": True}}, source="agent.toml")
    assert sorted(str(caught.value).splitlines()) == [
        (
            "agent.toml: ladder.block = true: a rung is a whole number, 1 or more, or false to switch it off;"
            " leave it out to keep the default"
        ),
        "agent.toml: limits.cost = -1: must be an amount in US dollars above 0, a plain number such as 0.50",
        "agent.toml: max_turns = 40: unknown key; did you mean limits.turns?",
    ]


def test_a_choice_out_of_few_names_them_and_the_nearest() -> None:
    line = error_of(outcomes="awere")
    assert "must be 'aware' or 'ignore'; did you mean 'aware'?" in line
    assert 'tools.bash.normalize[1] = "case"' in error_of(tools={"bash": {"normalize": ["nfkc", "case"]}})


def test_a_key_without_its_name_is_told_so() -> None:
    assert error_of(key={"limit": 2}) == "Policy(...): key.name is missing; add it"


@pytest.mark.parametrize("value", [3, "x", [1], True])
def test_a_table_that_is_none_is_an_error(value: Any) -> None:
    assert "must be a table" in error_of(limits=value)


@pytest.mark.parametrize(
    "written",
    [
        {"privacy": {"fingerprint_kye": "hunter2hunter2"}},
        {"privacy": {"fingerprint_key": ["hunter2hunter2"]}},
        {"fingerprint_key": "hunter2hunter2"},
        {"api_key": "hunter2hunter2"},
        {"secret": "hunter2hunter2"},
        {"key": {"name": "a", "store_url": "redis://:hunter2hunter2@host"}},
        {"key": {"name": "a", "store": ["redis://:hunter2hunter2@host"]}},
    ],
)
def test_errors_do_not_repeat_secrets(written: dict[str, Any]) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(**written)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_are_not_in_the_representation() -> None:
    policy = Policy(
        privacy={"fingerprint_key": "hunter2hunter2"}, key={"name": "a", "store": "redis://:hunter2hunter2@host"}
    )
    assert "hunter2" not in repr(policy)
    assert policy.privacy.fingerprint_key is not None
    assert policy.privacy.fingerprint_key.get_secret_value() == "hunter2hunter2"


def test_what_a_value_shows_is_short_and_safe_for_a_terminal() -> None:
    line = error_of(outcomes="\x1b[31m" + "x" * 500)
    assert "\x1b" not in line
    assert len(line) < 200


@pytest.mark.parametrize("mapping", [[1], "default", None, 3])
def test_a_mapping_that_is_none_is_an_error(mapping: Any) -> None:
    with pytest.raises(PolicyError, match="a policy is a table of keys"):
        Policy.from_mapping(mapping)


def test_a_key_that_is_no_text_is_an_error() -> None:
    with pytest.raises(PolicyError, match="a key must be text"):
        Policy.from_mapping({1: 2})  # type: ignore[dict-item]


# -- presets ---------------------------------------------------------------------------------------------------


def test_openrouter_is_the_reference_to_the_letter() -> None:
    policy = Policy(preset="openrouter")
    assert [name for name in DETECTORS if policy.detector_enabled(name)] == ["repeated_call"]
    assert (policy.outcomes, policy.fingerprints, policy.privacy.plain_fingerprints) == ("ignore", "sha256", True)
    assert policy.ladder_for("repeated_call") == DEFAULT
    assert policy.hazards() == []


def test_observe_is_the_default_in_shadow() -> None:
    policy = Policy(preset="observe")
    assert policy.shadow
    assert policy.ladder_for("repeated_call") == DEFAULT
    assert policy.rungs_in_use() == (Action.OBSERVE,)


def test_what_is_written_beats_the_preset_key_by_key() -> None:
    policy = Policy(
        preset="openrouter",
        limits={"turns": 40},
        ladder=LadderSettings(stop=9),
        privacy={"include_arguments": True},
        detectors={"cycle": {"enabled": True}},
    )
    assert policy.ladder_for("repeated_call") == Ladder(observe=2, block=3, stop=9)
    assert policy.privacy.plain_fingerprints
    assert policy.privacy.include_arguments
    assert policy.detector_enabled("cycle")
    assert not policy.detector_enabled("stagnation")
    assert policy.limits.turns == 40


def test_an_unknown_preset_suggests_the_nearest() -> None:
    assert "did you mean 'openrouter'?" in error_of(preset="open-router")
    assert "there is no such preset; available: default, openrouter, dsh, patient, strict, observe" in error_of(
        preset=["observe"]
    )


def test_a_wrong_preset_does_not_hide_other_problems() -> None:
    assert len(errors_of(preset="nope", max_turns=3)) == 2


# -- detectors and ladders -------------------------------------------------------------------------------------


def test_a_misspelt_detector_is_an_error_and_a_foreign_one_is_not() -> None:
    line = error_of(detectors={"repeated_calls": {}})
    assert "detectors.repeated_calls: there is no such detector; did you mean 'repeated_call'?" in line
    assert "repeated_call.poll" in error_of(detectors={"repeated_call.pol": {}})
    assert "there is no such detector" in error_of(detectors={"repeated_call.zzzzzzzzzzzzzzz": {}})
    policy = Policy(detectors={"acme.spiral": {"enabled": False}, "acme_drift": {"ladder": {"steer": 2}}})
    assert not policy.detector_enabled("acme.spiral")
    assert policy.ladder_for("acme_drift") == Ladder(steer=2)
    assert policy.ladder_for("acme.spiral") == Ladder()
    assert policy.hazards() == []


def test_the_ladder_of_the_detector_beats_the_top_level_one_rung_by_rung() -> None:
    policy = Policy(ladder={"block": 4, "stop": 8}, detectors={"repeated_call": {"ladder": {"stop": 10}}})
    assert policy.ladder_for("repeated_call") == Ladder(observe=2, block=4, stop=10)


def test_the_top_level_ladder_is_only_repeated_calls() -> None:
    assert Policy(ladder={"block": 9}).ladder_for("cycle") == Policy().ladder_for("cycle")


def test_a_tools_ladder_beats_the_detectors_for_its_calls() -> None:
    policy = Policy(ladder={"block": 4}, tools={"send_*": {"ladder": {"block": 2, "stop": 3}}})
    assert policy.ladder_for("repeated_call", "send_email") == Ladder(observe=2, block=2, stop=3)
    assert policy.ladder_for("repeated_call", "read_file") == Ladder(observe=2, block=4, stop=6)
    assert policy.ladder_for("cycle", "send_email") == Ladder(observe=2, steer=3, block=2, stop=3)


def test_kinds_have_rows_of_their_own_and_an_unknown_kind_uses_the_detectors() -> None:
    policy = Policy()
    assert policy.ladder_for("repeated_call", "check_job", "poll") == Ladder(observe=6, steer=12, block=30)
    assert policy.ladder_for("repeated_call", kind="no such kind") == DEFAULT


def test_figures_for_ordinary_repeats_do_not_end_polls_or_changing_results() -> None:
    policy = Policy(ladder={"observe": 2, "block": 3, "stop": 6})
    assert policy.ladder_for("repeated_call", kind="poll") == Ladder(observe=6, steer=12, block=30)
    assert policy.ladder_for("repeated_call", kind="changing") == Ladder(observe=6, steer=12)


def test_a_rung_switched_off_for_the_detector_is_off_for_every_row() -> None:
    policy = Policy(ladder={"block": False})
    for kind in (None, "mutation", "poll", "changing"):
        assert policy.ladder_for("repeated_call", kind=kind).block is None


def test_mutations_are_never_judged_later_than_ordinary_calls() -> None:
    assert Policy(ladder={"block": 2}).ladder_for("repeated_call", kind="mutation").block == 2
    assert Policy(ladder={"stop": 20}).ladder_for("repeated_call", kind="mutation").stop == 4
    assert Policy(ladder={"steer": 2}).ladder_for("repeated_call", kind="mutation").steer == 2


def test_a_row_named_in_the_policy_takes_the_figures_written_there() -> None:
    policy = Policy(detectors={"repeated_call.poll": {"ladder": {"stop": 60}}})
    assert policy.ladder_for("repeated_call", kind="poll") == Ladder(observe=6, steer=12, block=30, stop=60)
    assert policy.ladder_for("repeated_call") == DEFAULT


def test_a_row_that_is_switched_off_has_no_rungs() -> None:
    policy = Policy(detectors={"repeated_call.poll": {"enabled": False}})
    assert policy.ladder_for("repeated_call", kind="poll") == Ladder()
    assert policy.detector_enabled("repeated_call")


def test_a_tools_ladder_holds_for_its_polls_but_never_blocks_changing_results() -> None:
    policy = Policy(tools={"*": {"ladder": {"observe": False, "block": 3, "stop": 5}}})
    assert policy.ladder_for("repeated_call", "check", "poll") == Ladder(steer=12, block=3, stop=5)
    assert policy.ladder_for("repeated_call", "check", "changing") == Ladder(steer=12)


def test_a_tools_ladder_gives_no_force_to_evidence_that_is_no_proof() -> None:
    written = {"observe": 4, "steer": False, "escalate": 5, "block": 5, "stop": 8}
    policy = Policy(tools={"look": {"ladder": written}})
    default = Policy()
    for row, before in DEFAULT_LADDERS.items():
        detector, kind = split_row(row)
        ladder = policy.ladder_for(detector, "look", kind)
        if row == "repeated_call.changing":
            assert ladder == Ladder(observe=6)
            continue
        assert (ladder.observe, ladder.steer) == (4, None), row
        assert ladder.block == (None if before.block is None else 5), row
        forceful = before.block is not None or before.stop is not None
        assert (ladder.escalate, ladder.stop) == ((5, 8) if forceful else (None, None)), row
        assert policy.ladder_for(detector, "other", kind) == default.ladder_for(detector, "other", kind)


def test_force_for_such_evidence_is_written_under_its_detector_and_holds_for_every_tool() -> None:
    policy = Policy(
        detectors={"rephrased_search": {"ladder": {"block": 6, "stop": 9}}},
        tools={"web_search": {"ladder": {"steer": 3, "block": 2}}},
    )
    assert policy.ladder_for("rephrased_search", "web_search") == Ladder(observe=1, steer=3, block=6, stop=9)
    assert Policy(tools={"web_search": {"ladder": {"block": False}}}).ladder_for("cycle", "web_search").block is None


def test_names_looked_up_one_by_one_are_never_refused_by_their_tools_ladder() -> None:
    session = LoopGuard({"tools": {"screen_name": {"ladder": {"block": 3, "stop": 6}}}}).session()
    actions = []
    for number in range(30):
        name = hashlib.sha256(str(number).encode()).hexdigest()[:9].translate(str.maketrans("0123456789", "ghijklmnop"))
        (decision,) = session.begin_round([ToolCall(f"c{number}", "screen_name", {"name": name})])
        actions.append(decision.action)
        session.record_result(f"c{number}", "no match")
    assert actions[-1] is Action.STEER
    assert session.stop is None
    assert set(actions) <= {None, Action.OBSERVE, Action.STEER}


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("rung", ["steer", "block", "stop"])
def test_every_key_of_the_user_wins_over_a_presets_rows(preset: str, rung: str) -> None:
    assert getattr(Policy(preset=preset, ladder={rung: 5}).ladder_for("repeated_call"), rung) == 5
    off = {"ladder": {rung: False}}
    for row in (*DEFAULT_LADDERS, *FOLLOWING_ROWS):
        detector = row.partition(".")[0]
        kind = row.partition(".")[2] or None
        policy = Policy(preset=preset, detectors={detector: off})
        assert getattr(policy.ladder_for(detector, None, kind), rung) is None, row
        named = Policy(preset=preset, detectors={row: {"ladder": {rung: 9}}})
        assert getattr(named.ladder_for(detector, None, kind), rung) == 9, row


def test_strict_leaves_the_ladder_to_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Policy(preset="strict").ladder_for("repeated_call") == Ladder(observe=2, steer=2, block=2, stop=6)
    expected = Ladder(observe=2, steer=2, block=5, stop=6)
    assert Policy(preset="strict", ladder={"block": 5}).ladder_for("repeated_call") == expected
    (tmp_path / "loopguard.toml").write_text("ladder = { block = 5 }")
    monkeypatch.setenv("LOOPGUARD_PRESET", "strict")
    assert load_policy(tmp_path / "loopguard.toml").ladder_for("repeated_call") == expected


def test_a_detector_of_rows_alone_moves_the_rungs_that_are_on_in_a_preset_too() -> None:
    policy = Policy(preset="strict", detectors={"stagnation": {"ladder": {"steer": 9}}})
    assert policy.ladder_for("stagnation", kind="same_result").steer == 9


def test_rows_that_only_a_preset_names_are_shown() -> None:
    assert "cycle.transient" in Policy(preset="patient").ladders()
    assert "cycle.transient" not in Policy().ladders()


def test_a_detector_of_rows_alone_moves_the_rungs_that_are_on() -> None:
    policy = Policy(detectors={"stagnation": {"ladder": {"steer": 4, "block": 9}}})
    assert policy.ladder_for("stagnation", kind="same_result") == Ladder(observe=3, steer=4)
    assert policy.ladder_for("stagnation", kind="near_identical") == Ladder(observe=2, steer=4, block=9, stop=7)


def test_rungs_in_use_are_those_on_in_any_ladder() -> None:
    assert Policy().rungs_in_use() == (Action.OBSERVE, Action.STEER, Action.BLOCK, Action.STOP)
    policy = Policy(preset="openrouter", ladder={"stop": False}, tools={"bash": {"ladder": {"escalate": 2}}})
    assert policy.rungs_in_use() == (Action.OBSERVE, Action.ESCALATE, Action.BLOCK)


# -- tools -----------------------------------------------------------------------------------------------------


def test_an_exact_name_beats_patterns_and_a_longer_pattern_a_shorter() -> None:
    policy = Policy(
        tools={
            "web_search": {"loop_key": ["query"]},
            "web_*": {"loop_key": ["url"], "normalize": ["casefold"], "ladder": {"block": 4}},
            "*": {"loop_key": False, "traits": ["reads"], "ladder": {"block": 9, "stop": 12}},
        }
    )
    exact = policy.tool("web_search")
    assert (exact.loop_key, exact.normalize, exact.traits) == (("query",), ("casefold",), ("reads",))
    assert exact.ladder == LadderSettings(block=4, stop=12)
    assert policy.tool("web_fetch").loop_key == ("url",)
    assert policy.tool("bash").loop_key is False


def test_of_patterns_of_one_length_the_later_wins() -> None:
    tools = {"a*": {"loop_key": ["first"]}, "*b": {"loop_key": ["second"]}}
    assert Policy(tools=tools).tool("ab").loop_key == ("second",)


def test_none_takes_a_loop_key_of_a_pattern_back() -> None:
    policy = Policy(tools={"*": {"loop_key": False}, "bash": {"loop_key": None}})
    assert policy.tool("bash").loop_key is None


def test_case_counts_and_a_name_without_wildcards_is_no_pattern() -> None:
    policy = Policy(tools={"Bash": {"loop_key": False}, "read[1]": {"loop_key": ["path"]}})
    assert policy.tool("bash") == ToolSettings()
    assert policy.tool("read1").loop_key == ("path",)
    assert policy.tool("read[1]").loop_key == ("path",)


def test_answers_are_remembered_within_bounds() -> None:
    policy = Policy(tools={"tool_*": {"loop_key": ["a"]}})
    assert policy.tool("tool_1") is policy.tool("tool_1")
    assert policy.ladder_for("repeated_call", "tool_1") is policy.ladder_for("repeated_call", "tool_1")
    for number in range(3 * MAX_CACHED):
        assert policy.tool(f"tool_{number}").loop_key == ("a",)
        policy.ladder_for("repeated_call", f"tool_{number}")
    policy.tool("tool_" + "x" * MAX_CACHED_NAME)
    cached = policy._resolver
    assert len(cached._tools) <= MAX_CACHED
    assert len(cached._ladders) <= MAX_CACHED
    assert max(map(len, cached._tools)) <= MAX_CACHED_NAME


# -- the policy as a value -------------------------------------------------------------------------------------


def test_a_policy_is_a_value_whatever_was_asked_of_it() -> None:
    policy = Policy(limits={"turns": 40}, tools={"web_*": {"ladder": {"block": 2}}})
    fresh = policy.model_copy(deep=True)
    policy.ladder_for("repeated_call", "web_search")
    assert policy == fresh
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy
    assert Policy.from_mapping(policy.model_dump()) == policy
    with pytest.raises(ValueError, match="frozen"):
        policy.shadow = True


def test_a_changed_copy_forgets_the_answers_of_the_original() -> None:
    policy = Policy(tools={"bash": {"ladder": {"block": 2}}})
    assert policy.ladder_for("repeated_call", "bash").block == 2
    assert policy.model_copy(update={"tools": {}}).ladder_for("repeated_call", "bash") == DEFAULT


def test_the_policy_imports_no_agent_sdk() -> None:
    program = (
        "import sys, loopguard_core._policy, loopguard_core._policy_file;"
        "print([m for m in ('langchain', 'langchain_core', 'langgraph', 'openai', 'agents', 'llama_index')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- hazards ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ({"ladder": {"stop": 3}}, ["ladder: block = 3 can never fire, because stop = 3"]),
        ({"ladder": {"observe": 3}}, ["ladder: observe = 3 can never fire, because block = 3"]),
        ({"ladder": {"steer": 6}}, ["ladder: steer = 6 can never fire, because stop = 6"]),
        ({"ladder": {"steer": 3}}, []),  # told and refused: both happen
        ({"ladder": {"block": 2}}, []),  # in place of the default's observe: meant
        ({"ladder": {"stop": False}}, ["ladder: block without stop"]),
        ({"ladder": {"stop": False, "block": False}}, []),
        ({"ladder": dict.fromkeys(["observe", "block", "stop"], False)}, ["ladder: every rung is off"]),
        ({"ladder": {"escalate": 3}}, ["escalation.models: "]),
        ({"ladder": {"escalate": 3}, "escalation": {"models": {"langchain": "big"}}}, []),
        (
            {"ladder": {"escalate": 3}, "escalation": {"max": 0, "models": {"langchain": "big"}}},
            ["escalation.max: "],
        ),
        (
            {"detectors": {"repeated_call": {"ladder": {"stop": False}}}},
            ["detectors.repeated_call.ladder: block without stop"],
        ),
        ({"detectors": {name: {"enabled": False} for name in DETECTORS}}, ["detectors: every detector"]),
        ({"detectors": {"repeated_call": {"enabled": False}}}, []),
        ({"detectors": {"cycle": {"enabled": True}}}, []),
        ({"detectors": {"cycle": {"enabled": False}}}, []),
        ({"tools": {"a*": {"ladder": {"stop": 2}}}}, ['tools."a*".ladder: block = 3 can never fire']),
        ({"tools": {"a": {"loop_key": False, "ladder": {"stop": 9}}}}, ["tools.a.ladder: no effect, because loop_key"]),
        ({"tools": {"a": {"loop_key": False, "normalize": ["nfkc"]}}}, ["tools.a.normalize: no effect"]),
        ({"tools": {"a": {"traits": ["reads"]}}}, []),
        ({"text": {}}, []),
        ({"key": {"name": "a"}}, []),
        ({"key": {"name": "a", "reset": "daily"}}, ["key.reset: no effect without key.limit"]),
        ({"key": {"name": "a", "limit": 1, "reset": "daily"}}, []),
        ({"limits": {"reserve": True}}, ["limits.reserve: no effect without limits.cost or limits.tokens"]),
        ({"limits": {"reserve": True, "tokens": 9}}, []),
        ({"limits": {"unpriced": "deny"}}, ["limits.unpriced: no effect without limits.cost or [key]"]),
        ({"limits": {"unpriced": 3, "cost": 1}}, []),
        ({"key": None}, []),
        (
            {"privacy": {"fingerprint_key": "k", "plain_fingerprints": True}},
            ["privacy.fingerprint_key: no effect"],
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_hazards_name_what_can_hardly_be_meant(written: dict[str, Any], parts: list[str]) -> None:
    hazards = Policy(**written).hazards()
    assert len(hazards) == len(parts), hazards
    for hazard, part in zip(hazards, parts, strict=True):
        assert hazard.startswith(part)
