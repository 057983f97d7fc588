"""The records of all trials of a sweep: the best trials, the counts, and the checkpoints that are no longer needed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hpsearch.events import Continued, Started
from hpsearch.objective import Objective, is_valid, values_of
from hpsearch.objective.fronts import Point, dominates
from hpsearch.objective.repeats import Repeats, deviation
from hpsearch.space import Space
from hpsearch.study.trial_record import DECIDED, TrialRecord
from hpsearch.trainable.addresses import count_in_pack, pack_of, path_of
from hpsearch.trial import Failure, Params, Repeated, Report, Score, Segment, StateAt, Trial, TrialRow, TrialState

TERMINAL = DECIDED | {TrialState.FAILED}
"""States of trials that only a user's request can continue."""


class TrialRecords:
    """The records of all trials. The best trials and the counts are updated incrementally."""

    def __init__(
        self,
        objective: Objective,
        least_width: int = 1,
        is_asynchronous: Callable[[Params], bool] = lambda params: False,
        repeats: Repeats | None = None,
    ) -> None:
        self.least_width = least_width
        """Minimum number of workers of a trial. A trial is never reverted to fewer."""
        self._objective = objective
        self._is_asynchronous = is_asynchronous
        self._repeats = repeats or Repeats()
        self._repeated: list[list[int]] = []
        """The trials of each configuration, by repeat; empty without repeats."""
        self._all: list[TrialRecord] = []
        self._leaders: dict[int, Score | None] = {}  # with their scores at the last comparison
        self._front: tuple[Score, ...] = ()  # scores of the leaders that meet the constraints
        self._front_points: tuple[Point, ...] = ()
        self._changed: set[int] = set()  # trials that changed since the last comparison
        self._best_ended: set[int] = set()  # the Pareto front of trials that never run again, at the last comparison
        self._decided: set[int] = set()  # trials that will never run again, since then
        self._touched: set[int] = set()
        self._forkable: set[str] = set()  # checkpoints that may still be forked
        self._fork_counts: Counter[str] = Counter()  # checkpoints to the number of forks that may restart from them
        self._packs = PackUsers()
        self._codes: dict[str, int] = {}  # versions of the trainable's code to their numbers, from 1
        self._code: int | None = None
        self._space: Space | None = None  # of which trials get the defaults; None: they have all params
        self.counts: Counter[TrialState] = Counter()
        self.failed_kinds: Counter[str] = Counter()  # kinds of failures to the number of failed trials
        self.running: set[int] = set()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[TrialRecord]:
        return iter(self._all)

    def of(self, trial: int) -> TrialRecord:
        """Return a trial's record."""
        return self._all[trial]

    def widest(self, trial: int) -> int | None:
        """Return the maximum number of workers of a trial, which needn't exist yet; None: no limit of its own."""
        return self._all[trial].widest if trial < len(self._all) else None

    def narrowest(self, trial: int) -> int:
        """Return the minimum number of workers that a trial needs for its memory. The trial needn't exist yet."""
        return self._all[trial].narrowest if trial < len(self._all) else 1

    @property
    def configurations(self) -> int:
        """Number of configurations so far; without repeats, of trials."""
        return len(self._repeated) if self._repeats.several else len(self._all)

    def repeats(self, configuration: int) -> list[TrialRecord]:
        """Return the trials of a configuration that have begun, by repeat."""
        return [self._all[trial] for trial in self._repeated[configuration]]

    def first_repeat(self, configuration: int) -> Trial:
        """Return the first trial of a configuration."""
        return self._all[self._repeated[configuration][0]].trial

    def mean_metrics(self, configuration: int) -> dict[str, float]:
        """Return the mean, or the quantile that the sweep asks for, of each metric that all repeats reported.

        Of each repeat, the report that gives its score counts.
        """
        reported = [record.result.scored for record in self.repeats(configuration)]
        shared = [name for name in reported[0] if all(name in metrics for metrics in reported)]
        return {name: self._repeats.value([metrics[name] for metrics in reported]) for name in shared}

    def standing(self, trial: int) -> Score | None:
        """Return the score by which a trial is ranked: its own, or with repeats that of its configuration.

        A configuration has a score once all its repeats are complete with a score.
        """
        record = self._all[trial]
        if record.trial.configuration is None:
            return record.valid_score
        repeats = self.repeats(record.trial.configuration)
        complete = sum(other.state is TrialState.COMPLETE and other.valid_score is not None for other in repeats)
        if complete < self._repeats.n:
            return None
        score = self._objective.reported(self.mean_metrics(record.trial.configuration))
        return score if is_valid(score) else None

    def rows(self) -> list[TrialRow]:
        """Return every trial, by number."""
        results = [self._repeated_by(configuration) for configuration in range(len(self._repeated))]
        return [_row(record, results) for record in self._all]

    def row(self, trial: int) -> TrialRow:
        """Return a trial's row in tables."""
        record = self._all[trial]
        configuration = record.trial.configuration
        return _row(record, {} if configuration is None else {configuration: self._repeated_by(configuration)})

    def _repeated_by(self, configuration: int) -> Repeated:
        """Return a configuration and its results, as of its repeat 0."""
        repeats = self.repeats(configuration)
        scores = [
            record.valid_score
            for record in repeats
            if record.state is TrialState.COMPLETE and record.valid_score is not None
        ]
        columns = list(zip(*map(values_of, scores), strict=True))
        return Repeated(
            configuration=configuration,
            repeat=0,
            score=self.standing(repeats[0].trial.number),
            statistic=self._repeats.statistic,
            values=tuple(map(self._repeats.value, columns)),
            deviations=tuple(map(deviation, columns)),
            n=len(scores),
        )

    def segments(self) -> list[Segment]:
        """Return the segments that run, by trial number."""
        running = (self._all[trial].segment for trial in sorted(self.running))
        return [segment for segment in running if segment is not None]

    def open(self, code: str) -> None:
        """Record the version of the code that trials run from now on; empty if unknown."""
        self._code = self._codes.setdefault(code, len(self._codes) + 1) if code else None

    def start(self, event: Started) -> None:
        """Record that a segment runs."""
        segment = event.segment
        if event.new is not None:
            self._all.append(TrialRecord(self._completed(event.new), self._is_asynchronous(event.new.params)))
            if event.new.configuration is not None:
                if event.new.repeat == 0:
                    self._repeated.append([])
                self._repeated[event.new.configuration].append(event.new.number)
            self.counts[TrialState.WAITING] += 1
            if (source := self._all[-1].source) is not None:
                self._fork_counts[source] += 1
        record = self._all[segment.trial]
        record.bracket, record.rung = event.bracket, event.rung
        record.start(segment)
        record.widen(segment.width, self.least_width)
        self.running.add(segment.trial)
        self._change(record, TrialState.RUNNING)

    def use_defaults(self, space: Space) -> None:
        """Give all trials, also later ones, the defaults of a changed space's parameters that they lack."""
        self._space = space
        for record in self._all:
            record.trial = self._completed(record.trial)

    def _completed(self, trial: Trial) -> Trial:
        return trial if self._space is None else replace(trial, params=self._space.with_defaults(trial.params))

    def release(self, trial: int, state: TrialState) -> None:
        """Record that a trial's segment no longer runs."""
        record = self._all[trial]
        record.segment = None
        self.running.discard(trial)
        self._touched.add(trial)
        self._change(record, state)

    def count(self, trial: int, reports: Sequence[Report]) -> None:
        """Count reports."""
        self._touched.add(trial)
        self._changed.add(trial)
        self._all[trial].count(reports, self._objective)
        if reports and self._code is not None:
            self._all[trial].ran(self._code)

    def revert(self, trial: int, reason: str, left_behind: str | None) -> None:
        """Put a trial back to its state before it was widened."""
        record = self._all[trial]
        record.revert(reason, left_behind)
        self._touched.add(trial)
        self._changed.add(trial)

    def drop(self, trial: int) -> None:
        """Drop a trial's newest checkpoint and its rollback point."""
        self._all[trial].drop_checkpoint()
        self._touched.add(trial)
        self._changed.add(trial)

    def retry(self, trial: int) -> None:
        """Reset a failed trial, so that it can run again."""
        record = self._all[trial]
        if record.failure is not None:
            self.failed_kinds[record.failure.kind] -= 1
        record.retry()
        self._change(record, TrialState.WAITING)

    def train_on(self, event: Continued) -> None:
        """Have an ended trial train on.

        Raises:
            ValueError: The trial hasn't ended, or has failed.
        """
        record = self._all[event.trial]
        if record.state not in DECIDED:
            raise ValueError(f"only a trial that has ended can train on; trial {event.trial} is {record.state}")
        record.train_on(event.until, event.iteration, event.checkpoint)
        self._change(record, TrialState.WAITING)

    def decide(self, trial: int, state: TrialState, reason: str) -> None:
        """Apply the scheduler's decision on a paused trial."""
        record = self._all[trial]
        record.reason = reason
        self._change(record, state)
        self._end(record)

    def fail(self, trial: int, failure: Failure) -> None:
        """Record why a trial failed for good."""
        record = self._all[trial]
        record.failure, record.reason = failure, failure.message
        self.failed_kinds[failure.kind] += 1
        self._end(record)

    def leaders(self) -> list[TrialRow]:
        """Return the non-dominated trials, by number. With one goal this is the best trial; on a tie, the first.

        With repeats, configurations are compared, and each is represented by its last repeat, with its own score in
        place of that trial's.
        """
        self._compare_changed()
        rows = [self.row(trial) for trial in self._leaders]
        return [replace(row, score=row.standing) for row in rows]

    def front(self) -> tuple[Score, ...]:
        """Return the scores of the leaders that meet the constraints: the same object until one of them changes."""
        self._compare_changed()
        return self._front

    def _compare_changed(self) -> None:
        """Compare the trials that changed with the leaders, or all trials if a leader became worse."""
        changed = {trial for trial in map(self._compared, self._changed) if trial is not None}
        changed = {trial for trial in changed if trial in self._leaders or not self._is_dominated(trial)}
        self._changed.clear()
        if not changed:
            return
        worse = any(self._is_worse(trial) for trial in changed & self._leaders.keys())
        compared = range(len(self._all)) if worse else self._leaders.keys() | changed
        scores = {trial: self._score(trial) for trial in compared}
        self._leaders = {
            trial: scores[trial] for trial in self._objective.front(scores, self._leaders.keys() - changed)
        }
        self._front = tuple(score for score in self._leaders.values() if self._objective.is_feasible(score))
        self._front_points = tuple(map(self._objective.point, self._front))

    def _compared(self, trial: int) -> int | None:
        """Return the trial that represents a changed trial in comparisons; None if there is none yet.

        With repeats this is the last repeat of its configuration.
        """
        configuration = self._all[trial].trial.configuration
        if configuration is None:
            return trial
        repeats = self._repeated[configuration]
        return repeats[-1] if len(repeats) == self._repeats.n else None

    def _score(self, trial: int) -> Score | None:
        """Return the score that a trial is compared by; None with repeats, unless it is the last one."""
        return self.standing(trial) if self._compared(trial) == trial else None

    def _is_dominated(self, trial: int) -> bool:
        """Return whether a leader dominates a trial, so that the trial changes no leader."""
        if not self._front_points:
            return False
        score = self._score(trial)
        if not self._objective.is_feasible(score):
            return True
        point = self._objective.point(score)
        return any(dominates(leader, point) for leader in self._front_points)

    def _is_worse(self, trial: int) -> bool:
        """Return whether a leader became worse in at least one goal."""
        score, former = self._score(trial), self._leaders[trial]
        return score != former and not self._objective.improves(score, former)

    def obsolete(self, fork_states: Collection[StateAt] = (), *, keep_all: bool) -> list[str]:
        """Return the checkpoints that are no longer needed, each once, and the packs with only such checkpoints.

        A trial that may still run needs its newest checkpoint, and so does a failed trial, which may be retried. Of the
        other ended trials, only the best ones keep checkpoints: their values are final, so no worse trial can become
        one of the best.

        Args:
            fork_states: Trial states that may still be forked.
            keep_all: Whether to keep all checkpoints.
        """
        if keep_all:
            return []
        gone: list[str] = []
        forkable = {path for state in fork_states if (path := self.checkpoint_at(state)[1]) is not None}
        self._touched.update(owner_of(path) for path in self._forkable - forkable)
        self._forkable = forkable
        if self._decided:
            self._compare_decided()
        for trial in sorted(self._touched):
            record = self._all[trial]
            if record.state in DECIDED and trial not in self._best_ended and not self._is_open(trial):
                record.retire()
            gone += record.take_superseded(self._fork_counts, forkable)
        self._touched.clear()
        return gone + self._packs.release(gone)

    def checkpoint_at(self, state: StateAt) -> tuple[int, str | None]:
        """Return (iteration, checkpoint) of the newest existing checkpoint for a fork; the checkpoint may be None."""
        record = self._all[state.trial]
        saved = record.checkpoint_at(state.iteration)
        if saved is not None:
            return saved
        source, start = record.source, record.trial.start
        if source is not None and start <= state.iteration and self._all[owner_of(source)].has(source):
            return start, source
        return state.iteration, None

    def checkpoints(self) -> set[str]:
        """Return the checkpoints that trials need."""
        return self._forkable.union(*(record.needed() for record in self._all))

    def _change(self, record: TrialRecord, state: TrialState) -> None:
        self.counts[record.state] -= 1
        self.counts[state] += 1
        record.state = state
        self._changed.add(record.trial.number)

    def _end(self, record: TrialRecord) -> None:
        if record.state not in TERMINAL:
            return
        record.rollback_point = None  # it never runs again
        self._touched.add(record.trial.number)
        if record.state in DECIDED:
            if record.continued is None:  # else it was released at its first end
                self._release(record)
            trial = self._compared(record.trial.number)
            if trial is not None and not self._is_open(trial):
                self._decided.add(trial)
                self._touched.add(trial)

    def _is_open(self, trial: int) -> bool:
        """Return whether a trial represents a configuration of which a repeat may still run."""
        configuration = self._all[trial].trial.configuration
        if configuration is None or self._compared(trial) != trial:
            return False
        return any(record.state not in DECIDED for record in self.repeats(configuration))

    def _compare_decided(self) -> None:
        """Find the best of the trials that never run again. The other trials' checkpoints are no longer needed."""
        compared = self._best_ended | self._decided
        scores = {trial: self._score(trial) for trial in compared}
        former, self._best_ended = self._best_ended, set(self._objective.front(scores, self._best_ended))
        self._touched |= former - self._best_ended
        self._decided.clear()

    def _release(self, fork: TrialRecord) -> None:
        if fork.source is not None:
            self._fork_counts[fork.source] -= 1
            if not self._fork_counts[fork.source]:
                del self._fork_counts[fork.source]
                self._touched.add(owner_of(fork.source))


def _row(record: TrialRecord, results: Sequence[Repeated] | Mapping[int, Repeated]) -> TrialRow:
    """Return a trial's row. `results` has the results of its configuration, if there are repeats."""
    trial = record.trial
    if trial.configuration is None:
        return record.row()
    return replace(record.row(), repeated=replace(results[trial.configuration], repeat=trial.repeat))


def owner_of(checkpoint: str) -> int:
    """Return the trial that wrote a checkpoint, from its path; forks may use it, too."""
    return int(path_of(checkpoint).split("/")[1])


class PackUsers:
    """Tracks which checkpoints in each pack are no longer needed.

    A pack is deleted when all its checkpoints have been reported and none is needed. It can't be deleted earlier: the
    first checkpoint may become unneeded before the second one is reported. If a worker dies before it reports a
    checkpoint, the pack stays until the run ends.
    """

    def __init__(self) -> None:
        self._unneeded: dict[str, set[str]] = {}

    def release(self, addresses: Iterable[str]) -> list[str]:
        """Record checkpoints that are no longer needed, packed or not; return the packs without needed checkpoints."""
        unused = []
        for address in addresses:
            if (pack := pack_of(address)) is None:
                continue
            released = self._unneeded.setdefault(pack, set())
            released.add(address)
            if len(released) == count_in_pack(address):
                unused.append(pack)
                del self._unneeded[pack]
        return unused


class SegmentReports:
    """The reports of each trial since the scheduler last observed it, by iteration.

    They don't depend on whether a segment was saved, cut or lost: if a trial runs an iteration again, the later report
    replaces the earlier one.
    """

    def __init__(self) -> None:
        self._reports: defaultdict[int, dict[int, Report]] = defaultdict(dict)

    def add(self, trial: int, reports: Sequence[Report]) -> None:
        """Add reports that count."""
        self._reports[trial].update((report.iteration, report) for report in reports)

    def up_to(self, trial: int, iteration: int) -> Sequence[Report]:
        """Return a trial's reports up to an iteration, sorted by iteration."""
        reports = self._reports.get(trial, {})
        return tuple(reports[at] for at in sorted(reports) if at <= iteration)

    def take(self, trial: int, iteration: int) -> Sequence[Report]:
        """Return the reports of `up_to`, and drop all reports of the trial."""
        reports = self.up_to(trial, iteration)
        self._reports.pop(trial, None)
        return reports
