"""The benchmark's parts that need no ranks: what it reads, computes and prints."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.secret import new_secret
from hpsearch_comm.errors import ConfigurationError, RendezvousError
from tests.benchmarks.collectives import __main__ as command_line
from tests.benchmarks.collectives import training
from tests.benchmarks.collectives.block import Block, MeasuredTurn, combine, repetitions, take
from tests.benchmarks.collectives.collective import in_turn
from tests.benchmarks.collectives.launch import Outcome, RankFailed, measure
from tests.benchmarks.collectives.meeting import Blackboard, Meeting
from tests.benchmarks.collectives.namespaces import Namespaces
from tests.benchmarks.collectives.plan import Plan
from tests.benchmarks.collectives.report import geometric_mean, ratios, render, table
from tests.benchmarks.collectives.sizes import format_size, parse_sizes
from tests.benchmarks.collectives.stage import Stage
from tests.comm.other_user import as_nobody

CREDENTIALS = Credentials(bytes(32), "test", 0)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1K", (1024,)),
        ("1K,64k, 1M", (1024, 65536, 1 << 20)),
        ("12", (12,)),
        ("1GiB", (1 << 30,)),
        ("4KB", (4096,)),
        ("1K,4K,1024", (1024, 4096)),
    ],
)
def test_sizes_are_powers_of_1024(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "1X", "1.5K", "-4", "6", "0", "16G", "1K,,2K"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected sizes"):
        parse_sizes(text)


def test_sizes_are_written_as_they_are_read() -> None:
    assert [format_size(size) for size in (12, 1024, 1536, 1 << 20, 3 << 30)] == ["12", "1K", "1536", "1M", "3G"]
    assert all(parse_sizes(format_size(size)) == (size,) for size in (4, 4096, 5 << 20))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"against": ("nccl",)}, "peers gloo, mpi, got 'nccl'"),
        ({"against": ("",)}, "peers gloo, mpi, got ''"),
        ({"algorithm": "rings"}, "'rings'"),
        ({"ranks": 1}, "2 to 64"),
        ({"rounds": 0}, "at least one round"),
        ({"seconds": 0.0}, "up to 60 seconds"),
        ({"namespaces": True, "against": ("mpi",)}, "compare with gloo"),
        ({"kind": "model", "against": ("mpi",)}, "leave mpi out"),
        ({"kind": "memory"}, "measures no peers"),
        ({"kind": "memory", "against": (), "transport": "tcp"}, "measures shared memory"),
        ({"kind": "memory", "against": (), "algorithm": "ring"}, "measures shared memory"),
    ],
)
def test_plans_that_make_no_sense_are_refused(arguments: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Plan(**arguments)


def test_a_plan_reaches_the_ranks_as_it_is() -> None:
    plan = Plan(
        kind="model", ranks=3, sizes=(4, 8), against=(), transport="tcp", rounds=2, seconds=0.5, namespaces=True
    )
    assert Plan.from_json(plan.to_json()) == plan


def _parse(*words: str) -> Plan:
    return command_line.parse(command_line._parser().parse_args(words))


def test_the_command_line_makes_a_plan() -> None:
    plan = _parse(
        "--ranks", "4", "--sizes", "1K,1M", "--against", "gloo,mpi,gloo", "--algorithm", "ring", "--rounds", "2"
    )
    assert plan == Plan(ranks=4, sizes=(1024, 1 << 20), against=("gloo", "mpi"), algorithm="ring", rounds=2)
    assert _parse("--against", "none").against == ()
    assert _parse("--netns").transport == "tcp"
    assert _parse("--model").kind == "model"
    assert _parse("--memory").against == ()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--sizes 1Q", "got '1Q'"),
        ("--sizes=", "got ''"),
        ("--ranks 0", "2 to 64 ranks, got 0"),
        ("--ranks two", "invalid int value: 'two'"),
        ("--against gloo,", "got ''"),
        ("--model --sizes 1K", "leave out --sizes"),
        ("--memory --sizes 1K", "leave out --sizes"),
        ("--memory --netns", "leave out --algorithm, --transport tcp and --netns"),
        ("--model --memory", "not allowed with"),
    ],
)
def test_the_command_line_says_what_is_wrong(capsys: pytest.CaptureFixture[str], words: str, what: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        command_line.main(words.split())
    assert what in capsys.readouterr().err


def test_what_the_machine_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert command_line.main(["--against", "none"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: [Errno 2] No such file or directory")


def test_network_namespaces_need_root() -> None:
    def refused() -> str:
        with pytest.raises(ConfigurationError) as caught:
            Namespaces()
        return str(caught.value)

    assert "needs root: run the benchmark with sudo, or without --netns" in as_nobody(refused)


def test_the_list_names_peers_and_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert "gloo" in printed
    assert "butterfly" in printed


def test_a_missing_peer_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install \"hpsearch\[bench\]\""):
        measure(Plan(against=("mpi",)))


def test_repetitions_fill_the_turn() -> None:
    assert repetitions(0.01, 0.2) == 20
    assert repetitions(10.0, 0.2) == 3
    assert repetitions(0.0, 0.2) == 300


def test_a_repetition_lasts_from_the_last_begin_to_the_last_end() -> None:
    ranks = [
        [Block("ours", "1K", 0, (1000, 5000), (3000, 6000)).to_dict()],
        [Block("ours", "1K", 0, (2000, 4000), (2500, 9000)).to_dict()],
    ]
    (turn,) = combine(json.loads(json.dumps(ranks)))
    assert (turn.contender, turn.subject, turn.round) == ("ours", "1K", 0)
    assert turn.seconds == pytest.approx((1e-6, 4e-6))


def test_every_round_begins_with_another() -> None:
    assert ["".join(in_turn("abc", number)) for number in range(4)] == ["abc", "bca", "cab", "abc"]


TURNS = [
    MeasuredTurn("ours", "1K", 0, (1.0, 2.0, 9.0)),
    MeasuredTurn("gloo", "1K", 0, (8.0,)),
    MeasuredTurn("gloo", "1K", 1, (9.0,)),
    MeasuredTurn("ours", "1K", 1, (3.0,)),
    MeasuredTurn("ours", "1M", 0, (4.0,)),
    MeasuredTurn("gloo", "1M", 0, (8.0,)),
    MeasuredTurn("gloo", "1M", 1, (8.0,)),
    MeasuredTurn("ours", "1M", 1, (1.0,)),
]


def test_ratios_are_taken_round_by_round() -> None:
    assert ratios(TURNS, "1K", "gloo", "ours") == [4.0, 3.0]
    assert ratios(TURNS, "1M", "gloo", "ours") == [2.0, 8.0]
    assert ratios(TURNS, "1M", "mpi", "ours") == []


def test_means_of_ratios_are_geometric() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_the_report_has_rates_and_ratios() -> None:
    outcome = Outcome(Plan(ranks=4, rounds=2), TURNS, {"algorithms": {"1K": "direct", "1M": "ring"}})
    lines = render(outcome, "table").splitlines()
    assert " ".join(lines[0].split()) == "size contender µs algbw GB/s busbw GB/s / ours: min median max"
    assert lines[3].split()[:2] == ["1K", "gloo"]
    assert lines[3].split()[-3:] == ["3", "3.5", "4"]
    assert lines[2].startswith("1K    ours (direct)")
    # 1 MiB in 2.5 s, among 4 ranks
    assert lines[4].split()[-2:] == ["0.000419", "0.000629"]
    (means,) = [line for line in lines if "geometric mean" in line]
    assert means == "time of gloo / time of ours, geometric mean: 4.18 (all sizes), 5 (1M and above)"
    assert lines[-1].endswith("4 ranks, 2 rounds")


def test_the_report_is_json_too() -> None:
    outcome = Outcome(Plan(rounds=2), TURNS, {"algorithms": {"1K": "direct", "1M": "direct"}})
    record = json.loads(render(outcome, "json"))
    assert record["plan"]["ranks"] == 2
    assert record["turns"][0]["seconds"] == [1.0, 2.0, 9.0]
    assert {"subject": "1K", "above": "gloo", "below": "ours", "by_round": [4.0, 3.0]} in record["ratios"]
    assert {"subject": "1K", "contender": "ours", "seconds": 2.5} in record["medians"]


def test_efficiency_is_the_time_without_averaging_by_the_time_with_it() -> None:
    turns = [MeasuredTurn("no averaging", "wide", 0, (0.9,)), MeasuredTurn("ours", "wide", 0, (1.0,))]
    outcome = Outcome(Plan(kind="model", rounds=1), turns, {"parameters": {"wide": 12}, "steps": 10})
    rows = render(outcome, "table").splitlines()
    assert rows[2].split() == ["wide", "no", "averaging", "12", "90"]
    assert rows[3].split() == ["wide", "ours", "12", "100", "0.9", "0.9", "0.9"]


def test_memory_is_compared_with_the_bare_work() -> None:
    turns = [
        MeasuredTurn("ours, zero-copy", "64M", 0, (0.006,)),
        MeasuredTurn("the bare work", "64M", 0, (0.005,)),
    ]
    rows = render(Outcome(Plan(kind="memory", against=(), rounds=1), turns, {}), "table").splitlines()
    assert rows[2].split()[-4:] == ["6", "1.2", "1.2", "1.2"]


def test_tables_are_markdown_too() -> None:
    lines = table(["a", "b", "c"], [["1", "2", "3"], ["10", "20", "30"]], markdown=True).splitlines()
    assert lines == ["| a  | b  |  c |", "| -- | -- | -: |", "| 1  | 2  |  3 |", "| 10 | 20 | 30 |"]


def _threads(size: int, work: Any) -> None:
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("size", [2, 5])
def test_ranks_meet_and_share(tmp_path: Path, size: int) -> None:
    shared: list[list[list[float]]] = [[] for _ in range(size)]

    def work(rank: int) -> None:
        meeting = Meeting(tmp_path / "meeting", rank, size)
        meeting._spin = False  # threads of one process can't spin against each other
        for number in range(20):
            meeting.wait()
            shared[rank].append(meeting.share(100.0 * number + rank))

    _threads(size, work)
    assert all(seen == [[100.0 * number + rank for rank in range(size)] for number in range(20)] for seen in shared)


def test_all_ranks_repeat_equally_often(tmp_path: Path) -> None:
    blocks: list[Block] = []

    def work(rank: int) -> None:
        meeting = Meeting(tmp_path / "meeting", rank, 2)
        meeting._spin = False
        calls: list[str] = []
        block = take(meeting, "ours", "1K", 0, 0.001, lambda: calls.append("before"), lambda: calls.append("run"))
        assert calls == ["before", "run"] * (len(calls) // 2)
        assert len(block.begins) == len(block.ends) == len(calls) // 2 - 2
        blocks.append(block)

    _threads(2, work)
    assert len(blocks[0].begins) == len(blocks[1].begins)


@pytest.mark.exhaustive
def test_trainers_take_many_short_turns_and_each_is_first_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "MODELS", {"small": (lambda: nn.Linear(4, 4), 4)})
    (tmp_path / "secret").write_text(new_secret().hex())
    plan = Plan(kind="model", against=(), rounds=2)
    found: list[list[Block]] = [[], []]

    def work(rank: int) -> None:
        meeting = Meeting(tmp_path / "meeting", rank, 2)
        meeting._spin = False
        with ExitStack() as exits:
            found[rank], facts = training.measure(Stage(plan, rank, tmp_path, meeting, exits))
        assert facts == {"parameters": {"small": 20}, "steps": 5}

    _threads(2, work)
    turns = combine([[block.to_dict() for block in blocks] for blocks in found])
    assert [turn.contender for turn in turns[:4]] == ["no averaging", "ours", "ours", "no averaging"]
    assert [turn.round for turn in turns] == [number for number in range(10) for _ in range(2)]
    assert all(len(turn.seconds) == 1 for turn in turns)
    assert len(ratios(turns, "small", "no averaging", "ours")) == 10


def test_addresses_are_exchanged_through_a_directory(tmp_path: Path) -> None:
    seen: list[list[str]] = [[] for _ in range(3)]

    def work(rank: int) -> None:
        board = Blackboard(tmp_path, "first")
        seen[rank] = board.exchange(rank, 3, f"address {rank}", CREDENTIALS, deadline=float("inf"))

    _threads(3, work)
    assert seen == [["address 0", "address 1", "address 2"]] * 3


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    with pytest.raises(RendezvousError, match=r"\[1\]"):
        Blackboard(tmp_path, "first").exchange(0, 2, "mine", CREDENTIALS, deadline=0.0)


def test_a_rank_that_fails_ends_the_others_and_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys, time; sys.exit('rank 1 has seen enough') if sys.argv[1] == '1' else time.sleep(600)"
    monkeypatch.setattr(
        "tests.benchmarks.collectives.launch._commands",
        lambda plan, directory, namespaces: [["python3", "-c", script, str(rank)] for rank in range(plan.ranks)],
    )
    with pytest.raises(RankFailed, match=r"exit code 1(.|\n)*rank 1 has seen enough"):
        measure(Plan(against=()))
