from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from loopguard_core._errors import PolicyError
from loopguard_core._ladder import Ladder, LadderSettings
from loopguard_core._policy import Policy
from loopguard_core._policy_file import apply_environment, find_policy, load_policy, resolve_policy

# The sample of section 6 of the design, comments and all: every key of it must load.
SAMPLE = """\
preset = "default"
ladder = { observe = 2, block = 3, stop = 6 }          # repeated_call's
plugins = ["acme-alerts"]                                # entry points to load; none by default
[detectors.cycle]
enabled = true
ladder = { steer = 3, block = 4, stop = 6 }
[limits]
turns = 40             # rounds, refused or not; after the 40th no further model call starts
cost = 0.50            # US dollars
tokens = 200_000       # input + output, cached included
seconds = 900          # active time, pauses excluded
tool_calls = 200       # executed ones
[tools."web_search"]
loop_key = ["query"]                 # fields that identify a call; a function only in code
normalize = ["nfkc", "casefold", "whitespace", "punctuation"]    # whitespace also strips the ends; apply without a loop_key too
[tools."check_*"]
loop_key = false                     # exempt
[tools."send_email"]
traits = ["mutates"]
ladder = { block = 2, stop = 3 }
[text]
min_chars = 512
channels = ["content", "reasoning"]
retries = 1
[escalation]
max = 2
models = { langchain = "openai:gpt-6", openai_agents = "gpt-6", llama_index = "gpt-6" }    # or escalate_model= in code
[on_stop]
how = "end"                          # end | answer (one last model call without tools, from what was gathered) | raise; an adapter's argument wins; hooks alone can only raise
[key]
name = "billing-agents"
limit = 25.0
reset = "monthly"                    # daily | weekly (Monday) | monthly | none, all UTC
store = "sqlite:///budget.db"        # or redis://host/0
on_store_error = "deny"
"""  # noqa: E501 - as it stands in the design


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty directory that ends the search, without variables of ours."""
    for name in [name for name in os.environ if name.startswith("LOOPGUARD_")]:
        monkeypatch.delenv(name)
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    old = os.umask(0o022)
    yield
    os.umask(old)


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def error_of(path: Path) -> str:
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    return str(caught.value)


# -- reading ---------------------------------------------------------------------------------------------------


def test_every_key_of_the_sample_loads(tmp_path: Path) -> None:
    policy = load_policy(written(tmp_path / "loopguard.toml", SAMPLE))
    assert policy.plugins == ("acme-alerts",)
    assert policy.detectors["cycle"].ladder == LadderSettings(steer=3, block=4, stop=6)
    limits = policy.limits
    assert (limits.turns, limits.tokens, limits.seconds, limits.tool_calls) == (40, 200_000, 900.0, 200)
    assert str(limits.cost) == "0.50"
    assert policy.tool("web_search").loop_key == ("query",)
    assert policy.tool("web_search").normalize == ("nfkc", "casefold", "whitespace", "punctuation")
    assert policy.tool("check_status").loop_key is False
    assert policy.tool("send_email").traits == ("mutates",)
    assert policy.ladder_for("repeated_call", "send_email") == Ladder(observe=2, block=2, stop=3)
    assert (policy.text.min_chars, policy.text.channels, policy.text.retries) == (512, ("content", "reasoning"), 1)
    assert (policy.escalation.max, policy.escalation.models["llama_index"]) == (2, "gpt-6")
    assert policy.on_stop.how == "end"
    assert policy.key is not None
    assert (policy.key.name, policy.key.limit, policy.key.reset) == ("billing-agents", Decimal("25.0"), "monthly")
    # A relative file lies beside the policy file, wherever the program runs.
    assert (policy.key.store, policy.key.on_store_error) == (f"sqlite:///{tmp_path / 'budget.db'}", "deny")


def test_the_sample_has_no_hazards(tmp_path: Path) -> None:
    assert load_policy(written(tmp_path / "loopguard.toml", SAMPLE)).hazards() == []


@pytest.mark.parametrize(
    "store",
    ["sqlite:////var/lib/budget.db", "sqlite:///~/budget.db", "sqlite:///:memory:", "redis://host/0", "memory://"],
)
def test_other_stores_stay_as_they_are_written(tmp_path: Path, store: str) -> None:
    policy = load_policy(written(tmp_path / "loopguard.toml", f'[key]\nname = "a"\nstore = "{store}"\n'))
    assert policy.key is not None
    assert policy.key.store == store


def test_a_relative_store_of_a_pyproject_lies_beside_it_too(tmp_path: Path) -> None:
    text = '[tool.loopguard.key]\nname = "a"\nstore = "sqlite:///state/budget.db"\n'
    policy = load_policy(written(tmp_path / "pyproject.toml", text))
    assert policy.key is not None
    assert policy.key.store == f"sqlite:///{tmp_path / 'state' / 'budget.db'}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[key]\nname = "a"\nstore = "postgres://u:hunter2@h/0"\n', "key.store: unknown kind of address"),
        ('[key]\nname = "a"\nstore = "budget.db"\n', "key.store: no address; write sqlite:///FILE"),
        ('[key]\nname = " a"\n', "key.name: a key's name must not begin or end with a space"),
        (f'[key]\nname = "lg-{"x" * 43}"\n', "key.name: this is a key's secret; give the key's name"),
        (
            '[limits]\nunpriced = "free"\n',
            'limits.unpriced = "free": must be "warn", "deny", or US dollars per million',
        ),
        ("[limits]\nunpriced = -1\n", "limits.unpriced = -1: must be"),
        ("[limits]\nunpriced = true\n", "limits.unpriced = true: must be"),
        ("[limits]\nreserve = 1\n", "limits.reserve = 1: must be true or false"),
    ],
)
def test_what_cannot_be_used_of_money_is_said_without_secrets(tmp_path: Path, text: str, said: str) -> None:
    error = error_of(written(tmp_path / "loopguard.toml", text))
    assert said in error
    assert "hunter2" not in error
    assert "xxxxxxxx" not in error


def test_a_price_is_taken_exactly_as_written(tmp_path: Path) -> None:
    path = tmp_path / "loopguard.toml"
    assert load_policy(written(path, "[limits]\ncost = 1\nunpriced = 0.10\n")).limits.unpriced == Decimal("0.10")
    assert load_policy(written(path, "[limits]\ncost = 1\nunpriced = 0\n")).limits.unpriced == 0


def test_from_file_and_load_policy_read_the_same(tmp_path: Path) -> None:
    path = written(tmp_path / "loopguard.toml", SAMPLE)
    assert Policy.from_file(path) == Policy.from_file(str(path)) == load_policy(path)


def test_of_a_pyproject_the_table_tool_loopguard_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "pyproject.toml", "[project]\nname='x'\n[tool.loopguard.limits]\nturns = 7\n")
    assert load_policy(path).limits.turns == 7


def test_errors_in_a_pyproject_name_the_table(tmp_path: Path) -> None:
    path = written(tmp_path / "pyproject.toml", "[tool.loopguard]\nmax_turns = 7\n")
    assert error_of(path) == f"{path} [tool.loopguard]: max_turns = 7: unknown key; did you mean limits.turns?"


@pytest.mark.parametrize("text", ["[project]\nname='x'\n", "tool = 3\n", ""])
def test_a_pyproject_without_the_table_is_told_so(tmp_path: Path, text: str) -> None:
    assert "there is no table [tool.loopguard]; add it" in error_of(written(tmp_path / "pyproject.toml", text))


def test_a_table_that_is_none_is_told_so(tmp_path: Path) -> None:
    assert "must be a table" in error_of(written(tmp_path / "pyproject.toml", "[tool]\nloopguard = 3\n"))


def test_the_table_of_a_pyproject_is_pointed_out_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path / "loopguard.toml", "[tool.loopguard.limits]\nturns = 7\n")
    assert "only a pyproject.toml has this table" in error_of(path)


def test_errors_name_file_key_value_and_fix(tmp_path: Path) -> None:
    path = written(tmp_path / "loopguard.toml", 'max_turns = 40\n[limits]\nturns = "40"\n')
    assert error_of(path).splitlines() == [
        f'{path}: limits.turns = "40": must be a whole number, without quotes or decimal point; write 40',
        f"{path}: max_turns = 40: unknown key; did you mean limits.turns?",
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert error_of(tmp_path / "nope.toml") == (
        f"{tmp_path / 'nope.toml'}: there is no such file; create it or correct the path"
    )


def test_a_syntax_error_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "loopguard.toml", "shadow = true\nturns 40\n")
    assert error_of(path).startswith(f"{path}:2: is not valid TOML: ")


def test_a_file_cut_short_is_a_syntax_error(tmp_path: Path) -> None:
    assert "is not valid TOML" in error_of(written(tmp_path / "loopguard.toml", "[limits]\nturns ="))


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "loopguard.toml", b'shadow = true\nplugins = ["\xe9"]\n')
    assert error_of(path) == f"{path}:2: is not UTF-8; save the file as UTF-8"


def test_a_byte_order_mark_is_allowed(tmp_path: Path) -> None:
    assert load_policy(written(tmp_path / "loopguard.toml", b"\xef\xbb\xbfshadow = true\r\n")).shadow


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000, "a = 1e9999999999999999999999", "a = " + "9" * 5000, "a = 0x" + "f" * 5000]
)
def test_absurd_files_are_errors_and_not_crashes(tmp_path: Path, text: str) -> None:
    assert error_of(written(tmp_path / "loopguard.toml", text))


def test_a_directory_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read" in error_of(tmp_path)


def test_another_format_is_told_that_policies_are_toml(tmp_path: Path) -> None:
    assert "a policy file is TOML" in error_of(written(tmp_path / "loopguard.yaml", "limits: {}"))


# -- who can write it ------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o644, False), (0o664, True), (0o646, True)])
def test_a_file_others_can_write_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    path = written(tmp_path / "loopguard.toml", "shadow = true\n")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING, logger="loopguard"):
        assert load_policy(path).shadow
    assert [record.name for record in caplog.records] == (["loopguard"] if warned else [])
    assert ("can be written by other users" in caplog.text) is warned


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_a_file_of_another_user_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "loopguard.toml", "shadow = true\n")
    owner = path.stat().st_uid
    if owner == 0:
        try:
            os.chown(path, 4242, -1)
        except PermissionError:
            pytest.skip("root without the right to give a file away")
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    load_policy(path)
    assert "belongs to another user" in caplog.text


# -- finding ---------------------------------------------------------------------------------------------------


def test_the_nearest_file_is_found(tmp_path: Path) -> None:
    outer = written(tmp_path / "loopguard.toml", "")
    inner = written(tmp_path / "a" / "loopguard.toml", "")
    (tmp_path / "a" / "b").mkdir()
    assert find_policy(tmp_path / "a" / "b") == inner
    assert find_policy(tmp_path) == outer
    assert find_policy() == outer


def test_a_pyproject_counts_only_with_the_table_and_after_loopguard_toml(tmp_path: Path) -> None:
    outer = written(tmp_path / "pyproject.toml", "[tool.loopguard]\n")
    inner = tmp_path / "a"
    written(inner / "pyproject.toml", "[project]\ndescription = 'like loopguard'\n")
    assert find_policy(inner) == outer
    own = written(tmp_path / "loopguard.toml", "")
    assert find_policy(inner) == own


def test_the_search_ends_at_the_repository(tmp_path: Path) -> None:
    written(tmp_path / "loopguard.toml", "")
    repository = tmp_path / "repo"
    written(repository / ".git", "gitdir: elsewhere")
    (repository / "src").mkdir()
    assert find_policy(repository / "src") is None
    assert find_policy(repository) is None


def test_a_broken_pyproject_is_reported_only_if_it_means_us(tmp_path: Path) -> None:
    ours = written(tmp_path / "a" / "pyproject.toml", "[tool.loopguard]\nx =\n")
    written(tmp_path / "b" / "pyproject.toml", "x =\n# loopguard\n")
    assert find_policy(tmp_path / "a") == ours
    assert find_policy(tmp_path / "b") is None


def test_the_variable_wins_and_a_file_it_names_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "loopguard.toml", "")
    other = tmp_path / "other.toml"
    monkeypatch.setenv("LOOPGUARD_CONFIG", str(other))
    assert find_policy() == other
    with pytest.raises(PolicyError, match="LOOPGUARD_CONFIG names it"):
        resolve_policy()


# -- resolving -------------------------------------------------------------------------------------------------


def test_none_is_the_file_that_is_found_else_the_default(tmp_path: Path) -> None:
    assert resolve_policy() == Policy()
    written(tmp_path / "loopguard.toml", "shadow = true\n")
    assert resolve_policy(None).shadow


def test_a_policy_is_taken_as_it_is() -> None:
    policy = Policy(shadow=True)
    assert resolve_policy(policy) is policy


def test_a_word_is_a_preset_and_a_word_with_a_suffix_a_path(tmp_path: Path) -> None:
    path = written(tmp_path / "strict.toml", "shadow = true\n")
    assert resolve_policy("openrouter") == Policy(preset="openrouter")
    assert resolve_policy("strict.toml").shadow
    assert resolve_policy(path).shadow
    assert resolve_policy(str(path)).shadow


def test_a_mapping_is_checked_like_a_file() -> None:
    assert resolve_policy({"limits": {"turns": 3}}).limits.turns == 3
    with pytest.raises(PolicyError, match=r"limits\.turns"):
        resolve_policy({"max_turns": 3})


def test_an_unknown_preset_is_told_what_there_is() -> None:
    with pytest.raises(PolicyError) as caught:
        resolve_policy("openrooter")
    assert str(caught.value) == (
        "preset = \"openrooter\": there is no such preset; did you mean 'openrouter'?"
        " available: default, openrouter, dsh, patient, strict, observe; a path needs a suffix such as .toml"
    )


@pytest.mark.parametrize("value", [3, ["default"], True])
def test_anything_else_is_an_error(value: Any) -> None:
    with pytest.raises(PolicyError, match="a policy is a Policy, a preset's name, a path, a mapping or None"):
        resolve_policy(value)


# -- the environment -------------------------------------------------------------------------------------------


def test_the_preset_of_the_environment_holds_only_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOPGUARD_PRESET", "openrouter")
    silent = written(tmp_path / "silent.toml", "[limits]\nturns = 3\n")
    names = written(tmp_path / "names.toml", 'preset = "default"\n')
    assert resolve_policy().preset == "openrouter"
    assert resolve_policy({}).preset == "openrouter"
    assert resolve_policy(silent).preset == load_policy(silent).preset == "openrouter"
    assert resolve_policy(names).preset == "default"
    assert resolve_policy("observe").preset == "observe"
    assert resolve_policy(Policy()).preset == "default"
    assert Policy.from_file(silent).preset == "default"


def test_an_unknown_preset_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPGUARD_PRESET", "openrooter")
    with pytest.raises(PolicyError, match=r"environment: LOOPGUARD_PRESET = .*did you mean 'openrouter'"):
        resolve_policy()


@pytest.mark.parametrize("value", ["0", "false", "NO", " off "])
def test_the_kill_switch_switches_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LOOPGUARD_ENABLED", value)
    policy = apply_environment(Policy(limits={"turns": 3}))
    assert not policy.enabled
    assert policy.limits.turns == 3


@pytest.mark.parametrize("value", ["", "1", "true", "yes", "on"])
def test_the_kill_switch_never_switches_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.setenv("LOOPGUARD_ENABLED", value)
    assert apply_environment(Policy()).enabled
    assert not apply_environment(Policy(enabled=False)).enabled
    assert caplog.text == ""


def test_a_kill_switch_nobody_understands_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOOPGUARD_ENABLED", "flase")
    assert apply_environment(Policy()).enabled
    assert "LOOPGUARD_ENABLED=flase is not understood" in caplog.text


def test_an_unknown_variable_is_warned_about_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOOPGUARD_ENABLE", "0")
    assert apply_environment(Policy()).enabled
    assert "LOOPGUARD_ENABLE means nothing to loopguard; did you mean LOOPGUARD_ENABLED?" in caplog.text
