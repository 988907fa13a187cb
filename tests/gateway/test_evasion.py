"""What somebody would try who wants more from a key than its limit, or what is not his."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import httpx
import pytest
from loopguard_gateway_kit import MODEL, UPSTREAM_KEY, Answer, Reset, chat, eventually, prose, zipped

from loopguard_core import Policy
from loopguard_core.testing import Reply

MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT = {"model": MODEL, "messages": MESSAGES, "max_tokens": 100}
ITEMS = {"model": MODEL, "input": "Hello", "max_output_tokens": 100}
HELLO = chat(lambda _: Reply(text="Hello."))
A_MILLION = 0.60e-6  # US dollars a token that gpt-4o-mini says


def post(served, body=CHAT, path="/chat/completions", *, content=None, headers=None):
    content = json.dumps(body).encode() if content is None else content
    with httpx.Client(timeout=30) as client:
        return client.post(served.base_url + path, content=content, headers={**served.auth, **(headers or {})})


def raw(served, head, body=b""):
    """What is answered to bytes that no client library would send."""
    host, port = served.origin.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        authorization = f"authorization: Bearer {served.key}\r\nconnection: close\r\n"
        connection.sendall(f"{head} HTTP/1.1\r\nhost: x\r\n{authorization}".encode())
        connection.sendall(f"content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return int(answer.split(b" ", 2)[1])


def completion(content="Hello.", usage=None):
    message = {"role": "assistant", "content": content}
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": MODEL, "usage": usage}
    return json.dumps({**body, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()


def stream(*chunks, done=True):
    events = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks]
    return Answer([*events, *([b"data: [DONE]\n\n"] if done else [])], type="text/event-stream", chunked=True)


def delta(index=0, **fields):
    return {"id": "c1", "model": MODEL, "choices": [{"index": index, "delta": fields}]}


# -- how much may come back ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"max_tokens": 1_000_000, "max_completion_tokens": 1}, 402),
        ({"max_tokens": 1, "max_completion_tokens": 1_000_000}, 402),
        ({"max_tokens": 1_000_000.0}, 402),
        ({"max_tokens": -1}, 402),
        ({"max_tokens": None}, 402),
        ({"max_tokens": 10**300}, 402),
        ({"n": 1_000.0}, 402),
        ({"best_of": 1_000}, 402),
        ({"n": 2, "best_of": 1_000}, 402),
        ({"max_tokens": "1000000"}, 400),
        ({"max_tokens": 10.5}, 400),
        ({"max_tokens": True}, 400),
        ({"n": "1000"}, 400),
        ({"n": [5]}, 400),
        ({"stream": "true"}, 400),
        ({"stream": 1}, 400),
    ],
    ids=str,
)
def test_what_may_come_back_is_the_most_that_any_provider_could_read(gateway, fields, status):
    provider, served = gateway(HELLO, limit="0.005")
    refused = post(served, {**CHAT, **fields})
    assert refused.status_code == status
    if status == 400:
        assert f"`{next(iter(fields))}` must be" in refused.json()["error"]["message"]
    assert provider.requests == []
    assert post(served, {**CHAT, "max_tokens": 100.0, "n": 1, "stream": None}).status_code == 200


@pytest.mark.parametrize("background", [True, 1, "true", {}])
def test_no_background_by_another_word(gateway, background):
    provider, served = gateway(HELLO)
    refused = post(served, {**ITEMS, "background": background}, "/responses")
    assert refused.status_code == 400
    assert "`background`" in refused.json()["error"]["message"]
    assert provider.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        '"max_tokens": 1000000, "max_tokens": 1',
        '"max_tokens": 1, "Max_Tokens": 1000000',
        '"MAX_TOKENS": 1000000',
        '"model": "gpt-4o", "model": "gpt-4o-mini"',
        '"stream": true, "stream": false',
    ],
)
def test_a_field_that_two_readers_could_read_in_two_ways(gateway, fields):
    provider, served = gateway(HELLO)
    content = f'{{{fields}, "messages": [{{"role": "user", "content": "Hello"}}]}}'.encode()
    refused = post(served, content=content)
    assert refused.status_code == 400
    assert "must be there once" in refused.json()["error"]["message"]
    assert provider.requests == []
    within = b'{"model": "gpt-4o-mini", "messages": [{"role": "user", "role": "user", "content": "x"}], "Own": 1}'
    assert post(served, content=within).status_code == 200


def test_text_that_begins_like_a_picture_is_text(gateway):
    provider, served = gateway(HELLO, limit="0.05")
    body = {**CHAT, "messages": [{"role": "user", "content": "data:image/png;base64," + "x" * 3_000_000}]}
    assert post(served, body).status_code == 402
    assert provider.requests == []


# -- what came, where nobody says so ---------------------------------------------------------------------------


def test_all_answers_of_a_stream_without_usage_are_counted(gateway):
    """Eight to choose from, of 3,000 characters each."""
    _, served = gateway(lambda _: stream(*[delta(place, content=prose(500)) for place in range(8)]))
    assert post(served, {**CHAT, "stream": True, "n": 8}).status_code == 200
    assert float(served.status().spent) == pytest.approx(8 * 1_000 * A_MILLION, rel=0.05)


def test_what_only_one_provider_has_a_field_for_is_counted(gateway):
    _, served = gateway(lambda _: stream(delta(reasoning_details=[{"type": "reasoning.text", "text": prose(500)}])))
    assert post(served, {**CHAT, "stream": True}).status_code == 200
    assert float(served.status().spent) == pytest.approx(1_000 * A_MILLION, rel=0.05)


THOUGHT = {"prompt_tokens": 20, "completion_tokens": 9_000, "total_tokens": 9_020}


def thinks_unseen(asked):
    """A model that reasons where nobody sees it, and says so only to those who ask."""
    if not (asked.json.get("stream_options") or {}).get("include_usage"):
        return stream(delta(content="Yes."))
    return stream(delta(content="Yes."), {"id": "c1", "model": MODEL, "choices": [], "usage": THOUGHT})


@pytest.mark.parametrize("ask", [False, True])
def test_reasoning_that_is_not_shown_is_counted_where_the_provider_may_be_asked(gateway, ask):
    provider, served = gateway(thinks_unseen, ask_usage=ask)
    body = {**CHAT, "stream": True, "stream_options": {"include_obfuscation": False}}
    response = post(served, body)
    assert response.content == b"".join(stream(delta(content="Yes.")).pieces)
    assert served.status().spent == pytest.approx(Decimal("0.005403") if ask else Decimal(0), abs=Decimal("0.0001"))
    options = {"include_obfuscation": False, **({"include_usage": True} if ask else {})}
    assert provider.requests[0].json == {**body, "stream_options": options}


def test_who_asks_for_the_usage_gets_it(gateway):
    provider, served = gateway(thinks_unseen, ask_usage=True)
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    assert b'"usage": {"prompt_tokens": 20' in post(served, body).content
    assert provider.requests[0].json == body
    post(served, CHAT)
    assert provider.requests[1].json == CHAT


def test_a_total_alone_has_no_price_and_is_estimated(gateway):
    _, served = gateway(lambda _: Answer([completion(prose(500), {"total_tokens": 1_000})]))
    assert post(served).status_code == 200
    assert float(served.status().spent) == pytest.approx(1_000 * A_MILLION, rel=0.1)
    assert served.metric("loopguard_gateway_estimated_calls_total") == 1


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -5_000_000, "completion_tokens": -5_000_000},
        {"prompt_tokens": 10.5, "completion_tokens": 3},
        {"prompt_tokens": 10**40, "completion_tokens": 1},
        {"cost": -5},
        {"cost": "NaN"},
        {"cost": 1e300},
        "many",
    ],
    ids=str,
)
def test_usage_that_cannot_be_is_no_usage(gateway, usage):
    _, served = gateway(lambda _: Answer([completion(prose(500), usage)]))
    assert post(served).status_code == 200
    assert float(served.status().spent) == pytest.approx(1_000 * A_MILLION, rel=0.15)


@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b""], ids=["done", "no end"])
def test_a_stream_of_garbage_is_counted_by_its_size(gateway, done):
    garbage = [b"\x01nothing\n\n" * 600, b"half an event" * 200]
    _, served = gateway(lambda _: Answer([*garbage, done], type="text/event-stream", chunked=True))
    response = post(served, {**CHAT, "stream": True})
    assert response.content == b"".join([*garbage, done])
    assert float(served.status().spent) == pytest.approx(8_600 / 3 * A_MILLION, rel=0.2)


def test_comments_that_keep_a_stream_open_cost_nothing(gateway):
    _, served = gateway(lambda _: Answer([b": waiting\n\n" * 600], type="text/event-stream", chunked=True))
    post(served, {**CHAT, "stream": True})
    assert float(served.status().spent) < 60 * A_MILLION


def test_a_whole_answer_that_nobody_waited_for_is_counted_to_its_end(gateway):
    """The provider may go on to write it. An agent with too short a timeout would spend without end."""
    provider, served = gateway(lambda _: (provider.hang(), Answer([completion()]))[1])
    body = {**CHAT, "max_tokens": 5_000, "n": 2}
    with httpx.Client() as client, pytest.raises(httpx.ReadTimeout):
        client.post(f"{served.base_url}/chat/completions", json=body, headers=served.auth, timeout=0.5)
    status = eventually(lambda: (now := served.status()).spent and not now.reserved and now)
    assert float(status.spent) == pytest.approx(10_000 * A_MILLION, rel=0.01)


def test_an_answer_that_breaks_off_is_counted_to_its_end(gateway):
    def reset():
        raise Reset

    _, served = gateway(lambda _: Answer([b'{"choices": [', reset], chunked=True))
    assert post(served, {**CHAT, "max_tokens": 5_000}).status_code == 502
    assert float(served.settled().spent) == pytest.approx(5_000 * A_MILLION, rel=0.01)


@pytest.mark.parametrize("status", [301, 302, 304, 307, 418, 499, 529])
def test_what_is_no_answer_costs_nothing(gateway, status):
    body = [] if status == 304 else [b'{"error": {}}']
    _, served = gateway(lambda _: Answer(body, status, headers={"location": "/elsewhere"}))
    assert post(served).status_code == status
    assert served.settled().spent == 0


# -- what is not the client's ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../files",
        "/v1/models/%2e%2e/files",
        "/v1/models/..%2ffiles/file-1/content",
        "/v1/models/x/../../chat/completions",
        "/v1/models%2F../files",
        "/v1/models/%252e%252e/files",
        "/v1/models/.../x",
        "/v1/models/a//b",
        "/v1/models/a%5c..%5cb",
        "/v1/models/x%3fy=1",
        "/v1/models/x%23y",
    ],
)
def test_no_path_leads_out_of_the_models(gateway, path):
    provider, served = gateway(lambda _: Answer([b"{}"]))
    assert raw(served, f"GET {path}") == 404
    assert provider.requests == []


def test_names_of_models_are_passed_on(gateway):
    provider, served = gateway(lambda _: Answer([b"{}"]))
    for name in ("gpt-4o-mini", "openai/gpt-4o:online", "ft%3Agpt-4o%3Aorg", "claude@20240229"):
        assert raw(served, f"GET /v1/models/{name}") == 200
    assert [asked.path.removeprefix("/v1/models/") for asked in provider.requests] == [
        "gpt-4o-mini",
        "openai/gpt-4o:online",
        "ft:gpt-4o:org",
        "claude@20240229",
    ]


@pytest.mark.parametrize("path", ["/v1/chat%2Fcompletions", "/%761/chat/completions"])
def test_the_provider_is_asked_at_one_address_only(gateway, path):
    provider, served = gateway(HELLO)
    assert raw(served, f"POST {path}", json.dumps(CHAT).encode()) == 200
    assert provider.requests[0].path == "/v1/chat/completions"


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize(
    ("type_", "packed"),
    [("application/json", False), ("application/json", True), ("text/event-stream", False)],
    ids=["plain", "gzip", "stream"],  # streams are never asked for in gzip
)
def test_the_providers_key_is_in_no_answer_of_any_kind(gateway, type_, status, packed):
    event = json.dumps({"error": {"message": f"Incorrect API key: {UPSTREAM_KEY}"}}).encode()
    body = b"data: %b\n\ndata: %b" % (event, event) if "event" in type_ else event
    headers = {"content-encoding": "gzip"} if packed else {}
    _, served = gateway(lambda _: Answer([zipped(body) if packed else body], status, type=type_, headers=headers))
    response = post(served, {**CHAT, "stream": "event" in type_}, headers={"accept-encoding": "gzip"})
    assert response.status_code == status
    assert UPSTREAM_KEY not in response.text
    assert "[the provider's key]" in response.text
    assert "content-encoding" not in response.headers


def test_the_clients_key_reaches_no_provider(gateway):
    provider, served = gateway(HELLO)
    for query in (f"?key={served.key}", "?key=" + "".join(f"%{ord(letter):02x}" for letter in served.key)):
        refused = post(served, path="/chat/completions" + query)
        assert refused.status_code == 400
        assert served.key not in refused.text
    assert provider.requests == []
    assert post(served, headers={"x-goog-api-key": served.key, "x-own": "1"}).status_code == 200
    assert served.key not in str(provider.requests[0])
    assert provider.requests[0].headers["x-own"] == "1"


# -- more than there is room for -------------------------------------------------------------------------------


def test_a_body_that_grows_when_it_is_parsed_is_refused(gateway):
    provider, served = gateway(HELLO, limit="50")
    refused = post(served, content=b'{"messages": [' + b"[]," * 1_000_000 + b"[]]}")
    assert refused.status_code == 413
    assert "brackets and commas" in refused.json()["error"]["message"]
    assert provider.requests == []
    code = "if (a[0]) { b(c, d); }\n" * 200_000  # 4.6 MB, far more than a model reads
    assert post(served, {**CHAT, "messages": [{"role": "user", "content": code}]}).status_code == 200


def test_requests_take_no_more_memory_together_than_they_may(gateway):
    provider, served = gateway(lambda _: (provider.hang(), Answer([completion()]))[1], max_memory=5_000_000, limit="50")
    large = {**CHAT, "messages": [{"role": "user", "content": "x" * 2_000_000}]}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, served, large)
        eventually(lambda: provider.requests)
        refused = post(served, large)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert len(provider.requests) == 1
        provider.release.set()
        assert running.result().status_code == 200
    assert post(served, large).status_code == 200
    eventually(lambda: served.app.state.gateway._room.free == 5_000_000)


def test_brackets_in_a_text_take_no_more_than_other_text(gateway):
    """Until it is parsed nobody knows; a request that waits for the provider has given back what it did not need."""
    provider, served = gateway(lambda _: (provider.hang(), Answer([completion()]))[1], max_memory=5_000_000)
    code = {**CHAT, "messages": [{"role": "user", "content": "[a, b]" * 15_000}]}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, served, code)
        eventually(lambda: provider.requests)
        second = pool.submit(post, served, code)
        eventually(lambda: len(provider.requests) == 2)
        provider.release.set()
        assert {first.result().status_code, second.result().status_code} == {200}


def test_a_stream_that_never_ends_is_ended(gateway):
    def endless():
        while True:
            yield b'data: {"choices": []}\n\n' * 1_000

    _, served = gateway(lambda _: Answer(endless(), type="text/event-stream", chunked=True), max_answer=1_000_000)
    response = post(served, {**CHAT, "stream": True})
    assert "more than 1000000 bytes" in response.text
    assert "[DONE]" not in response.text
    assert served.settled().spent > 0


@pytest.mark.parametrize(
    "messages",
    [
        [*MESSAGES, *[{"role": "assistant", "content": "x"}] * 10_001],
        [*MESSAGES, {"role": "assistant", "content": "x" * 9_000_000}],
        [*MESSAGES, {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}] * 30_000}],
    ],
    ids=["messages", "text", "calls"],
)
def test_a_conversation_larger_than_any_model_reads_is_counted_and_not_read(gateway, messages):
    """To read it would take so long that nobody else would be served meanwhile."""
    _, served = gateway(HELLO, limit="50")
    response = post(served, {**CHAT, "messages": messages})
    assert response.status_code == 200
    assert "x-loopguard-session-id" not in response.headers
    assert served.status().spent > 0


# -- values of any kind ----------------------------------------------------------------------------------------


def test_half_characters_go_to_the_provider_as_they_came(gateway):
    """Also in a request that a steer was added to: what is no UTF-8 would be refused from then on."""
    provider, served = gateway(HELLO, Policy(ladder={"observe": 2, "steer": 3, "block": False, "stop": 9}))
    rounds = []
    for number in range(4):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "fetch", "arguments": "{}"}}
        rounds += [{"role": "assistant", "tool_calls": [call]}]
        rounds += [{"role": "tool", "tool_call_id": f"c{number}", "content": "Error \ud800"}]
    for end in (4, 6, 8):
        assert post(served, {**CHAT, "messages": [*MESSAGES, *rounds[:end]]}).status_code == 200
    steered = [asked.json for asked in provider.requests if asked.json["messages"][-1]["role"] == "user"]
    assert steered
    assert "\ud800" in steered[0]["messages"][-2]["content"]
    for asked in provider.requests:
        asked.body.decode("utf-8")
