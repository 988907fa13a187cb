"""The scripted server, driven by the clients people use."""

import asyncio
import http.client
import itertools
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from loopguard_core.testing import (
    ChatRequest,
    Reply,
    ScriptedCall,
    ScriptedServer,
    gives_up_when_refused,
    never_listens,
    script,
)

PRICE = (Decimal("2.5"), Decimal("10"))
TOOL = {"type": "function", "function": {"name": "get_invoice", "parameters": {"type": "object", "properties": {}}}}
ARGUMENTS = {"id": "A-1", "note": "a long enough note to be cut into pieces: 請求書"}
CALL = ScriptedCall("get_invoice", ARGUMENTS)
FULL = Reply(
    text="Let me look that invoice up again.", reasoning="It failed before; once more.", tool_calls=(CALL, CALL)
)
HELLO = [{"role": "user", "content": "Pay invoice A-1"}]


def client(server, **options):
    return openai.OpenAI(base_url=server.base_url, api_key="unused", max_retries=0, **options)


def ask(server, messages=HELLO, **options):
    with client(server) as api:
        return api.chat.completions.create(model="scripted-1", messages=messages, **options)


def assemble(chunks):
    """Puts a stream together as a client does: text, reasoning, calls, finish reason, usage."""
    text, reasoning, calls, finish, usage = "", "", {}, None, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(part.index, {"id": part.id, "name": part.function.name, "arguments": ""})
                call["arguments"] += part.function.arguments or ""
    return text, reasoning, list(calls.values()), finish, usage


def after(*tool_texts, first="Pay invoice A-1"):
    """A history in which the tool has answered with these texts."""
    messages = [{"role": "user", "content": first}]
    for number, text in enumerate(tool_texts, start=1):
        call = {"id": f"call_{number}_0", "type": "function", "function": {"name": "get_invoice", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return messages


def test_a_reply_arrives_whole():
    with ScriptedServer(script([FULL]), price_per_million=PRICE) as server:
        answer = ask(server, tools=[TOOL])
    [choice] = answer.choices
    assert choice.message.content == FULL.text
    assert choice.message.reasoning_content == FULL.reasoning
    assert choice.finish_reason == "tool_calls"
    assert [call.id for call in choice.message.tool_calls] == ["call_1_0", "call_1_1"]
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [ARGUMENTS] * 2


@pytest.mark.parametrize("include_usage", [True, False])
def test_a_stream_carries_the_same_as_the_whole_answer(include_usage):
    with ScriptedServer(script([FULL]), price_per_million=PRICE) as server:
        whole = ask(server, tools=[TOOL])
        options = {"stream_options": {"include_usage": True}} if include_usage else {}
        with client(server) as api:
            chunks = list(
                api.chat.completions.create(model="m", messages=HELLO, tools=[TOOL], stream=True, **options),
            )
    text, reasoning, calls, finish, usage = assemble(chunks)
    message = whole.choices[0].message
    assert (text, reasoning, finish) == (message.content, message.reasoning_content, whole.choices[0].finish_reason)
    assert [(call["id"], call["name"], call["arguments"]) for call in calls] == [
        (call.id, call.function.name, call.function.arguments) for call in message.tool_calls
    ]
    assert len(chunks) > 10
    if include_usage:
        assert usage.model_dump() == whole.usage.model_dump()
        assert chunks[-1].choices == []
    else:
        assert usage is None
    assert len(server.usage_log) == 2


async def test_the_async_client_gets_the_same_answers():
    with ScriptedServer(script([FULL]), price_per_million=PRICE) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0) as api:
            whole = await api.chat.completions.create(model="m", messages=HELLO)
            options = {"include_usage": True}
            stream = await api.chat.completions.create(model="m", messages=HELLO, stream=True, stream_options=options)
            text, _, calls, finish, usage = assemble([chunk async for chunk in stream])
            models = await api.models.list()
    assert text == whole.choices[0].message.content == FULL.text
    assert len(calls) == 2
    assert finish == "tool_calls"
    assert usage.cost == whole.usage.cost > 0
    assert [model.id for model in models.data] == ["scripted-1"]


def test_usage_grows_with_the_history_and_is_priced():
    with ScriptedServer(never_listens("get_invoice", ARGUMENTS), price_per_million=PRICE) as server:
        answers = [ask(server, after(*["not found"] * rounds), tools=[TOOL]) for rounds in range(4)]
    prompts = [answer.usage.prompt_tokens for answer in answers]
    assert prompts == sorted(set(prompts))
    steps = {later - earlier for earlier, later in itertools.pairwise(prompts)}
    assert max(steps) - min(steps) <= 1
    for answer, logged in zip(answers, server.usage_log, strict=True):
        usage = answer.usage
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.prompt_tokens_details.cached_tokens == 0
        assert usage.cost == pytest.approx((2.5 * usage.prompt_tokens + 10 * usage.completion_tokens) / 1e6)
        assert logged["cost"] == usage.cost


def test_without_a_price_there_is_no_cost():
    with ScriptedServer(script([Reply(text="Hi", reasoning="abcdefgh")])) as server:
        usage = ask(server).usage
    assert "cost" not in usage.model_dump()
    assert (usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens) == (3, 2)


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_reply_raises_in_the_client_with_its_body(stream):
    error = {"message": "Key limit exceeded", "code": 402, "metadata": {"limit_source": "openrouter_key_limit"}}
    with (
        ScriptedServer(script([Reply(status=402, error=error)])) as server,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        ask(server, stream=stream)
    assert caught.value.status_code == 402
    assert caught.value.body["code"] == 402
    assert caught.value.body["metadata"] == {"limit_source": "openrouter_key_limit"}
    assert caught.value.response.json()["error"]["message"] == "Key limit exceeded"
    assert server.usage_log == []


def test_never_listens_asks_again_until_it_has_no_tools():
    refused = after("not found", "[loopguard] refused: this call was made 3 times")
    with ScriptedServer(never_listens("get_invoice", ARGUMENTS)) as server:
        again = ask(server, refused, tools=[TOOL]).choices[0]
        forbidden = ask(server, refused, tools=[TOOL], tool_choice="none").choices[0]
        without = ask(server, refused).choices[0]
        nothing = ask(server).choices[0]
    assert again.message.tool_calls[0].function.name == "get_invoice"
    assert again.message.tool_calls[0].id == "call_3_0"
    assert without.finish_reason == "stop"
    assert without.message.content == forbidden.message.content
    assert without.message.content.endswith("The last one says: not found")
    assert nothing.message.content == "I have no results to answer from."


@pytest.mark.parametrize(
    ("result", "answers"),
    [
        pytest.param("not found", False, id="a plain result"),
        pytest.param("[loopguard] refused", True, id="a refusal"),
        pytest.param("Error: [loopguard] refused", True, id="a refusal behind an SDK's prefix"),
        pytest.param([{"type": "text", "text": "[loopguard] refused"}], True, id="a refusal in parts"),
    ],
)
def test_gives_up_when_refused_answers_after_a_refusal(result, answers):
    with ScriptedServer(gives_up_when_refused("get_invoice", ARGUMENTS, answer="I give up.")) as server:
        message = ask(server, after("not found", result), tools=[TOOL]).choices[0].message
    assert message.content == ("I give up." if answers else None)
    assert bool(message.tool_calls) is not answers


def test_a_script_goes_by_the_place_in_the_conversation_and_repeats_its_last_reply():
    with ScriptedServer(script([Reply(text="one"), Reply(text="two")])) as server:
        told = [ask(server, after(*["x"] * rounds)).choices[0].message.content for rounds in (2, 0, 1, 1)]
    assert told == ["two", "one", "two", "two"]


def test_call_ids_stay_unique_where_the_history_was_cut():
    with ScriptedServer(never_listens("get_invoice", {})) as server:
        cut = ask(server, after(*["x"] * 7)[-4:], tools=[TOOL]).choices[0].message.tool_calls
    assert [call.id for call in cut] == ["call_8_0"]


def test_raw_arguments_and_ids_go_out_as_they_are():
    call = ScriptedCall("get_invoice", '{"id": "A-', id="mine")
    with ScriptedServer(script([Reply(tool_calls=(call,))])) as server:
        [whole] = ask(server).choices[0].message.tool_calls
        with client(server) as api:
            _, _, [part], _, _ = assemble(api.chat.completions.create(model="m", messages=HELLO, stream=True))
    assert (whole.id, whole.function.arguments) == (part["id"], part["arguments"]) == ("mine", '{"id": "A-')


def converse(server, name):
    """Runs one conversation of five model calls and returns every call's arguments."""
    seen, messages = [], [{"role": "user", "content": name}]
    with client(server) as api:
        for number in range(5):
            stream = api.chat.completions.create(model=name, messages=messages, tools=[TOOL], stream=number % 2 == 0)
            if number % 2 == 0:
                _, _, [call], _, _ = assemble(stream)
            else:
                [made] = stream.choices[0].message.tool_calls
                call = {"id": made.id, "arguments": made.function.arguments}
            seen.append((call["id"], call["arguments"]))
            function = {"name": "get_invoice", "arguments": call["arguments"]}
            asked = {"id": call["id"], "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [asked]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "no"})
    return seen


def test_conversations_at_the_same_time_do_not_mix():
    def echo(request: ChatRequest) -> Reply:
        return Reply(tool_calls=(ScriptedCall("get_invoice", {"who": request.texts("user")[0], "n": request.number}),))

    names = [f"agent-{number}" for number in range(20)]
    with ScriptedServer(echo) as server, ThreadPoolExecutor(len(names)) as pool:
        found = list(pool.map(lambda name: converse(server, name), names))
    assert found == [[(f"call_{n}_0", json.dumps({"who": name, "n": n})) for n in range(1, 6)] for name in names]
    assert len(server.requests) == len(server.usage_log) == 100
    assert sorted({request["model"] for request in server.requests}) == sorted(names)


async def test_many_async_streams_at_the_same_time_do_not_mix():
    with ScriptedServer(lambda request: Reply(text=request.texts("user")[0] * 20)) as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="unused", max_retries=0) as api:

            async def run(name):
                messages = [{"role": "user", "content": name}]
                stream = await api.chat.completions.create(model="m", messages=messages, stream=True)
                return assemble([chunk async for chunk in stream])[0]

            names = [f"agent-{number} " for number in range(20)]
            assert await asyncio.gather(*map(run, names)) == [name * 20 for name in names]


def test_a_client_that_leaves_in_the_middle_is_counted_and_nothing_is_printed(capfd):
    with ScriptedServer(script([Reply(text="and again " * 20_000)])) as server:
        with client(server) as api, api.chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
            next(iter(stream))
        deadline = time.monotonic() + 5
        while server.disconnects == 0 and time.monotonic() < deadline:
            assert ask(server).choices[0].finish_reason == "stop"
        assert server.disconnects == 1
    assert capfd.readouterr() == ("", "")


def test_stopping_hangs_up_on_a_client_that_does_not_read(capfd):
    server = ScriptedServer(script([Reply(text="and again " * 20_000)])).start()
    with client(server) as api, api.chat.completions.create(model="m", messages=HELLO, stream=True) as stream:
        chunks = iter(stream)
        next(chunks)
        server.stop()
        with pytest.raises(Exception) as gone:  # noqa: PT011  # before openai 3 its HTTP library's own
            list(chunks)
    assert isinstance(gone.value, openai.APIError) or type(gone.value).__name__ == "RemoteProtocolError"
    assert server.disconnects == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        pytest.param("POST", "/v1/responses", b"{}", 404, id="another endpoint"),
        pytest.param("GET", "/v1/nothing", None, 404, id="an unknown path"),
        pytest.param("POST", "/v1/chat/completions", b"{", 400, id="no JSON"),
        pytest.param("POST", "/v1/chat/completions", b"\xff", 400, id="no text"),
        pytest.param("POST", "/v1/chat/completions", b"[]", 400, id="no object"),
        pytest.param("POST", "/v1/chat/completions", b"[" * 100_000, 400, id="nested too deep"),
        pytest.param("POST", "/v1/chat/completions", b'{"messages": "hi"}', 400, id="no messages"),
        pytest.param("POST", "/v1/chat/completions", b'{"messages": [], "tools": 3}', 400, id="no tools"),
        pytest.param("PUT", "/v1/models", b"{}", 501, id="another method"),
    ],
)
def test_what_it_cannot_serve_is_answered_in_json(method, path, body, status):
    with ScriptedServer(script([Reply(text="Hi")])) as server:
        connection = http.client.HTTPConnection(server.base_url.removeprefix("http://").removesuffix("/v1"))
        connection.request(method, path, body)
        response = connection.getresponse()
        assert response.status == status
        assert json.loads(response.read())["error"]["code"] == status
        # The connection is left usable, or closed and opened anew.
        connection.request("GET", "/v1/models?limit=1")
        assert json.loads(connection.getresponse().read())["data"][0]["id"] == "scripted-1"
        connection.close()
    assert server.requests == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Transfer-Encoding": "chunked"}, 411), ({"Content-Length": "-1"}, 411), ({"Content-Length": "9" * 9}, 413)],
)
def test_a_body_it_will_not_read_ends_the_connection(headers, status):
    with ScriptedServer(script([Reply(text="Hi")])) as server:
        connection = http.client.HTTPConnection(server.base_url.removeprefix("http://").removesuffix("/v1"))
        connection.request("POST", "/v1/chat/completions", headers=headers)
        response = connection.getresponse()
        assert (response.status, response.getheader("Connection")) == (status, "close")
        connection.close()


def test_a_persona_that_returns_no_reply_is_told_to_the_client():
    with ScriptedServer(lambda request: "hello") as server, pytest.raises(openai.InternalServerError) as told:
        ask(server)
    assert "a persona returns a Reply, not a str" in str(told.value)


def test_a_persona_that_raises_is_told_to_the_client_once(caplog):
    def broken(request):
        raise KeyError("no such line")

    with ScriptedServer(broken) as server, pytest.raises(openai.InternalServerError, match="no such line"):
        openai.OpenAI(base_url=server.base_url, api_key="unused").chat.completions.create(model="m", messages=HELLO)
    assert len(server.requests) == 1
    assert [record.name for record in caplog.records if record.levelname == "WARNING"] == ["loopguard.testing"]


def test_requests_are_a_copy_and_outlive_the_server():
    server = ScriptedServer(script([Reply(text="Hi")])).start()
    ask(server)
    server.requests.clear()
    server.stop()
    server.stop()
    assert [request["messages"] for request in server.requests] == [HELLO]
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.base_url
    with server:
        ask(server)
        with pytest.raises(RuntimeError, match="already running"):
            server.start()
    assert len(server.requests) == 2


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.com", "", "::1"])
def test_only_loopback_is_allowed(host):
    with pytest.raises(ValueError, match="loopback only"):
        ScriptedServer(script([Reply(text="Hi")]), host=host)


def test_localhost_is_allowed():
    with ScriptedServer(script([Reply(text="Hi")]), host="localhost") as server:
        assert server.base_url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("options", [{"status": 200, "error": {}}, {"status": 302}, {"status": 999}])
def test_a_reply_that_cannot_be_sent_is_refused(options):
    with pytest.raises(ValueError, match=r"Reply\.(status|error)"):
        Reply(**options)


def test_an_empty_script_is_refused():
    with pytest.raises(ValueError, match="at least one Reply"):
        script([])


def test_the_server_needs_no_third_party_package():
    # -S leaves site-packages out; parent packages, which need some, are stood in for by empty ones.
    code = (
        "import sys, types\n"
        "for name, path in (('loopguard_core', sys.argv[1] + '/..'), ('loopguard_core.testing', sys.argv[1])):\n"
        "    sys.modules[name] = types.ModuleType(name); sys.modules[name].__path__ = [path]\n"
        "import loopguard_core.testing.scripted_server"
    )
    import loopguard_core.testing as package

    [folder] = package.__path__
    run = subprocess.run([sys.executable, "-S", "-c", code, folder], capture_output=True, text=True)
    assert run.stderr == ""


# With langchain-openai ------------------------------------------------------------------------------------------------


@tool
def get_invoice(id: str) -> str:  # noqa: A002 - the argument's name is the model's
    """Looks an invoice up."""
    return "not found"


def chat(server, **options):
    return ChatOpenAI(base_url=server.base_url, api_key="unused", model="scripted-1", max_retries=0, **options)


def test_langchain_invoke_sees_calls_usage_and_cost():
    with ScriptedServer(script([FULL]), price_per_million=PRICE) as server:
        message = chat(server).bind_tools([get_invoice]).invoke("Pay invoice A-1")
    assert message.content == FULL.text
    assert [(call["id"], call["args"]) for call in message.tool_calls] == [
        ("call_1_0", ARGUMENTS),
        ("call_1_1", ARGUMENTS),
    ]
    assert message.usage_metadata["total_tokens"] == server.usage_log[0]["total_tokens"]
    assert message.response_metadata["token_usage"]["cost"] == server.usage_log[0]["cost"]
    assert server.requests[0]["tools"][0]["function"]["name"] == "get_invoice"


@pytest.mark.parametrize("stream_usage", [True, None])
def test_langchain_stream_assembles_to_the_same_message(stream_usage):
    with ScriptedServer(script([FULL]), price_per_million=PRICE) as server:
        chunks = list(chat(server, stream_usage=stream_usage).bind_tools([get_invoice]).stream("Pay invoice A-1"))
    message = sum(chunks[1:], chunks[0])
    assert message.content == FULL.text
    assert [(call["id"], call["args"]) for call in message.tool_calls] == [
        ("call_1_0", ARGUMENTS),
        ("call_1_1", ARGUMENTS),
    ]
    # With a base_url of its own the client asks for usage only where it is told to.
    assert server.requests[0].get("stream_options") == ({"include_usage": True} if stream_usage else None)
    assert (message.usage_metadata is not None) is bool(stream_usage)


def test_langchain_conversation_goes_on_from_its_own_history():
    persona = gives_up_when_refused("get_invoice", {"id": "A-1"}, answer="I give up.")
    with ScriptedServer(persona) as server:
        model = chat(server).bind_tools([get_invoice])
        messages = [HumanMessage("Pay invoice A-1")]
        for result in ("not found", "[loopguard] refused", None):
            answer = model.invoke(messages)
            assert isinstance(answer, AIMessage)
            messages.append(answer)
            messages += [ToolMessage(result, tool_call_id=call["id"]) for call in answer.tool_calls]
    assert answer.content == "I give up."
    assert [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls] == [
        "call_1_0",
        "call_2_0",
    ]
