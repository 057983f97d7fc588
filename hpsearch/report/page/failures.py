"""What failed, by cause."""

from __future__ import annotations

from hpsearch.report.page.section import Section, Table
from hpsearch.report.status import failures_by_kind
from hpsearch.report.study import Study
from hpsearch.report.wording import counted

__all__ = ["failures"]

_MOST_KINDS = 10
_MOST_NAMED = 20


def failures(study: Study) -> Section | None:
    """Show each kind of failure once, the trials that it struck, and one traceback of the most frequent."""
    kinds = sorted(failures_by_kind(study).values(), key=lambda kind: -len(kind[1]))
    if not kinds:
        return None
    rows = []
    for first, struck in kinds[:_MOST_KINDS]:
        more = f" and {len(struck) - _MOST_NAMED} more" if len(struck) > _MOST_NAMED else ""
        rows.append((str(len(struck)), first.kind, first.message, ", ".join(map(str, struck[:_MOST_NAMED])) + more))
    failed = sum(len(struck) for _, struck in kinds)
    words = [
        f"{counted(failed, 'trial')} failed, of {counted(len(kinds), 'cause')}. The most frequent one's traceback:"
    ]
    table = Table(("trials", "what", "message", "which"), rows)
    return Section("Failures", words, table=table, code=kinds[0][0].traceback.strip() or kinds[0][0].message)
