"""A sweep: everything that decides what is tried and for how long, checked as it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, asdict, dataclass, field
from typing import Any

from hpsearch.checks import InvalidKey, at_least, integer, plain, shown, text
from hpsearch.errors import SweepError, TrainableError
from hpsearch.known_observers import check_observer
from hpsearch.objective import Objective
from hpsearch.schedulers import early_terminate_from_json
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.searchers import Searcher, searcher_named
from hpsearch.seeds import SEED_LIMIT
from hpsearch.space import FormerSpace, Space
from hpsearch.sweep.difference import difference
from hpsearch.sweep.parts import Checkpoints, Limits, Metric, Resources, Scaling
from hpsearch.trainable.macros import check_command
from hpsearch.trial import Params, Value

__all__ = [
    "Checkpoints",
    "Limits",
    "Method",
    "Metric",
    "Resources",
    "Scaling",
    "Sweep",
]

Method = str
"""`random`, `grid`, or the import path of a searcher of one's own."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A whole sweep. Errors name the key as it stands in a sweep file.

    Raises:
        SweepError: A value, or a combination of them, can't be run.
    """

    name: str
    trainable: str | None = None
    """Import path `package.module:name`. Exactly one of this and a script is given."""
    program: str | None = None
    """Path of a script, for `command`."""
    command: tuple[str, ...] | None = None
    """Words with W&B's macros. None with a `program`: W&B's `${env} ${interpreter} ${program} ${args}`."""
    metric: Metric
    method: Method
    parameters: Space
    early_terminate: EarlyTerminate | None = None
    max_iter: int | None = None
    """Iterations of every trial where nothing terminates early."""
    run_cap: int | None = None
    """Most trials that are created."""
    points_to_try: tuple[Params, ...] = ()
    """Flat names to values, tried first. With `random`, what a point leaves out is drawn."""
    resources: Resources = field(default_factory=Resources)
    scaling: Scaling = field(default_factory=Scaling)
    limits: Limits = field(default_factory=Limits)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    seed: int = 0
    observers: tuple[str, ...] = ("tensorboard",)
    """Who watches: names of observers, or import paths `package.module:Class`. Changes no result."""
    source: str | None = None
    """Where the sweep was read from."""
    read_back: InitVar[bool] = False
    """It was checked when it was stored: its searcher needn't be there until it is run."""

    def __post_init__(self, read_back: bool) -> None:
        self._check_parts()
        text(self.name, ("name",))
        if "/" in self.name or "\\" in self.name or self.name.startswith(".") or len(self.name) > 60:
            problem = "must be fit for a folder's name: up to 60 letters, no slashes, no dot in front"
            raise InvalidKey(("name",), f"{problem}, got {shown(self.name)}")
        self._check_what_runs()
        text(self.method, ("method",))
        searcher = self._searcher_to_check_by(read_back)
        object.__setattr__(self, "seed", integer(self.seed, ("seed",)))
        if not 0 <= self.seed < SEED_LIMIT:
            raise InvalidKey(("seed",), f"must be between 0 and {SEED_LIMIT - 1}, got {self.seed}")
        self._check_how_long(searcher)
        self._check_forks(searcher)
        try:
            if searcher is not None:
                searcher.check(self.parameters)
        except InvalidKey as error:
            raise error.under(("parameters",)) from None
        observers = [check_observer(name, ("observers", i)) for i, name in enumerate(self.observers)]
        object.__setattr__(self, "observers", tuple(observers))
        partial = searcher is None or searcher.completes_points
        points = tuple(self._checked_point(place, point, partial) for place, point in enumerate(self.points_to_try))
        object.__setattr__(self, "points_to_try", points)

    @property
    def searcher(self) -> type[Searcher]:
        """What `method` names."""
        return searcher_named(self.method)

    @property
    def objective(self) -> Objective:
        """What makes one of its trials better than another."""
        return Objective(self.metric)

    @property
    def iterations(self) -> int | None:
        """Most iterations that a trial may get; None: until the trainable returns."""
        return self.max_iter if self.early_terminate is None else self.early_terminate.max_iter

    def _searcher_to_check_by(self, read_back: bool) -> type[Searcher] | None:
        try:
            return self.searcher
        except InvalidKey as error:
            if read_back:
                return None
            raise error.under(("method",)) from None

    def _check_parts(self) -> None:
        kinds: dict[str, tuple[type, ...]] = {
            "metric": (Metric,),
            "parameters": (Space,),
            "early_terminate": (EarlyTerminate, type(None)),
            "resources": (Resources,),
            "scaling": (Scaling,),
            "limits": (Limits,),
            "checkpoints": (Checkpoints,),
        }
        for key, allowed in kinds.items():
            given = getattr(self, key)
            if not isinstance(given, allowed):
                names = " or ".join(kind.__name__ for kind in allowed if kind is not type(None))
                raise InvalidKey((key,), f"must be a {names}, got {shown(given)}")

    def _check_what_runs(self) -> None:
        if self.command is not None:
            if not self.command:
                raise InvalidKey(("command",), "must hold at least one word, got none")
            for place, word in enumerate(self.command):
                if not isinstance(plain(word, ("command", place)), str):
                    raise InvalidKey(("command", place), f"must be a string, got {shown(word)}")
            object.__setattr__(self, "command", tuple(self.command))
            try:
                check_command(self.command)
            except TrainableError as error:
                raise InvalidKey(("command",), f"must be a command that can be run: {error}") from None
        if self.trainable is not None:
            text(self.trainable, ("trainable",))
            for key in ("program", "command"):
                if getattr(self, key) is not None:
                    problem = "can't stand beside trainable: a trial is a function or class, or a script"
                    raise InvalidKey((key,), problem, "keep one of them")
        elif self.program is not None:
            text(self.program, ("program",))
        elif self.command is None:
            problem = "is required: what runs a trial (or a script: program, or command)"
            raise InvalidKey(("trainable",), problem, add=((), "trainable: package.module:function"))
        elif any("${program}" in word for word in self.command):
            problem = "is required where command says ${program}"
            raise InvalidKey(("program",), problem, add=((), "program: train.py"))

    def _check_forks(self, searcher: type[Searcher] | None) -> None:
        forks = self.early_terminate is not None and self.early_terminate.forks
        if forks and searcher is not None and not searcher.explores:
            raise InvalidKey(
                ("method",),
                f"must be a searcher that explores, as early_terminate forks trials, got {self.method}",
                "random does, or one of your own with explores = True",
            )

    def _check_how_long(self, searcher: type[Searcher] | None) -> None:
        if self.max_iter is not None:
            object.__setattr__(self, "max_iter", at_least(self.max_iter, 1, ("max_iter",)))
            if self.early_terminate is not None:
                raise InvalidKey(
                    ("max_iter",),
                    "must stand inside early_terminate, and only there, where trials are terminated early; "
                    f"got {self.max_iter} here and {self.early_terminate.max_iter} there",
                    "remove this one",
                )
        if self.run_cap is not None:
            object.__setattr__(self, "run_cap", at_least(self.run_cap, 1, ("run_cap",)))
        elif searcher is not None and not searcher.finite and self.early_terminate is None:
            problem = f"is required where method is {self.method} and nothing terminates early: it would never end"
            raise InvalidKey(("run_cap",), problem, add=((), "run_cap: 100"))

    def _checked_point(self, place: int, point: Params, partial: bool) -> dict[str, Value]:
        key = ("points_to_try", place)
        if not isinstance(point, Mapping):
            raise InvalidKey(key, f"must be a mapping of parameters to values, got {shown(point)}")
        try:
            flat = self.parameters.flatten(point)
            return self.parameters.check(flat, partial=partial)
        except InvalidKey as error:
            raise error.under(key) from None

    def to_json(self) -> dict[str, Any]:
        """Give the sweep as JSON; `from_json` reads it back."""
        return {
            "name": self.name,
            "trainable": self.trainable,
            "program": self.program,
            "command": None if self.command is None else list(self.command),
            "metric": asdict(self.metric),
            "method": self.method,
            "parameters": self.parameters.to_json(),
            "draws": self.parameters.law,
            "early_terminate": None if self.early_terminate is None else self.early_terminate.to_json(),
            "max_iter": self.max_iter,
            "run_cap": self.run_cap,
            "points_to_try": [dict(point) for point in self.points_to_try],
            "resources": asdict(self.resources),
            "scaling": asdict(self.scaling),
            "limits": asdict(self.limits),
            "checkpoints": asdict(self.checkpoints),
            "seed": self.seed,
            "observers": list(self.observers),
            "source": self.source,
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Sweep:
        """Read back what `to_json` gave; also where a third party's searcher or scheduler can't be imported.

        Whoever builds that one is told what is missing.

        Raises:
            SweepError: It isn't a sweep, or one that this version doesn't know.
        """
        try:
            early = given["early_terminate"]
            command = given["command"]
            parts = {
                "command": None if command is None else tuple(command),
                "metric": Metric(**{"scope": "last", **given["metric"]}),  # earlier versions knew no other
                "parameters": _space_of(given.get("draws", FormerSpace.law)).from_json(given["parameters"]),
                "early_terminate": None if early is None else early_terminate_from_json(early),
                "points_to_try": tuple(given["points_to_try"]),
                "resources": Resources(**given["resources"]),
                "scaling": Scaling(**given.get("scaling", {})),  # sweeps of earlier versions have none
                "limits": Limits(**{"max_failures": "none", **given["limits"]}),  # earlier versions had no such limit
                "checkpoints": Checkpoints(**given["checkpoints"]),
                "observers": tuple(given.get("observers", ("tensorboard",))),  # earlier versions had no other
            }
            own = {key: value for key, value in given.items() if key != "draws"}
            return cls(**{**own, **parts}, read_back=True)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise SweepError(f"what was recorded must be a sweep of this version of hpsearch; {problem}") from error

    def difference(self, other: Sweep) -> list[str]:
        """List what differs, as seen from a study's sweep: `"seed: 0 in the study, 1 here"`.

        Workers, limits, observers and the source don't count: they are about how it is run, not about what.
        """
        return difference(self.to_json(), other.to_json())


def _space_of(law: object) -> type[Space]:
    for space in (Space, FormerSpace):
        if law == space.law:
            return space
    raise ValueError(f"draws must be {FormerSpace.law} or {Space.law}, got {shown(law)}")
