"""A detector that raises is contained, and its run goes on; here it is a failure of the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from loopguard_core._faults import Faults


@pytest.fixture(autouse=True)
def no_contained_faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    raised: list[BaseException] = []
    note = Faults.note

    def noted(self: Faults, label: str, error: BaseException | None = None, **more: Any) -> None:
        if error is not None:
            raised.append(error)
        note(self, label, error, **more)

    monkeypatch.setattr(Faults, "note", noted)
    yield
    for error in raised:
        raise error
