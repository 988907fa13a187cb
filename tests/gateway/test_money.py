"""Spending limits: they hold whatever the client does, and the ledger is right after whatever happens."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import httpx
import openai
import pytest
from loopguard_gateway._till import Till, _Owed
from loopguard_gateway_kit import MODEL, Answer, Reset, calls, chat, eventually, prose, responses, zipped

from loopguard_core import LoopGuard, Policy, is_key_limit
from loopguard_core.keys import open_keyring, open_ledger
from loopguard_core.testing import Reply

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100}
STREAMED = {**CHAT, "stream": True}
HELLO = chat(lambda _: Reply(text="Hello."))
# gpt-4o-mini: 0.15 and 0.60 US dollars a million tokens
USED = {"prompt_tokens": 1_000_000, "completion_tokens": 100_000, "total_tokens": 1_100_000}
COST = Decimal("0.21")


def completion(usage):
    message = {"role": "assistant", "content": "Hello."}
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": MODEL, "usage": usage}
    return {**body, "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]}


def costly(_):
    return Answer([json.dumps(completion(USED)).encode()])


def post(served, body=CHAT, path="/chat/completions", **options):
    with httpx.Client(timeout=30) as client:
        return client.post(served.base_url + path, json=body, headers={**served.auth, **options.pop("headers", {})})


def test_what_a_call_cost_is_counted_in_full(gateway):
    _, served = gateway(costly)
    assert post(served).status_code == 200
    assert served.settled().spent == COST
    assert served.metric("loopguard_gateway_cost_dollars_total") == pytest.approx(0.21)


def test_over_the_limit_it_is_402_in_the_form_of_the_contract(gateway):
    provider, served = gateway(costly, limit="0.20")
    assert post(served).status_code == 200
    refused = post(served)
    assert refused.status_code == 402
    body = refused.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "metadata"}
    assert body["error"]["code"] == 402
    assert body["error"]["metadata"] == {"limit_source": "loopguard_key_limit"}
    assert "team" in body["error"]["message"]
    assert len(provider.requests) == 1


def test_the_openai_client_says_so(gateway):
    _, served = gateway(costly, limit="0")
    client = openai.OpenAI(base_url=served.base_url, api_key=served.key)
    for call in (
        lambda: client.chat.completions.create(**CHAT),
        lambda: client.chat.completions.create(**STREAMED),
        lambda: client.responses.create(model=MODEL, input="Hello"),
        lambda: client.responses.create(model=MODEL, input="Hello", stream=True),
    ):
        with pytest.raises(openai.APIStatusError) as raised:
            call()
        assert raised.value.status_code == 402
        assert raised.value.body["metadata"] == {"limit_source": "loopguard_key_limit"}
        assert is_key_limit(raised.value)


def test_the_worst_case_must_fit(gateway):
    """0.60 dollars a million: 16,384 tokens that nobody bounded are about a cent, 100 are not."""
    provider, served = gateway(HELLO, limit="0.005")
    unbounded = {key: value for key, value in CHAT.items() if key != "max_tokens"}
    assert post(served, unbounded).status_code == 402
    assert post(served, {**CHAT, "max_tokens": 16_000}).status_code == 402
    assert post(served, {**CHAT, "max_completion_tokens": 16_000}).status_code == 402
    assert post(served, {**CHAT, "n": 100}).status_code == 402
    assert (
        post(served, {"model": MODEL, "input": "Hello", "max_output_tokens": 16_000}, "/responses").status_code == 402
    )
    assert provider.requests == []
    assert post(served).status_code == 200


def test_calls_that_start_together_do_not_exceed_the_limit(gateway):
    """Each holds its worst case, so of twenty that would fit alone only those start that fit together."""
    provider, served = gateway(
        lambda _: Answer(
            [b'data: {"choices": []}\n\n', lambda: provider.hang(), b"data: [DONE]\n\n"],
            type="text/event-stream",
            chunked=True,
        ),
        limit="0.03",
    )
    body = {**STREAMED, "max_tokens": 16_384}
    with ThreadPoolExecutor(20) as pool:
        started = [pool.submit(post, served, body) for _ in range(20)]
        eventually(lambda: sum(one.done() for one in started) == 17)
        assert served.status().reserved <= Decimal("0.03")
        provider.release.set()
        statuses = sorted(one.result().status_code for one in started)
    assert statuses == [200] * 3 + [402] * 17
    assert len(provider.requests) == 3


def test_a_key_tells_what_is_left(gateway):
    _, served = gateway(costly, limit="5")
    post(served)
    with httpx.Client() as client:
        data = client.get(f"{served.base_url}/key", headers=served.auth).json()["data"]
        assert client.get(f"{served.base_url}/key").status_code == 401
    assert data["label"] == "team"
    assert (data["limit"], data["usage"], data["limit_remaining"]) == (5.0, 0.21, 4.79)
    assert data["limit_reset"] is None


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer lg-wrong"}, {"authorization": "Basic x"}, {"authorization": "Bearer sk-x"}],
    ids=["none", "wrong", "basic", "another kind"],
)
def test_without_a_key_nothing_is_served(gateway, headers):
    provider, served = gateway(HELLO)
    with httpx.Client() as client:
        response = client.post(f"{served.base_url}/chat/completions", json=CHAT, headers=headers)
    assert response.status_code == 401
    assert "loopguard key create" in response.json()["error"]["message"]
    assert provider.requests == []


def test_a_revoked_key_opens_nothing_any_more(gateway):
    _, served = gateway(HELLO)
    assert post(served).status_code == 200
    with open_keyring(served.store) as keyring:
        keyring.revoke("team")
    assert post(served).status_code == 401


def test_the_policys_key_counts_every_client(gateway, store):
    policy = Policy(key={"name": "all", "limit": "0.30"})
    _, served = gateway(costly, policy, limit=None)
    with open_keyring(store) as keyring:
        other = keyring.create("other")
    assert post(served).status_code == 200
    assert post(served, headers={"authorization": f"Bearer {other}"}).status_code == 200
    assert post(served).status_code == 402
    assert [served.status(name).spent for name in ("team", "other", "all")] == [COST, COST, 2 * COST]


# -- prices and tokens nobody reported ---------------------------------------------------------------------------------


def test_a_model_without_a_price_is_refused_where_a_limit_is_to_hold(gateway, store):
    provider, served = gateway(HELLO)
    body = {**CHAT, "model": "somebodys-own"}
    refused = post(served, body)
    assert refused.status_code == 403
    assert "limits.unpriced" in refused.json()["error"]["message"]
    assert provider.requests == []
    with open_ledger(store) as ledger:
        ledger.set_limit("team", None)
    assert post(served, body).status_code == 200


def test_the_policy_gives_it_a_price(gateway):
    _, served = gateway(HELLO, Policy(limits={"unpriced": 1_000}), limit="5")
    assert post(served, {**CHAT, "model": "somebodys-own"}).status_code == 200
    assert 0 < served.status().spent < 1
    assert post(served, {**CHAT, "model": "somebodys-own", "max_tokens": 10_000}).status_code == 402


def test_what_the_provider_says_it_cost_wins(gateway):
    _, served = gateway(lambda _: Answer([json.dumps(completion({**USED, "cost": 0.5})).encode()]))
    post(served)
    assert served.status().spent == Decimal("0.50")


def test_a_stream_without_usage_is_estimated_and_the_request_is_left_alone(gateway):
    provider, served = gateway(chat(lambda _: Reply(text=prose(3_000))))
    assert post(served, {**STREAMED, "max_tokens": 5_000}).status_code == 200
    assert "stream_options" not in provider.requests[0].json
    tokens = 18_000 / 3
    assert float(served.status().spent) == pytest.approx(tokens * 0.60e-6, rel=0.4)
    assert served.metric("loopguard_gateway_estimated_calls_total") == 1


@pytest.mark.parametrize("path", ["/chat/completions", "/responses"])
def test_a_stream_with_usage_is_counted_by_it(gateway, path):
    answer = chat(lambda _: Reply(text="Hello.")) if "chat" in path else responses(lambda _: Reply(text="Hello."))
    _, served = gateway(answer)
    body = {**STREAMED, "stream_options": {"include_usage": True}}
    post(served, body if "chat" in path else {"model": MODEL, "input": "Hello", "stream": True}, path)
    assert served.metric("loopguard_gateway_estimated_calls_total") == 0
    assert served.status().spent > 0


def test_a_picture_is_not_counted_as_text(gateway):
    _, served = gateway(HELLO, limit="0.05")
    url = "data:image/png;base64," + "A" * 3_000_000
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    assert post(served, {**CHAT, "messages": [{"role": "user", "content": parts}]}).status_code == 200


def test_a_conversation_the_provider_keeps_is_counted_too(gateway):
    """Its tokens are sent again by the provider; of one nobody knows, 32,768 are assumed."""
    usage = {"input_tokens": 200_000, "output_tokens": 10, "total_tokens": 200_010}

    def answer(asked):
        body = json.loads(responses(lambda _: Reply(text="Hello.")).__call__(asked).pieces[0])
        return Answer([json.dumps({**body, "usage": usage}).encode()])

    _, served = gateway(answer, limit="0.05")  # 0.15 a million, and twice that for caches
    body = {"model": MODEL, "input": "Hello", "max_output_tokens": 10}
    assert post(served, body, "/responses").status_code == 200
    assert post(served, {**body, "previous_response_id": "resp_1"}, "/responses").status_code == 402
    assert post(served, {**body, "previous_response_id": "resp_unknown"}, "/responses").status_code == 200


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 402, 404, 429, 500, 503])
def test_an_error_costs_nothing(gateway, status):
    _, served = gateway(lambda _: Answer([b'{"error": {}}'], status))
    assert post(served).status_code == status
    assert served.settled().spent == 0


LIMITED = {
    "error": {"code": 402, "message": "Key limit exceeded", "metadata": {"limit_source": "openrouter_key_limit"}}
}


def limited(asked):
    """The provider's own limit is reached, said in whichever coding the client reads."""
    body = json.dumps(LIMITED).encode()
    if "gzip" not in asked.headers["accept-encoding"]:
        return Answer([body], 402)
    return Answer([zipped(body)], 402, headers={"content-encoding": "gzip"})


@pytest.mark.parametrize("body", [CHAT, STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_a_providers_own_key_limit_ends_the_run(gateway, body, coding):
    """Each time it says so, and to the client as it said it: there may be money again, and the provider knows."""
    ended = []
    provider, served = gateway(limited, LoopGuard(on_end=ended.append))
    for times in (1, 2):
        response = post(served, body, headers={"accept-encoding": coding})
        assert (response.status_code, response.json()) == (402, LIMITED)
        assert [event.reason for event in ended] == ["key_limit"] * times
    provider.answer = HELLO
    assert "Hello." in post(served, CHAT).json()["choices"][0]["message"]["content"]
    assert len(provider.requests) == 3
    assert served.metric('loopguard_gateway_ended_runs_total{reason="key_limit"}') == 2
    assert served.settled().spent < Decimal("0.01")


@pytest.mark.parametrize("source", [None, "somebody_elses"])
def test_any_other_402_ends_no_run(gateway, source):
    ended = []
    metadata = {} if source is None else {"metadata": {"limit_source": source}}
    _, served = gateway(
        lambda _: Answer([json.dumps({"error": {"code": 402, **metadata}}).encode()], 402),
        LoopGuard(on_end=ended.append),
    )
    assert post(served).status_code == 402
    assert not ended


def test_a_providers_own_key_limit_ends_a_named_run_for_good(gateway):
    provider, served = gateway(limited)
    named = {"x-loopguard-session": "job-1"}
    assert post(served, headers=named).status_code == 402
    provider.answer = HELLO
    assert post(served, headers=named).headers["x-loopguard-stop"] == "key_limit"
    assert "x-loopguard-stop" not in post(served).headers
    assert len(provider.requests) == 2


def test_a_key_limit_met_while_calls_are_refused_is_left_to_the_next_request(gateway):
    """The client gets the call that was to be refused, and no word of the 402: for it the run goes on."""
    loops, ended = chat(lambda _: calls("{}")), []

    def answer(asked):
        refused = any("[loopguard]" in str(message.get("content")) for message in asked.json["messages"])
        return limited(asked) if refused else loops(asked)

    provider, served = gateway(answer, LoopGuard(on_end=ended.append))
    messages = [{"role": "user", "content": "Hello"}]
    for number in range(3):
        message = post(served, {**CHAT, "messages": messages}).json()["choices"][0]["message"]
        messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Error: no"}]
        assert len(provider.requests) == number + 1 + (number == 2)
    assert not ended
    provider.answer = limited
    assert post(served, {**CHAT, "messages": messages}).status_code == 402
    assert [event.reason for event in ended] == ["key_limit"]


def test_a_store_that_cannot_be_used_lets_nothing_through(gateway, tmp_path):
    provider, served = gateway(HELLO)
    (tmp_path / "budget.db").write_bytes(b"no database" * 1000)
    for name in ("budget.db-wal", "budget.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    response = post(served)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert "budget.db" not in response.text
    assert provider.requests == []
    with httpx.Client() as client:
        assert client.get(f"{served.origin}/readyz").status_code == 503
        assert client.get(f"{served.origin}/healthz").status_code == 200


def test_a_provider_that_breaks_off_is_counted_as_far_as_it_came(gateway):
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "%b"}}]}\n\n' % prose(600).encode()

    def reset():
        raise Reset

    _, served = gateway(lambda _: Answer([event, reset], type="text/event-stream", chunked=True))
    client = openai.OpenAI(base_url=served.base_url, api_key=served.key, max_retries=0)
    said = ""
    with pytest.raises(openai.APIError, match="provider"):  # noqa: PT012
        for chunk in client.chat.completions.create(**STREAMED):
            said += chunk.choices[0].delta.content or ""
    assert said == prose(600)
    status = served.settled()
    assert float(status.spent) == pytest.approx(1_200 * 0.60e-6, rel=0.2)


def test_a_client_that_goes_away_ends_the_providers_stream_and_pays_for_what_came(gateway):
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "%b word "}}]}\n\n' % prose(600).encode()

    def endless():
        for number in itertools.count():
            yield event.replace(b"word", str(number).encode())

    provider, served = gateway(lambda _: Answer(endless(), type="text/event-stream", chunked=True))
    with (
        httpx.Client() as client,
        client.stream("POST", f"{served.base_url}/chat/completions", json=STREAMED, headers=served.auth) as response,
    ):
        next(response.iter_raw())
    assert provider.gone.wait(10)
    status = eventually(lambda: (now := served.status()).reserved == 0 and now)
    assert status.spent > 0
    eventually(
        lambda: served.metric('loopguard_gateway_requests_total{endpoint="chat_completions",outcome="client_gone"')
    )


def test_a_client_that_does_not_wait_pays_for_what_it_sent(gateway):
    provider, served = gateway(lambda _: (provider.hang(), Answer([b"{}"]))[1])
    body = {**CHAT, "messages": [{"role": "user", "content": "x" * 300_000}]}
    with httpx.Client() as client, pytest.raises(httpx.ReadTimeout):
        client.post(f"{served.base_url}/chat/completions", json=body, headers=served.auth, timeout=1)
    status = eventually(lambda: (now := served.status()).spent and not now.reserved and now)
    assert float(status.spent) == pytest.approx(100_000 * 0.15e-6, rel=0.05)


def test_a_hold_is_renewed_while_the_call_runs(gateway):
    """The hold lasts three seconds, the call longer; a killed gateway's would be back by then."""
    provider, served = gateway(lambda _: (provider.hang(), costly(None))[1], hold_ttl=3.0)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(post, served)
        held = eventually(lambda: served.status().reserved)
        with open_ledger(served.store) as ledger:
            began = ledger.reserve("team", "0.01", ttl=3.2)
            eventually(lambda: ledger.status("team").reserved == held, 15)  # ours has expired by now
            ledger.release(began)
        provider.release.set()
        assert running.result().status_code == 200
    assert served.settled().spent == COST


def test_what_is_owed_is_paid_once_however_many_pay(store):
    """When the gateway ends, the thread that pays what is owed may be at it already."""
    with open_ledger(store) as ledger:
        ledger.set_limit("team", 5)
    till = Till(store, Policy(), 300.0)
    till._owed.extend(_Owed(None, ("team",), Decimal("0.001")) for _ in range(200))
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: till._pay_all(), range(8)))
    with open_ledger(store) as ledger:
        assert ledger.status("team").spent == Decimal("0.2")
