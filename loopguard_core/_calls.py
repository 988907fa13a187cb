"""From a tool call as the model wrote it to the identity that is counted, and to what is known of its tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from xxhash import xxh3_64_hexdigest

from loopguard_core import _traits
from loopguard_core._bounded import bounded_key
from loopguard_core._canonical import canonical_json
from loopguard_core._fingerprint import digest, keyed
from loopguard_core._identity import EXEMPT, display_name, loop_key_of, parse_arguments
from loopguard_core._masking import Masker
from loopguard_core._plugins import Plugins
from loopguard_core._policy import Policy, ToolSettings
from loopguard_core._traits import Nature, Traits
from loopguard_core._types import ToolCall
from loopguard_core.detectors import ObservedCall

MAX_NATURES = 1024
"""Tools whose nature is remembered. Names come from the model; a real agent has far fewer."""

_EXEMPT = frozenset({"exempt", "waits"})


class Identifier:
    """Works out what of a call counts, and what kind of call it is.

    Args:
        policy: Says which arguments identify a tool's calls, and what it knows of tools.
        plugins: Asked about tools the policy says nothing about.
        warn: Called with a label and a text if something of the user's cannot be used: a loop key, for which the full
            arguments are taken, or a masker or result key, which is left out.
        natures: Where to remember what is known of tools; sessions of one guard share it.

    Attributes:
        waited: True once a call let time pass, until somebody who asks sets it back.
    """

    def __init__(
        self,
        policy: Policy,
        plugins: Plugins,
        warn: Callable[[str, str], None],
        natures: dict[tuple[str, Any], Nature] | None = None,
    ) -> None:
        self._policy = policy
        self._plugins = plugins
        self._warn = warn
        self.waited = False
        self._natures: dict[tuple[str, Any], Nature] = {} if natures is None else natures
        # Tools nothing sets apart: the whole arguments count, and traits are those of every call.
        self._plain: dict[str, tuple[str, Nature, Traits]] = {}

    def observe(self, call: ToolCall) -> ObservedCall | None:
        """The call with its identity; None if it is exempt."""
        tool = call.name if type(call.name) is str else str(call.name)  # whatever an SDK made of what the model wrote
        arguments = call.arguments
        if type(arguments) is not dict:  # what most SDKs give
            arguments = parse_arguments(arguments)
        if call.annotations is None and not self._plugins.has_loop_key:
            plain = self._plain.get(tool)
            if plain is not None:
                tool_key, nature, traits = plain
                text = f"{tool}\n{canonical_json(arguments)}"
                identity = xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))
                return ObservedCall(call.id, tool, tool_key, identity, arguments, text, call.refusable, nature, traits)
        settings = self._policy.tool(tool)
        loop_key = settings.loop_key
        if loop_key is None and self._plugins.has_loop_key:
            answer = self._plugins.loop_key(tool, arguments)
            if answer is False:
                return None
            if answer is not None:
                return self._observed(call, tool, arguments, answer)
        if loop_key is None and not settings.normalize:
            observed = self._observed(call, tool, arguments, arguments)
            if observed is not None and call.annotations is None:
                self._note_plain(observed)
            return observed
        key = loop_key_of(
            tool,
            arguments,
            loop_key,
            settings.normalize,
            lambda text: self._warn(f"loop key of {display_name(tool)}", text),
        )
        return None if key is EXEMPT else self._observed(call, tool, arguments, key)

    def _observed(self, call: ToolCall, tool: str, arguments: Any, key: Any) -> ObservedCall | None:
        nature = self.nature(tool, call.annotations)
        traits = _traits.UNKNOWN
        if self._policy.outcomes == "aware":
            traits = nature.of(arguments) if nature.by_arguments else nature.traits
            if traits & _EXEMPT:
                self.waited = self.waited or "waits" in traits
                return None
        text = f"{tool}\n{canonical_json(key)}"
        identity = xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))
        return ObservedCall(call.id, tool, bounded_key(tool), identity, arguments, text, call.refusable, nature, traits)

    def _note_plain(self, call: ObservedCall) -> None:
        """Remember a tool all of whose calls are alike, so that the next one costs less."""
        nature, tool = call.nature, call.tool
        if nature.by_arguments or self._plugins.has_loop_key or len(tool) > _LONG_NAME:
            return
        if len(self._plain) >= MAX_NATURES:
            self._plain.clear()  # as in `nature`
        self._plain[tool] = (call.tool_key, nature, call.traits)

    def nature(self, tool: str, annotations: Mapping[str, Any] | None = None) -> Nature:
        """What is known of a tool. The policy beats annotations, and those beat what its name says."""
        if not isinstance(annotations, Mapping):
            annotations = None
        hints = None if annotations is None else tuple(_hint(annotations.get(name)) for name in _HINTS)
        known = self._natures.get((tool, hints))
        if known is None:
            if len(tool) > _LONG_NAME:
                return self._work_out(tool, annotations)
            if len(self._natures) >= MAX_NATURES:
                self._natures.clear()  # simple, and right for any order of names
            known = self._natures[tool, hints] = self._work_out(tool, annotations)
        return known

    def _work_out(self, tool: str, annotations: Mapping[str, Any] | None) -> Nature:
        base = _traits.infer(tool)
        settings = self._policy.tool(tool)
        traits: Traits | None = None
        if "traits" in settings.model_fields_set:
            base, traits = _searching(base, settings)
        elif annotations is not None:
            traits = _traits.annotated(annotations)
            if traits is not None and "reads" in traits and "polls" in base.traits:
                traits = base.traits  # that it only reads does not make it less of a poll
        if traits is None and settings.maskers is None and settings.result_key is None:
            return base
        maskers = _traits.MASKS if settings.maskers is None else settings.maskers
        safe = [self._safe(mask, tool, "masker") if callable(mask) else mask for mask in maskers]
        result_key = settings.result_key
        return _traits.declared(
            base,
            traits,
            Masker(safe, searches=base.searches),
            Masker(safe, mutates=True),
            self._safe(result_key, tool, "result key") if callable(result_key) else result_key,
        )

    def _safe(self, function: Callable[[Any], Any], tool: str, what: str) -> Callable[[Any], Any]:
        def safe(value: Any) -> Any:
            try:
                return function(value)
            except Exception as error:  # noqa: BLE001  # the user's function must not become the run's fault
                text = f"it raised {type(error).__name__}; the whole result counts"
                self._warn(f"{what} of {display_name(tool)}", text)
                return value

        return safe

    def fingerprint(self, call: ObservedCall, key: bytes | None) -> str:
        """What names this identity outside the process.

        Args:
            call: The call.
            key: Makes the fingerprint of small arguments unguessable; None where the policy asks for plain ones.
        """
        plain = digest(call.text.encode("utf-8", "surrogatepass"), self._policy.fingerprints)
        return plain if key is None else keyed(plain, key)


def _searching(base: Nature, settings: ToolSettings) -> tuple[Nature, Traits]:
    """The declared traits, with searching told of the tool: like reading, it changes nothing unless they say so."""
    traits = frozenset(settings.traits)
    if "searches" not in traits:
        return base, traits
    fields = settings.loop_key if isinstance(settings.loop_key, tuple) else ()
    base = replace(base, searches=True, search_fields=fields)
    return base, traits - {"searches"} | ({"reads"} if "mutates" not in traits else set())


def _hint(value: Any) -> bool | None:
    """What a server declares: whatever is no yes and no no says nothing."""
    return value if isinstance(value, bool) else None


_LONG_NAME = 200
_HINTS = ("readOnlyHint", "destructiveHint")
