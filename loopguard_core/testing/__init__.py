"""For tests: a scripted model behind a real HTTP server, a recorder of events, and assertions on recordings.

The server lets you try an agent without a provider, a key or a bill.

```python
from loopguard_core.testing import ScriptedServer, never_listens

with ScriptedServer(never_listens("get_invoice", {"id": "A-1"})) as server:
    model = ChatOpenAI(base_url=server.base_url, api_key="unused", model="scripted-1", stream_usage=True)
    ...  # run the agent; it loops as a real one would, through the real client
print(len(server.requests), server.usage_log[-1])
```

What the model says is a *persona*: a function from what it is sent to its answer. `loopguard_core.testing.conformance`
holds the suite that every adapter passes.
"""

from __future__ import annotations

from loopguard_core.testing.assertions import assert_no_loop
from loopguard_core.testing.personas import (
    ChatRequest,
    Persona,
    Reply,
    ScriptedCall,
    gives_up_when_refused,
    never_listens,
    script,
)
from loopguard_core.testing.recorder import Recorder
from loopguard_core.testing.scripted_server import ScriptedServer

__all__ = [
    "ChatRequest",
    "Persona",
    "Recorder",
    "Reply",
    "ScriptedCall",
    "ScriptedServer",
    "assert_no_loop",
    "gives_up_when_refused",
    "never_listens",
    "script",
]
