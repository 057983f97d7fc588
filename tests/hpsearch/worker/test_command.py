from __future__ import annotations

import errno
import io
import json
import os
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpsearch.objective import Metric, Objective
from hpsearch.space import Space
from hpsearch.sweep.parallel import Parallel, Strategies
from hpsearch.task import Result
from hpsearch.trainable import checkpoints
from hpsearch.trial import Parent, Segment, Trial
from hpsearch.worker.job import CommandLine, Job
from hpsearch.worker.script_failures import failed, mirrors_wandb, no_report
from hpsearch.worker.worker import Worker
from tests.hpsearch.support.segments import Listening, is_alive, wait_until

TRIAL = Trial(number=3, params={"optimizer.lr": 0.5, "nesterov": True, "n": 2}, seed=11, origin="random")
SPACE = Space.from_parameters({"optimizer": {"lr": 0.1}})
SH = ("sh", "${program}", "${args}")
PYTHON = ("${interpreter}", "${program}", "${args}")


class Script:
    """A script in a folder of its own, and the worker that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mine"
        self.root = folder / "study"
        self.folder.mkdir()
        self.worker: Worker | None = None

    def open(
        self, text: str, command: tuple[str, ...], save_every: int | None = None, target: float | None = None
    ) -> None:
        """Write the script, and make a worker for it."""
        if self.worker is not None:
            self.worker.close()
        (self.folder / "script").write_text(textwrap.dedent(text))
        line = CommandLine("script", command, str(self.folder))
        job = Job(str(self.root), "sweep", line, (), Objective(Metric("loss", target=target)), save_every, 1, SPACE)
        self.worker = Worker(job, self.root)

    def run(
        self, start: int, end: int | None, checkpoint: str | None = None, channel: Listening | None = None
    ) -> Result:
        """Run a segment as the attempt of its start's number plus one."""
        assert self.worker is not None
        return self.worker.run(TRIAL, Segment(3, start, end, checkpoint, start + 1), channel or Listening())

    def file(self, name: str, attempt: int = 1) -> str:
        """Read a file in the attempt's directory."""
        return (self.root / "trials" / "00003" / str(attempt) / name).read_text("utf-8")


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    made = Script(tmp_path)
    yield made
    if made.worker is not None:
        made.worker.close()


def iterations(result: Result) -> list[int]:
    return [report.iteration for report in result.reports]


# A script in any language.

COUNTS_IN_SH = """
    i=$HPSEARCH_START
    [ -n "$HPSEARCH_CHECKPOINT" ] && i=$(cat "$HPSEARCH_CHECKPOINT/count")
    while [ "$i" -lt "$HPSEARCH_END" ]; do
        i=$((i + 1))
        mkdir "$HPSEARCH_DIRECTORY/model-$i"
        echo "$i" > "$HPSEARCH_DIRECTORY/model-$i/count"
        echo "{\\"loss\\": $i, \\"iteration\\": $i, \\"checkpoint\\": \\"model-$i\\"}" >> "$HPSEARCH_REPORTS"
    done
    echo counted to "$i"
"""


def test_a_shell_script_reports_and_continues_from_its_checkpoint(script: Script) -> None:
    script.open(COUNTS_IN_SH, SH, save_every=2)
    channel = Listening()
    first = script.run(0, 3, channel=channel)
    assert first.failure is None
    assert [report.metrics for report in channel.reports] == [{"loss": 1.0}, {"loss": 2.0}, {"loss": 3.0}]
    assert [save[:2] for save in channel.saves] == [(2, "trials/00003/1/hpsearch-checkpoint-2")]
    assert (first.iteration, first.checkpoint) == (3, "trials/00003/1/hpsearch-checkpoint-3")
    assert iterations(first) == [3]
    second = script.run(3, 4, first.checkpoint)
    assert (second.failure, second.iteration) == (None, 4)
    assert second.checkpoint is not None
    assert (checkpoints.read_state(script.root / second.checkpoint) / "count").read_text() == "4\n"
    assert script.file("output.log") == "counted to 3\n"


def test_a_script_of_lines_says_nothing_of_the_strategy_that_the_sweep_asks_for(script: Script) -> None:
    script.open(COUNTS_IN_SH, SH)
    assert script.worker is not None
    script.worker.close()
    command = CommandLine("script", SH, str(script.folder))
    objective = Objective(Metric("loss"))
    strategies = Strategies(Parallel("pipeline"), SPACE)
    script.worker = Worker(
        Job(str(script.root), "sweep", command, (), objective, None, 1, SPACE, strategies=strategies), script.root
    )
    result = script.run(0, 3)
    assert result.failure is not None
    assert (result.failure.kind, result.reports) == ("contract", ())
    assert result.failure.message.startswith("the sweep has parallel.strategy pipeline, but the trainable never read")


def test_a_checkpoint_may_be_a_single_file(script: Script) -> None:
    script.open(
        """
        echo one > "$HPSEARCH_DIRECTORY/weights"
        echo '{"loss": 1, "checkpoint": "weights"}' >> "$HPSEARCH_REPORTS"
        [ -z "$HPSEARCH_CHECKPOINT" ] || cat "$HPSEARCH_CHECKPOINT"
        """,
        SH,
    )
    first = script.run(0, 1)
    script.run(1, 2, first.checkpoint)
    assert script.file("output.log", attempt=2) == "one\n"


# A script that goes on while its checkpoints are copied.

OVERWRITES = """
    i=$HPSEARCH_START
    while [ "$i" -lt %s ]; do
        i=$((i + 1))
        echo "$i" > "$HPSEARCH_DIRECTORY/model"
        echo "{\\"loss\\": $i, \\"checkpoint\\": \\"model\\"}" >> "$HPSEARCH_REPORTS"
    done
"""


def saved_number(script: Script, checkpoint: str | None) -> int:
    assert checkpoint is not None
    path = checkpoints.user_path(script.root / checkpoint)
    return int((path / "count" if path.is_dir() else path).read_text())


@pytest.mark.parametrize(("last", "end", "save_every"), [("6", 6, 3), ("1000000", 1, None), ("1000000", 6, 3)])
def test_a_script_that_writes_over_a_checkpoint_that_was_needed_is_refused(
    script: Script, last: str, end: int, save_every: int | None
) -> None:
    script.open(OVERWRITES % last, SH, save_every)
    for start in range(3):  # as the attempts 1 to 3
        channel = Listening()
        result = script.run(start, start + end, channel=channel)
        assert result.failure is not None
        assert result.failure.kind == "contract"
        assert "/model, but so did the line of another iteration" in result.failure.message
        assert "write each one to a new path" in result.failure.message
        assert result.checkpoint is None
        assert all(saved_number(script, path) == iteration for iteration, path, _ in channel.saves)


def test_a_script_may_write_over_what_was_not_needed(script: Script) -> None:
    script.open(OVERWRITES % "$HPSEARCH_END", SH)
    result = script.run(0, 4)
    assert (result.failure, result.iteration) == (None, 4)
    assert result.checkpoint is not None
    assert saved_number(script, result.checkpoint) == 4


def test_a_cut_never_files_a_later_state_nor_fails_the_script(script: Script) -> None:
    script.open(OVERWRITES % 10**6, SH)
    for start in range(3):
        result = script.run(start, None, channel=Listening(cut_at=start + 2))
        assert (result.failure, result.cut, result.iteration) == (None, True, start + 2)
        assert result.checkpoint is None or saved_number(script, result.checkpoint) == start + 2


def test_paths_of_their_own_are_each_saved_with_their_own_state(script: Script) -> None:
    script.open(COUNTS_IN_SH, SH, save_every=1)
    channel = Listening()
    result = script.run(0, 30, channel=channel)
    assert result.failure is None
    assert [iteration for iteration, _, _ in channel.saves] == list(range(1, 30))
    assert [[report.iteration for report in reports] for _, _, reports in channel.saves] == [[i] for i in range(1, 30)]
    assert all(saved_number(script, path) == iteration for iteration, path, _ in channel.saves)


@pytest.mark.parametrize("end", [1, None])
def test_what_a_script_changed_after_its_last_line_isnt_taken_for_that_iterations(
    script: Script, end: int | None
) -> None:
    script.open(
        """
        echo good > "$HPSEARCH_DIRECTORY/model"
        echo '{"loss": 1, "checkpoint": "model"}' >> "$HPSEARCH_REPORTS"
        echo diverged > "$HPSEARCH_DIRECTORY/model"
        touch -d @9999999999 "$HPSEARCH_DIRECTORY/model"
        """,
        SH,
    )
    failure = script.run(0, end).failure
    assert failure is not None
    assert failure.kind == "contract"
    assert "model was changed after the line that names it" in failure.message


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EACCES, "storage"), (errno.EIO, "storage"), (errno.ENOENT, "checkpoint")]
)
def test_a_script_isnt_blamed_for_a_checkpoint_that_cant_be_read(
    script: Script, monkeypatch: pytest.MonkeyPatch, number: int, kind: str
) -> None:
    script.open(COUNTS_IN_SH, SH)
    first = script.run(0, 1)
    real = io.open

    def opened(file: Any, *arguments: Any, **options: Any) -> Any:
        if Path(str(file)).name == "count":
            raise OSError(number, os.strerror(number), str(file))
        return real(file, *arguments, **options)

    monkeypatch.setattr(io, "open", opened)
    failure = script.run(1, 2, first.checkpoint).failure
    assert failure is not None
    assert (failure.kind, os.strerror(number) in failure.message) == (kind, True)


def test_a_script_that_fails_on_a_full_disk_isnt_blamed(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script.open("exit 3", SH)
    real = io.open
    monkeypatch.setattr(
        io,
        "open",
        lambda file, *rest, **more: real("/dev/full" if Path(str(file)).name == ".probe" else file, *rest, **more),
    )
    failure = script.run(0, 1).failure
    assert failure is not None
    assert failure.kind == "storage"
    assert "No space left on device" in failure.message


def test_a_script_finds_its_trial_in_the_environment(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    script.open('env > "$HPSEARCH_DIRECTORY/env"; pwd; echo \'{"loss": 1}\' >> $HPSEARCH_REPORTS', SH)
    assert script.run(0, None).failure is None
    found = dict(line.split("=", 1) for line in script.file("env").splitlines())
    directory = str(script.root / "trials" / "00003" / "1")
    assert json.loads(found["HPSEARCH_PARAMS"]) == {"optimizer": {"lr": 0.5}, "nesterov": True, "n": 2}
    assert found["HPSEARCH_SEED"] == "11"
    assert found["HPSEARCH_DIRECTORY"] == directory
    assert (found["HPSEARCH_START"], found["HPSEARCH_END"], found["HPSEARCH_CHECKPOINT"]) == ("0", "", "")
    assert found["OMP_NUM_THREADS"] == "1"
    assert script.file("output.log") == f"{script.folder}\n"


@pytest.mark.parametrize("start", [0, 1])
def test_a_script_finds_the_state_of_the_trial_that_it_was_forked_from(script: Script, start: int) -> None:
    script.open(COUNTS_IN_SH, SH)
    checkpoint = script.run(0, 1).checkpoint
    script.open('env > "$HPSEARCH_DIRECTORY/env"; echo \'{"loss": 1}\' >> $HPSEARCH_REPORTS', SH)
    assert script.worker is not None
    trial = replace(TRIAL, parent=Parent(2, 1, checkpoint), start=start)
    result = script.worker.run(trial, Segment(3, start, start + 1, checkpoint, 2), Listening())
    assert result.failure is None
    found = dict(line.split("=", 1) for line in script.file("env", 2).splitlines())
    source = str(script.root / str(checkpoint) / "files")
    assert found["HPSEARCH_PARENT_CHECKPOINT"] == source
    assert found["HPSEARCH_CHECKPOINT"] == (source if start else "")
    assert json.loads(script.file("trial.json", 2))["parent"] == 2


def test_a_fork_that_reports_nothing_has_failed(script: Script) -> None:
    script.open(COUNTS_IN_SH, SH)
    checkpoint = script.run(0, 1).checkpoint
    script.open("true", SH)
    assert script.worker is not None
    trial = replace(TRIAL, parent=Parent(2, 1, checkpoint), start=1)
    failure = script.worker.run(trial, Segment(3, 1, 2, checkpoint, 2), Listening()).failure
    assert failure is not None
    assert "must report at least once" in failure.message


def test_a_script_without_max_iter_ends_by_itself_with_its_last_checkpoint(script: Script) -> None:
    script.open(COUNTS_IN_SH.replace("$HPSEARCH_END", "2"), SH)
    result = script.run(0, None)
    assert (result.failure, result.iteration, result.cut) == (None, 2, False)
    assert result.checkpoint == "trials/00003/1/hpsearch-checkpoint-2"


def test_a_script_that_goes_on_beyond_its_segment_is_ended(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpsearch.worker.command._GRACE", 0.05)  # the script heeds no SIGTERM
    script.open(
        """
        trap "" TERM
        echo $$ > pid
        while :; do echo '{"loss": 1}' >> "$HPSEARCH_REPORTS"; sleep 0.01; done
        """,
        SH,
    )
    result = script.run(0, 2)
    assert (result.failure, result.iteration, iterations(result)) == (None, 2, [1, 2])
    assert not is_alive(int((script.folder / "pid").read_text()))


def test_a_cut_ends_a_script_after_its_next_report(script: Script) -> None:
    script.open(
        """
        i=0
        while :; do
            i=$((i + 1))
            mkdir "$HPSEARCH_DIRECTORY/model-$i"
            echo "{\\"loss\\": $i, \\"checkpoint\\": \\"model-$i\\"}" >> "$HPSEARCH_REPORTS"
            sleep 0.02
        done
        """,
        SH,
    )
    result = script.run(0, 10**6, channel=Listening(cut_at=2))
    assert (result.failure, result.cut, result.iteration) == (None, True, 2)
    assert result.checkpoint == "trials/00003/1/hpsearch-checkpoint-2"


def test_a_script_ends_at_the_line_that_reaches_the_target_whatever_it_appended_since(script: Script) -> None:
    script.open(
        """
        for i in 1 2 3 4 5 6; do
            mkdir "$HPSEARCH_DIRECTORY/model-$i"
            echo "{\\"loss\\": $((9 - i)), \\"checkpoint\\": \\"model-$i\\"}" >> "$HPSEARCH_REPORTS"
        done
        """,
        SH,
        target=6,
    )
    result = script.run(0, 6)
    assert (result.failure, result.cut, result.iteration) == (None, True, 3)
    assert result.checkpoint == "trials/00003/1/hpsearch-checkpoint-3"


@pytest.mark.exhaustive  # a script of any language does, and one in Python ends where it is cut
def test_a_python_script_ends_at_the_report_that_reaches_the_target(script: Script) -> None:
    script.open(
        """
        from hpsearch.trainable.current import current_trial
        trial = current_trial()
        for iteration in trial.iterations():
            trial.report({"loss": 9 - iteration}, checkpoint={"at": iteration})
        """,
        PYTHON,
        target=6,
    )
    result = script.run(0, 6)
    assert (result.failure, result.cut, result.iteration) == (None, True, 3)
    assert result.checkpoint == "trials/00003/1/hpsearch-checkpoint-3"


def test_what_a_script_leaves_behind_dies_with_it(script: Script) -> None:
    script.open(
        """
        sleep 300 & echo $! > pids
        setsid sh -c 'echo $$ >> pids; echo ready > ready; exec sleep 300' &
        until [ -f ready ]; do sleep 0.01; done
        echo '{"loss": 1}' >> "$HPSEARCH_REPORTS"
        """,
        SH,
    )
    assert script.run(0, 1).failure is None
    pids = [int(line) for line in (script.folder / "pids").read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_line_counts_when_it_is_whole(script: Script) -> None:
    script.open(
        """
        printf '{"loss": ' >> "$HPSEARCH_REPORTS"
        sleep 0.1
        echo '1}' >> "$HPSEARCH_REPORTS"
        echo >> "$HPSEARCH_REPORTS"
        printf '{"loss": 2}' >> "$HPSEARCH_REPORTS"
        """,
        SH,
    )
    result = script.run(0, None)
    assert result.failure is None
    assert [report.metrics["loss"] for report in result.reports] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("loss: 0.5", "line 2 of $HPSEARCH_REPORTS must be a JSON object"),
        ("[1]", "line 2 of $HPSEARCH_REPORTS must be a JSON object"),
        ('{"loss": 1, "loss": 2}', "names 'loss' twice"),
        ('{"loss": 1e400}', "1e400 is beyond what a float holds"),
        ('{"loss": "low"}', "the metric 'loss' must be a number, but is a str, 'low'"),
        ('{"los": 1}', "did you mean 'los'?"),
        ('{"loss": 1, "hpsearch": 2}', "line 2 of $HPSEARCH_REPORTS must name no metric 'hpsearch'"),
        ('{"loss": 1, "hpsearch": "report"}', "line 2 of $HPSEARCH_REPORTS must name no metric 'hpsearch'"),
        ('{"loss": 1, "iteration": 7}', "line 2 of $HPSEARCH_REPORTS must be iteration 2, but says 7"),
        ('{"loss": 1, "checkpoint": "nowhere"}', "nowhere'"),
        ('{"loss": 1, "checkpoint": 3}', "`checkpoint` in a line must be the path"),
    ],
)
def test_a_line_that_is_wrong_is_a_clear_failure(script: Script, line: str, says: str) -> None:
    script.open(f'echo \'{{"loss": 1}}\n{line}\' >> "$HPSEARCH_REPORTS"; echo said it; exec sleep 300', SH)
    result = script.run(0, 2)
    assert result.failure is not None
    assert result.failure.kind == "contract"
    assert says in result.failure.message
    assert "\n" not in result.failure.message


def test_a_script_that_writes_over_its_lines_is_a_clear_failure(script: Script) -> None:
    script.open(
        """
        for i in 1 2 3; do
            echo "{\\"loss\\": $i}" > "$HPSEARCH_REPORTS"
            sleep 0.2
        done
        """,
        SH,
    )
    failure = script.run(0, 3).failure
    assert failure is not None
    assert failure.kind == "contract"
    assert "lines must be appended to $HPSEARCH_REPORTS, but it was written over" in failure.message


def test_a_script_without_a_report_is_a_clear_failure(script: Script) -> None:
    script.open("true", SH)
    failure = script.run(0, 2).failure
    assert failure is not None
    assert failure.kind == "contract"
    assert 'append a line such as {"loss": 0.9} to $HPSEARCH_REPORTS' in failure.message


def test_a_script_that_fails_keeps_the_end_of_its_output(script: Script) -> None:
    script.open("seq 100000; echo 'no such rate' >&2; exit 3", SH)
    failure = script.run(0, 2).failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("raised", "the script exited with status 3: no such rate")
    assert failure.traceback.startswith("sh script --optimizer.lr=0.5 --nesterov=True --n=2\n...\n")
    assert failure.traceback.endswith("99999\n100000\nno such rate\n")
    assert len(failure.traceback) < 9000


PRINTS_AT_EXIT = """
    import atexit
    atexit.register(print, "bye: see the log")
    try:
        {}
    except KeyError as error:
        raise ValueError("no such rate") from error
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (PRINTS_AT_EXIT.format("{}['lr']"), "the script exited with status 1: ValueError: no such rate"),
        (PRINTS_AT_EXIT.format("raise SystemExit('bad rate')"), "the script exited with status 1: bye: see the log"),
        (PRINTS_AT_EXIT.format("1 / 0"), "the script exited with status 1: ZeroDivisionError: division by zero"),
    ],
)
def test_a_python_script_that_fails_is_described_by_its_exception(script: Script, text: str, says: str) -> None:
    script.open(text, PYTHON)
    failure = script.run(0, 2).failure
    assert failure is not None
    assert failure.message == says


def test_the_exception_of_a_launchers_rank_and_of_a_script_that_drew_a_bar_is_found() -> None:
    ranks = [
        "Traceback (most recent call last):",
        '  File "a.py", line 3',
        "    f()",
        "OSError: gone",
        "  a second line",
    ]
    for tail in ("".join(f"[rank0]: {line}\n" for line in ranks), "50%|##" + "\n".join(ranks)):
        assert failed(["a"], 1, f"{tail}\nlast words").message == "the script exited with status 1: OSError: gone"
    caught = "\n".join(ranks)
    assert failed(["a"], 2, f"{caught}\nusage: a").message == "the script exited with status 2: usage: a"


@pytest.mark.parametrize(
    ("status", "last", "kind"),
    [
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "memory"),
        (1, "MemoryError", "memory"),
        (1, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to", "memory"),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", "memory"),
        (1, "ValueError: no memory of that", "raised"),
        (-15, "MemoryError", "died"),  # it was ended from outside
    ],
)
def test_a_script_that_says_that_memory_ran_out_is_out_of_memory(status: int, last: str, kind: str) -> None:
    assert failed(["a"], status, f"Traceback (most recent call last):\n  f()\n{last}\n").kind == kind


def test_the_exception_is_found_behind_a_traceback_of_hundreds_of_lines() -> None:
    frames = "".join(f'  File "a.py", line {number}, in f\n    return g({number})\n' for number in range(500))
    output = f"Traceback (most recent call last):\n{frames}ValueError: the real one\nwandb: sync me\n"
    failure = failed(["a"], 1, output)
    assert failure.message == "the script exited with status 1: ValueError: the real one"
    assert len(failure.traceback) < 10_000


@pytest.mark.parametrize(
    ("source", "variables", "mirrors"),
    [
        ("import wandb\n", {}, True),
        ("import wandb\n", {"HPSEARCH_WANDB": "off"}, False),
        ("import wandb\nimport hpsearch\n", {}, False),
        ("import os, wandb\nreports = os.environ['HPSEARCH_REPORTS']\n", {}, False),
    ],
)
def test_what_a_script_logs_to_wandb_is_reported_unless_it_knows_of_hpsearch(tmp_path, source, variables, mirrors):
    (tmp_path / "train.py").write_text(source)
    command = CommandLine("train.py", PYTHON, str(tmp_path))
    assert mirrors_wandb(command, variables) is mirrors
    assert ("in the Python that runs it" in no_report(("loss",), command)) is (mirrors or bool(variables))
    assert "append a line such as" in no_report(("loss",), command)


@pytest.mark.parametrize(
    ("number", "name", "kind"),
    [(9, "SIGKILL", "raised"), (40, "signal 40", "raised"), (15, "SIGTERM", "died"), (10, "SIGUSR1", "died")],
)
def test_a_script_that_is_killed_says_by_what(script: Script, number: int, name: str, kind: str) -> None:
    script.open(f'echo \'{{"loss": 1}}\' >> "$HPSEARCH_REPORTS"; kill -{number} $$', SH)
    result = script.run(0, 2)
    assert result.failure is not None
    assert result.failure.message == f"the script was killed by {name}: it printed nothing"
    assert result.failure.kind == kind
    assert iterations(result) == [1]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (CommandLine("gone.py", PYTHON, "{folder}"), "there is no 'gone.py' in "),
        (CommandLine(None, ("no-such-program",), "{folder}"), "'no-such-program' doesn't: No such file"),
        (CommandLine(None, ("true",), "{folder}/gone"), "where the sweep was started, but there is none here"),
        (CommandLine(None, ("sh", "${envvar:NOT_SET_HERE}"), "{folder}"), "but NOT_SET_HERE isn't set"),
    ],
)
def test_a_command_that_cant_start_is_a_clear_failure(tmp_path: Path, line: CommandLine, says: str) -> None:
    here = CommandLine(line.program, line.command, line.directory.replace("{folder}", str(tmp_path)))
    worker = Worker(Job(str(tmp_path), "sweep", here, (), Objective(Metric("loss")), None, 1), tmp_path)
    failure = worker.run(TRIAL, Segment(3, 0, 1, None, 1), Listening()).failure
    worker.close()
    assert failure is not None
    assert failure.kind == "contract"
    assert says in failure.message


# A script in Python, with the trial object.

TRAINS = """
    import random, sys
    import numpy, torch
    from hpsearch.trainable.current import current_trial

    trial = current_trial()
    assert current_trial() is trial
    print(sys.argv[1:], trial.params, trial.seed, torch.get_num_threads())
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
    if trial.checkpoint is not None:
        model.load_state_dict(trial.checkpoint["model"])
    for iteration in trial.iterations():
        rows = torch.rand(3, 4) * random.random() * numpy.random.rand()
        loss = model(rows).square().mean()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
                weight.grad = None
        trial.report({"loss": loss}, checkpoint=lambda: {"model": model.state_dict()})
"""


@pytest.mark.exhaustive
def test_a_python_script_has_the_same_trial_and_gives_the_same_bits_when_continued(script: Script) -> None:
    script.open(TRAINS, PYTHON, save_every=2)
    channel = Listening()
    first = script.run(0, 3, channel=channel)
    assert first.failure is None
    assert [save[:2] for save in channel.saves] == [(2, "trials/00003/1/hpsearch-checkpoint-2")]
    assert script.run(3, 5, first.checkpoint, channel).failure is None
    assert script.worker is not None
    whole = Listening()
    script.worker.run(TRIAL, Segment(3, 0, 5, None, 9), whole)
    losses = [[report.metrics["loss"].hex() for report in heard.reports] for heard in (channel, whole)]
    assert len(losses[0]) == 5
    assert losses[0] == losses[1]
    said = "['--optimizer.lr=0.5', '--nesterov=True', '--n=2'] "
    assert script.file("output.log") == (f"{said}{{'optimizer': {{'lr': 0.5}}, 'nesterov': True, 'n': 2}} 11 1\n")


DRAWS = """
    {first}
    from hpsearch.trainable.current import current_trial
    trial = current_trial()
    {then}
    import numpy, torch
    drawn = {{"loss": torch.rand(()), "numpy": numpy.random.rand()}}
    for _ in range(9):
        trial.report({{**drawn, "again": torch.rand(())}}, checkpoint={{"a": 1}})
"""


@pytest.mark.exhaustive  # each script imports torch
def test_a_library_that_a_script_imports_after_its_trial_is_seeded_as_one_before_it(script: Script) -> None:
    found = []
    for attempt, (first, then) in enumerate([("import torch", ""), ("", "import numpy"), ("", "import torch")]):
        script.open(DRAWS.format(first=first, then=then), PYTHON)
        assert script.worker is not None
        result = script.worker.run(TRIAL, Segment(3, 0, 2, None, attempt + 1), Listening())
        assert result.failure is None
        found.append([report.metrics for report in result.reports])
        script.worker.close()
    assert found[0] == found[1] == found[2]


def test_a_script_that_needs_no_torch_doesnt_import_it(script: Script) -> None:
    script.open(
        """
        import sys
        from hpsearch.trainable.current import current_trial
        trial = current_trial()
        for _ in trial.iterations():
            trial.report({"loss": 1, "torch": "torch" in sys.modules})
        """,
        PYTHON,
    )
    result = script.run(0, 1)
    assert result.reports[0].metrics == {"loss": 1.0, "torch": 0.0}


@pytest.mark.exhaustive
def test_a_script_with_a_loop_of_its_own_gives_the_same_bits_when_continued(script: Script) -> None:
    script.open(
        """
        import random, torch
        from hpsearch.trainable.current import current_trial
        trial = current_trial()
        torch.rand(5)
        state = trial.checkpoint
        while True:
            trial.report({"loss": random.random(), "torch": torch.rand(())}, checkpoint={"a": 1})
        """,
        PYTHON,
    )
    first = script.run(0, 1)
    rest = script.run(1, 3, first.checkpoint)
    assert script.worker is not None
    whole = script.worker.run(TRIAL, Segment(3, 0, 3, None, 9), Listening())
    assert [report.metrics for report in [*first.reports, *rest.reports]] == [
        report.metrics for report in whole.reports
    ]


def test_a_cut_reaches_a_python_script_at_its_next_report(script: Script) -> None:
    script.open(
        """
        import os, pathlib
        from hpsearch.trainable.current import current_trial
        trial = current_trial()
        directory = pathlib.Path(trial.directory)
        for iteration in trial.iterations():
            if iteration == 3:
                (directory / "in-iteration-3").touch()
            trial.report({"loss": 1})
        """,
        PYTHON,
    )

    class Waiting(Listening):
        def cut_requested(self) -> bool:
            return any(script.root.rglob("in-iteration-3"))

    result = script.run(0, 10, channel=Waiting())
    assert (result.failure, result.cut, result.iteration) == (None, True, 3)


@pytest.mark.exhaustive
def test_a_python_script_that_reports_without_pause_ends_at_the_report_where_it_is_cut(script: Script) -> None:
    script.open(
        """
        from hpsearch.trainable.current import current_trial
        trial = current_trial()
        for epoch in range(8):
            trial.report({"loss": epoch}, checkpoint=lambda: {"epoch": epoch})
        """,
        PYTHON,
    )
    result = script.run(0, 10, channel=Listening(cut_at=2))
    assert (result.failure, result.cut, result.iteration) == (None, True, 2)
    assert result.checkpoint is not None
    assert checkpoints.read_state(script.root / result.checkpoint) == {"epoch": 1}


@pytest.mark.exhaustive
def test_a_python_script_with_a_loop_of_its_own_ends_with_its_segment(script: Script) -> None:
    script.open(
        """
        from hpsearch.trainable.current import current_trial
        trial = current_trial()
        try:
            while True:
                trial.report({"loss": 1}, checkpoint=lambda: {"done": trial.iteration})
        finally:
            print("tidied up")
        """,
        PYTHON,
    )
    result = script.run(0, 2)
    assert (result.failure, result.iteration) == (None, 2)
    assert result.checkpoint is not None
    assert checkpoints.read_state(script.root / result.checkpoint) == {"done": 2}
    assert script.file("output.log") == "tidied up\n"


@pytest.mark.exhaustive
def test_a_python_script_that_ends_early_keeps_its_last_checkpoint(script: Script) -> None:
    script.open(
        """
        from hpsearch.trainable.current import current_trial
        trial = current_trial()
        done = 0
        for done in (1, 2):
            trial.report({"loss": 1}, checkpoint=lambda: {"done": done})
        done = "something else"
        """,
        PYTHON,
    )
    result = script.run(0, None)
    assert (result.failure, result.iteration) == (None, 2)
    assert result.checkpoint is not None
    assert checkpoints.read_state(script.root / result.checkpoint) == {"done": 2}


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ('trial.report({"los": 1})', "contract", "did you mean 'los'?"),
        pytest.param(
            'trial.report({"loss": 1}, checkpoint={"a": trial})',
            "contract",
            'state["a"]: hpsearch.trainable.running_trial',
            marks=pytest.mark.exhaustive,  # what can't be saved is told in `test_checkpoints.py`, too
        ),
        ("1 / 0", "raised", "the script exited with status 1: ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.parametrize("end", [1, pytest.param(None, marks=pytest.mark.exhaustive)])
def test_a_mistake_in_a_python_script_is_a_clear_failure(
    script: Script, text: str, kind: str, message: str, end: int | None
) -> None:
    script.open(f"from hpsearch.trainable.current import current_trial\ntrial = current_trial()\n{text}\n", PYTHON)
    failure = script.run(0, end).failure
    assert failure is not None
    assert failure.kind == kind
    assert message in failure.message


def test_a_killed_worker_leaves_no_script(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "script").write_text(
        "echo $$ > pids; setsid sh -c 'echo $$ >> pids; exec sleep 300' & "
        "until [ $(wc -l < pids) = 2 ]; do sleep 0.01; done; touch ready; sleep 300"
    )
    driver = (
        "import sys; from pathlib import Path\n"
        "from tests.hpsearch.support.segments import Listening\n"
        "from hpsearch.objective import *; from hpsearch.trial import *\n"
        "from hpsearch.worker.job import *; from hpsearch.worker.worker import *\n"
        "root = Path(sys.argv[1])\n"
        "line = CommandLine('script', ('sh', '${program}'), str(root))\n"
        "worker = Worker(Job(str(root), 'sweep', line, (), Objective(Metric('loss')), None, 1), root)\n"
        "worker.run(Trial(0, {}, 0, 'random'), Segment(0, 0, 1, None, 1), Listening())\n"
    )
    with subprocess.Popen([sys.executable, "-c", driver, str(tmp_path)]) as process:
        wait_until(lambda: (tmp_path / "ready").exists() or process.poll() is not None)
        pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
        assert all(is_alive(pid) for pid in pids)
        process.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def read_command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def test_a_closed_worker_leaves_no_guardian(script: Script) -> None:
    def guardians() -> set[int]:
        """Those of this process; they are nobody's children."""
        commands = {pid: read_command(pid) for pid in psutil.pids()}
        mine = str(os.getpid()).encode()
        return {
            pid for pid, words in commands.items() if mine in words and any(b"guardian.py" in word for word in words)
        }

    before = guardians()
    script.open("true", SH)
    wait_until(lambda: len(guardians() - before) == 1)
    assert script.worker is not None
    script.worker.close()
    assert guardians() == before
    script.worker = None
