"""The plugins of one guard: registration that refuses what would silently do nothing, and calls that isolate faults."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pluggy

from loopguard_core import _hookspec
from loopguard_core._background import Background
from loopguard_core._errors import PluginError
from loopguard_core._events import DoomLoopDetected, PostModelCall, ResultRecorded, RoundJudged, SessionEnd
from loopguard_core._faults import Faults
from loopguard_core._hookspec import PROJECT
from loopguard_core._plugin_checks import HOOKS, checked_hooks, not_installed, one_argument, unusable_detector
from loopguard_core._types import Action
from loopguard_core.detectors import Detector

if TYPE_CHECKING:
    from loopguard_core._policy import Policy
    from loopguard_core._session import Session

ENTRY_POINT_GROUP = "loopguard"

logger = logging.getLogger("loopguard")


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A registered plugin and the hooks it implements."""

    name: str
    hooks: tuple[str, ...]
    origin: str


class _Callbacks:
    """The callables given to `LoopGuard(on_loop=, on_end=, on_model_call=)` as one plugin."""


class Plugins:
    """Typed access to one guard's hook implementations.

    An implementation that raises is logged with its plugin's name and counted, and the others still run.

    Args:
        faults: Where faults of implementations are noted.

    Attributes:
        has_loop_key: Whether any plugin implements `loop_key`.
        observes_rounds: Whether any plugin implements `round_judged`.
        observes_results: Whether any plugin implements `result_recorded`.
    """

    def __init__(self, faults: Faults) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(_hookspec)
        self._faults = faults
        self._info: list[PluginInfo] = []
        self._labels: dict[int, tuple[int, str]] = {}
        self.background: Background = Background(faults)
        self.has_loop_key: bool = False
        self.observes_rounds: bool = False
        self.observes_results: bool = False
        self._impls: dict[str, tuple[pluggy.HookImpl, ...]] = dict.fromkeys(HOOKS, ())

    # -- registration ------------------------------------------------------------------------------------------

    def register(self, plugin: object, *, name: str | None = None, origin: str = "code") -> None:
        """Add a plugin.

        Raises:
            PluginError: It is a class, implements nothing, misspells a hook, takes an argument the hook does not
                give, or is `async` where a result is used.
        """
        label = name or _label(plugin)
        if inspect.isclass(plugin):
            raise PluginError(f"plugin {label}: this is a class; register an instance, {plugin.__name__}()")
        hooks = checked_hooks(self._manager, plugin, label)
        try:
            self._manager.register(plugin, name=f"{label} (number {len(self._info) + 1})")
            self._manager.check_pending()
        except (ValueError, pluggy.PluginValidationError) as error:
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            raise PluginError(f"plugin {label}: {str(error).strip()}") from error
        for hook in HOOKS:
            if hook not in hooks and inspect.ismethod(getattr(plugin, hook, None)):
                logger.warning("plugin %s: %s has no @hookimpl and is not called", label, hook)
        self.has_loop_key = self.has_loop_key or "loop_key" in hooks
        self.observes_rounds = self.observes_rounds or "round_judged" in hooks
        self.observes_results = self.observes_results or "result_recorded" in hooks
        self._info.append(PluginInfo(label, tuple(hooks), origin))
        self._labels[id(plugin)] = (len(self._labels), label)
        for hook in HOOKS:
            # pluggy has an order of its own; here the order of registration counts.
            impls = getattr(self._manager.hook, hook).get_hookimpls()
            self._impls[hook] = tuple(sorted(impls, key=lambda impl: self._labels[id(impl.plugin)][0]))

    def register_all(self, plugins: Iterable[object]) -> None:
        """Add plugins, in order.

        Raises:
            PluginError: It is no list of them, or one of them cannot be used.
        """
        if isinstance(plugins, str) or not isinstance(plugins, Iterable):
            raise PluginError(f"plugins is a list of plugins, not a {type(plugins).__name__}; write plugins=[...]")
        for plugin in plugins:
            self.register(plugin)

    def register_callables(self, **callables: Callable[..., Any] | None) -> None:
        """Add plain functions, by the name of the hook each one serves.

        Raises:
            PluginError: One is not callable, or is `async` where a result is used.
        """
        given = {hook: function for hook, function in callables.items() if function is not None}
        if not given:
            return
        plugin = _Callbacks()
        for hook, function in given.items():
            if not callable(function):
                raise PluginError(f"the callback for {hook} must be callable, not {type(function).__name__}")
            setattr(plugin, hook, _hookspec.hookimpl(one_argument(function)))
        self.register(plugin, name="callbacks")

    def load_entry_points(self, names: Iterable[str]) -> None:
        """Load and register the named entry points of the group `loopguard`.

        Raises:
            PluginError: No such entry point is installed, or it cannot be loaded or registered.
        """
        wanted = list(names)
        if not wanted:
            return
        installed = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
        for name in wanted:
            if name not in installed:
                raise PluginError(not_installed(name, installed))
            try:
                plugin = installed[name].load()
            except Exception as error:
                raise PluginError(f"plugins: {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
            self.register(plugin() if inspect.isclass(plugin) else plugin, name=name, origin="entry point")

    @property
    def registered(self) -> tuple[PluginInfo, ...]:
        """What is registered, in order."""
        return tuple(self._info)

    # -- calls -------------------------------------------------------------------------------------------------

    def doom_loop_detected(
        self, event: DoomLoopDetected, perform: Callable[[Action], Action]
    ) -> tuple[DoomLoopDetected, bool]:
        """Tell every plugin; the first action in registration order wins.

        Args:
            event: `proposed` is the ladder's action, `action` what would be done.
            perform: Cuts an override to what the surface can do.

        Returns:
            The event with the action that is taken, and whether a plugin chose it. Plugins after the one that did
            see its choice.
        """
        overridden = False
        for impl in self._impls["doom_loop_detected"]:
            answer = self._call(impl, event=event)
            if answer is None:
                continue
            try:
                action = Action(answer if isinstance(answer, str) else "")
            except ValueError:
                self._fault(impl, f"doom_loop_detected returned {type(answer).__name__}, not an Action")
                continue
            if not overridden:
                overridden = True
                event = dataclasses.replace(event, action=perform(action))
        return event, overridden

    def session_end(self, event: SessionEnd) -> None:
        """Tell every plugin."""
        for impl in self._impls["session_end"]:
            self._observe(impl, event)

    def post_model_call(self, event: PostModelCall) -> None:
        """Tell every plugin."""
        for impl in self._impls["post_model_call"]:
            self._observe(impl, event)

    def round_judged(self, event: RoundJudged) -> None:
        """Tell every plugin."""
        for impl in self._impls["round_judged"]:
            self._observe(impl, event)

    def result_recorded(self, event: ResultRecorded) -> None:
        """Tell every plugin."""
        for impl in self._impls["result_recorded"]:
            self._observe(impl, event)

    @property
    def observes_model_calls(self) -> bool:
        """Whether any plugin implements `post_model_call`."""
        return bool(self._impls["post_model_call"])

    @property
    def observes_loops(self) -> bool:
        """Whether any plugin implements `doom_loop_detected`."""
        return bool(self._impls["doom_loop_detected"])

    @property
    def may_stop(self) -> bool:
        """Whether any plugin implements `stop_when`."""
        return bool(self._impls["stop_when"])

    def loop_key(self, tool: str, arguments: Any) -> Any:
        """The first opinion on what identifies a call; None if nobody has one."""
        for impl in self._impls["loop_key"]:
            key = self._call(impl, tool=tool, arguments=_copy(arguments))
            if key is not None:
                return key
        return None

    def detectors(self, policy: Policy) -> list[Detector]:
        """The detectors plugins add to a new session."""
        found: list[Detector] = []
        for impl in self._impls["detectors"]:
            added = self._call(impl, policy=policy)
            try:
                for detector in [added] if isinstance(added, Detector) else added if added is not None else ():
                    wrong = unusable_detector(detector)
                    if wrong is None:
                        found.append(detector)
                    else:
                        self._fault(impl, f"detectors returned {wrong}")
            except Exception as error:  # noqa: BLE001  # no list, or a generator that raises
                self._faults.note(self._name_of(impl), error, text="Its detectors are left out.")
        return found

    def stop_when(self, session: Session) -> str | None:
        """The first reason to end the run; None to go on."""
        for impl in self._impls["stop_when"]:
            reason = self._call(impl, session=session)
            if isinstance(reason, str) and reason.strip():
                return reason.strip()
            if reason is not None and reason is not False and not isinstance(reason, str):
                self._fault(impl, f"stop_when returned {type(reason).__name__}, not a short text")
        return None

    def _observe(self, impl: pluggy.HookImpl, event: PostModelCall | RoundJudged | ResultRecorded | SessionEnd) -> None:
        result = self._call(impl, event=event)
        if isinstance(result, Coroutine):
            self.background.submit(result, self._name_of(impl))

    def _call(self, impl: pluggy.HookImpl, **arguments: Any) -> Any:
        try:
            return impl.function(*(arguments[name] for name in impl.argnames))
        except Exception as error:  # noqa: BLE001  # a plugin's fault must never become the run's
            self._faults.note(self._name_of(impl), error, text="Its answer is ignored; others still run.")
            return None

    def _name_of(self, impl: pluggy.HookImpl) -> str:
        return f"plugin {self._labels[id(impl.plugin)][1]}"

    def _fault(self, impl: pluggy.HookImpl, text: str) -> None:
        self._faults.note(self._name_of(impl), text=text)


def _label(plugin: object) -> str:
    name = getattr(plugin, "__name__", None)
    return name if isinstance(name, str) else type(plugin).__name__


def _copy(arguments: Any) -> Any:
    """What a careless implementation may change: never the arguments the tool is called with."""
    return dict(arguments) if isinstance(arguments, dict) else arguments
