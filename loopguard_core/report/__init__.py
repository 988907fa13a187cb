"""Reports on recorded conversations as one HTML page that needs no network and no script.

```python
from loopguard_core import Policy
from loopguard_core.report import Reporter, page

with Reporter(Policy()) as reporter:
    stories = [reporter.story("run.json")]
print(page(stories))
```
"""

from __future__ import annotations

from loopguard_core.report._page import page
from loopguard_core.report._story import Reporter, Step, Story

__all__ = ["Reporter", "Step", "Story", "page"]
