"""What a rank did when: operations, their phases and the backward pass, as a trace for Chrome's viewer or Perfetto.

    with Group(..., timeline="trace.json") as group: ...

Each rank writes a part of its own, `trace.rank3.json` beside the path, which loads as it is, also after a crash. The
parts of all ranks become one trace afterwards, wherever they have been copied to:

    python -m hpsearch_comm.timeline merge trace.json trace.rank*.json
"""

from __future__ import annotations

from hpsearch_comm.timeline.recorder import NoTimeline, Timeline, open_timeline

__all__ = ["NoTimeline", "Timeline", "open_timeline"]
