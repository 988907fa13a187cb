"""From a tool call as the model wrote it to the identity that is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import xxhash

from loopguard_core._bounded import bounded_key
from loopguard_core._canonical import canonical_json
from loopguard_core._fingerprint import digest, keyed
from loopguard_core._identity import EXEMPT, display_name, loop_key_of, parse_arguments
from loopguard_core._plugins import Plugins
from loopguard_core._policy import Policy
from loopguard_core._types import ToolCall
from loopguard_core.detectors import ObservedCall


class Identifier:
    """Works out what of a call counts.

    Args:
        policy: Says which arguments identify a tool's calls.
        plugins: Asked about tools the policy says nothing about.
        warn: Called with a label and a text if a loop key cannot be used and the full arguments are taken instead.
    """

    def __init__(self, policy: Policy, plugins: Plugins, warn: Callable[[str, str], None]) -> None:
        self._policy = policy
        self._plugins = plugins
        self._warn = warn

    def observe(self, call: ToolCall) -> ObservedCall | None:
        """The call with its identity; None if it is exempt."""
        tool = str(call.name)  # whatever an SDK made of what the model wrote
        arguments = parse_arguments(call.arguments)
        settings = self._policy.tool(tool)
        loop_key = settings.loop_key
        if loop_key is None and self._plugins.has_loop_key:
            answer = self._plugins.loop_key(tool, arguments)
            if answer is False:
                return None
            if answer is not None:
                return self._observed(call, tool, arguments, answer)
        if loop_key is None and not settings.normalize:
            return self._observed(call, tool, arguments, arguments)
        key = loop_key_of(
            tool,
            arguments,
            loop_key,
            settings.normalize,
            lambda text: self._warn(f"loop key of {display_name(tool)}", text),
        )
        return None if key is EXEMPT else self._observed(call, tool, arguments, key)

    def _observed(self, call: ToolCall, tool: str, arguments: Any, key: Any) -> ObservedCall:
        text = f"{tool}\n{canonical_json(key)}"
        identity = xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))
        return ObservedCall(call.id, tool, bounded_key(tool), identity, arguments, text, call.refusable)

    def fingerprint(self, call: ObservedCall, key: bytes | None) -> str:
        """What names this identity outside the process.

        Args:
            call: The call.
            key: Makes the fingerprint of small arguments unguessable; None where the policy asks for plain ones.
        """
        plain = digest(call.text.encode("utf-8", "surrogatepass"), self._policy.fingerprints)
        return plain if key is None else keyed(plain, key)
