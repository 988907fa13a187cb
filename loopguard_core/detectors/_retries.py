"""How often a model was already told: one count that detectors may share."""

from __future__ import annotations


class Retries:
    """Counts interventions since the user last spoke.

    In preset `dsh` repeated text and rephrased searches share one retry: what either takes, the other has not.

    Attributes:
        taken: How many so far. Of two detectors that share the count, the last one restored decides.
    """

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0

    def take(self) -> int:
        """Count one more."""
        self.taken += 1
        return self.taken
