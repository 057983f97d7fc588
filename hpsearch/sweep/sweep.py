"""A sweep: all settings of a search, validated when it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from hpsearch.config.checks import InvalidKey, KeyPath, at_least, integer, plain, shown, text
from hpsearch.config.observer_names import check_observer, check_once
from hpsearch.config.settings import Settings
from hpsearch.errors import SweepError, TrainableError
from hpsearch.objective import Objective, OutcomeConstraint
from hpsearch.schedulers import early_terminate_from_json, settings_named
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.schedulers.halving import Halving
from hpsearch.searchers import Problem, Searcher, searcher_named
from hpsearch.seeds import SEED_LIMIT
from hpsearch.space import Broken, Space
from hpsearch.sweep.auto import AUTO, choose_method
from hpsearch.sweep.difference import difference
from hpsearch.sweep.goals import check_forks, check_ranking, checked_metric, checked_outcome_constraints
from hpsearch.sweep.parallel import Parallel, Strategies
from hpsearch.sweep.parameters import SpaceField
from hpsearch.sweep.parts import SECTIONS, Checkpoints, Limits, Metric, Repeats, Resources, Scaling, Search
from hpsearch.sweep.reader import bucket_url, command_or_line
from hpsearch.trainable.macros import check_command
from hpsearch.trial import Params, Value

DRAWS = 2
"""Version of sampling and of grids. A study with another version cannot be resumed."""

_DEFAULTS: Mapping[str, Any] = {
    "parallel": None,
    "search": {},
    "on_end": None,
    "storage": None,
    "outcome_constraints": (),
    "auto_reason": None,
    "repeats": {},
}
"""Defaults of keys that may be missing in a recorded sweep."""

_REHEARSED = 20
"""Number of configurations that are sampled to validate a sweep."""

_REHEARSED_DRAWS = 10_000
"""Maximum number of attempts for each. Trials have ten times as many, so that a valid sweep does not fail later."""

_REHEARSED_CALLS = 500
"""The same, if each attempt calls a function."""

_EXAMPLES = {
    "parameters": "a mapping, or hpsearch.Space.from_parameters({...})",
    "early_terminate": "such as hpsearch.Hyperband(max_iter=27), or hpsearch.ASHA(max_iter=27)",
}
"""Python examples of parts whose class is not named like their section."""

Method = str
"""A method such as `random` or `tpe`, or the import path of a custom searcher or an Optuna sampler."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep. Errors name the key as in a sweep file.

    Raises:
        SweepError: A value, or a combination of values, is invalid.
    """

    name: str
    trainable: str | None = None
    """Import path `package.module:name`. Either this or a script is required, except with ask and tell."""
    program: str | None = None
    """Path of a script, for `command`."""
    command: tuple[str, ...] | None = None
    """Words with W&B's macros. None with a `program`: W&B's `${env} ${interpreter} ${program} ${args}`."""
    metric: Metric | tuple[Metric, ...] | None = None
    """One metric to optimize, or several; None: trials are not ranked."""
    method: Method
    """`auto` becomes the method that it chooses, see `auto_reason`."""
    search: Search = field(default_factory=Search)
    """Options of a `method` that learns."""
    parameters: SpaceField = SpaceField()  # noqa: RUF009 (a descriptor, and no default)
    """The search space: a `Space`, or a mapping of names to distributions and structures."""
    outcome_constraints: tuple[str, ...] = ()
    """Bounds on reported metrics, such as `"latency_ms <= 20"`. Trials that break them rank after all others."""
    early_terminate: EarlyTerminate | None = None
    max_iter: int | None = None
    """Iterations of every trial, without early termination."""
    run_cap: int | None = None
    """Maximum number of trials."""
    repeats: Repeats = field(default_factory=Repeats)
    """How often each configuration is trained, with several seeds; in a sweep file also a number alone."""
    points_to_try: tuple[Params, ...] = ()
    """Configurations to try first, by flat names. With `random`, missing parameters are sampled."""
    resources: Resources = field(default_factory=Resources)
    scaling: Scaling = field(default_factory=Scaling)
    parallel: Parallel | None = None
    """How several workers train one trial; `strategies` combines it with parameters `parallel.*`."""
    limits: Limits = field(default_factory=Limits)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    seed: int = 0
    observers: tuple[str, ...] = ("tensorboard",)
    """Names of observers, or import paths `package.module:Class`. Do not affect results."""
    on_end: str | tuple[str, ...] | None = None
    """A command to run at the end of each run: words, or a shell command line. Does not affect results."""
    storage: str | None = None
    """A folder of an S3 bucket, `s3://bucket/folder`, to which the journal and checkpoints are copied."""
    source: str | None = None
    """Path of the sweep file."""
    auto_reason: str | None = None
    """Why `method: auto` chose the method; None: the method was named."""
    read_back: InitVar[bool] = False
    """The sweep was validated when it was recorded. Its searcher need not be importable until it runs."""

    def __post_init__(self, read_back: bool) -> None:
        self._check_parts()
        object.__setattr__(self, "metric", checked_metric(self.metric))
        object.__setattr__(self, "outcome_constraints", checked_outcome_constraints(self.outcome_constraints))
        text(self.name, ("name",))
        if "/" in self.name or "\\" in self.name or self.name.startswith(".") or len(self.name) > 60:
            problem = "must be fit for a folder's name: up to 60 letters, no slashes, no dot in front"
            raise InvalidKey(("name",), f"{problem}, got {shown(self.name)}")
        self._check_what_runs()
        text(self.method, ("method",))
        if self.method == AUTO:
            if self.search.options:
                problem = "must not be given with method auto: which options there are depends on the method"
                raise InvalidKey(("search", "options"), problem, "name the method that they are for, or remove them")
            method, reason = choose_method(
                self.parameters,
                self.objective,
                self.early_terminate,
                self.max_iter,
                self.run_cap,
                self.repeats,
                self.search.lag,
            )
            object.__setattr__(self, "method", method)
            object.__setattr__(self, "auto_reason", reason)
        searcher = self._searcher_to_check_by(read_back)
        object.__setattr__(self, "seed", integer(self.seed, ("seed",)))
        if not 0 <= self.seed < SEED_LIMIT:
            raise InvalidKey(("seed",), f"must be between 0 and {SEED_LIMIT - 1}, got {self.seed}")
        is_implied = self._set_default_scheduler(searcher)
        self._check_how_long()
        self.strategies.check(self.resources.workers_per_trial, self.resources.widest, self.early_terminate)
        check_ranking(self.objective, self.method, searcher, self.early_terminate)
        check_forks(self.objective, self.method, searcher, self.early_terminate)
        self._check_resource()
        if self.repeats.several:
            self._check_repeats(searcher, is_implied)
        if searcher is not None:
            self._check_search(searcher, is_implied)
            if not read_back:
                self._check_options(searcher)
                self._rehearse()  # first, as checks of a searcher also sample
                searcher.check(self.problem)
        observers = [check_observer(name, ("observers", i)) for i, name in enumerate(self.observers)]
        if not read_back:
            check_once(observers, ("observers",))
        object.__setattr__(self, "observers", tuple(observers))
        if self.on_end is not None:
            object.__setattr__(self, "on_end", command_or_line(self.on_end, ("on_end",)))
        if self.storage is not None:
            object.__setattr__(self, "storage", bucket_url(self.storage, ("storage",)))
        partial = searcher is None or searcher.capabilities.completes_points
        points = tuple(
            # Derived values of a recorded sweep are not computed again: their functions may need files that are gone.
            dict(point) if read_back else self._checked_point(("points_to_try", i), point, partial)
            for i, point in enumerate(self.points_to_try)
        )
        object.__setattr__(self, "points_to_try", points)
        if not read_back and partial:
            for index, point in enumerate(points):
                self._check_completed(("points_to_try", index), point, index)

    @property
    def searcher(self) -> type[Searcher]:
        """The class of the searcher that `method` names."""
        return searcher_named(self.method)

    @property
    def forks(self) -> bool:
        """Whether trials may be forked from others."""
        early = self.early_terminate
        return self.searcher.may_fork(self.search) or (early is not None and early.capabilities.forks)

    @property
    def problem(self) -> Problem:
        """The arguments of the searcher."""
        return Problem(self.parameters, self.objective, self.seed, self.search)

    @cached_property
    def objective(self) -> Objective:
        """The metrics and outcome constraints, by which trials are ranked."""
        constraints = (OutcomeConstraint.parse(constraint) for constraint in self.outcome_constraints)
        return Objective(self.metric, tuple(constraints))

    @cached_property
    def strategies(self) -> Strategies:
        """The possible strategies of trials with several workers."""
        return Strategies(self.parallel, self.parameters)

    @property
    def unbounded(self) -> bool:
        """Whether the number of trials is unlimited."""
        early = self.early_terminate
        is_endless = early is None or early.capabilities.endless
        return self.run_cap is None and is_endless and not self.searcher.capabilities.finite

    @property
    def resource(self) -> str | None:
        """What rungs end by: `seconds`, or a reported metric; None: iterations."""
        return self.early_terminate.resource if isinstance(self.early_terminate, Halving) else None

    @property
    def iterations(self) -> int | None:
        """Maximum number of iterations of a trial; None: until the trainable returns, or rungs end by costs."""
        if self.early_terminate is None:
            return self.max_iter
        return self.early_terminate.max_iter if self.resource is None else None

    def _rehearse(self) -> None:
        """Sample some configurations, to check that constraints can be kept and expressions evaluated."""
        for number in range(_REHEARSED):
            try:
                self.parameters.draw(self.seed, number, self._rehearsed_draws)
            except InvalidKey as error:
                raise error if error.key[:1] == ("constraints",) else error.under(("parameters",)) from None

    @property
    def _rehearsed_draws(self) -> int:
        return _REHEARSED_CALLS if self.parameters.calls else _REHEARSED_DRAWS

    def added_point(self, key: KeyPath, point: Params, number: int) -> dict[str, Value]:
        """Return a validated configuration with flat names, by the rules of `points_to_try`.

        Args:
            key: Key of the configuration, for errors.
            point: Names to values, flat or nested.
            number: Number of the trial that may use it.

        Raises:
            InvalidKey: The configuration is not in the space.
        """
        checked = self._checked_point(key, point, self.searcher.capabilities.completes_points)
        if self.searcher.capabilities.completes_points:
            self._check_completed(key, checked, number)
        return checked

    def _check_completed(self, key: KeyPath, point: Params, number: int) -> None:
        """Check that the missing params of a configuration can be sampled so that constraints are kept."""
        try:
            self.parameters.complete(point, self.seed, number, self._rehearsed_draws)
        except InvalidKey as error:
            raise InvalidKey(key, error.problem, "give it other values, or fewer") from None

    def _searcher_to_check_by(self, read_back: bool) -> type[Searcher] | None:
        try:
            return self.searcher
        except InvalidKey as error:
            if read_back:
                return None
            raise error.under(("method",)) from None

    def _check_parts(self) -> None:
        sections = {key: kind for key, kind in SECTIONS.items() if key != "metric"}
        kinds: dict[str, type] = {"parameters": Space, "early_terminate": EarlyTerminate, **sections}
        for key, kind in kinds.items():
            section = getattr(self, key)
            if not isinstance(section, kind) and (key not in ("early_terminate", "parallel") or section is not None):
                article = "an" if kind is EarlyTerminate else "a"
                example = _EXAMPLES.get(key, f"hpsearch.{kind.__name__}(...)")
                raise InvalidKey((key,), f"must be {article} {kind.__name__}, got {shown(section)}", f"write {example}")

    def _check_what_runs(self) -> None:
        if self.command is not None:
            if not self.command:
                raise InvalidKey(("command",), "must hold at least one word, got none")
            for index, word in enumerate(self.command):
                if not isinstance(plain(word, ("command", index)), str):
                    raise InvalidKey(("command", index), f"must be a string, got {shown(word)}")
            object.__setattr__(self, "command", tuple(self.command))
            try:
                check_command(self.command, self.parameters.some_names())
            except TrainableError as error:
                raise InvalidKey(("command",), f"must be a command that can be run: {error}") from None
        if self.trainable is not None:
            text(self.trainable, ("trainable",))
            for key in ("program", "command"):
                if getattr(self, key) is not None:
                    problem = "can't be combined with trainable: a trial is a function or class, or a script"
                    raise InvalidKey((key,), problem, "keep one of them")
        elif self.program is not None:
            text(self.program, ("program",))
        elif self.command is not None and any("${program}" in word for word in self.command):
            problem = "is required where command says ${program}"
            raise InvalidKey(("program",), problem, add=((), "program: train.py"))

    def check_runs(self) -> None:
        """Check that there is a trainable or a script.

        Raises:
            InvalidKey: There is neither, so the sweep can only be used with ask and tell.
        """
        if self.trainable is None and self.program is None and self.command is None:
            problem = "is required: what runs a trial (or a script: program, or command)"
            raise InvalidKey(("trainable",), problem, add=((), "trainable: package.module:function"))

    def _set_default_scheduler(self, searcher: type[Searcher] | None) -> bool:
        """Set the scheduler that a method requires if the sweep has none, and return whether it was set."""
        if searcher is None or searcher.over is None or self.early_terminate is not None:
            return False
        if self.max_iter is None:
            problem = f"or early_terminate is required where method is {self.method}: what the best trials get"
            raise InvalidKey(("max_iter",), problem, add=((), "max_iter: 27"))
        halving = settings_named(searcher.over)(self.max_iter)
        object.__setattr__(self, "early_terminate", halving)
        object.__setattr__(self, "max_iter", None)
        return True

    def _check_resource(self) -> None:
        """Check that everything else works with rungs that end by costs."""
        if (resource := self.resource) is None:
            return
        key = ("early_terminate", "resource")
        where = f"must not be given with {{}}, got {resource}"
        if self.resources.lanes > 1:
            subject = f"resources.trials_per_worker: {self.resources.trials_per_worker}"
            raise InvalidKey(key, f"{where.format(subject)}: lanes share their time and end together", "remove one")
        if self.resources.widest > self.resources.workers_per_trial:
            subject = f"resources.max_workers_per_trial: {self.resources.max_workers_per_trial}"
            problem = (
                f"{where.format(subject)}: how long a trial still runs, and so what more workers save, isn't known"
            )
            raise InvalidKey(key, problem, "remove one")
        if self.program is not None and self.resources.workers_per_trial > 1:
            problem = f"{where.format('a script on several workers')}: only its rank 0 knows what it cost"
            raise InvalidKey(key, problem, "give trials one worker, or write the trainable as a function or class")
        if self.forks:
            problem = f"{where.format(f'method {self.method}')}, which forks trials: their costs would start anew"
            raise InvalidKey(key, problem, "remove it, or take a method such as tpe")
        if resource == "seconds" and self.search.lag is not None:
            problem = "must not be given where rungs end by seconds, which no two runs spend alike"
            raise InvalidKey(("search", "lag"), problem, "remove it, or let rungs end by a metric")

    def _check_search(self, searcher: type[Searcher], is_implied: bool) -> None:
        """Check that the method uses the section `search`, and that scheduler and resources allow a lag."""
        search = replace(self.search, options=None) if searcher.capabilities.has_options else self.search
        if not searcher.capabilities.learns and search != Search():
            if searcher.capabilities.has_options:
                problem = f"must have only options with method {self.method}, which doesn't learn from results"
                raise InvalidKey(("search",), problem, "remove the rest")
            problem = f"must not be given with method {self.method}, which doesn't learn from results"
            raise InvalidKey(("search",), problem, "remove it, or take a method such as tpe")
        early = self.early_terminate
        if self.search.lag is None:
            return
        if early is not None and not early.capabilities.in_order:
            subject, advice = (
                f"early_terminate of type {early.kind}, which",
                "hyperband and successive_halving don't; or remove it",
            )
            if is_implied:
                subject = f"method {self.method} without early_terminate, which runs over {early.kind} and so"
                advice = f"name early_terminate: {{type: hyperband, max_iter: {early.max_iter}}}, or remove it"
            problem = f"must not be given with {subject} decides in completion order"
            raise InvalidKey(("search", "lag"), problem, advice)
        if self.resources.widest > self.resources.workers_per_trial:
            raise InvalidKey(
                ("search", "lag"), "must not be given where trials may be widened", "remove max_workers_per_trial"
            )
        if self.forks:
            raise InvalidKey(("search", "lag"), "must not be given where trials are forked", "remove it")

    def _check_options(self, searcher: type[Searcher]) -> None:
        """Check that the method has options, since only it can validate them."""
        if self.search.options and not searcher.capabilities.has_options:
            raise InvalidKey(
                ("search", "options"),
                f"must not be given with method {self.method}, which takes none",
                "remove them; a searcher of your own takes them if its capabilities say has_options=True",
            )

    def _check_how_long(self) -> None:
        if self.max_iter is not None:
            object.__setattr__(self, "max_iter", at_least(1, integer, self.max_iter, ("max_iter",)))
            if self.early_terminate is not None:
                raise InvalidKey(
                    ("max_iter",),
                    "must be inside early_terminate, and only there, where trials are terminated early; "
                    f"got {self.max_iter} here and {self.early_terminate.max_iter} there",
                    "remove this one",
                )
        early = self.early_terminate
        if self.run_cap is not None:
            object.__setattr__(self, "run_cap", at_least(1, integer, self.run_cap, ("run_cap",)))
            if early is not None and self.run_cap < early.least_trials:
                problem = f"must be at least the {early.least_trials} trials that {early.kind} begins with"
                raise InvalidKey(("run_cap",), f"{problem}, got {self.run_cap}", "raise it, or leave it out")

    def _check_repeats(self, searcher: type[Searcher] | None, is_implied: bool) -> None:
        """Check that trials are whole trainings from their start, and that all configurations get all repeats."""
        n, early = self.repeats.n, self.early_terminate
        if early is not None:
            subject = f"method {self.method}, which runs over" if is_implied else "early_terminate of type"
            problem = f"must not be given with {subject} {early.kind}: repeats are whole trainings"
            advice = "remove one of them; to repeat the best trials of a study that has ended: hpsearch rerun DIR"
            raise InvalidKey(("repeats",), problem, advice)
        if searcher is not None and self.forks:
            problem = f"must not be given where method {self.method} forks trials: each is trained from its start"
            raise InvalidKey(("repeats",), problem, "remove one of them")
        if self.run_cap is not None and self.run_cap % n:
            problem = f"must be a multiple of repeats ({n}), the trials of each configuration, got {self.run_cap}"
            below = self.run_cap // n * n
            raise InvalidKey(("run_cap",), problem, f"write {f'{below} or ' if below else ''}{below + n}")
        if self.repeats.racing:
            self._check_race(searcher)

    def _check_race(self, searcher: type[Searcher] | None) -> None:
        """Check that all configurations are known at the start, and compared by one metric."""
        rule, key = "must be false where {}", ("repeats", "racing")
        if searcher is not None and searcher.capabilities.learns:
            problem = rule.format(f"method is {self.method}: all configurations of a race are there from its start")
            raise InvalidKey(key, problem, "take random, grid or qmc")
        if len(self.objective.goals) != 1 or self.objective.constraints:
            problem = rule.format("trials are ranked by anything but one metric, whose means a race compares")
            raise InvalidKey(key, problem)
        if self.run_cap is None and searcher is not None and not searcher.capabilities.finite:
            problem = f"is required where repeats.racing is true and method is {self.method}"
            raise InvalidKey(("run_cap",), problem, add=((), f"run_cap: {20 * self.repeats.n}"))
        if self.limits.patience is not None:
            problem = "must not be given where repeats.racing is true: no configuration has its value before the end"
            raise InvalidKey(("limits", "patience"), problem, "remove it")

    def _checked_point(self, key: KeyPath, point: Params, partial: bool) -> dict[str, Value]:
        if not isinstance(point, Mapping):
            raise InvalidKey(key, f"must be a mapping of parameters to values, got {shown(point)}")
        try:
            flat = self.parameters.flatten(point)
            return self.parameters.check(flat, partial=partial)
        except Broken as error:
            raise InvalidKey(key, error.problem) from None
        except InvalidKey as error:
            raise error.under(key) from None

    def to_json(self) -> dict[str, Any]:
        """Return the sweep as JSON; `from_json` reads it."""
        values = {field.name: _as_json(getattr(self, field.name)) for field in fields(self)}
        return {**values, "draws": DRAWS}

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Sweep:
        """Return the sweep that `to_json` wrote. Custom searchers and schedulers need not be importable.

        Building a searcher or scheduler that cannot be imported raises an error.

        Raises:
            SweepError: The JSON is not a sweep of this version.
        """
        try:
            values = {**_DEFAULTS, **config}
            if missing := {field.name for field in fields(cls)} - values.keys():
                raise KeyError(min(missing))
            if (draws := values.pop("draws")) != DRAWS:
                raise ValueError(f"draws must be {DRAWS}, got {shown(draws)}")
            early = values["early_terminate"]
            values["parameters"] = Space.from_json(values["parameters"])
            values["early_terminate"] = None if early is None else early_terminate_from_json(early)
            for name, section in SECTIONS.items():
                if values[name] is None:
                    continue
                configs = values[name] if isinstance(values[name], list) else [values[name]]
                settings = [section(**config) for config in configs]
                values[name] = tuple(settings) if isinstance(values[name], list) else settings[0]
            return cls(**values, read_back=True)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise SweepError(f"what was recorded must be a sweep of this version of hpsearch; {problem}") from error

    def difference(self, other: Sweep) -> list[str]:
        """Return the differences between this sweep of a study and another one: `"seed: 0 in the study, 1 here"`.

        Workers, limits, observers and the source are not compared, since they only affect how a sweep runs.
        """
        return difference(self.to_json(), other.to_json())


def _as_json(value: Any) -> Any:
    if isinstance(value, Space | EarlyTerminate):
        return value.to_json()
    if isinstance(value, Settings):
        return asdict(value)
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value
