"""A launcher that goes on without ranks that have died: real ranks, which train by hvd.elastic.run."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap

import pytest

from tests.comm.forming import wait_until
from tests.comm.launch.elastic_training import TRAINS, check
from tests.comm.launch.launching import launch, launching, script

pytestmark = pytest.mark.exhaustive  # each starts several processes that import torch


@pytest.mark.parametrize(
    ("deaths", "sizes"),
    [
        ([3, None], [2] * 3 + [1] * 5),
        ([3, 3, None, None], [4] * 3 + [2] * 5),
        ([None, 5, None, None], [4] * 5 + [3] * 3),
        (["start", None, None, None], [3] * 8),
        ([0, None, None, 0], [2] * 8),
        ([1, None, 4, 6], [4] + [3] * 3 + [2] * 2 + [1] * 2),
        ([None, "start", 7, 7], [3] * 7 + [1]),
    ],
)
def test_a_training_goes_on_to_the_same_end_without_those_that_are_killed(tmp_path, deaths, sizes):
    # A program between may start the rank, as long as it lets it have all that is open.
    program = ("sh", "-c", 'exec "$0" "$@"', sys.executable, script(tmp_path, TRAINS))
    code, _, err = launch(tmp_path, "-np", str(len(deaths)), "--min-np", "1", *program, json.dumps(deaths))
    assert code == 0, err
    check(tmp_path, [rank for rank in range(len(deaths)) if deaths[rank] is None], sizes)
    for rank in range(len(deaths)):
        line = rf"hpsearch_comm\.launch: rank {rank}(, now rank \d,)? on localhost was killed by signal 9 \(SIGKILL\): "
        assert (deaths[rank] is not None) == any(re.match(line, text) for text in err.splitlines())


def test_it_ends_where_fewer_are_left_than_must_be(tmp_path):
    """The exit code is that of the rank that was lost too much, and none of those before."""
    code, _, err = launch(tmp_path, "-np", "3", "--min-np", "2", script(tmp_path, TRAINS), json.dumps([3, 5, None]))
    assert code == 128 + signal.SIGKILL, err
    said = [line for line in err.splitlines() if line.startswith("hpsearch_comm.launch: ")]
    assert [line.removeprefix("hpsearch_comm.launch: ") for line in said] == [
        "rank 0 on localhost was killed by signal 9 (SIGKILL): 2 left, of 2 that must be (--min-np)",
        "ranks 1 and 2 go on, as ranks 0 and 1",
        "rank 1, now rank 0, on localhost was killed by signal 9 (SIGKILL)",
    ]
    assert not list(tmp_path.glob("told.*"))


def test_a_rank_that_raises_shows_its_traceback_and_the_others_go_on(tmp_path):
    text = TRAINS.replace("os.kill(os.getpid(), signal.SIGKILL)", 'raise ValueError(f"no step {where}")')
    code, _, err = launch(tmp_path, "-np", "3", "--min-np", "2", script(tmp_path, text), json.dumps([None, 4, None]))
    assert code == 0, err
    check(tmp_path, [0, 2], [3] * 4 + [2] * 4)
    assert err.count("[1] ValueError: no step 4\n") == 1
    assert "rank 1 on localhost ended with exit code 1: 2 left, of 2 that must be (--min-np)\n" in err


def test_what_a_dead_rank_leaves_has_a_second_to_clean_up(tmp_path):
    text = """
        import os, subprocess, sys, time
        if os.environ["RANK"] == "0":
            subprocess.Popen(["sh", "-c", "sleep 0.2; touch cleaned; sleep 3; touch stayed"])
            sys.exit(1)
        time.sleep(5)
    """
    launch(tmp_path, "-np", "2", "--min-np", "1", "--wdir", str(tmp_path), script(tmp_path, text))
    assert (tmp_path / "cleaned").exists()
    assert not (tmp_path / "stayed").exists()


@pytest.mark.parametrize("where", ["before", "connected", "with a group"])
def test_a_rank_that_dies_while_they_meet_anew_is_left_out_at_once(tmp_path, where):
    """Not by a time-out: there is none within the patience of the test."""
    dies = {
        "before": "hvd.lifetime.environment.init = lambda **_: os.kill(os.getpid(), signal.SIGKILL)",
        "connected": """
            import hpsearch_comm.assembly as assembly
            assembly.Detector = lambda *_: os.kill(os.getpid(), signal.SIGKILL)""",
        "with a group": """
            hvd.job.Job.__init__ = lambda *_: os.kill(os.getpid(), signal.SIGKILL)""",
    }[where]
    begin, end = TRAINS.split("    train(state)\n")
    text = f"{begin}    if started_as == 2:\n{textwrap.indent(textwrap.dedent(dies), ' ' * 8)}\n    train(state)\n{end}"
    words = ("-np", "4", "--min-np", "1", script(tmp_path, text), json.dumps([None, 3, None, None]))
    code, _, err = launch(tmp_path, *words, HPSEARCH_COMM_START_TIMEOUT="1e6", HPSEARCH_COMM_TIMEOUT="1e6")
    assert code == 0, err
    check(tmp_path, [0, 3], [4] * 3 + [2] * 5)


def test_a_rank_that_hangs_is_killed_when_the_others_have_waited_for_it(tmp_path):
    text = TRAINS.replace(
        "os.getpid(), signal.SIGKILL", "os.getpid(), signal.SIGSTOP if started_as == 2 else signal.SIGKILL"
    )
    words = ("-np", "4", "--min-np", "2", "--elastic-timeout", "10", script(tmp_path, text))
    code, _, err = launch(tmp_path, *words, json.dumps([None, 3, 3, None]))
    assert code == 0, err
    check(tmp_path, [0, 3], [4] * 3 + [2] * 5)
    assert (
        "rank 2 on localhost is killed, as it hasn't come to meet the others within 10 s (--elastic-timeout): " in err
    )
    assert err.count("rank 2 on localhost") == 1


def test_a_rank_that_hangs_while_nobody_dies_is_killed_where_a_stall_is_to_end_the_job(tmp_path):
    text = TRAINS.replace("os.getpid(), signal.SIGKILL", "os.getpid(), signal.SIGSTOP")
    words = ("-np", "3", "--min-np", "2", "--elastic-timeout", "10", script(tmp_path, text))
    code, _, err = launch(tmp_path, *words, json.dumps([None, 3, None]), HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="15")
    assert code == 0, err
    check(tmp_path, [0, 2], [3] * 3 + [2] * 5)
    assert "rank 1 on localhost is killed, as it hasn't come to meet the others within 10 s" in err


def test_a_rank_that_does_not_come_at_all_is_killed_after_the_start_timeout(tmp_path):
    text = TRAINS.replace("os.getpid(), signal.SIGKILL", "os.getpid(), signal.SIGSTOP")
    words = ("-np", "3", "--min-np", "2", "--start-timeout", "20", script(tmp_path, text))
    code, _, err = launch(tmp_path, *words, json.dumps(["start", None, None]))
    assert code == 0, err
    check(tmp_path, [1, 2], [2] * 8)
    assert "rank 0 on localhost is killed, as it hasn't come to meet the others within 20 s (--start-timeout): " in err


def test_ranks_that_disagree_all_meet_anew(tmp_path):
    text = TRAINS.replace(
        "os.kill(os.getpid(), signal.SIGKILL)", "hvd.allreduce(torch.ones(1 + hvd.rank()), name=str(deaths.pop()))"
    ).replace("deaths == where", "deaths[-1:] == [where]")
    code, _, err = launch(tmp_path, "-np", "2", "--min-np", "2", script(tmp_path, text), json.dumps([[6, 3], [6, 3]]))
    assert code == 0, err
    check(tmp_path, [0, 1], [2] * 8)


def test_a_rank_that_is_done_may_take_its_time_and_the_others_wait_until_it_has_ended(tmp_path):
    text = """
        import os, time
        from pathlib import Path

        import torch
        import hpsearch_comm.horovod as hvd

        hvd.init()
        started_as = hvd.rank()
        state = hvd.elastic.ObjectState(step=0)

        def wait_for(name):
            while not Path(name).exists():
                time.sleep(0.01)

        @hvd.elastic.run
        def train(state):
            hvd.allreduce(torch.ones(1), name="together")
            if started_as == 1:
                wait_for("done")
                os._exit(1)
            if started_as == 2 and hvd.size() == 3:
                hvd.allreduce(torch.ones(1), name="what nobody else calls")
            return hvd.size(), Path("saved").exists()

        print(*train(state), flush=True)
        if started_as == 0:
            Path("done").touch()
            time.sleep(4)
            Path("saved").touch()
    """
    words = ("-np", "3", "--min-np", "2", "--elastic-timeout", "0.5", script(tmp_path, text))
    code, out, err = launch(tmp_path, *words)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[0] 3 False", "[2] 1 True"]
    assert "is killed" not in err


def test_losses_count_as_no_failures_of_the_training(tmp_path):
    """Four ranks die one after the other, and there is no commit in between."""
    text = TRAINS.replace("state.commit()", "state.step == 8 and state.commit()")
    text = text.replace("die(state.step)", "die(state.step if hvd.size() == 5 - started_as else -1)")
    words = ("-np", "5", "--min-np", "1", script(tmp_path, text), json.dumps([0, 1, 2, 3, None]))
    code, _, err = launch(tmp_path, *words)
    assert code == 0, err
    check(tmp_path, [4], [1] * 8)


def test_an_interrupt_ends_all_of_them_also_one_that_would_go_on(tmp_path):
    wait = """started_as == 2 and signal.signal(signal.SIGINT, signal.SIG_IGN)
            if state.step == 3:
                Path(f"at.{started_as}").write_text("3\\n")
                signal.pause()"""
    text = TRAINS.replace("die(state.step)", wait)
    with launching(tmp_path, "-np", "3", "--min-np", "1", script(tmp_path, text), json.dumps([None] * 3)) as run:
        run.wait_for("at.0", "at.1", "at.2")
        run.process.send_signal(signal.SIGINT)
        _, err = run.communicate()
    assert run.process.returncode == 128 + signal.SIGINT, err
    assert "(--min-np)" not in err


def test_nothing_is_left_where_the_launcher_is_killed_while_ranks_wait_to_meet(tmp_path):
    text = TRAINS.replace("die(state.step)", "started_as or (Path('at.0').write_text('waits\\n'), signal.pause())")
    with launching(tmp_path, "-np", "2", "--min-np", "1", script(tmp_path, text), json.dumps([None] * 2)) as run:
        run.wait_for("at.0")
        os.kill(run.process.pid, signal.SIGKILL)
        wait_until(lambda: not run.processes())


def test_a_program_that_closes_what_the_launcher_has_opened_is_told(tmp_path):
    between = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"
    program = (sys.executable, "-c", between, script(tmp_path, TRAINS), json.dumps([None] * 2))
    code, _, err = launch(tmp_path, "-np", "2", "--min-np", "1", *program)
    assert code == 0, err
    check(tmp_path, [0, 1], [2] * 8)
    assert err.count("Have the launcher start it itself") == 2


BEGINS = """
    import os, signal, time
    from pathlib import Path

    import torch
    import hpsearch_comm.horovod as hvd

    hvd.init()
    started_as = hvd.rank()

    def meet(name):
        return hvd.allreduce(torch.ones(1), op=hvd.Sum, name=name).item()

    def wait_for(name):
        while not Path(name).exists():
            time.sleep(0.01)
"""


@pytest.mark.parametrize("how", ["raise OSError('no room to save')", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_loss_behind_which_nobody_meets_again_is_the_exit_code(tmp_path, how):
    """Rank 0 alone saves, and nobody is rank 0 behind it."""
    text = f"""{BEGINS}
    hvd.elastic.run(lambda state: meet("x"))(hvd.elastic.ObjectState())
    if hvd.rank() == 0:
        {how}
    """
    code, _, err = launch(tmp_path, "-np", "3", "--min-np", "1", script(tmp_path, text))
    assert code == (1 if "OSError" in how else 128 + signal.SIGKILL), err
    assert err.splitlines()[-1].startswith("hpsearch_comm.launch: rank 0 on localhost ")


def test_ranks_that_end_by_themselves_on_a_signal_may_meet_until_then(tmp_path):
    text = f"""
    import signal
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    {BEGINS}
    @hvd.elastic.run
    def train(state):
        while True:
            meet("x")
            Path(f"at.{{started_as}}").write_text("waits\\n")
            if started_as == 2:
                signal.pause()
            if stop:
                return hvd.size()

    print(train(hvd.elastic.ObjectState()), flush=True)
    """
    with launching(tmp_path, "-np", "3", "--min-np", "1", script(tmp_path, text)) as run:
        run.wait_for("at.0", "at.1", "at.2")
        run.process.send_signal(signal.SIGTERM)
        out, err = run.communicate()
    assert run.process.returncode == 0, err
    assert sorted(out.splitlines()) == ["[0] 2", "[1] 2", "[2] 3"]
    assert "ranks 0 and 1 go on, as ranks 0 and 1" in err


def test_a_death_within_a_sync_leaves_nobody_with_a_part_of_the_state(tmp_path):
    text = f"""{BEGINS}
    class Kills:
        def __deepcopy__(self, memo):
            return self

        def __reduce__(self):
            os.kill(os.getpid(), signal.SIGKILL)

    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, started_as)
    state = hvd.elastic.TorchState(model, number=started_as, bomb=Kills() if started_as == 0 else None)

    @hvd.elastic.run
    def train(state):
        print(model.weight.item(), state.number, flush=True)

    train(state)
    """
    code, out, err = launch(tmp_path, "-np", "3", "--min-np", "2", script(tmp_path, text))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[1] 1.0 1", "[2] 1.0 1"]


def test_a_death_within_a_callback_is_one_more_loss(tmp_path):
    text = f"""{BEGINS}
    def reset():
        if started_as == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.add_process_set([0])

    @hvd.elastic.run
    def train(state):
        if started_as == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        print(meet("x"), flush=True)

    state = hvd.elastic.ObjectState()
    state.register_reset_callbacks([reset])
    train(state)
    """
    code, out, err = launch(tmp_path, "-np", "4", "--min-np", "2", script(tmp_path, text))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[2] 2.0", "[3] 2.0"]


def test_a_rank_that_hangs_in_a_second_training_is_killed_as_in_the_first(tmp_path):
    text = f"""{BEGINS}
    @hvd.elastic.run
    def train(state):
        if state.number == 2 and started_as == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if state.number == 2 and started_as == 2 and hvd.size() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return meet("x")

    print(train(hvd.elastic.ObjectState(number=1)), train(hvd.elastic.ObjectState(number=2)), flush=True)
    """
    words = ("-np", "3", "--min-np", "1", "--elastic-timeout", "5", script(tmp_path, text))
    code, out, err = launch(tmp_path, *words)
    assert code == 0, err
    assert out == "[0] 3.0 1.0\n"


def test_ranks_that_are_in_different_trainings_say_so(tmp_path):
    """Rank 0 has ended the first one, and rank 1 hasn't: neither may go on with the other's state."""
    text = f"""{BEGINS}
    @hvd.elastic.run
    def train(state):
        if state.number == 1 and started_as == 1:
            Path("late").touch()
            meet("what the others have not called")
        if state.number == 1 and started_as == 2:
            wait_for("late")
            wait_for("ahead")
            os.kill(os.getpid(), signal.SIGKILL)

    first, second = (hvd.elastic.ObjectState(number=number) for number in (1, 2))
    train(first)
    Path("ahead").touch()
    train(second)
    """
    code, _, err = launch(tmp_path, "-np", "3", "--min-np", "1", script(tmp_path, text))
    assert code == 1, err
    assert err.count("UsageError: the ranks of hvd.elastic.run must be in the same call of it") == 2
    assert "are in call 2 again, call 1 again, by rank" in err


def test_what_a_dead_rank_has_started_ends_while_the_others_go_on(tmp_path):
    """Also what doesn't heed SIGTERM; what others have started stays."""
    text = f"""{BEGINS}
    child = os.fork()
    if child == 0:
        if started_as == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(f"child.{{started_as}}").write_text(f"{{os.getpid()}}\\n")
        while True:
            signal.pause()
    wait_for(f"child.{{started_as}}")

    def is_there(child):
        return Path(f"/proc/{{child}}").exists()

    @hvd.elastic.run
    def train(state):
        if started_as < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        for other in range(2):
            while is_there(int(Path(f"child.{{other}}").read_text())):
                time.sleep(0.01)
        meet("x")
        print(is_there(child), flush=True)

    train(hvd.elastic.ObjectState())
    """
    code, out, err = launch(tmp_path, "-np", "3", "--min-np", "1", script(tmp_path, text))
    assert (code, out) == (0, "[2] True\n"), err
