"""What is comparable of what a model was told, against a plain account of the same; and what Optuna makes of it."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution, IntDistribution

from hpsearch.objective import Metric, Objective
from hpsearch.searchers import Observation, searcher_named
from hpsearch.searchers.history import Evidence, History
from hpsearch.seeds import suggestion_seed
from hpsearch.space import IntUniform, Space, Uniform
from hpsearch.trial import Failure, Report, Trial
from tests.hpsearch.support.any_life import problem_of

VALUES = st.sampled_from([0.0, 1.0, 2.0, -1.0, math.nan, math.inf, -math.inf, None])
RUNGS = (1, 3, 6)


@st.composite
def accounts(draw) -> dict[str, Any]:
    """What came of one trial: a value for each iteration, the rungs that it ended, whether it failed or ended early."""
    rungs = draw(st.integers(0, 3))
    values = draw(st.lists(VALUES, min_size=6, max_size=6))
    return {
        "rungs": rungs,
        "values": values,
        "failed": rungs < 3 and draw(st.booleans()),
        "short": rungs > 0 and draw(st.booleans()),  # it ended before the end of its last segment
        "back": draw(st.sampled_from([None, "reverted", "dropped"])),
    }


def tell(history: History, number: int, account: dict[str, Any]) -> None:
    trial = Trial(number, {"x": number}, 0, "random")
    history.started(trial)

    def report(i: int) -> Report:
        value = account["values"][i - 1]
        return Report(number, i, {} if value is None else {"loss": value}, 0.1)

    def segment(rung: int, last: int) -> None:
        start = 0 if rung == 0 else RUNGS[rung - 1]
        reports = [report(i) for i in range(start + 1, last + 1)]
        if len(reports) > 1:
            history.observe(Observation(trial, start + 1, RUNGS[rung], reports[:1], False))
            reports = reports[1:]
        history.observe(Observation(trial, last, RUNGS[rung], reports, True))

    if account["back"] is not None:  # other values, all of which are taken back
        history.observe(Observation(trial, 1, 1, [Report(number, 1, {"loss": -99.0}, 0.1)], True))
        if account["back"] == "reverted":
            history.reverted(trial, 0)
        else:
            history.dropped(trial)
    for rung in range(account["rungs"]):
        segment(rung, last_of(account, rung))
    if account["failed"]:
        history.observe(Observation(trial, 0, RUNGS[account["rungs"]], [], True, Failure("raised", "no", "")))


def last_of(account: dict[str, Any], rung: int) -> int:
    ended_here = account["short"] and rung == account["rungs"] - 1
    return RUNGS[rung] - 1 if ended_here and rung > 0 else RUNGS[rung]


def expected(accounts: list[dict[str, Any]], objective: Objective) -> list[Evidence]:
    """By the definition: at the longest rung that a trial has ended."""
    reached = [RUNGS[a["rungs"] - 1] for a in accounts if a["rungs"]]
    if not reached:
        return []
    length = max(reached)
    found: list[tuple[int, str, float | None]] = []
    for number, account in enumerate(accounts):
        if account["failed"]:
            found.append((number, "bad", None))
        elif account["rungs"] == 0:
            found.append((number, "running", None))
        elif RUNGS[account["rungs"] - 1] >= length:
            last = min(length, last_of(account, account["rungs"] - 1))
            values = account["values"][:last]
            if objective.goals[0].scope == "last":
                value = values[-1]
            else:
                valid = [v for v in values if v is not None and not math.isnan(v)]
                best = min if objective.goals[0].goal == "minimize" else max
                value = best(valid) if valid else None
            bad = value is None or math.isnan(value)
            found.append((number, "bad" if bad else "good", value))
    worst = max if objective.goals[0].goal == "minimize" else min
    good = [value for _, kind, value in found if kind == "good" and value is not None]
    if not good:
        return []
    given = {"bad": worst(good), "running": None}
    return [Evidence(n, {"x": n}, value if kind == "good" else given[kind]) for n, kind, value in found]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(accounts(), max_size=8),
    st.sampled_from(["minimize", "maximize"]),
    st.sampled_from(["last", "best"]),
    st.randoms(use_true_random=False),
)
def test_what_is_comparable_is_what_the_definition_says(told, goal, scope, chance):
    objective = Objective(Metric("loss", goal, scope))
    history = History(objective)
    order = list(range(len(told)))
    chance.shuffle(order)
    for number in order:
        tell(history, number, told[number])
    assert history.evidence() == expected(told, objective)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_tpe_sees_what_a_study_made_by_hand_holds():
    space = Space.from_parameters({"x": Uniform(0.0, 1.0), "n": IntUniform(0, 9), "k": 3})
    problem = problem_of(space, 5, "maximize")
    searcher = searcher_named("tpe").build(problem)
    study = optuna.create_study(direction="maximize")
    distributions = {"x": FloatDistribution(0.0, 1.0), "n": IntDistribution(0, 9)}
    values = [3.0, math.nan, math.inf, -1.0, 2.0, 0.5, None]
    for number in range(20):
        drawn = space.draw(1, number)
        trial = Trial(number, drawn, 0, "random")
        searcher.started(trial)
        point = {name: drawn[name] for name in distributions}
        if number % 7 == 6:
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.RUNNING, params=point, distributions=distributions
                )
            )
            continue
        value = values[number % 7]
        failed = number == 10
        failure = Failure("raised", "no", "") if failed else None
        searcher.observe(Observation(trial, 1, 1, [Report(number, 1, {"loss": value or 0.0}, 0.1)], True, failure))
        seen = -1.0 if failed or value is None or math.isnan(value) else min(value, 3.0)  # the worst, the best finite
        study.add_trial(optuna.trial.create_trial(value=seen, params=point, distributions=distributions))
    for number in (20, 21):
        study.sampler = optuna.samplers.TPESampler(
            seed=suggestion_seed(5, number), multivariate=True, group=True, constant_liar=True, n_startup_trials=0
        )
        suggestion = searcher.suggest(number)
        assert suggestion is not None
        asked = study.ask(distributions)
        assert suggestion.params == {**asked.params, "k": 3}
        study.tell(asked, state=optuna.trial.TrialState.FAIL)  # tpe doesn't look at these
        assert suggestion.origin == "tpe"
