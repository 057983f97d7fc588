"""Format the result of a check, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from hpsearch.check.check import CheckResult, TrialComparison
from hpsearch.check.differences import Difference
from hpsearch.tables.wording import bytes_text, counted, duration, params_line, shortened

_WIDTH = 13
_MOST = 8
"""Maximum number of listed differences of a kind."""

_SIDES = {
    "repeated": ("first", "again"),
    "restored": ("uninterrupted", "restored"),
    "warm worker": ("alone", "after another trial"),
}

_EQUAL = {
    "repeated": "equal runs are equal to the bit",
    "restored": "saved after iteration 1 and restored in a fresh process, it is equal to the bit",
    "warm worker": "trial {} is equal to the bit in a fresh process and in one that has run trial {}",
}

_DIFFERS = {
    "repeated": "two equal runs of trial {0} differ",
    "restored": "saved after iteration 1 and restored in a fresh process, trial {0} differs from an uninterrupted run",
    "warm worker": "trial {1} differs in a process that has run trial {0} before",
}

_RESTORE = {
    "weights": "save all that the weights depend on, the model's state_dict() first, and load it before the loop",
    "optimizer": "save the optimizer's state_dict() in the checkpoint, and load it before the loop",
    "learning rate": "save the state_dict() of the optimizer and of its schedule, and load both before the loop",
    "data order": "shuffle by trial.seed and the iteration's number, or save the generator's state in the checkpoint",
    "random numbers": "draw inside the loop over trial.iterations(), with the global generators",
}

_ADVICE = {
    "repeated": "draw from the global generators, which are seeded, or seed your own with trial.seed; on a GPU see "
    "torch.use_deterministic_algorithms; of a metric that measures time nothing else can be expected",
    "warm worker": "make what a trial changes anew in each trial, or set resources.fresh_process: true",
}


def check_text(result: CheckResult) -> str:
    """Format a check as lines."""
    lines = [f"{result.sweep}: trial {result.trials[0].number}: {params_line(result.trials[0].params)}", ""]
    for comparison in result.comparisons:
        lines += _labelled(comparison.name, _comparison_lines(result, comparison))
    if result.module_changes:
        names = ", ".join(result.module_changes)
        effect = "each such trial changes them, and costs a sweep on Ray a new worker process"
        lines += _labelled("modules", [f"{names}: {effect}"])
    if result.varying:
        names = ", ".join(result.varying)
        lines += _labelled("varying", [f"{names}: differs between equal runs, as what measures time does"])
    gpu = f", {bytes_text(result.gpu_memory)} on the GPU" if result.gpu_memory else ""
    size = result.checkpoint_bytes
    lines += [
        "",
        *_labelled("memory", [f"{bytes_text(result.memory)}{gpu} at most"]),
        *_labelled("iteration", [_seconds(result.seconds)]),
        *_labelled("checkpoint", ["none" if size is None else bytes_text(size)]),
        *_labelled("lane", [_lane(result)]),
        "",
    ]
    wrong = sum(not comparison.ok for comparison in result.comparisons)
    lines.append("all is well" if not wrong else f"{counted(wrong, 'problem')}; see docs/trainables.md")
    return "\n".join(lines) + "\n"


def check_json(result: CheckResult) -> str:
    """Return a check as JSON."""
    record: dict[str, Any] = {
        "sweep": result.sweep,
        "ok": result.ok,
        "trials": [{"number": trial.number, "params": dict(trial.params)} for trial in result.trials],
        "comparisons": {comparison.name: _json(comparison) for comparison in result.comparisons},
        "module_changes": list(result.module_changes),
        "varying": list(result.varying),
        "memory_bytes": result.memory,
        "gpu_memory_bytes": result.gpu_memory,
        "seconds": list(result.seconds),
        "checkpoint_bytes": result.checkpoint_bytes,
        "lane": {"possible": _why_no_lane(result) is None, "reason": _why_no_lane(result)},
    }
    return json.dumps(record, indent=2, ensure_ascii=False)


def _json(comparison: TrialComparison) -> dict[str, Any]:
    failure = comparison.failure
    return {
        "verdict": comparison.verdict,
        "text": comparison.text,
        "differences": [asdict(entry) for entry in comparison.differences],
        "suspects": [asdict(entry) for entry in comparison.suspects],
        "failure": None if failure is None else asdict(failure),
    }


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    return [f"{label if not index else '':<{_WIDTH}}{line}" for index, line in enumerate(lines)]


def _comparison_lines(result: CheckResult, comparison: TrialComparison) -> list[str]:
    numbers = [trial.number for trial in result.trials]
    if comparison.verdict == "equal":
        return [_EQUAL[comparison.name].format(*reversed(numbers))]
    if comparison.verdict == "skipped":
        return [f"not compared: {comparison.text}"]
    if comparison.failure is not None:
        failure = comparison.failure
        lines = [f"FAILED {comparison.text}: {failure.message}", *failure.traceback.rstrip().splitlines()]
    else:
        lines = [f"DIFFERS: {_DIFFERS[comparison.name].format(*numbers)}"]
        lines += _listed(comparison.differences, *_SIDES[comparison.name])
    if comparison.suspects:
        lines.append("values of modules that differ, which may be why:")
        lines += _listed(comparison.suspects, *_SIDES[comparison.name])
    lines += [f"fix: {advice}" for advice in _advice(comparison)]
    return lines


def _listed(differences: Sequence[Difference], first: str, second: str) -> Iterator[str]:
    """List differences; of entries of the last checkpoint, which follow from what differs before, their number."""
    early = [entry for entry in differences if entry.iteration is not None]
    for kind, of_kind in _by_kind(early or differences):
        for entry in of_kind[:_MOST]:
            when = "" if entry.iteration is None else f" at iteration {entry.iteration}"
            values = f"{entry.expected} {first}, {entry.got} {second}" if entry.expected or entry.got else ""
            details = "; ".join(text for text in (values, entry.note) if text)
            yield f"  {kind}: {entry.name}{when}{': ' if details else ''}{details}"
        if len(of_kind) > _MOST:
            yield f"  {kind}: {len(of_kind) - _MOST:,} more"
    if early and len(early) < len(differences):
        counts = [
            f"{kind} ({len(of_kind):,})"
            for kind, of_kind in _by_kind([entry for entry in differences if entry.iteration is None])
        ]
        yield f"  in the last checkpoint: {', '.join(counts)}"


def _by_kind(differences: Sequence[Difference]) -> Iterator[tuple[str, list[Difference]]]:
    for kind in dict.fromkeys(entry.kind for entry in differences):
        yield kind, [entry for entry in differences if entry.kind == kind]


def _advice(comparison: TrialComparison) -> Iterator[str]:
    if comparison.verdict == "failed":
        return
    if comparison.name != "restored":
        yield _ADVICE[comparison.name]
        return
    if any(entry.iteration == 1 for entry in comparison.differences):
        yield "iteration 1 differs already, in a segment that ends after it: let nothing depend on trial.end"
        return
    early = [entry for entry in comparison.differences if entry.iteration is not None]
    if any(entry.note for entry in early if entry.kind in ("weights", "metric", "checkpoint")):
        yield "load trial.checkpoint before the loop: the training begins anew"
        return
    kinds = {entry.kind for entry in early} - {"metric"} or {entry.kind for entry in comparison.differences}
    for kind, advice in _RESTORE.items():
        if kind in kinds:
            yield advice


def _seconds(seconds: Sequence[float]) -> str:
    if not seconds:
        return "none was reported"
    texts = [duration(value) if value >= 1 else f"{value * 1000:.3g} ms" for value in seconds]
    return texts[-1] + (f" (the first one {texts[0]})" if len(texts) > 1 else "")


def _lane(result: CheckResult) -> str:
    reason = _why_no_lane(result)
    if reason is not None:
        return f"no: {shortened(reason, 100)}"
    return "yes: trials of one shape can share a worker (resources.trials_per_worker)"


def _why_no_lane(result: CheckResult) -> str | None:
    lanes = result.lanes
    if lanes.why_none is not None:
        return lanes.why_none
    return next(iter((*lanes.alone, *lanes.failed)), None)
