"""Traces of operations, their phases and backward passes, for Chrome's viewer or Perfetto.

    with Group(..., timeline="trace.json") as group: ...

Each rank writes a part, such as `trace.rank3.json` in the directory of `trace.json`. A part is a valid trace, also
after a crash. To merge the parts of all ranks into one trace, copy them to one host and run:

    python -m hpsearch_comm.timeline merge trace.json trace.rank*.json
"""

from __future__ import annotations

from hpsearch_comm.timeline.recorder import NoTimeline, Timeline, open_timeline

__all__ = ["NoTimeline", "Timeline", "open_timeline"]
