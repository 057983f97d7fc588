"""The socket between a rank and its agent: both ends, whatever is cut, late or gone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from hpsearch_comm.errors import RendezvousError
from hpsearch_comm.launch.streams import Writer
from hpsearch_comm.roster import DONE, VARIABLE, Coming, LauncherLine, Roster, describe_socket, read_message


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    yield ends
    for sock in ends:
        sock.close()


def test_a_rank_takes_the_answer_to_its_last_call(ends):
    """The answer to a call that was interrupted may still come."""
    line = LauncherLine(ends[0])
    late, own = (Roster(call, call, 0, (f"address {call}",), 0, 1) for call in (7, 0))
    ends[1].sendall(late.to_line() + own.to_line())
    assert line.meet("here") == own
    line.send_done()
    first, second = ends[1].recv(1000).splitlines()
    assert (read_message(first), read_message(second)) == (Coming(0, "here"), DONE)
    ends[1].sendall(Roster(1, 3, 1, ("there", "here"), 0, 1).to_line())
    assert line.meet("here").addresses == ("there", "here")


def test_a_launcher_that_is_gone_is_an_error_before_and_while_a_rank_waits(ends):
    line = LauncherLine(ends[0])
    leaver = threading.Thread(target=lambda: (ends[1].recv(1000), ends[1].close()))
    leaver.start()
    with pytest.raises(RendezvousError, match="the launcher, which says who meets, is gone"):
        line.meet("here")
    leaver.join()
    with pytest.raises(RendezvousError, match="is gone"):
        line.send_done()


def test_the_socket_that_the_environment_names_is_taken_and_programs_do_not_inherit_it(ends):
    mine = os.dup(ends[0].fileno())
    os.set_inheritable(mine, True)
    line = LauncherLine.open({VARIABLE: describe_socket(mine)})
    assert line is not None
    assert not os.get_inheritable(mine)
    line.send_done()
    assert ends[1].recv(100) == b'"done"\n'
    line.close()


def test_what_names_no_such_socket_is_none(ends, caplog, tmp_path):
    assert LauncherLine.open({}) is None
    assert LauncherLine.open({VARIABLE: "x"}) is None
    assert not caplog.records
    number = ends[0].fileno()
    other = describe_socket(number).replace(":", ":1")
    with (tmp_path / "file").open("w") as file:
        for text in (other, f"{number}", describe_socket(file.fileno()), "99999:1"):
            assert LauncherLine.open({VARIABLE: text}) is None
    assert len(caplog.records) == 4
    assert "has closed it" in caplog.text


def test_what_does_not_fit_is_sent_when_there_is_room(ends):
    writer = Writer()
    text = b"x" * (1 << 22) + b"\n"
    writer.write(ends[0].fileno(), b"")  # which is no end
    writer.write(ends[0].fileno(), text)
    writer.write(ends[0].fileno(), b"behind\n")
    assert not writer.is_idle
    arrived = b""
    while len(arrived) < len(text) + 7:
        arrived += ends[1].recv(1 << 16)
    assert arrived == text + b"behind\n"
    writer.close(os.dup(ends[0].fileno()))
    writer.finish()
    assert writer.is_idle
    assert writer.error is None


def test_an_end_is_taken_for_one(ends):
    ends[1].close()
    writer = Writer()
    for _ in range(2):
        writer.write(ends[0].fileno(), b"to nobody\n")
    writer.finish()
    assert isinstance(writer.error, BrokenPipeError)
