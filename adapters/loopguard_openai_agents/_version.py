"""Which versions of the SDK really refuse a refused call."""

from __future__ import annotations

import re

import agents

from loopguard_core import LoopGuardError

MINIMUM = (0, 20)


def check_version() -> None:
    """Refuse a version that would run the calls loopguard refuses.

    Before 0.19.4 the SDK looks at a rejection only for tools that need approval, and runs every other tool anyway.

    Raises:
        LoopGuardError: The installed version is too old.
    """
    version = agents.__version__
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM:
        raise LoopGuardError(
            f"openai-agents {version} runs calls that loopguard refuses, so nothing would be blocked: "
            "pip install 'openai-agents>=0.20'"
        )
