"""The recorder on a real agent: what it wrote, replayed, says what happened."""

import stat

from loopguard_langchain_models import Counted, ScriptedModel, ask, both_ways, call, deaf, guarded, run

from loopguard_core import LoopGuard, Policy
from loopguard_core.recorder import FileRecorder
from loopguard_core.transcripts import guard_for_replay, play, read_recording
from loopguard_core.transcripts.recordings import live_end, live_verdicts


@both_ways
def test_a_recorded_agent_replays_as_it_ran(tmp_path, way):
    tool = Counted("Error: timed out")
    guard = LoopGuard(plugins=[FileRecorder(tmp_path / "recordings")])
    agent = guarded(ScriptedModel(script=deaf(call(key="INV-2291"))), [tool.tool], guard)
    run(agent, ask(), way)
    assert guard.faults.counts == {}
    (file,) = (tmp_path / "recordings").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    document, transcript = read_recording(file)
    with guard_for_replay(Policy()) as replaying:
        replayed = play(transcript, replaying)
    assert live_end(document).reason == replayed.ended == "doom_loop"
    assert [(v.round, v.action) for v in live_verdicts(document)] == [(v.round, v.action) for v in replayed.verdicts]
    assert [m.usage.total_tokens for m in transcript.messages if getattr(m, "usage", None)] == [15] * 6
    assert "INV-2291" not in file.read_text(encoding="ascii")
