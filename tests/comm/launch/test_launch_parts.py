"""The launcher's parts that are pure: hosts, lines, frames, verdicts, variables, and what a command line asks for."""

from __future__ import annotations

import io
import itertools
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpsearch_comm
from hpsearch_comm.bootstrap.listener import listen
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.launch.agent import hold_port, meeting_address
from hpsearch_comm.launch.command_line import make_parser, read_job
from hpsearch_comm.launch.connection import agent_process, describe_failure
from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.frames import Frame, FrameKind, pack, pack_value, read_frames
from hpsearch_comm.launch.hosts import Host, HostRanks, assign_ranks, is_here, merge_local, parse_hostfile, parse_hosts
from hpsearch_comm.launch.job import LaunchJob
from hpsearch_comm.launch.launcher import Death, first_failure, is_witness, last_traceback
from hpsearch_comm.launch.output import MOST_BYTES, Page, split_lines
from hpsearch_comm.launch.variables import forwarded_variables, parse_exports, rank_variables, without_other_launchers
from hpsearch_comm.launch.version import source_digest

NAMES = st.from_regex(r"\A([a-z]{1,5}@)?[a-z0-9][a-z0-9.-]{0,10}\Z")
SLOTS = st.integers(1, 1000)
HOSTS = st.lists(st.builds(Host, NAMES, SLOTS), min_size=1, max_size=6, unique_by=lambda host: host.name)


def job(*words: str, **env: str) -> LaunchJob:
    return read_job(make_parser().parse_args(words), env)


# Hosts.


@given(HOSTS)
def test_hosts_are_read_as_they_are_written(hosts):
    assert parse_hosts(",".join(f"{host.name}:{host.slots}" for host in hosts)) == tuple(hosts)


@given(HOSTS, st.sampled_from(["{} slots={}", "{}:{}", "  {}   slots={} # a comment", "{} slots={} max_slots=99\n#\n"]))
def test_a_hostfile_of_each_format_gives_the_same(hosts, form):
    text = "# hosts\n\n" + "\n".join(form.format(host.name, host.slots) for host in hosts)
    assert parse_hostfile(text, "hosts") == tuple(hosts)


@given(HOSTS, st.data())
def test_each_rank_is_on_one_host_which_has_a_slot_for_it(hosts, data):
    size = data.draw(st.integers(1, sum(host.slots for host in hosts)))
    shares = assign_ranks(hosts, size)
    assert [rank for share in shares for rank in share.ranks] == list(range(size))
    assert all(1 <= len(share.ranks) <= share.host.slots for share in shares)
    # A host is full before the next one has any.
    assert all(len(share.ranks) == share.host.slots for share in shares[:-1])
    assert [share.host for share in shares] == hosts[: len(shares)]


@given(HOSTS)
def test_more_ranks_than_slots_are_an_error_with_both_counts(hosts):
    slots = sum(host.slots for host in hosts)
    with pytest.raises(ConfigurationError, match=rf"as there are slots, got {slots + 1} for {slots} \("):
        assign_ranks(hosts, slots + 1)


@given(st.text(max_size=20))
def test_any_text_gives_hosts_or_an_error_of_ours(text):
    for read in (parse_hosts, lambda text: parse_hostfile(text, "hosts")):
        try:
            hosts = read(text)
        except ConfigurationError:
            continue
        assert hosts
        # What ssh would take for an option is no host.
        assert all(host.slots >= 1 and re.fullmatch(r"[\w.@+:-]+", host.name) for host in hosts)
        assert not any(host.name.startswith("-") for host in hosts)


def test_hosts_without_slots_twice_and_of_ipv6():
    assert parse_hosts("a, b:2 ,a:3") == (Host("a", 4), Host("b", 2))
    assert parse_hosts("[fd00::1]:2,ada@[fd00::2]") == (Host("fd00::1", 2), Host("ada@fd00::2", 1))


@pytest.mark.parametrize(
    "text", ["", "a,,b", "a:", "a:0", "a:-1", "a:x", "a:1:2", "fd00::1", "-oProxyCommand=x", "a b"]
)
def test_what_is_no_host_is_named(text):
    with pytest.raises(ConfigurationError, match=r"^expected .* in -H "):
        parse_hosts(text)


@pytest.mark.parametrize(
    "line",
    [
        "a slots",
        "a slots=",
        "a slots=0",
        "a:2 b:2",
        "a slots=1 slots=2",
        "a slot=2",
        "a max_slots=x",
        ":2",
        "max_slots=2",
        "a:2 slots=2",
        "slots=2",
        "a b slots=2",
    ],
)
def test_a_line_that_is_no_host_is_named_with_its_number(line):
    with pytest.raises(ConfigurationError, match=r"^expected .* in my/hosts, line 2"):
        parse_hostfile(f"good slots=1\n{line}\n", "my/hosts")
    with pytest.raises(ConfigurationError, match=r"^expected a host in my/hosts"):
        parse_hostfile("# nothing\n", "my/hosts")


def test_all_names_of_this_host_are_one():
    name = socket.gethostname()
    assert all(is_here(text) for text in ("localhost", "127.0.0.1", "::1", name, name.upper()))
    assert not any(is_here(text) for text in ("ada@localhost", "192.0.2.1", "no-such-host.invalid", "0.0.0.0"))
    hosts = parse_hosts(f"other:1,127.0.0.1:2,{name}:3")
    assert merge_local(hosts, lambda text: text != "other") == (Host("other", 1), Host("localhost", 5))


# Lines.


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_lines_are_the_same_wherever_the_stream_is_cut(data, cuts):
    edges = [0, *sorted(cut for cut in cuts if cut <= len(data)), len(data)]
    fed, incomplete = list[bytes](), b""
    for begin, end in itertools.pairwise(edges):
        more, incomplete = split_lines(incomplete + data[begin:end])
        fed += more
    lines, rest = split_lines(data)
    assert (fed, incomplete) == (lines, rest)
    assert b"".join(lines) + rest == data
    assert all(re.fullmatch(rb"[^\r\n]*(\r\n|\n|\r)", line) for line in lines)
    assert re.fullmatch(rb"[^\r\n]*\r?", rest)


def test_a_line_without_end_comes_in_pieces():
    pieces, incomplete = list[bytes](), b""
    for _ in range(40):
        more, incomplete = split_lines(incomplete + b"x" * (MOST_BYTES // 16))
        pieces += more
    assert len(pieces) == 2
    assert sum(map(len, pieces)) + len(incomplete) == 40 * (MOST_BYTES // 16)


PIECES = st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=10), st.sampled_from([b"\n", b"\r", b""])))


@given(PIECES)
def test_no_line_has_text_of_two_streams(pieces):
    written: list[bytes] = []
    page = Page()
    for stream, text, end in pieces:
        plain = re.sub(rb"[\r\n]", b"", text)
        if plain + end:
            line = b"".join(stream.encode() for _ in plain) + end
            written.append(page.put(stream, f"<{stream}>".encode(), line))
    for line in b"".join(written).split(b"\n"):
        assert re.fullmatch(rb"((<a>a*\r?)*|(<b>b*\r?)*|<a>a*|<b>b*)", line), line
    for stream in "ab":
        expected = sum(len(re.sub(rb"[\r\n]", b"", text)) for it, text, _ in pieces if it == stream)
        text = re.sub(rb"<.>", b"", b"".join(written))
        assert text.count(stream.encode()) == expected


def test_a_line_that_is_interrupted_goes_on_with_its_prefix():
    written: list[bytes] = []
    page = Page()
    for stream, piece in ((0, b"name? "), (0, b"Ada\n"), (0, b"10%\r"), (0, b"20%"), (1, b"hello\n"), (0, b"30%\r\n")):
        written.append(page.put((stream,), b"[%d] " % stream, piece))
    assert b"".join(written) == b"[0] name? Ada\n[0] 10%\r[0] 20%\n[1] hello\n[0] 30%\r\n"


# Frames.


class OneByOne(io.RawIOBase):
    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._data.readinto(memoryview(buffer)[:1])


def frames_of(data: bytes) -> Iterator[Frame]:
    return read_frames(io.BufferedReader(io.BytesIO(data)))


def test_a_frame_that_is_cut_off_is_none():
    data = pack(FrameKind.STDOUT, 1, b"out")
    assert all(list(frames_of(data + data[:end])) == [Frame(FrameKind.STDOUT, 1, b"out")] for end in range(len(data)))


@given(st.lists(st.builds(Frame, st.sampled_from(FrameKind), st.integers(-(2**31), 2**31 - 1), st.binary(max_size=30))))
def test_frames_arrive_as_they_were_sent_however_they_are_cut(frames):
    data = b"".join(pack(frame.kind, frame.number, frame.payload) for frame in frames)
    assert list(read_frames(io.BufferedReader(OneByOne(data)))) == frames
    assert list(frames_of(data)) == frames
    (frame,) = frames_of(pack_value(FrameKind.START, {"a": ["\udcff"]}))
    assert frame.value == {"a": ["\udcff"]}


def test_what_is_no_frame_is_an_error():
    with pytest.raises(LaunchError, match="something else writes"):
        list(frames_of(b"Last login: Thu Nov 26"))


# Verdicts.

WITNESS = b"Traceback (most recent call last):\n  File ...\nhpsearch_comm.errors.PeerLost: rank 1 died\n"
REASON = b"Traceback (most recent call last):\n  File ...\nValueError: the batch is empty\n"


def test_witnesses_are_told_from_those_that_fail_by_themselves():
    group = b"  + Exception Group Traceback (most recent call last):\n  | ValueError: x\n  | PeerLost: rank 1 died\n"
    assert is_witness(WITNESS)
    assert is_witness(group)
    assert is_witness(b"RendezvousError: rank 1 died while the group formed\n")
    assert not any(is_witness(text) for text in (b"", REASON, b'raise PeerLost("x")\n', b"log: PeerLost: rank 1\n"))
    # As torch.distributed's own hook writes it.
    assert is_witness(b"[rank2]: torch.distributed.DistBackendError: PeerLost: rank 1 died\n")


@given(st.lists(st.builds(Death, st.integers(0, 9), st.sampled_from([1, -9]), st.booleans())))
def test_the_first_to_fail_is_the_first_that_is_no_witness(deaths):
    own = [death for death in deaths if not death.witness]
    assert first_failure(deaths) == next(iter([*own, *deaths]), None)


def test_exit_codes_are_those_of_a_shell():
    assert [Death(0, code, False).exit_code for code in (1, 255, -9, -15)] == [1, 255, 137, 143]


def test_the_last_traceback_is_found_with_what_follows_it():
    assert last_traceback(b"a warning\n" + WITNESS + b"a warning\n" + REASON + b"more\n") == REASON + b"more\n"
    of_torch = b"".join(b"[rank2]: " + line for line in REASON.splitlines(keepends=True))
    assert last_traceback(b"a warning\n" + of_torch) == of_torch
    assert last_traceback(b"a warning\n") == b""


# The command line, and what becomes of it.


def test_a_script_a_module_and_a_program():
    python = sys.executable
    assert job("-np", "2", "train.py", "-np", "3").command == (python, "train.py", "-np", "3")
    assert job("-np", "2", "-m", "pkg.train", "-x").command == (python, "-m", "pkg.train", "-x")
    assert job("-np", "2", "./run.sh", "--help").command == ("./run.sh", "--help")
    assert job("-np", "2", "--python", "/opt/python", "train.py").command == ("/opt/python", "train.py")
    assert job("--num-proc", "2", "true").host_ranks == (HostRanks(Host("localhost", 2), range(2)),)


def test_hosts_of_the_command_line_and_of_a_file(tmp_path):
    expected = (HostRanks(Host("localhost", 2), range(2)), HostRanks(Host("192.0.2.1", 3), range(2, 5)))
    assert job("-H", "localhost:2,192.0.2.1:3", "true").host_ranks == expected
    (tmp_path / "hosts").write_text("127.0.0.1 slots=2\n192.0.2.1:3\n")
    assert job("--hostfile", str(tmp_path / "hosts"), "true").host_ranks == expected
    assert job("-np", "2", "-H", "localhost:2,192.0.2.1:3", "true").host_ranks == expected[:1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("true",), r"expected how many ranks to start \(-np\)"),
        (("-np", "0", "true"), "expected -np to be a whole number from 1 to"),
        (("-np", "3", "-H", "localhost:2", "true"), r"got 3 for 2 \(localhost 2\)"),
        (("--hostfile", "/no/such/file", "true"), "expected --hostfile to be a text file that can be read"),
        (("-np", "1", "-x", "NO_SUCH_NAME", "true"), "expected NO_SUCH_NAME to be set, since -x"),
        (("-np", "1", "-x", "1A=2", "true"), "expected -x NAME or -x NAME=VALUE, got '1A=2'"),
        (("-np", "1", "-x", "HPSEARCH_COMM_SECRET=00", "true"), "other users can read command lines"),
        (("-np", "1", "--start-timeout", "0", "true"), "expected --start-timeout to be a number of seconds above 0"),
        (("-np", "1", "--ssh-port", "0", "true"), "expected --ssh-port from 1 to 65535"),
    ],
)
def test_mistakes_of_the_command_line_are_told(words, said):
    with pytest.raises(ConfigurationError, match=said):
        job(*words)


def test_a_working_directory_that_is_gone_must_be_replaced(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigurationError, match=r"expected a directory to start in, got No such file .*--wdir"):
        job("-np", "1", "true")
    assert job("-np", "1", "--wdir", "/", "true").directory == "/"


@pytest.mark.parametrize(
    "words", [(), ("-np", "x", "true"), ("-H", "a", "--hostfile", "b", "true"), ("--num", "1", "x")]
)
def test_what_is_no_command_line_ends_with_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(words)
    assert ended.value.code == 2
    assert "usage: python -m hpsearch_comm.launch -np N" in capsys.readouterr().err


def test_variables_of_the_group_are_checked_before_anything_starts():
    for name in ("HPSEARCH_COMM_START_TIMEOUT", "HPSEARCH_COMM_HEARTBEAT_TIMEOUT"):
        with pytest.raises(ConfigurationError, match=f"expected {name} to be a number of seconds"):
            job("-np", "1", "true", **{name: "soon"})
    with pytest.raises(ConfigurationError, match="expected HPSEARCH_COMM_SECRET to be 64"):
        job("-np", "1", "true", HPSEARCH_COMM_SECRET="00")
    secret = "ab" * 32
    assert job("-np", "1", "true", HPSEARCH_COMM_SECRET=secret).secret == secret
    assert len({job("-np", "1", "true").secret for _ in range(2)}) == 2
    assert secret not in repr(job("-np", "1", "true", HPSEARCH_COMM_SECRET=secret))
    assert job("-np", "1", "--start-timeout", "7", "true").exports == {"HPSEARCH_COMM_START_TIMEOUT": "7"}


def test_which_variables_go_along_to_other_hosts():
    stay = "HOME HOSTNAME PWD USER SSH_CONNECTION TERM TMPDIR XDG_RUNTIME_DIR DISPLAY BASH_FUNC_x%% _"
    go = "PATH LD_LIBRARY_PATH PYTHONPATH CUDA_VISIBLE_DEVICES OMP_NUM_THREADS HPSEARCH_COMM_TIMEOUT WANDB_API_KEY LANG"
    env = dict.fromkeys(f"{stay} {go} HPSEARCH_COMM_SECRET".split(), "x")
    assert sorted(forwarded_variables(env)) == sorted(go.split())
    others = "OMPI_COMM_WORLD_SIZE PMI_RANK SLURM_PROCID TORCHELASTIC_USE_AGENT_STORE GROUP_RANK HPSEARCH_COMM_ELASTIC"
    assert list(without_other_launchers(dict.fromkeys([*others.split(), "SLURM_JOB_ID"], "x"))) == ["SLURM_JOB_ID"]
    assert parse_exports(["A", "B=c=d", "C="], {"A": "a"}) == {"A": "a", "B": "c=d", "C": ""}
    assert rank_variables(3, range(2, 4), 4, "10.0.0.1", 5) == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "5",
    }  # fmt: skip


def test_ssh_is_asked_for_nothing_and_host_keys_are_left_to_the_user(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/a b")
    options = ("--ssh-port", "2222", "--ssh-identity", "key", "--ssh-config", "config", "--ssh-option", "User=ada")
    made = job("-H", "192.0.2.1", "--python", "/opt/my python", *options, "true", A="b", HPSEARCH_COMM_SECRET="ab" * 32)
    words, env = agent_process(made, made.host_ranks[0])
    root = Path(hpsearch_comm.__file__).parents[1]
    assert words[-3:-1] == ["--", "192.0.2.1"]
    assert words[-1] == f"exec env 'PYTHONPATH={root}:/a b' '/opt/my python' -P -m hpsearch_comm.launch.agent 60"
    assert words[:10] == ["ssh", "-T", "-a", "-x", "-F", "config", "-p", "2222", "-i", "key"]
    assert words[10:14] == ["-o", "User=ada", "-o", "BatchMode=yes"]
    assert "ServerAliveInterval=15" in words
    assert not any("HostKey" in word for word in words)
    assert env == {"A": "b"}


def test_an_agent_here_is_started_without_ssh():
    made = job("-np", "1", "--python", "/opt/python", "true", A="b", HPSEARCH_COMM_SECRET="ab" * 32)
    words, env = agent_process(made, made.host_ranks[0])
    assert words == ["/opt/python", "-P", "-m", "hpsearch_comm.launch.agent"]
    assert sorted(env) == ["A", "PYTHONPATH"]


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (
            255,
            "Permission denied (publickey).",
            "expected to reach b by ssh without being asked for anything, got: Perm",
        ),
        (127, "env: '/opt/python': No such file", "expected a Python interpreter at /opt/python on b"),
        (1, "No module named hpsearch_comm", "expected hpsearch_comm to be installed for /opt/python on b"),
        (3, "", "expected an agent of the launcher's to start on b, got exit code 3"),
    ],
)
def test_why_an_agent_does_not_come_up(code, said, expected):
    assert describe_failure("b", "/opt/python", code, said, local=False).startswith(expected)


# The place.


def test_a_port_that_is_held_is_free_for_rank_0_alone():
    with hold_port() as held:
        port = held.getsockname()[1]
        for address in ("127.0.0.1", "0.0.0.0"):
            with listen((address, port)) as listening, socket.create_connection(("127.0.0.1", port)):
                assert listening.getsockname()[1] == port
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_the_address_of_rank_0_is_one_by_which_others_have_reached_it(monkeypatch):
    assert meeting_address(True, None, []) == "127.0.0.1"
    assert meeting_address(True, "lo", []) == "127.0.0.1"
    own: Sequence[str] = ["10.0.0.7"]
    monkeypatch.setattr("hpsearch_comm.launch.agent.is_local", lambda address: address in own)
    monkeypatch.setattr("hpsearch_comm.launch.agent.local_address", lambda *_: "10.0.0.8")
    # The first is a jump host's, the second has a scope, and the third isn't one.
    assert meeting_address(False, None, ["192.0.2.1", "fe80::1%eth0", "UNKNOWN", "10.0.0.7"]) == "10.0.0.7"
    assert meeting_address(False, None, []) == "10.0.0.8"
    monkeypatch.setattr("hpsearch_comm.launch.agent.local_address", lambda *_: "127.0.0.1")
    with pytest.raises(ConfigurationError, match="found only loopback: name its interface"):
        meeting_address(False, None, [])


def test_the_digest_is_that_of_the_source():
    assert re.fullmatch(r"[0-9a-f]{16}", source_digest())
    assert source_digest() == source_digest()
