"""LLMs that ask a `ScriptedServer` over HTTP: one that calls functions, one that writes ReAct, one that writes code.

The last two play a model that has no functions: what the server says is turned into text for the agent, and the agent's
text is turned back into messages with calls, so that the same personas drive every kind of agent.
"""

import ast
import asyncio
import json
import re
import threading
from typing import Any

import httpx
from llama_index.core.agent.workflow.codeact_agent import EXECUTE_TOOL_NAME
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import ChatMessage, ChatResponse, CustomLLM, LLMMetadata, TextBlock
from llama_index.core.llms.callbacks import llm_chat_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

from loopguard_core.testing.conformance._driver import PARAMETERS

PIECE = 24


class Loop:
    """One event loop for all runs: a client keeps connections that belong to its loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)


shared = Loop()


async def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as client:
        answer = await client.post(url + "/chat/completions", json=body)
    answer.raise_for_status()
    return answer.json()


def to_wire(message: ChatMessage) -> dict[str, Any]:
    """One message as OpenAI takes it."""
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    wire: dict[str, Any] = {"role": message.role.value, "content": message.content}
    if calls:
        wire["tool_calls"] = [
            {
                "id": block.tool_call_id,
                "type": "function",
                "function": {"name": block.tool_name, "arguments": _as_text(block.tool_kwargs)},
            }
            for block in calls
        ]
    if message.role.value == "tool":
        wire["tool_call_id"] = message.additional_kwargs.get("tool_call_id")
    return wire


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


class _Scripted:
    """What all three share: a request, and an answer as LlamaIndex wants it, whole or in pieces."""

    def _body(self, messages: Any, **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _text(self, message: dict[str, Any]) -> str:
        return message.get("content") or ""

    async def _answer(self, messages: Any, **kwargs: Any) -> ChatResponse:
        body = {"model": self.model, **self._body(messages, **kwargs)}
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        raw = await _post(self.base_url, body)
        return self._response(raw, raw["choices"][0]["message"])

    def _response(self, raw: Any, message: dict[str, Any]) -> ChatResponse:
        text = self._text(message)
        blocks: list[Any] = [TextBlock(text=text)] if text else []
        blocks += self._blocks(message)
        return ChatResponse(message=ChatMessage(role="assistant", blocks=blocks), raw=raw)

    def _blocks(self, message: dict[str, Any]) -> list[Any]:
        return []

    async def _stream(self, messages: Any, **kwargs: Any) -> Any:
        whole = await self._answer(messages, **kwargs)
        text = whole.message.content or ""
        for at in range(0, len(text), PIECE):
            said = ChatMessage(role="assistant", content=text[: at + PIECE])
            yield ChatResponse(message=said, delta=text[at : at + PIECE], raw={"choices": []})
        yield ChatResponse(message=whole.message, delta="", raw=whole.raw)


class FunctionClient(_Scripted, FunctionCallingLLM):
    """A model that calls functions."""

    base_url: str
    model: str
    max_tokens: int | None = None

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, is_function_calling_model=True, model_name=self.model)

    def _body(self, messages: Any, tools: Any = None, **kwargs: Any) -> dict[str, Any]:
        body = {"messages": [to_wire(message) for message in messages]}
        return {**body, "tools": tools} if tools else body

    def _blocks(self, message: dict[str, Any]) -> list[Any]:
        return [
            ToolCallBlock(
                tool_call_id=call["id"],
                tool_name=call["function"]["name"],
                tool_kwargs=call["function"]["arguments"],
            )
            for call in message.get("tool_calls") or ()
        ]

    @llm_chat_callback()
    async def achat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return await self._answer(messages, **kwargs)

    @llm_chat_callback()
    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        return self._stream(messages, **kwargs)

    def _prepare_chat_with_tools(
        self, tools: Any, user_msg: Any = None, chat_history: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        specs = [tool.metadata.to_openai_tool() for tool in tools]
        return {"messages": list(chat_history or []), "tools": specs}

    def get_tool_calls_from_response(self, response: Any, error_on_no_tool_call: bool = True, **_: Any) -> Any:
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        return [
            ToolSelection(tool_id=call.tool_call_id, tool_name=call.tool_name, tool_kwargs=_parsed(call.tool_kwargs))
            for call in calls
        ]

    def chat(self, messages: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    stream_chat = complete = stream_complete = acomplete = astream_complete = chat


def _parsed(arguments: Any) -> dict[str, Any]:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return {}  # as LlamaIndex's own clients do


class _TextClient(_Scripted, CustomLLM):
    """A model without functions."""

    base_url: str
    model: str
    max_tokens: int | None = None
    tool_names: tuple[str, ...] = ()

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, model_name=self.model)

    def _body(self, messages: Any, **kwargs: Any) -> dict[str, Any]:
        wire, asked = [], 0
        for message in messages:
            role, text = message.role.value, message.content or ""
            call = self._call_in(text) if role == "assistant" else None
            result = self._result_in(text) if role == "user" else None
            if call is not None:
                asked += 1
                function = {"name": call[0], "arguments": json.dumps(call[1])}
                calls = [{"id": f"t{asked}", "type": "function", "function": function}]
                wire.append({"role": "assistant", "content": None, "tool_calls": calls})
            elif result is not None and wire and wire[-1]["role"] == "assistant":
                wire.append({"role": "tool", "tool_call_id": f"t{asked}", "content": result})
            else:
                wire.append({"role": role, "content": text if result is None else result})
        system = next((text.content or "" for text in messages if text.role.value == "system"), "")
        offered = [name for name in self.tool_names if name in system]
        tools = [{"type": "function", "function": {"name": name, "parameters": dict(PARAMETERS)}} for name in offered]
        return {"messages": wire, "tools": tools} if tools else {"messages": wire}

    def _call_in(self, text: str) -> tuple[str, dict[str, Any]] | None:
        raise NotImplementedError

    def _result_in(self, text: str) -> str | None:
        raise NotImplementedError

    @llm_chat_callback()
    async def achat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return await self._answer(messages, **kwargs)

    @llm_chat_callback()
    async def astream_chat(self, messages: Any, **kwargs: Any) -> Any:
        return self._stream(messages, **kwargs)

    def complete(self, prompt: str, **kwargs: Any) -> Any:
        raise NotImplementedError

    stream_complete = complete


class ReActClient(_TextClient):
    """A model that writes thoughts, actions and answers."""

    def _text(self, message: dict[str, Any]) -> str:
        calls, said = message.get("tool_calls"), message.get("content")
        if not calls:
            done = "Thought: I can answer without using any more tools."
            return said if said.startswith("Thought: ") else f"{done}\nAnswer: {said}"
        function = calls[0]["function"]
        return f"Thought: {said or 'I need a tool.'}\nAction: {function['name']}\nAction Input: {function['arguments']}"

    def _call_in(self, text: str) -> tuple[str, dict[str, Any]] | None:
        found = re.fullmatch(r"Thought: [^\n]*\nAction: (\S+)\nAction Input: ([^\n]*)", text)
        return None if found is None else (found[1], ast.literal_eval(found[2]))

    def _result_in(self, text: str) -> str | None:
        return text.removeprefix("Observation: ") if text.startswith("Observation: ") else None


_RESULT = "Result of executing the code given:\n\n"


class CodeClient(_TextClient):
    """A model that writes code: one call of one function."""

    def _text(self, message: dict[str, Any]) -> str:
        calls, said = message.get("tool_calls"), message.get("content")
        if not calls:
            return said or ""
        function = calls[0]["function"]
        code = f"<execute>\n{function['name']}(**{json.loads(function['arguments'])!r})\n</execute>"
        return f"{said}\n{code}" if said else code

    def _call_in(self, text: str) -> tuple[str, dict[str, Any]] | None:
        found = re.search(r"<execute>\n(\w+)\(\*\*(.*)\)\n</execute>", text, re.DOTALL)
        return None if found is None else (found[1], ast.literal_eval(found[2]))

    def _result_in(self, text: str) -> str | None:
        return text.removeprefix(_RESULT) if text.startswith(_RESULT) else None


__all__ = ["EXECUTE_TOOL_NAME", "CodeClient", "FunctionClient", "ReActClient", "shared", "to_wire"]
