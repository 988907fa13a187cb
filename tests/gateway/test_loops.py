"""A loop is ended with no adapter installed; what gets on is left alone. Over the real client."""

import hashlib
import json

import httpx
import openai
import pytest
from loopguard_gateway_kit import (
    FLAT_TOOL,
    MODEL,
    TOOL,
    Answer,
    calls,
    chat,
    eventually,
    prose,
    responses,
)

from loopguard_core import LoopGuard, Policy
from loopguard_core.keys import open_ledger
from loopguard_core.testing import Reply, never_listens

FAILS = "Error: 504 Gateway Timeout"
LOOPS = chat(never_listens("fetch", {"id": "A-1"}))
NO_BLOCK = {"ladder": {"observe": 2, "block": False, "stop": 4}}


def client_of(served, **headers):
    return openai.OpenAI(base_url=served.base_url, api_key=served.key, max_retries=0, default_headers=headers)


def chat_agent(client, *, rounds=12, stream=False, result=lambda _: FAILS, messages=None, tools=(TOOL,)):
    """A hand-written loop on the plain client: what it answers, how many tools ran, what was said."""
    messages = messages if messages is not None else [{"role": "user", "content": "Is invoice A-1 due?"}]
    ran = 0
    for _ in range(rounds):
        if stream:
            with client.chat.completions.stream(model=MODEL, messages=messages, tools=list(tools)) as events:
                message = events.get_final_completion().choices[0].message
        else:
            done = client.chat.completions.create(model=MODEL, messages=messages, tools=list(tools))
            message = done.choices[0].message
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        if not message.tool_calls:
            return message.content, ran, messages
        for call in message.tool_calls:
            ran += 1
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result(call)})
    return None, ran, messages


def responses_agent(client, *, rounds=12, stream=False, keeps=False):
    """The same on the Responses API; `keeps` leaves the conversation with the provider."""
    items, ran, before = [{"role": "user", "content": "Is invoice A-1 due?"}], 0, None
    for _ in range(rounds):
        sent = {"model": MODEL, "input": items, "tools": [FLAT_TOOL], "previous_response_id": before}
        sent = {name: value for name, value in sent.items() if value is not None}
        if stream:
            with client.responses.stream(**sent) as events:
                response = events.get_final_response()
        else:
            response = client.responses.create(**sent)
        asked = [item for item in response.output if item.type == "function_call"]
        if not asked:
            return response.output_text, ran
        ran += len(asked)
        outputs = [{"type": "function_call_output", "call_id": item.call_id, "output": FAILS} for item in asked]
        if keeps:
            items, before = outputs, response.id
        else:
            items = [*items, *(item.model_dump(exclude_none=True) for item in response.output), *outputs]
    return None, ran


FOREVER = responses(lambda _: calls({"id": "A-1"}))
BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@BOTH
def test_a_loop_is_ended_and_its_calls_refused(gateway, stream):
    """The third identical call is refused on the model's behalf, and so on to the sixth, which ends the run."""
    provider, served = gateway(LOOPS)
    answer, ran, _ = chat_agent(client_of(served), stream=stream)
    assert answer.startswith("[loopguard] The run was ended")
    assert ran == 2
    assert len(provider.requests) == 6
    told = provider.requests[-1].json["messages"]
    assert "[loopguard]" in told[-1]["content"]
    assert told[-1]["role"] == "tool"
    assert served.metric("loopguard_gateway_refusals_total") == 3
    assert served.metric('loopguard_gateway_ended_runs_total{reason="doom_loop"}') == 1


@BOTH
@pytest.mark.parametrize("keeps", [False, True], ids=["sent again", "kept by the provider"])
def test_a_loop_over_responses_is_ended_and_its_calls_refused(gateway, stream, keeps):
    provider, served = gateway(FOREVER)
    answer, ran = responses_agent(client_of(served), stream=stream, keeps=keeps)
    assert answer.startswith("[loopguard] The run was ended")
    assert ran == 2
    assert len(provider.requests) == 6
    assert provider.requests[-1].json["input"][-1]["type"] == "function_call_output"


@BOTH
def test_a_model_that_listens_to_the_refusal_answers_in_the_same_request(gateway, stream):
    def persona(request):
        refused = any("[loopguard]" in text for text in request.texts("tool"))
        return Reply(text="It cannot be found.") if refused else calls({"id": "A-1"})

    provider, served = gateway(chat(persona))
    answer, ran, _ = chat_agent(client_of(served), stream=stream)
    assert (answer, ran) == ("It cannot be found.", 2)
    assert len(provider.requests) == 4
    served.settled()


@BOTH
def test_stop_alone_ends_with_a_message(gateway, stream):
    provider, served = gateway(LOOPS, Policy(**NO_BLOCK))
    answer, ran, _ = chat_agent(client_of(served), stream=stream)
    assert answer.startswith("[loopguard]")
    assert (ran, len(provider.requests)) == (3, 4)


@BOTH
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_stop_by_error(gateway, stream, api):
    _, served = gateway(LOOPS if api == "chat" else FOREVER, Policy(**NO_BLOCK), on_stop="raise")
    agent = chat_agent if api == "chat" else responses_agent
    with pytest.raises(openai.BadRequestError) as raised:
        agent(client_of(served), stream=stream)
    assert raised.value.body["metadata"] == {"reason": "doom_loop", "detector": "repeated_call"}


@BOTH
def test_stop_with_one_last_answer(gateway, stream):
    """`never_listens` answers only where it may call no tool."""
    provider, served = gateway(LOOPS, Policy(**NO_BLOCK, on_stop={"how": "answer"}))
    answer, _, _ = chat_agent(client_of(served), stream=stream)
    assert answer.startswith("I saw 3 tool result(s)")
    last = provider.requests[-1].json
    assert "tools" not in last
    assert "No tool can be used any more" in last["messages"][-1]["content"]


def test_observing_changes_nothing(gateway):
    seen = []
    guard = LoopGuard("observe", on_loop=lambda event: seen.append((event.action, event.proposed)))
    provider, served = gateway(LOOPS, guard)
    answer, ran, _ = chat_agent(client_of(served), rounds=8)
    assert (answer, ran, len(provider.requests)) == (None, 8, 8)
    assert {action for action, _ in seen} == {"observe"}
    assert "stop" in {proposed for _, proposed in seen}
    assert all(len(asked.json["messages"]) == 1 + 2 * place for place, asked in enumerate(provider.requests))


def test_verdicts_are_in_headers(gateway):
    _, served = gateway(LOOPS)
    client = client_of(served)
    _, _, messages = chat_agent(client, rounds=1)
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, tools=[TOOL])
    assert raw.headers["x-loopguard-verdict"] == "repeated_call; action=observe; streak=2"
    assert raw.headers["x-loopguard-session-id"]


def test_nothing_that_was_said_is_logged(gateway, caplog):
    caplog.set_level("DEBUG", "loopguard")
    _, served = gateway(chat(never_listens("fetch", {"id": "SECRET-ARGUMENT"})))
    messages = [{"role": "user", "content": "SECRET-QUESTION"}]
    chat_agent(client_of(served), messages=messages, result=lambda _: "Error: SECRET-RESULT")
    assert "was ended" in caplog.text
    assert "SECRET" not in caplog.text
    assert served.key not in caplog.text
    assert "SECRET" not in served.app.state.gateway.metrics.text().decode()


def test_several_answers_to_choose_from_are_not_refused(gateway):
    provider, served = gateway(LOOPS)
    client = client_of(served)
    _, _, messages = chat_agent(client, rounds=2)
    done = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], n=2)
    assert done.choices[0].message.tool_calls
    assert len(provider.requests) == 3


def test_a_switched_off_loopguard_still_holds_the_limit(gateway, monkeypatch):
    monkeypatch.setenv("LOOPGUARD_ENABLED", "0")
    provider, served = gateway(LOOPS)
    assert chat_agent(client_of(served), rounds=8)[1] == len(provider.requests) == 8
    with open_ledger(served.store) as ledger:
        ledger.set_limit("team", 0)
    with pytest.raises(openai.APIStatusError, match="spending limit"):
        chat_agent(client_of(served))


def rows(call):
    return f"rows of {call.function.arguments}: {hashlib.sha256(call.function.arguments.encode()).hexdigest()}"


def test_work_that_gets_on_is_left_alone(gateway):
    def persona(request):
        return calls({"page": request.number}) if request.number < 30 else Reply(text="All read.")

    provider, served = gateway(chat(persona))
    answer, ran, _ = chat_agent(client_of(served), rounds=40, result=rows)
    assert (answer, ran, len(provider.requests)) == ("All read.", 29, 30)


def test_limits_of_the_policy_hold_too(gateway):
    def persona(request):
        return calls({"page": request.number})

    provider, served = gateway(chat(persona), Policy(limits={"turns": 5}))
    answer, ran, _ = chat_agent(client_of(served), result=lambda call: call.function.arguments)
    assert "limit of 5" in answer
    assert (ran, len(provider.requests)) == (5, 5)


def test_a_steer_is_put_behind_the_conversation(gateway):
    policy = Policy(ladder={"observe": 2, "steer": 3, "block": False, "stop": False})
    provider, served = gateway(LOOPS, policy)
    chat_agent(client_of(served), rounds=5)
    last = [asked.json["messages"][-1] for asked in provider.requests]
    steered = [message for message in last if message["role"] == "user"]
    assert len(steered) == 2  # the question, and one steer
    assert steered[1]["content"].startswith("[loopguard]")


# -- what a session is -------------------------------------------------------------------------------------------------


def test_a_new_question_begins_a_new_run(gateway):
    _, served = gateway(LOOPS)
    client = client_of(served)
    ended, _, messages = chat_agent(client)
    assert ended.startswith("[loopguard]")
    again, ran, _ = chat_agent(client, messages=[*messages, {"role": "user", "content": "Please try again."}])
    assert again.startswith("[loopguard]")
    assert ran == 2


def test_a_run_that_was_ended_stays_so_without_a_new_question(gateway):
    provider, served = gateway(LOOPS)
    client = client_of(served)
    _, _, messages = chat_agent(client)
    asked = len(provider.requests)
    answer, ran, _ = chat_agent(client, messages=messages)
    assert answer.startswith("[loopguard]")
    assert (ran, len(provider.requests)) == (0, asked)


def test_a_gateway_that_was_started_anew_reads_the_conversation_and_goes_on(gateway):
    _, first = gateway(LOOPS)
    _, ran, messages = chat_agent(client_of(first), rounds=2)
    first.stop()
    provider, second = gateway(LOOPS, key=first.key)
    answer, more, _ = chat_agent(client_of(second), messages=messages)
    assert answer.startswith("[loopguard]")
    assert (ran, more) == (2, 0)
    assert len(provider.requests) == 4  # the third, fourth and fifth are refused, the sixth ends it


def test_branches_of_one_conversation_do_not_mix(gateway):
    """Agents with the same beginning: each has its own streak."""

    def persona(request):
        return calls({"page": request.number, "of": request.raw["user"]})

    provider, served = gateway(chat(persona))
    client = client_of(served)
    histories = {name: [{"role": "user", "content": "Read all."}] for name in ("a", "b", "c")}
    for _ in range(6):
        for name, messages in histories.items():
            done = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], user=name)
            message = done.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": rows(call) + name})
    assert len(provider.requests) == 18
    assert served.metric("loopguard_gateway_verdicts_total") == 0
    assert len(served.app.state.gateway.conversations) == 3


@BOTH
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_conversation_is_one_session_from_its_first_request_to_its_last(gateway, stream, api):
    if api == "chat":
        _, served = gateway(chat(lambda request: calls({"page": request.number})))
        chat_agent(client_of(served), stream=stream, rounds=4, result=lambda call: call.function.arguments)
    else:
        _, served = gateway(responses(lambda items: calls({"page": len(items)})))
        responses_agent(client_of(served), stream=stream, rounds=4)
    shared = served.app.state.gateway
    eventually(lambda: not shared._running)
    assert len(shared.conversations) == len(shared.guard._live) == 1


def test_what_a_run_may_cost_holds_over_its_streams(gateway):
    """Each response is estimated at 2,000 tokens and costs 0.0012 dollars: after two, the run may start no third."""

    def persona(request):
        return calls({"page": request.number, "text": prose(1_000)})

    provider, served = gateway(chat(persona), Policy(limits={"cost": 0.002}))
    answer, ran, _ = chat_agent(client_of(served), stream=True, result=lambda call: call.function.arguments[:20])
    assert answer.startswith("[loopguard] The run was ended")
    assert (ran, len(provider.requests)) == (2, 2)


def custom(number, text):
    call = {"index": 0, "id": f"call-{number}", "type": "custom", "custom": {"name": "shell", "input": ""}}
    more = {"index": 0, "custom": {"input": text}}
    deltas = [{"role": "assistant", "tool_calls": [call]}, {"tool_calls": [more]}]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return stream_of([*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}])


def stream_of(chunks):
    events = [
        b"data: %b\n\n"
        % json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODEL, **chunk}).encode()
        for chunk in chunks
    ]
    return Answer([*events, b"data: [DONE]\n\n"], type="text/event-stream", chunked=True)


@pytest.mark.parametrize("repeats", [False, True])
def test_custom_tools_of_a_stream_are_told_apart_by_their_input(gateway, repeats):
    messages, numbers = [{"role": "user", "content": "Look around."}], iter(range(1, 100))

    def answer(_):
        number = next(numbers)
        return custom(number, "ls" if repeats else f"ls {number}")

    provider, served = gateway(answer)
    for _ in range(8):
        body = {"model": MODEL, "messages": messages, "stream": True}
        with httpx.Client() as client:
            response = client.post(f"{served.base_url}/chat/completions", json=body, headers=served.auth)
        if "x-loopguard-stop" in response.headers:
            break
        number, text = len(provider.requests), "ls" if repeats else f"ls {len(provider.requests)}"
        call = {"id": f"call-{number}", "type": "custom", "custom": {"name": "shell", "input": text}}
        messages += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "Error" if repeats else f"file {number}"}]
    assert ("x-loopguard-stop" in response.headers) is repeats
    refused = [asked.json["messages"] for asked in provider.requests if "[loopguard]" in str(asked.json["messages"])]
    assert bool(refused) is repeats
    if repeats:
        asked, told = refused[-1][-2:]
        assert asked["tool_calls"][0]["custom"] == {"name": "shell", "input": "ls"}
        assert (told["role"], told["tool_call_id"]) == ("tool", asked["tool_calls"][0]["id"])


def test_the_old_function_call_goes_through_until_the_run_is_ended(gateway):
    """It has no id under which it could be answered; a `tool` message behind it would be no conversation."""
    message = {"role": "assistant", "content": None, "function_call": {"name": "fetch", "arguments": "{}"}}
    choice = {"index": 0, "message": message, "finish_reason": "function_call"}
    provider, served = gateway(lambda _: Answer([json.dumps({"id": "c", "choices": [choice]}).encode()]))
    messages = [{"role": "user", "content": "Is invoice A-1 due?"}]
    for _ in range(8):
        with httpx.Client() as client:
            body = {"model": MODEL, "messages": messages}
            response = client.post(f"{served.base_url}/chat/completions", json=body, headers=served.auth)
        if "x-loopguard-stop" in response.headers:
            break
        messages += [message, {"role": "function", "name": "fetch", "content": FAILS}]
    assert len(provider.requests) == 6
    assert all(asked.json["messages"][-1]["role"] != "tool" for asked in provider.requests)


def test_a_provider_that_breaks_off_behind_the_end_has_answered(gateway):
    """Nothing is added to what is whole, and its call is counted once: no loop is found."""
    numbers = iter(range(1, 100))

    def breaks_off():
        raise OSError

    def answer(_):
        number = next(numbers)
        call = {"index": 0, "id": f"c{number}", "type": "function"}
        function = {"name": "fetch", "arguments": json.dumps({"page": number})}
        done = stream_of([{"choices": [{"index": 0, "delta": {"tool_calls": [{**call, "function": function}]}}]}])
        return Answer([*done.pieces, breaks_off], type="text/event-stream", chunked=True)

    _, served = gateway(answer)
    client = client_of(served)
    _, ran, _ = chat_agent(client, rounds=4, stream=True, result=lambda call: call.function.arguments)
    assert ran == 4
    eventually(lambda: not served.app.state.gateway._running)
    assert served.metric("loopguard_gateway_verdicts_total") == 0
    assert served.metric('loopguard_gateway_requests_total{endpoint="chat_completions",outcome="ok"') == 4


def test_a_named_run_shares_its_limits_across_conversations(gateway):
    def persona(request):
        return calls({"page": request.number})

    _, served = gateway(chat(persona), Policy(limits={"tool_calls": 5}))
    client = client_of(served, **{"x-loopguard-session": "job-1"})
    first, ran, _ = chat_agent(client, rounds=3, result=lambda call: call.function.arguments)
    answer, more, _ = chat_agent(
        client, messages=[{"role": "user", "content": "Another part."}], result=lambda call: call.function.arguments
    )
    assert (first, ran) == (None, 3)
    assert ran + more == 5
    assert "[loopguard]" in answer
    client = client_of(served, **{"x-loopguard-session": "job-2"})
    other, many, _ = chat_agent(client, rounds=4, result=lambda call: call.function.arguments)
    assert (other, many) == (None, 4)


def test_a_history_that_was_cut_is_read_anew(gateway):
    _, served = gateway(LOOPS)
    client = client_of(served)
    _, _, messages = chat_agent(client, rounds=2)
    shorter = [{"role": "user", "content": "Summary: invoice A-1 is looked for."}, *messages[1:]]
    answer, ran, _ = chat_agent(client, messages=shorter)
    assert answer.startswith("[loopguard]")
    assert ran == 0


def test_a_conversation_that_cannot_be_read_goes_on_unwatched(gateway):
    odd = {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "y", "input": {}}]}
    _, served = gateway(chat(lambda _: Reply(text="Hm.")))
    messages = [{"role": "user", "content": "?"}, odd, {"role": "user", "content": "??"}]
    answer, _, _ = chat_agent(client_of(served), messages=messages)
    assert answer == "Hm."


def test_no_more_sessions_than_allowed(gateway):
    _, served = gateway(LOOPS, max_sessions=5)
    client = client_of(served)
    for number in range(12):
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Question {number}"}], tools=[TOOL]
        )
    assert len(served.app.state.gateway.conversations) == 5
    assert len(served.app.state.gateway.guard._live) == 5


def test_a_stream_whose_end_gives_no_reason_is_a_whole_response(gateway):
    """Some servers send no `finish_reason`."""
    loops = LOOPS

    def answer(asked):
        whole = loops(asked)
        whole.pieces = [
            piece.replace(b'"finish_reason": "tool_calls"', b'"finish_reason": null') for piece in whole.pieces
        ]
        return whole

    _, served = gateway(answer)
    answered, ran, _ = chat_agent(client_of(served), stream=True)
    assert answered.startswith("[loopguard]")
    assert ran == 2


def test_a_conversation_that_came_to_its_end_takes_no_room(gateway):
    _, served = gateway(chat(lambda _: Reply(text="Yes.")))
    chat_agent(client_of(served))
    assert len(served.app.state.gateway.conversations) == 0
    assert not served.app.state.gateway.guard._live
    assert served.app.state.gateway.guard.last_end.reason == "complete"


# -- what cannot be refused --------------------------------------------------------------------------------------------


def test_a_round_that_is_refused_only_in_part_goes_through_and_is_ended_at_the_stop(gateway):
    def persona(request):
        return calls({"id": "A-1"}, {"page": request.number})

    provider, served = gateway(chat(persona))
    answer, ran, _ = chat_agent(
        client_of(served), result=lambda call: FAILS if "A-1" in call.function.arguments else call.function.arguments
    )
    assert answer.startswith("[loopguard]")
    assert (ran, len(provider.requests)) == (10, 6)


def test_a_refusal_that_the_provider_does_not_take_lets_the_call_through(gateway):
    loops = LOOPS

    def answer(asked):
        refused = any("[loopguard]" in str(message.get("content")) for message in asked.json["messages"])
        return chat(lambda _: Reply(status=400))(asked) if refused else loops(asked)

    _, served = gateway(answer)
    ended, ran, _ = chat_agent(client_of(served), rounds=4)
    assert (ended, ran) == (None, 4)
    served.settled()


def test_refusals_end_where_the_ladder_has_no_stop(gateway):
    provider, served = gateway(LOOPS, Policy(ladder={"stop": False}, limits={"turns": 100}), max_refusals=4)
    answer, ran, _ = chat_agent(client_of(served))
    assert answer.startswith("[loopguard] The run was ended")
    assert (ran, len(provider.requests)) == (2, 7)


def test_refusals_can_be_switched_off(gateway):
    provider, served = gateway(LOOPS, max_refusals=0)
    answer, ran, _ = chat_agent(client_of(served))
    assert answer.startswith("[loopguard]")
    assert (ran, len(provider.requests)) == (5, 6)


# -- text --------------------------------------------------------------------------------------------------------------

CIRCLES = Reply(text="I will check the invoice again and then report. " * 400)


def streamed_text(client, messages):
    chunks = list(client.chat.completions.create(model=MODEL, messages=messages, stream=True))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return said, chunks[-1].choices[0].finish_reason


def test_a_text_loop_is_cut_and_the_stream_ends_well_formed(gateway):
    provider, served = gateway(chat(lambda _: CIRCLES))
    client, question = client_of(served), {"role": "user", "content": "?"}
    said, finish = streamed_text(client, [question])
    assert finish == "length"
    assert 500 < len(said) < 3_000
    assert CIRCLES.text.startswith(said)
    assert served.metric("loopguard_gateway_cut_streams_total") == 1
    again = [question, {"role": "assistant", "content": said}, {"role": "user", "content": "[system] go on"}]
    said, finish = streamed_text(client, again)
    assert "[loopguard] The run was ended" in said
    assert finish == "stop"
    assert provider.requests[-1].json["messages"][-1]["content"].startswith("[loopguard]")


def test_a_text_loop_over_responses_is_cut(gateway):
    _, served = gateway(responses(lambda _: CIRCLES))
    with client_of(served).responses.stream(model=MODEL, input="?") as events:
        seen = list(events)
    kinds = [event.type for event in seen]
    assert kinds[-1] == "response.incomplete"
    assert kinds.count("response.output_text.delta") < 200
    assert CIRCLES.text.startswith(seen[-1].response.output_text)
    assert seen[-1].response.incomplete_details.reason == "max_output_tokens"


def test_usage_after_a_cut_is_estimated_in_the_ledger(gateway):
    _, served = gateway(chat(lambda _: CIRCLES))
    said, _ = streamed_text(client_of(served), [{"role": "user", "content": "?"}])
    assert float(served.status().spent) == pytest.approx(len(said) / 3 * 0.60e-6, rel=0.5)
    served.settled()


def test_json_of_a_closing_message_is_a_whole_completion(gateway):
    _, served = gateway(LOOPS, Policy(**NO_BLOCK))
    client = client_of(served)
    _, _, messages = chat_agent(client)
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages[:-1], tools=[TOOL])
    body = json.loads(raw.text if isinstance(raw.text, str) else raw.text())
    assert body["object"] == "chat.completion"
    assert raw.headers["x-loopguard-stop"] == "doom_loop"


def events_of(response):
    return [json.loads(event.partition("data: ")[2]) for event in response.text.split("\n\n") if "data: {" in event]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_what_the_gateway_writes_is_whole_by_the_clients_own_types(gateway, api):
    """The client itself reads leniently: nothing may be missing that its types promise."""
    types = pytest.importorskip("openai.types")
    pydantic = pytest.importorskip("pydantic")
    answers = (
        chat(lambda _: Reply(text="Hi. " * 900)) if api == "chat" else responses(lambda _: Reply(text="Hi. " * 900))
    )
    _, served = gateway(answers, Policy(**NO_BLOCK))
    question, items, messages = {"role": "user", "content": "Is invoice A-1 due?"}, [], []
    for number in range(5):
        call = {"name": "fetch", "arguments": "{}"}
        items += [{"type": "function_call", "call_id": f"c{number}", **call}]
        items += [{"type": "function_call_output", "call_id": f"c{number}", "output": FAILS}]
        messages += [{"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}]}]
        messages += [{"role": "tool", "tool_call_id": f"c{number}", "content": FAILS}]
    field, path, more = ("messages", "/chat/completions", messages) if api == "chat" else ("input", "/responses", items)
    whole = types.chat.ChatCompletion if api == "chat" else types.responses.Response
    piece = types.chat.ChatCompletionChunk if api == "chat" else types.responses.ResponseStreamEvent
    with httpx.Client() as client:
        body = {"model": MODEL, field: [question, *more], "stream_options": {"include_usage": True}}
        url, headers = served.base_url + path, served.auth
        ended = client.post(url, json=body, headers=headers)
        streamed = client.post(url, json={**body, "stream": True}, headers=headers)
        cut = client.post(url, json={**body, field: [question], "stream": True}, headers=headers)
    assert ended.headers["x-loopguard-stop"] == streamed.headers["x-loopguard-stop"] == "doom_loop"
    pydantic.TypeAdapter(whole).validate_python(ended.json())
    for event in (*events_of(streamed), *events_of(cut)):
        pydantic.TypeAdapter(piece).validate_python(event)
    if api == "chat":
        finishes = [events_of(one)[-2]["choices"][0]["finish_reason"] for one in (streamed, cut)]
        assert finishes == ["stop", "length"]
        assert all(one.text.endswith("data: [DONE]\n\n") for one in (streamed, cut))
    else:
        assert [events_of(one)[-1]["type"] for one in (streamed, cut)] == ["response.completed", "response.incomplete"]
        for one in (streamed, cut):
            assert [event["sequence_number"] for event in events_of(one)] == list(range(len(events_of(one))))
