"""A signal that ends a sweep ends the program that called `search`, too: what it has isn't the whole sweep's."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.errors import Interrupted
from hpsearch.journal.journal import Journal
from hpsearch.results.study import Study
from hpsearch.run.interrupts import Interrupts, passing_on
from tests.hpsearch.support.functions import Functions
from tests.hpsearch.support.merged import merged

ENDS = {
    signal.SIGINT: KeyboardInterrupt,
    **dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2), SystemExit),
}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of a program that has set none, which are there again in the end."""
    default: dict[int, Any] = {**dict.fromkeys(ENDS, signal.SIG_DFL), signal.SIGINT: signal.default_int_handler}
    former = {number: signal.signal(number, handler) for number, handler in default.items()}
    yield
    found = {number: signal.getsignal(number) for number in default}
    for number, handler in former.items():
        signal.signal(number, handler)
    assert found == default


def search(path: Path, at: Callable[[int], object], run_cap: int = 3, **options: Any) -> Study:
    """Search inline: `at` is called with the trial's number in the first iteration of each."""

    def train(trial: hpsearch.RunningTrial) -> None:
        for iteration in trial.iterations():
            if iteration == 1:
                at(trial.number)
            trial.report({"loss": trial.params["x"]}, checkpoint={"at": iteration})

    train.__module__, train.__qualname__ = "__main__", "train"
    return hpsearch.search(
        train,
        metric="loss",
        max_iter=2,
        run_cap=run_cap,
        directory=path,
        backend="inline",
        **merged({"parameters": {"x": hpsearch.Uniform(0.0, 1.0)}, "observers": [], "progress": False}, options),
    )


def striking(*numbers: int, trial: int = 1) -> Callable[[int], None]:
    def strike(number: int) -> None:
        for one in numbers if number == trial else ():
            os.kill(os.getpid(), one)

    return strike


def nothing(number: int) -> None:
    pass


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_ends_the_sweep_at_the_next_report_and_then_the_caller(tmp_path, capsys, number):
    with pytest.raises(ENDS[number]) as ended:
        search(tmp_path / "s", striking(number))
    if number == signal.SIGINT:
        told = str(ended.value)
        assert type(ended.value) is KeyboardInterrupt
    else:
        told = capsys.readouterr().err
        assert isinstance(ended.value, SystemExit)
        assert ended.value.code == 128 + number
    assert f"the study is kept in {tmp_path / 's'}; continue with the same call of search and directory=" in told
    assert "hpsearch resume" not in told  # which couldn't import this function
    left = hpsearch.load(vars(ended.value)["directory"])
    assert left.directory == tmp_path / "s"
    assert (left.state, [row.iterations for row in left.trials]) == ("interrupted", [2, 1])
    assert search(tmp_path / "s", nothing).state == "finished"


@pytest.mark.parametrize(
    ("numbers", "ends"),
    [
        ((signal.SIGINT, signal.SIGINT), KeyboardInterrupt),
        ((signal.SIGTERM, signal.SIGTERM), SystemExit),
        ((signal.SIGINT, signal.SIGTERM), SystemExit),
        ((signal.SIGTERM, signal.SIGINT), SystemExit),
        ((signal.SIGUSR1, signal.SIGTERM), SystemExit),
    ],
)
def test_two_end_it_at_once_and_one_that_ends_the_process_is_not_taken_for_ctrl_c(tmp_path, numbers, ends):
    with pytest.raises(ends):
        search(tmp_path / "s", striking(*numbers))
    left = hpsearch.load(tmp_path / "s")
    assert (left.state, [row.iterations for row in left.trials]) == ("interrupted", [2, 0])


def test_a_search_after_one_that_was_interrupted_is_a_search_of_its_own(tmp_path):
    for name in ("a", "b"):
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path / name, striking(signal.SIGINT))
        assert [row.iterations for row in hpsearch.load(tmp_path / name).trials] == [2, 1]
    assert search(tmp_path / "c", nothing).state == "finished"


def test_one_that_comes_when_all_is_done_is_not_lost_either(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "s", nothing, callbacks=[lambda row: striking(signal.SIGINT, trial=2)(row.number)])
    assert all(row.iterations == 2 for row in hpsearch.load(tmp_path / "s").trials)


def test_one_while_the_command_for_the_end_runs_ends_both(tmp_path):
    """The command sends it, and would go on."""
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "s", nothing, on_end=f"kill -INT {os.getpid()}; sleep 600")
    assert hpsearch.load(tmp_path / "s").state == "finished"


def test_a_mistake_that_shows_as_it_ends_does_not_hide_the_signal(tmp_path):
    def strike(number: int) -> None:
        striking(signal.SIGTERM, trial=0)(number)
        raise ZeroDivisionError

    with pytest.raises(SystemExit):
        search(tmp_path / "s", strike, limits={"max_failures": 1})


def test_a_handler_of_the_callers_own_is_called_in_its_place(tmp_path):
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        study = search(tmp_path / "s", striking(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert (study.state, heard) == ("interrupted", [signal.SIGTERM])


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_the_caller_uses_for_something_else_ends_no_sweep(tmp_path, number):
    """Such as one that a program prints its state at; SIGTERM has the same meaning in all programs."""
    heard: list[int] = []
    signal.signal(number, lambda number, frame: heard.append(number))
    try:
        study = search(tmp_path / "s", striking(number))
    finally:
        signal.signal(number, signal.SIG_DFL)
    assert (study.state, heard) == ("finished", [number])


def test_nor_one_whose_handler_python_does_not_know(tmp_path):
    with (tmp_path / "stack.txt").open("w") as file:
        faulthandler.register(signal.SIGUSR1, file)
        try:
            assert search(tmp_path / "s", striking(signal.SIGUSR1)).state == "finished"
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert "strike" in (tmp_path / "stack.txt").read_text()


def test_what_a_handler_of_the_callers_own_raises_is_raised(tmp_path):
    class Over(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Over

    signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(Over):
            search(tmp_path / "s", striking(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert hpsearch.load(tmp_path / "s").state == "interrupted"


@pytest.mark.parametrize(("verb", "state"), [("stop", "stopped"), ("cancel", "cancelled")])
def test_what_is_asked_of_the_sweep_ends_the_sweep_alone(tmp_path, verb, state):
    def ask(number: int) -> None:
        if number == 1:
            with Journal.read(tmp_path / "s" / "study.db") as journal:
                journal.request(verb, {}, "ada@there:7")

    options = {"checkpoints": {"every": 1}}
    assert search(tmp_path / "s", ask, run_cap=10_000, **options).state == state


def test_a_callback_ends_the_sweep_alone_unless_it_raises_ctrl_c(tmp_path):
    def stops(row: object) -> None:
        raise hpsearch.StopSearch

    def interrupts(row: object) -> None:
        raise KeyboardInterrupt

    assert search(tmp_path / "a", nothing, callbacks=[stops]).state == "stopped"
    with pytest.raises(KeyboardInterrupt, match="the study is kept"):
        search(tmp_path / "b", nothing, callbacks=[interrupts])


def test_a_search_within_a_trial_ends_that_trial_without_a_value(tmp_path):
    """What it found by then would count as what the trial is worth."""
    values = []

    def inner(number: int) -> None:
        if number == 1:
            values.append(search(tmp_path / "inner", striking(signal.SIGINT)).best_value)

    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "outer", inner)
    assert values == []
    outer = hpsearch.load(tmp_path / "outer")
    assert (outer.state, [row.iterations for row in outer.trials]) == ("interrupted", [2, 0])
    assert outer.trials[1].failure is None
    assert hpsearch.load(tmp_path / "inner").state == "interrupted"


def test_in_another_thread_it_hears_nothing_and_is_not_ended(tmp_path):
    found: list[Study] = []
    reached, struck = threading.Event(), threading.Event()

    def at(number: int) -> None:
        if number == 1:
            reached.set()
            assert struck.wait(60)

    def strike() -> None:
        assert reached.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=lambda: found.append(search(tmp_path / "s", at)))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        strike()
    struck.set()
    thread.join()
    assert [study.state for study in found] == ["finished"]


def test_one_in_memory_is_not_given_in_part(tmp_path):
    def metric(trial: Any, iteration: int) -> float:
        os.kill(os.getpid(), signal.SIGINT)
        return 0.0

    struck = Functions(metric=metric, seconds=lambda trial, segment: 1.0)
    with pytest.raises(KeyboardInterrupt, match="nothing is kept"):
        hpsearch.search(
            struck,
            parameters={"x": hpsearch.Uniform(0.0, 1.0)},
            metric="loss",
            max_iter=2,
            run_cap=3,
            resources={"workers": 2},
            directory=":memory:",
            backend="simulated",
            progress=False,
        )


def test_handlers_are_given_back_also_where_one_raises_meanwhile(monkeypatch):
    class Over(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Over

    put = signal.signal

    def put_and_strike(number: int, new: Any) -> Any:
        former = put(number, new)
        if new is handler:
            signal.raise_signal(number)
        return former

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)
        interrupts = Interrupts().__enter__()
        monkeypatch.setattr(signal, "signal", put_and_strike)
        with pytest.raises(Over):
            interrupts.give_back()
        monkeypatch.undo()
        assert [one for one in ENDS if signal.getsignal(one) is handler] == [number]
        assert not any(isinstance(getattr(signal.getsignal(one), "__self__", None), Interrupts) for one in ENDS)
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def strike_twice(interrupts: Interrupts) -> None:
    with interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)


def test_what_came_is_passed_on_behind_the_block_and_nothing_where_nothing_came():
    interrupts = Interrupts()
    with pytest.raises(Interrupted):
        strike_twice(interrupts)
    assert interrupts.signals == [signal.SIGINT, signal.SIGTERM]
    with pytest.raises(SystemExit, match="143"), passing_on(interrupts, "told"):
        pass
    with passing_on(Interrupts(), "told"):
        pass
