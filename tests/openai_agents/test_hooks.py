"""`LoopGuardHooks` beside hooks of the user's own, and what happens when something in it breaks."""

import asyncio
import contextlib
import gc
import subprocess
import sys

import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    CustomTool,
    FunctionTool,
    HostedMCPTool,
    LocalShellTool,
    RunContextWrapper,
    RunHooks,
    Runner,
    ShellTool,
    handoff,
    tool_namespace,
)
from loopguard_openai_agents import LoopGuardHooks, LoopGuardStop, session_of
from loopguard_openai_agents import hooks as hooks_module
from loopguard_openai_agents._sessions import registry
from loopguard_openai_agents_kit import (
    DEFAULT_ACTIONS,
    OWN,
    Counted,
    Scripted,
    Watched,
    ahooked,
    assert_stop,
    call,
    deaf,
    every_way,
    go,
    handoff_call,
    hooked,
    say,
    sequence,
)
from openai.types.responses import ResponseApplyPatchToolCall, ResponseCustomToolCall
from openai.types.responses.response_function_shell_tool_call import Action as ShellAction
from openai.types.responses.response_function_shell_tool_call import ResponseFunctionShellToolCall
from openai.types.responses.response_output_item import (
    LocalShellCall,
    LocalShellCallAction,
    McpApprovalRequest,
    McpCall,
)

from loopguard_core import LoopGuardError

SEVEN = ("on_llm_start", "on_llm_end", "on_tool_start", "on_tool_end", "on_agent_start", "on_agent_end", "on_handoff")


class Seen(RunHooks):
    """Keeps what it is called with; raises where it is told to."""

    def __init__(self, raises=None):
        self.calls, self.raises = [], raises

    def _note(self, name, *values):
        self.calls.append((name, *values))
        if name == self.raises:
            raise ArithmeticError("the user's own")

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        self._note("on_llm_start", agent.name, system_prompt, len(input_items))

    async def on_llm_end(self, context, agent, response):
        self._note("on_llm_end", agent.name, response.output[0].type)

    async def on_tool_start(self, context, agent, tool):
        self._note("on_tool_start", agent.name, tool.name)

    async def on_tool_end(self, context, agent, tool, result):
        self._note("on_tool_end", agent.name, tool.name, result)

    async def on_agent_start(self, context, agent):
        self._note("on_agent_start", agent.name)

    async def on_agent_end(self, context, agent, output):
        self._note("on_agent_end", agent.name, output)

    async def on_handoff(self, context, from_agent, to_agent):
        self._note("on_handoff", from_agent.name, to_agent.name)


def two_agents(lookup):
    b = Agent(name="B", model=Scripted(lambda _: [say("done")]))
    script = sequence([call()], lambda: [handoff_call("b")])
    return Agent(name="A", model=Scripted(script), tools=[lookup.tool], handoffs=[b], instructions="Be brief.")


# -- the user's hooks --------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("surface", ["hooks", "runner"])
def test_all_seven_are_called_as_without_us(surface, way):
    plain, ours = Seen(), Seen()
    hooked(way, two_agents(Counted()), "default", hooks=plain)
    if surface == "hooks":
        hooked(way, two_agents(Counted()), None, hooks=LoopGuardHooks("default", ours))
    else:
        go(way, two_agents(Counted()), guard="default", hooks=ours)
    assert ours.calls == plain.calls
    assert {name for name, *_ in ours.calls} == set(SEVEN)


@pytest.mark.parametrize("method", SEVEN)
@pytest.mark.parametrize("surface", ["hooks", "runner"])
def test_what_they_raise_reaches_the_user(surface, method):
    guard, seen = Watched(), Seen(raises=method)
    if surface == "hooks":
        ran = hooked("run", two_agents(Counted()), None, hooks=LoopGuardHooks(guard, seen))
    else:
        ran = go("run", two_agents(Counted()), guard=guard, hooks=seen)
    error = ran.error if isinstance(ran.error, ArithmeticError) else ran.error.__cause__
    assert isinstance(error, ArithmeticError)
    assert guard.faults.counts == {}
    if surface == "runner":
        assert guard.reasons == ["error"]


def test_what_they_raise_at_a_closing_reaches_the_user_too():
    guard, seen = Watched(), Seen(raises="on_agent_end")
    ran = go("run", Agent(name="A", model=Scripted(deaf()), tools=[Counted().tool]), guard=guard, hooks=seen)
    assert isinstance(ran.error, ArithmeticError)
    assert guard.reasons == ["doom_loop"]


def test_a_call_that_does_not_start_is_not_announced():
    seen = Seen()
    ran = hooked(
        "run",
        Agent(name="A", model=Scripted(deaf()), tools=[Counted().tool]),
        None,
        hooks=LoopGuardHooks("default", seen),
    )
    assert_stop(ran)
    names = [name for name, *_ in seen.calls]
    assert (names.count("on_llm_start"), names.count("on_llm_end"), names.count("on_tool_start")) == (6, 6, 2)


def test_only_hooks_are_taken_for_hooks():
    with pytest.raises(TypeError, match="hooks must be a RunHooks object, not list"):
        LoopGuardHooks("default", [Seen()])


# -- versions and private seams that break -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.8.4", "0.19.3", "0.19.4", "0.9"])
def test_a_version_that_would_run_a_refused_call_is_refused(monkeypatch, version):
    monkeypatch.setattr("agents.__version__", version)
    with pytest.raises(LoopGuardError, match=rf"openai-agents {version} .*pip install 'openai-agents>=0.20'"):
        LoopGuardHooks("default")
    ran = go("run", Agent(name="A", model=Scripted(deaf())), guard="default")
    assert isinstance(ran.error, LoopGuardError)


@pytest.mark.parametrize("version", ["0.20.0", "0.24.1rc1", "1.0"])
def test_newer_versions_are_taken(monkeypatch, version):
    monkeypatch.setattr("agents.__version__", version)
    LoopGuardHooks("default")


@every_way
@pytest.mark.parametrize("surface", ["hooks", "runner"])
def test_a_refused_call_that_starts_all_the_same_ends_the_run(monkeypatch, surface, way):
    """As an SDK that ignores refusals would let it."""
    monkeypatch.setattr(hooks_module, "_reject", lambda *_: None)
    lookup, guard = Counted(), Watched()
    agent = Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool])
    ran = hooked(way, agent, guard) if surface == "hooks" else go(way, agent, guard=guard, on_stop="raise")
    assert isinstance(ran.error, LoopGuardStop)
    assert "had been refused" in str(ran.error)
    assert (len(lookup.ran), guard.reasons) == (2, ["error"])


def test_a_refusal_that_fails_lets_the_call_run(monkeypatch):
    def broken(*_):
        raise RuntimeError("the SDK changed")

    monkeypatch.setattr(hooks_module, "_reject", broken)
    lookup, guard = Counted(), Watched()
    ran = hooked("run", Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool]), guard)
    assert_stop(ran)
    assert len(lookup.ran) == 6
    assert guard.faults.counts == {"openai_agents reject_tool": 4}


@every_way
@pytest.mark.parametrize("broken", ["requests_of", "usage_of", "outputs_in", "handoff_names", "model_name", "texts_of"])
def test_a_fault_of_ours_never_ends_a_run(monkeypatch, way, broken):
    def fault(*_):
        raise RuntimeError("ours")

    monkeypatch.setattr(f"loopguard_openai_agents._translate.{broken}", fault)
    lookup, guard = Counted(), Watched()
    model = Scripted(lambda asked: [call()] if asked.rounds < 4 else [say("done")])
    agent = Agent(name="A", model=model, tools=[lookup.tool])
    assert hooked(way, agent, guard).output == "done"
    assert go(way, agent, guard=guard).output == "done"
    assert guard.faults.counts


# -- kinds of tools ----------------------------------------------------------------------------------------------------


class Editor:
    def __init__(self, ran):
        self.ran = ran

    async def create_file(self, operation):
        self.ran.append("create")

    async def update_file(self, operation):
        self.ran.append("update")

    async def delete_file(self, operation):
        self.ran.append("delete")


def custom(ran):
    async def invoke(context, text):
        ran.append(text)
        return "nothing"

    tool = CustomTool(name="lookup", description="d", on_invoke_tool=invoke)
    return tool, lambda n: ResponseCustomToolCall(
        type="custom_tool_call", call_id=f"c{n}", name="lookup", input="x", id=f"i{n}"
    )


def shell(ran):
    async def execute(request):
        ran.append("ls")
        return "nothing"

    return ShellTool(executor=execute), lambda n: ResponseFunctionShellToolCall(
        type="shell_call",
        id=f"i{n}",
        call_id=f"c{n}",
        action=ShellAction(commands=["ls"]),
        status="completed",
        environment=None,
    )


def patch(ran):
    operation = {"type": "delete_file", "path": "x"}
    return ApplyPatchTool(editor=Editor(ran)), lambda n: ResponseApplyPatchToolCall(
        type="apply_patch_call", id=f"i{n}", call_id=f"c{n}", status="completed", operation=operation
    )


def namespaced(ran):
    counted = Counted()
    counted.ran = ran
    [tool] = tool_namespace(name="crm", description="d", tools=[counted.tool])
    return tool, lambda n: call().model_copy(update={"namespace": "crm"})


@pytest.mark.parametrize("kind", [custom, shell, patch, namespaced])
def test_every_kind_of_local_tool_is_refused(kind):
    ran_tools, guard = [], Watched()
    tool, item = kind(ran_tools)
    ran = hooked("run", Agent(name="A", model=Scripted(lambda asked: [item(asked.number)]), tools=[tool]), guard)
    assert isinstance(ran.error, LoopGuardStop)
    # A patch changes something: that run is ended sooner.
    expected = [(2, "observe"), (3, "block"), (4, "stop")] if kind is patch else DEFAULT_ACTIONS
    assert (len(ran_tools), guard.actions) == (2, expected)
    if kind is namespaced:
        assert guard.loops[0].tool == "crm.lookup"


def test_a_namespaced_tool_with_the_name_of_a_handoff_is_refused_like_any_other():
    guard, counted = Watched(), Counted(name="transfer_to_b")
    [tool] = tool_namespace(name="crm", description="d", tools=[counted.tool])
    model = Scripted(lambda _: [call("transfer_to_b").model_copy(update={"namespace": "crm"})])
    other = Agent(name="B", model=Scripted(lambda _: [say("taken over")]))
    ran = hooked("run", Agent(name="A", model=model, tools=[tool], handoffs=[other]), guard)
    assert_stop(ran)
    assert (len(counted.ran), guard.actions) == (2, DEFAULT_ACTIONS)


def test_a_tool_that_cannot_be_refused_is_steered_and_kept_from_running_at_the_stop():
    ran_tools, guard = [], Watched()

    def execute(request):
        ran_tools.append("ls")
        return "nothing"

    def script(asked):
        action = LocalShellCallAction(type="exec", command=["ls"], env={})
        number = asked.number
        return [
            LocalShellCall(
                type="local_shell_call", id=f"i{number}", call_id=f"c{number}", status="completed", action=action
            )
        ]

    model = Scripted(script)
    ran = hooked("run", Agent(name="A", model=model, tools=[LocalShellTool(executor=execute)]), guard)
    assert isinstance(ran.error, LoopGuardStop)
    assert len(ran_tools) == 5  # not six: the round of the stop never ran
    assert [action for _, action in guard.actions] == ["observe", "steer", "steer", "steer", "stop"]
    assert sum(len(asked.told) for asked in model.asked) == 1


HOSTED = {"type": "mcp", "server_label": "srv", "server_url": "http://127.0.0.1:1", "require_approval": "always"}


@pytest.mark.parametrize("changing", [False, True])
def test_calls_a_provider_asks_approval_for_are_refused_before_anybody_is_asked(changing):
    asked, guard = [], Watched()

    def approve(request):
        asked.append(request.data.id)
        return {"approve": True}

    def script(request):
        number = request.number
        if number > 8:
            return [say("done")]
        done = McpCall(
            type="mcp_call",
            id=f"m{number}",
            name="lookup",
            server_label="srv",
            arguments="{}",
            approval_request_id=f"r{number - 1}",
            output=f"{number * 7} percent" if changing else "nothing",
        )
        wanted = McpApprovalRequest(
            type="mcp_approval_request", id=f"r{number}", name="lookup", server_label="srv", arguments="{}"
        )
        approved = f"r{number - 1}" in asked
        return [done, wanted] if approved else [wanted]

    tool = HostedMCPTool(tool_config=HOSTED, on_approval_request=approve)
    ran = hooked("run", Agent(name="A", model=Scripted(script), tools=[tool]), guard)
    if changing:
        assert (ran.output, len(asked)) == ("done", 8)
    else:
        assert isinstance(ran.error, LoopGuardStop)
        assert (asked, guard.actions) == (["r1", "r2"], DEFAULT_ACTIONS)


# -- ends that hooks are not told of -----------------------------------------------------------------------------------


def test_a_run_that_dies_is_ended_when_nothing_holds_it_any_more():
    guard = Watched()
    hooks = LoopGuardHooks(guard)
    dying = Agent(name="A", model=Scripted(sequence([call()], lambda: ConnectionError("down"))), tools=[Counted().tool])
    ran = hooked("run", dying, None, hooks=hooks)
    assert isinstance(ran.error, ConnectionError)
    assert guard.reasons == []
    del ran
    gc.collect()
    guard.close()
    assert guard.reasons == ["cancelled"]
    assert guard._live == {}


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_a_run_that_is_cancelled_while_a_tool_runs_does_not_pass_for_one_that_waits(way):
    guard = Watched()
    hooks = LoopGuardHooks(guard)

    async def main():
        running = asyncio.Event()

        async def forever(context, arguments):
            running.set()
            await asyncio.Event().wait()

        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        tool = FunctionTool("lookup", "d", schema, forever)
        agent = Agent(name="A", model=Scripted(deaf(("lookup", {}))), tools=[tool])
        task = asyncio.create_task(ahooked(way, agent, hooks=hooks))
        await running.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    gc.collect()
    guard.close()
    assert guard.reasons == ["cancelled"]
    assert guard._live == {}


@every_way
@pytest.mark.parametrize("behaviour", ["stop_on_first_tool", {"stop_at_tool_names": ["lookup"]}], ids=str)
def test_a_tools_result_that_is_the_final_output_completes_the_run(way, behaviour):
    guard, lookup = Watched(), Counted("found")
    agent = Agent(name="A", model=Scripted(deaf()), tools=[lookup.tool], tool_use_behavior=behaviour)
    assert hooked(way, agent, guard).output == "found"
    assert (guard.reasons, len(lookup.ran)) == (["complete"], 1)


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_a_run_that_dies_as_it_hands_over_does_not_pass_for_one_that_waits(way):
    def dies(context):
        raise ZeroDivisionError("the user's own")

    guard = Watched()
    hooks = LoopGuardHooks(guard)
    other = Agent(name="B", model=Scripted(lambda _: [say("hi")]))
    first = Agent(name="A", model=Scripted(lambda _: [handoff_call("b")]), handoffs=[handoff(other, on_handoff=dies)])
    ran = hooked(way, first, None, hooks=hooks)
    assert isinstance(ran.error, ZeroDivisionError)
    del ran
    gc.collect()
    guard.close()
    assert guard.reasons == ["cancelled"]
    assert guard._live == {}


def test_nothing_is_kept_of_runs_that_are_over():
    guard = Watched()
    hooks = LoopGuardHooks(guard)

    async def main():
        for _ in range(30):
            await Runner.run(
                Agent(name="A", model=Scripted(sequence([call()])), tools=[Counted().tool]), "x", hooks=hooks
            )

    asyncio.run(main())
    gc.collect()
    guard.close()
    assert guard._live == {}
    assert not [run for run in registry._by_context.values() if run.guard is guard]
    assert not [run for run in registry._watched if run.guard is guard]
    assert not [run for run in registry._waiting if run.guard is guard]


def test_the_session_of_a_run_can_be_had():
    guard = Watched()
    ran = go("run", Agent(name="A", model=Scripted(deaf()), tools=[Counted().tool]), guard=guard)
    session = session_of(ran.result)
    assert (session.turns, session.verdict.streak, session.ended.reason) == (6, 6, "doom_loop")
    raised = go("run", Agent(name="A", model=Scripted(deaf()), tools=[Counted().tool]), guard=guard, on_stop="raise")
    assert session_of(raised.error.run_data).verdict is raised.error.verdict
    assert session_of(object()) is None
    assert ran.output.startswith(OWN)


def test_one_context_used_for_two_runs_is_two_sessions():
    guard = Watched()
    wrapper = RunContextWrapper(context=None)
    for _ in range(2):
        hooked("run", Agent(name="A", model=Scripted(lambda _: [say("hi")])), guard, context=wrapper)
    assert len({end.session_id for end in guard.ends}) == 2


def test_without_the_sdk_the_import_says_what_to_install():
    code = "import sys; sys.modules['agents'] = None; import loopguard_openai_agents"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'loopguard-core[openai-agents]'" in done.stderr.strip().splitlines()[-1]
