"""Conversations that are read anew, and named runs: what they find again, what they keep, what is counted once."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from loopguard_gateway_kit import MODEL, TOOL, calls, chat, eventually, prose

from loopguard_core import LoopGuard, Policy
from loopguard_core.keys import open_keyring
from loopguard_core.testing import Reply

HOUR = 3600.0
QUESTION = {"role": "user", "content": "Is invoice A-1 due?"}
GETS_ON = chat(lambda request: calls({"page": request.number}))
ANSWERS = chat(lambda _: Reply(text="It is not due."))


def rounds(number, arguments="{{}}", result="Error: 504 Gateway Timeout"):
    """The history of an agent that asked so often, with what it asked and got; `{0}` is the round."""
    told = []
    for each in range(number):
        call = {"name": "fetch", "arguments": arguments.format(each)}
        told += [{"role": "assistant", "tool_calls": [{"id": f"c{each}", "type": "function", "function": call}]}]
        told += [{"role": "tool", "tool_call_id": f"c{each}", "content": result.format(each)}]
    return told


def pages(number):
    return rounds(number, '{{"page": {0}}}', "{0} of many")


def post(served, messages, *, run=None, model=MODEL, **body):
    headers = {**served.auth, **({} if run is None else {"x-loopguard-session": run})}
    sent = {"model": model, "messages": messages, "tools": [TOOL], **body}
    with httpx.Client(timeout=30) as client:
        response = client.post(f"{served.base_url}/chat/completions", json=sent, headers=headers)
    assert response.status_code == 200
    return response


def state(served):
    return served.app.state.gateway


NAMES = pytest.mark.parametrize("run", [None, "job-1"], ids=["unnamed", "named"])


# -- a history that nobody here has seen -------------------------------------------------------------------------------


@NAMES
@pytest.mark.parametrize("unpriced", ["deny", "warn"])
def test_what_a_history_cost_is_unknown_and_ends_nothing(gateway, run, unpriced):
    """What is denied is a call that costs nobody knows what, and those of a history were made and paid for before."""
    provider, served = gateway(ANSWERS, Policy(limits={"cost": 5, "unpriced": unpriced}))
    response = post(served, [QUESTION, *pages(3)], run=run)
    assert response.json()["choices"][0]["message"]["content"] == "It is not due."
    assert "x-loopguard-stop" not in response.headers
    assert len(provider.requests) == 1
    assert not state(served).guard.faults.counts


def test_a_call_that_costs_nobody_knows_what_is_still_denied(gateway):
    _, served = gateway(GETS_ON, Policy(limits={"cost": 5, "unpriced": "deny"}), limit=None)
    first = post(served, [QUESTION, *pages(2)], model="somebodys-own")
    message = first.json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2 of many"}
    ended = post(served, [QUESTION, *pages(2), message, result], model="somebodys-own")
    assert "x-loopguard-stop" not in first.headers
    assert ended.headers["x-loopguard-stop"] == "max_cost"


@NAMES
def test_rounds_are_found_again(gateway, run):
    _, served = gateway(GETS_ON, Policy(limits={"turns": 3}))
    assert "x-loopguard-stop" not in post(served, [QUESTION, *pages(2)], run=run).headers
    assert post(served, [QUESTION, *pages(3)], run=run).headers["x-loopguard-stop"] == "max_turns"


def test_a_named_run_does_not_count_a_history_twice(gateway):
    """Of five calls it may have, two were counted when they were made; a summarised history shows them again."""
    _, served = gateway(GETS_ON, Policy(limits={"tool_calls": 5}))
    for number in range(2):
        assert "x-loopguard-stop" not in post(served, [QUESTION, *pages(number)], run="job-1").headers
    shorter = {"role": "user", "content": "Look on."}
    for number in range(2, 5):
        assert "x-loopguard-stop" not in post(served, [shorter, *pages(number)], run="job-1").headers
    assert post(served, [shorter, *pages(5)], run="job-1").headers["x-loopguard-stop"] == "max_tool_calls"


@NAMES
def test_every_session_that_hooks_hear_of_ends(gateway, run):
    heard, ended, counted = [], [], []
    guard = LoopGuard(on_loop=heard.append, on_end=ended.append, on_model_call=counted.append)
    _, served = gateway(chat(lambda _: calls("{}")), guard)
    response = post(served, [QUESTION, *rounds(2)], run=run)
    served.stop()
    assert response.headers["x-loopguard-refusals"]
    sessions = {event.session_id for event in heard}
    assert sessions == {response.headers["x-loopguard-session-id"]}
    assert {event.framework_run_id for event in heard} == {run}
    ends = [event.session_id for event in ended]
    assert sessions <= set(ends)
    assert len(ends) == len(set(ends))
    assert {event.session_id for event in counted} == sessions
    assert len(counted) == 4  # refused three times, ended at the fourth; the two of the history are not told again


def test_what_was_to_be_said_in_a_history_was_said(gateway):
    """A message that was repeated had its steering then; that of the last one is still to come."""
    policy = Policy(detectors={"repeated_message": {"ladder": {"observe": False, "steer": 2, "stop": False}}})
    provider, served = gateway(ANSWERS, policy)
    program = {"role": "user", "content": "[system] go on"}
    same = {"role": "assistant", "content": "I will look at the invoice now."}
    post(served, [QUESTION, same, program, same, program, *pages(1)])
    assert b"[loopguard]" not in provider.requests[0].body
    other = {"role": "user", "content": "Is invoice A-2 due?"}
    post(served, [other, same, program, same, program])
    assert provider.requests[1].json["messages"][-1]["content"].startswith("[loopguard]")


SUMMARY = {"role": "user", "content": "Summary of the conversation so far: the invoice is looked for."}


def test_after_a_summary_each_call_may_be_asked_for_once_more(gateway):
    """As in a replay: and no streak starts afresh, as it does when a user speaks."""
    provider, served = gateway(chat(lambda _: calls("{}")))
    shown = post(served, [QUESTION, *rounds(2), SUMMARY])
    assert "x-loopguard-refusals" not in shown.headers
    assert len(provider.requests) == 1
    refused = post(served, [QUESTION, *rounds(2), SUMMARY, *rounds(1)])
    assert refused.headers["x-loopguard-refusals"]


def test_a_summary_begins_no_run(gateway):
    _, served = gateway(ANSWERS, Policy(limits={"turns": 4}))
    said = {"role": "assistant", "content": "It is not there yet."}
    asked = {"role": "user", "content": "Look on."}
    ended = post(served, [QUESTION, *pages(3), said, SUMMARY, *pages(1)])
    assert ended.headers["x-loopguard-stop"] == "max_turns"
    assert "x-loopguard-stop" not in post(served, [QUESTION, *pages(3), said, asked, *pages(1)]).headers


def test_a_long_answer_is_judged_in_part(gateway, monkeypatch):
    _, served = gateway(chat(lambda _: Reply(text=prose(300) + "and again, " * 2_000)))
    with monkeypatch.context() as patch:
        patch.setattr("loopguard_gateway._watch.MOST_TEXT", 1_000)
        assert "x-loopguard-verdict" not in post(served, [QUESTION]).headers
    assert "text_repetition" in post(served, [QUESTION]).headers["x-loopguard-verdict"]


# -- a run that has a name ---------------------------------------------------------------------------------------------


@pytest.fixture
def hours(gateway):
    """A gateway whose conversations live by a clock of the test's: `move(seconds)`."""
    now = [0.0]

    def start(answer, policy=None, **options):
        provider, served = gateway(answer, policy, **options)
        state(served).conversations._clock = lambda: now[0]
        return provider, served

    def move(seconds):
        now[0] += seconds

    return start, move


def test_a_named_run_keeps_its_limits_as_long_as_it_is_in_use(hours):
    """Longer than a run that nobody uses is remembered, with a request every twenty minutes in one conversation."""
    start, move = hours
    ended = []
    _, served = start(GETS_ON, LoopGuard({"limits": {"tool_calls": 8}}, on_end=ended.append))
    messages = [QUESTION]
    for number in range(7):
        message = post(served, messages, run="job-1").json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": f"{number} of many"}
        messages += [message, result]
        move(HOUR / 3)
    assert not ended
    another = {"role": "user", "content": "Another part."}
    assert "x-loopguard-stop" not in post(served, [another], run="job-1").headers
    assert post(served, [another, *pages(1)], run="job-1").headers["x-loopguard-stop"] == "max_tool_calls"


def test_a_named_run_is_over_after_an_hour_in_which_nobody_used_it(hours):
    """Also where no conversation is kept, because each came to its end."""
    start, move = hours
    ended = []
    _, served = start(ANSWERS, LoopGuard(on_end=ended.append))
    for name in ("job-1", "job-2"):
        post(served, [QUESTION], run=name)
        eventually(lambda: not state(served).conversations._served)  # it is put away a moment after it was answered
        move(HOUR + 1)
    over = eventually(lambda: [event for event in ended if event.parent_id is None])
    assert [(event.framework_run_id, event.reason) for event in over] == [("job-1", "complete")]


def test_no_more_named_runs_than_allowed(gateway):
    _, served = gateway(ANSWERS, max_sessions=5)
    for number in range(12):
        post(served, [QUESTION], run=f"job-{number}")
    eventually(lambda: len(state(served).conversations._runs) == 5)
    assert len(state(served).guard._live) == 5


@pytest.mark.parametrize("room", [10_000, 1], ids=["idle", "no room"])
def test_a_run_is_not_over_while_a_call_of_it_runs(hours, room):
    """However long it takes, and however many others come meanwhile."""
    start, move = hours
    ended = []

    def answer(asked):
        if "slowly" in asked.body.decode():
            provider.hang()
        return GETS_ON(asked)

    provider, served = start(answer, LoopGuard(on_end=ended.append), max_sessions=room)
    slow = {"role": "user", "content": "Look slowly."}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, served, [slow], run="slow")
        eventually(lambda: provider.requests)
        for number in range(4):
            move(HOUR)
            post(served, [QUESTION], run=f"job-{number}")
        eventually(lambda: {event.framework_run_id for event in ended} == {"job-0", "job-1", "job-2"})
        assert ("team", "slow") in state(served).conversations._runs
        provider.release.set()
        running.result()
    eventually(lambda: not state(served).conversations._served)


def test_names_of_other_clients_are_other_runs(gateway, store):
    _, served = gateway(GETS_ON, Policy(limits={"tool_calls": 1}))
    with open_keyring(store) as keyring:
        other = keyring.create("other")
    post(served, [QUESTION], run="job-1")
    another = {"role": "user", "content": "Another part."}
    assert post(served, [another, *pages(1)], run="job-1").headers["x-loopguard-stop"] == "max_tool_calls"
    served.key = other
    assert "x-loopguard-stop" not in post(served, [another], run="job-1").headers
