"""Every name that `loopguard_core.otel` emits, in one place.

The `gen_ai.*` names are those of OpenTelemetry's conventions for generative AI, which live in a repository of their own
(`semantic-conventions-genai`) and are still in development: the Python package marks its constants for them as moved.
So the few that are needed stand here. There is no convention for loops; those names are ours.
"""

from __future__ import annotations

# -- conventions: https://github.com/open-telemetry/semantic-conventions-genai --------------------------------------
OPERATION = "gen_ai.operation.name"
EXECUTE_TOOL = "execute_tool"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
CONVERSATION_ID = "gen_ai.conversation.id"
AGENT_NAME = "gen_ai.agent.name"
RESPONSE_MODEL = "gen_ai.response.model"
ERROR_TYPE = "error.type"

OTHER = "_OTHER"
"""What conventions put in the place of a value that would be one of too many."""

# -- ours -----------------------------------------------------------------------------------------------------------
SCOPE = "loopguard"

DETECTED_EVENT = "loopguard.doom_loop.detected"
END_EVENT = "loopguard.session.end"

DETECTOR = "loopguard.detector"
ACTION = "loopguard.action"
PROPOSED = "loopguard.proposed_action"
COUNT = "loopguard.count"
FINGERPRINT = "loopguard.fingerprint"
ROUND = "loopguard.round"
ADAPTER = "loopguard.adapter"
PARENT_ID = "loopguard.parent_id"
REFUSED = "loopguard.refused"
END_REASON = "loopguard.end_reason"
STOP_REASON = "loopguard.stop_reason"
TURNS = "loopguard.turns"
MODEL_CALLS = "loopguard.model_calls"

BLOCKED = "loopguard.blocked"
"""`error.type` of a call that was refused."""

DETECTIONS = "loopguard.detections"
TOOL_CALLS = "loopguard.tool_calls"
SESSIONS = "loopguard.sessions"
SESSION_TURNS = "loopguard.session.turns"
SESSION_DURATION = "loopguard.session.duration"
COST = "loopguard.cost"
