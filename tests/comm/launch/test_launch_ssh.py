"""The launcher over ssh, between two network namespaces, with a real sshd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpsearch_comm
from tests.comm.forming import wait_until
from tests.comm.launch.launching import script
from tests.comm.launch.ssh_hosts import ALIAS, FIRST, SECOND, SshHosts, found, launch_on, launching_on

TRAINS = """
    import hpsearch_comm as comm
    import torch
    from torch import nn

    group = comm.init()
    torch.manual_seed(group.rank)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * group.size, momentum=0.9)
    optimizer = comm.DistributedOptimizer(optimizer, model.named_parameters(), group)
    comm.broadcast_parameters(model.state_dict(), group)
    inputs = torch.randn(100, 4)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = group.allgather(model.weight.detach())
    assert torch.equal(weights, weights[0].expand_as(weights))
    print("rank", group.rank, "local", group.local_rank, "of hosts", group.hosts, "well", losses[-1] < losses[0] / 2)
    group.close()
"""

HOROVOD = """
    import hpsearch_comm.horovod as hvd  # was: import horovod.torch as hvd
    import torch
    from torch import nn

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    inputs = torch.randn(100, 4)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = hvd.allgather(model.weight.detach())
    assert torch.equal(weights, weights[0].expand_as(weights))
    place = hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
    print("place", *place, "well", losses[-1] < losses[0] / 2)
"""

FAILS = """
    import os, sys
    import torch
    import hpsearch_comm as comm

    with comm.init() as group:
        group.barrier()
        if group.rank == 1:
            raise ValueError("the batch is empty")
        group.barrier()
"""

WAITS = """
    import os, signal, subprocess
    from pathlib import Path

    rank = os.environ["RANK"]
    daemon = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    Path(f"pid.{rank}").write_text(f"{os.getpid()} {daemon.pid}\\n")
    while True:
        signal.pause()
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(tmp_path_factory.mktemp("ssh")).serving() as made:
        yield made


@pytest.mark.parametrize(
    "order", [f"{FIRST}:1,{ALIAS}:1", pytest.param(f"{SECOND}:2,{FIRST}:1", marks=pytest.mark.exhaustive)]
)
def test_a_script_in_the_style_of_horovod_trains_on_both_hosts(hosts, tmp_path, order):
    """Whichever has rank 0: the others find it, also where only ssh knows a host's name."""
    code, out, err = launch_on(hosts, tmp_path, "-H", order, script(tmp_path, TRAINS))
    assert code == 0, err
    assert err == ""
    size = 2 if ALIAS in order else 3
    groups = "((0,), (1,))" if size == 2 else "((0, 1), (2,))"
    local = [0, 0] if size == 2 else [0, 1, 0]
    expected = [f"[{rank}] rank {rank} local {local[rank]} of hosts {groups} well True" for rank in range(size)]
    assert sorted(out.splitlines()) == expected


def test_a_script_of_horovods_trains_on_both_hosts_with_one_line_changed(hosts, tmp_path):
    code, out, err = launch_on(hosts, tmp_path, "-H", f"{FIRST}:2,{SECOND}:1", script(tmp_path, HOROVOD))
    assert code == 0, err
    assert err == ""
    places = ["0 0 2 0 2", "1 1 2 0 1", "2 0 1 1 2"]
    assert sorted(out.splitlines()) == [f"[{rank}] place {place} well True" for rank, place in enumerate(places)]


def test_the_traceback_of_a_rank_elsewhere_comes_last_and_its_host_is_named(hosts, tmp_path):
    code, _, err = launch_on(hosts, tmp_path, "-H", f"{FIRST}:1,{SECOND}:1", script(tmp_path, FAILS))
    lines = err.splitlines()
    assert code == 1
    assert "hpsearch_comm.launch: what rank 1 wrote:" in lines, err
    assert lines[-2] == "[1] ValueError: the batch is empty"
    assert any(line.startswith("[0] hpsearch_comm.errors.PeerLost: rank 1 has left") for line in lines)
    assert lines[-1] == f"hpsearch_comm.launch: rank 1 on {SECOND} ended with exit code 1"


@pytest.mark.parametrize(
    "whom", ["launcher", "session", *(pytest.param(whom, marks=pytest.mark.exhaustive) for whom in ("ssh", "agent"))]
)
def test_nothing_is_left_on_either_host_whoever_is_killed(hosts, tmp_path, whom):
    """The session is sshd's process for this connection. Where the agent is killed, only ranks end with it there."""
    text = WAITS.replace('["sleep", "600"]', '["true"]') if whom == "agent" else WAITS
    with launching_on(hosts, tmp_path, "-H", f"{FIRST}:1,{SECOND}:1", script(tmp_path, text)) as run:
        run.wait_for("pid.0", "pid.1")
        here, there = hosts.processes(0), hosts.processes(1)
        victim = {
            "launcher": run.process.pid,
            "ssh": found(here, "ssh -T"),
            "agent": found(there, "-m hpsearch_comm.launch.agent"),
            "session": found(there, "root@notty"),
        }[whom]
        os.kill(victim, signal.SIGKILL)
        _, err = run.communicate()
    assert run.process.returncode == (-signal.SIGKILL if whom == "launcher" else 1)
    if whom != "launcher":
        assert f"expected {SECOND} to stay until its ranks have ended, lost it with rank 1" in err


def test_signals_reach_ranks_elsewhere_and_the_secret_shows_nowhere(hosts, tmp_path):
    with launching_on(hosts, tmp_path, "-H", f"{FIRST}:1,{SECOND}:1", script(tmp_path, WAITS)) as run:
        ranks = [int(text.split()[0]) for text in run.wait_for("pid.0", "pid.1")]
        holders = set()
        for pid in ranks:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            (secret,) = (text for text in variables if text.startswith(b"HPSEARCH_COMM_SECRET="))
        digits = secret.partition(b"=")[2]
        assert len(digits) == 64
        everything = {**hosts.processes(0), **hosts.processes(1)}
        assert any("ssh -T" in words for words in everything.values())
        for pid, words in everything.items():
            assert digits.decode() not in words
            if digits in Path(f"/proc/{pid}/environ").read_bytes():
                holders.add(pid)
        # What a rank has started has its environment.
        assert holders == {int(pid) for text in run.wait_for("pid.0", "pid.1") for pid in text.split()}
        run.process.send_signal(signal.SIGTERM)
        run.communicate()
    assert run.process.returncode == 128 + signal.SIGTERM


def test_ranks_elsewhere_have_the_variables_and_the_directory(hosts, tmp_path):
    words = ("--no-prefix", "-H", f"{SECOND}:1,{FIRST}:1", "sh", "-c", 'echo "$RANK $MINE $PWD"')
    code, out, err = launch_on(hosts, tmp_path, *words, MINE="along")
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"{rank} along {tmp_path}" for rank in range(2)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("-H", "nobody@10.213.0.2", "true"),
            "expected to reach nobody@10.213.0.2 by ssh without being asked for anyth",
        ),
        (("-H", f"{FIRST}:1,no-such-host.invalid:1", "true"), "expected to reach no-such-host.invalid by ssh"),
        (("-H", SECOND, "--ssh-port", "1", "true"), "Connection refused"),
        (
            ("-H", f"{SECOND}:1", "--python", "/no/python", "true"),
            f"expected a Python interpreter at /no/python on {SECOND}",
        ),
        (("-H", f"{SECOND},{ALIAS}", "true"), f"expected each host once, got {SECOND} and {ALIAS}, which are one"),
        (
            ("-H", f"{FIRST}:1,{SECOND}:1", "no-such-program"),
            "expected a program that can be run, got 'no-such-program'",
        ),
    ],
)
def test_a_host_that_can_not_be_used_is_one_clear_error(hosts, tmp_path, words, said):
    code, out, err = launch_on(hosts, tmp_path, *words)
    assert (code, out) == (127 if "no-such-program" in words else 1, "")
    assert err.startswith("hpsearch_comm.launch: error: ")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_host_key_that_is_not_known_is_refused(hosts, tmp_path):
    words = ("--ssh-option", "UserKnownHostsFile=/dev/null", "-H", SECOND, "true")
    code, _, err = launch_on(hosts, tmp_path, *words)
    assert code == 1
    assert "Host key verification failed" in err


@pytest.mark.parametrize("how", ["another", "none"])
def test_hosts_with_unlike_hpsearch_comm_do_not_start(hosts, tmp_path, how):
    """A Python that finds another one, or none, where it is called by ssh."""
    other = tmp_path / "other"
    other.mkdir()
    if how == "another":
        package = Path(hpsearch_comm.__file__).parent
        shutil.copytree(package, other / "hpsearch_comm", ignore=shutil.ignore_patterns("__pycache__"))
        with (other / "hpsearch_comm" / "topology.py").open("a") as file:
            file.write("# of another version\n")
    python = tmp_path / "python"
    bare = f"PYTHONPATH={other} exec {sys.executable}" + (" -S" if how == "none" else "")
    python.write_text(f'#!/bin/sh\n[ -n "$SSH_CONNECTION" ] || exec {sys.executable} "$@"\n{bare} "$@"\n')
    python.chmod(0o755)
    words = ("-H", f"{FIRST}:1,{SECOND}:1", "--python", str(python), "true")
    code, _, err = launch_on(hosts, tmp_path, *words)
    assert code == 1
    expected = {
        "another": f"expected the same hpsearch_comm on {SECOND} as here",
        "none": f"expected hpsearch_comm to be installed for {python} on {SECOND}",
    }
    assert expected[how] in err


@pytest.mark.exhaustive
def test_hosts_that_no_longer_hear_of_each_other_end_their_ranks(tmp_path_factory, tmp_path):
    """The cable is pulled: no end of file tells either side."""
    with SshHosts(tmp_path_factory.mktemp("ssh")).serving() as own:
        words = ("-H", f"{FIRST}:1,{SECOND}:1", script(tmp_path, WAITS))
        with launching_on(own, tmp_path, *words, HPSEARCH_COMM_HEARTBEAT_TIMEOUT="4") as run:
            run.wait_for("pid.0", "pid.1")
            own.cut()
            _, err = run.communicate()
            # sshd itself notices later, if at all: its session isn't the launcher's to end.
            wait_until(
                lambda: not any("hpsearch_comm" in words or "sleep" in words for words in own.processes(1).values())
            )
            subprocess.run(["kill", "-9", *map(str, own.processes(1))], check=False)
        assert run.process.returncode == 1
        assert f"expected {SECOND} to stay until its ranks have ended, lost it with rank 1" in err
