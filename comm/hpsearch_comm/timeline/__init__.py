"""Traces of a rank: operations, their phases and the backward pass, for Chrome's viewer or Perfetto.

    with Group(..., timeline="trace.json") as group: ...

Each rank writes its own part, `trace.rank3.json` next to the path, which is readable as it is, also after a crash. The
parts of all ranks are merged into one trace afterwards, wherever they have been copied to:

    python -m hpsearch_comm.timeline merge trace.json trace.rank*.json
"""

from __future__ import annotations

from hpsearch_comm.timeline.recorder import NoTimeline, Timeline, open_timeline

__all__ = ["NoTimeline", "Timeline", "open_timeline"]
