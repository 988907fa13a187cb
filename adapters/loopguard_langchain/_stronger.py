"""The stronger model that a `LoopGuardMiddleware` gives escalated turns to."""

from __future__ import annotations

from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel

from loopguard_langchain import _translate as translate


class StrongerModel:
    """What `escalate_model` was given, or else what the policy names.

    Args:
        given: A model, the name of one, or None for what the policy names.

    Attributes:
        label: What it is called in events; None where the policy names it.

    Raises:
        TypeError: It is none of them.
    """

    def __init__(self, given: str | BaseChatModel | None) -> None:
        if given == "" or not isinstance(given, str | BaseChatModel | None):
            raise TypeError(
                f"escalate_model = {given!r:.80}: must be a chat model, or a name for init_chat_model such as"
                ' "openai:gpt-6"; leave it out for what the policy names'
            )
        self._given = given if isinstance(given, BaseChatModel) else None
        self._named: dict[str, BaseChatModel] = {}
        self.label: str | None = given if isinstance(given, str) else None
        if self._given is not None:
            self.label = translate.model_name(self._given) or type(self._given).__name__

    def model(self, name: str) -> BaseChatModel:
        """The model.

        Args:
            name: The session's name for it.
        """
        if self._given is not None:
            return self._given
        if name not in self._named:
            self._named[name] = init_chat_model(name)
        return self._named[name]
