"""loopguard-runtime: the README's callback handler, its events sent as LangChain sends them."""

from __future__ import annotations

from collections.abc import Mapping

from driver import Answer, main
from loopguard import LoopGuardCallbackHandler, LoopGuardInterrupt
from scenarios import Round


class Guard:
    def __init__(self, traits: Mapping[str, str]) -> None:
        self._handler = LoopGuardCallbackHandler()

    def play(self, calls: Round) -> Answer:
        seen = len(self._handler.messages)
        try:
            for call in calls:
                self._handler.on_tool_start({"name": call.tool}, str(call.args), inputs=call.args)
            for call in calls:
                if call.failed:
                    self._handler.on_tool_error(RuntimeError(call.result))
                else:
                    self._handler.on_tool_end(call.result)
        except LoopGuardInterrupt:
            return "stop"
        new = self._handler.messages[seen:]
        told = any(one["type"] == "decision" and one["action"] != "continue" for one in new)
        return "told" if told else None


if __name__ == "__main__":
    main(Guard, cannot={"rephrased search": "its check needs OpenAI embeddings and a key"})
