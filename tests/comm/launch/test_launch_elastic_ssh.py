"""A launcher that goes on without ranks, or without a host, over ssh between two network namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.comm.forming import wait_until
from tests.comm.launch.elastic_training import TRAINS, check
from tests.comm.launch.launching import script
from tests.comm.launch.ssh_hosts import FIRST, SECOND, SshHosts, found, launch_on, launching_on

PAUSES = TRAINS.replace(
    "die(state.step)",
    """
            if state.step == 3 and hvd.size() == 4:
                Path(f"at.{started_as}").write_text("3\\n")
                if deaths:
                    signal.pause()""",
)
"""Those that are to be lost wait for it in step 3."""
WORDS = ("-H", f"{FIRST}:2,{SECOND}:2", "--min-np", "2")
LOST = json.dumps([0, 0, 1, 1])


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with SshHosts(tmp_path_factory.mktemp("ssh")).serving() as made:
        yield made


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("deaths", "survivors", "sizes"),
    [
        ([3, None, 5, None], [1, 3], [4] * 3 + [3] * 2 + [2] * 3),
        ([3, 3, None, None], [2, 3], [4] * 3 + [2] * 5),
    ],
)
def test_those_of_both_hosts_that_are_left_go_on_with_whoever_is_rank_0_now(hosts, tmp_path, deaths, survivors, sizes):
    words = ("-H", f"{SECOND}:2,{FIRST}:2", "--min-np", "2", script(tmp_path, TRAINS), json.dumps(deaths))
    code, _, err = launch_on(hosts, tmp_path, *words)
    assert code == 0, err
    check(tmp_path, survivors, sizes, local_size=1 if survivors == [1, 3] else 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("whom", ["ssh", "session", "agent"])
def test_the_ranks_of_one_host_go_on_when_the_other_is_lost(hosts, tmp_path, whom):
    with launching_on(hosts, tmp_path, *WORDS, script(tmp_path, PAUSES), LOST) as run:
        run.wait_for("at.2", "at.3")
        here, there = hosts.processes(0), hosts.processes(1)
        victim = {
            "ssh": found(here, "ssh -T"),
            "agent": found(there, "-m hpsearch_comm.launch.agent"),
            "session": found(there, "root@notty"),
        }[whom]
        os.kill(victim, signal.SIGKILL)
        _, err = run.communicate()
    assert run.process.returncode == 0, err
    check(tmp_path, [0, 1], [4] * 3 + [2] * 5)
    assert f"expected {SECOND} to stay until its ranks have ended, lost it with ranks 2 and 3: " in err
    assert "ranks 0 and 1 go on, as ranks 0 and 1" in err


@pytest.mark.exhaustive
def test_they_go_on_when_the_cable_is_pulled(tmp_path_factory, tmp_path):
    """No end of file tells either side; the other host's ranks end by themselves, as they hear of no launcher."""
    with SshHosts(tmp_path_factory.mktemp("ssh")).serving() as own:
        words = (*WORDS, script(tmp_path, PAUSES), LOST)
        with launching_on(own, tmp_path, *words, HPSEARCH_COMM_HEARTBEAT_TIMEOUT="4") as run:
            run.wait_for("at.2", "at.3")
            own.cut()
            _, err = run.communicate()
            wait_until(lambda: not any("hpsearch_comm" in words for words in own.processes(1).values()))
            # sshd itself notices later, if at all: its session isn't the launcher's to end.
            subprocess.run(["kill", "-9", *map(str, own.processes(1))], check=False)
        assert run.process.returncode == 0, err
        check(tmp_path, [0, 1], [4] * 3 + [2] * 5)
