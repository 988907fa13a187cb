"""What model calls cost: `price` of one that is over, `worst_case` of one that is about to start.

Prices come from the provider's own report, else from the extra `prices`, which works offline. `warm` loads the list,
0.6 s the first time; call it where a program starts and not on an event loop. See `docs/keys.md`.
"""

from loopguard_core._prices import price, warm, worst_case

__all__ = ["price", "warm", "worst_case"]
