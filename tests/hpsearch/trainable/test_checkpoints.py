from __future__ import annotations

import collections
import errno
import io
import json
import os
import resource
import shutil
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.errors import CheckpointError, StorageError, UnreadableCheckpointError, UnwritableError
from hpsearch.trainable import checkpoints, random_state
from tests.hpsearch.support.files import files_below

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


class Scaler:
    """A class of the user's own."""


def write(directory: Path, state: object, iteration: int = 3) -> Path:
    return directory / checkpoints.write(directory, iteration, state, random_state.capture())


@settings(deadline=None, max_examples=25)
@given(value=PLAIN)
def test_plain_containers_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    checkpoint = write(tmp_path_factory.mktemp("attempt"), {"value": value})
    assert checkpoints.read_state(checkpoint) == {"value": value}


def test_tensors_and_an_optimizers_state_come_back_bit_for_bit(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    loaded = checkpoints.read_state(write(tmp_path, state))
    assert all(torch.equal(loaded["model"][name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(loaded["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_the_random_state_stands_beside_the_users(tmp_path: Path) -> None:
    random_state.seed_all(4)
    checkpoint = write(tmp_path, {})
    drawn = torch.rand(3)
    state = checkpoints.read_random_state(checkpoint)
    assert state is not None
    random_state.restore(state)
    assert torch.equal(torch.rand(3), drawn)


def test_what_was_copied_without_random_state_reads_none(tmp_path: Path, offered: Path) -> None:
    checkpoint = tmp_path / checkpoints.write(tmp_path, 1, offered, None)
    assert checkpoints.read_random_state(checkpoint) is None


def test_nothing_but_the_whole_checkpoint_is_left(tmp_path: Path) -> None:
    write(tmp_path, {"a": 1}, iteration=7)
    assert [path.name for path in tmp_path.iterdir()] == ["hpsearch-checkpoint-7"]
    assert sorted(path.name for path in (tmp_path / "hpsearch-checkpoint-7").iterdir()) == [
        "manifest.json",
        "random.pt",
        "state.pt",
    ]


def test_what_a_killed_write_left_behind_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".hpsearch-checkpoint-3.part").mkdir()
    (tmp_path / ".hpsearch-checkpoint-3.part" / "state.pt").write_bytes(b"half")
    assert checkpoints.read_state(write(tmp_path, {"a": 1})) == {"a": 1}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"scaler": Scaler()}, 'state["scaler"]: test_checkpoints.Scaler can\'t be read back'),
        ({"a": [1, {"b": (2, Scaler())}]}, 'state["a"][1]["b"][1]: test_checkpoints.Scaler'),
        ({"rows": np.zeros(3)}, 'state["rows"]: numpy.ndarray can\'t be read back with weights_only=True; save torch.'),
        ({"best": np.float64(0.5)}, "save value.item()"),
        ({3: lambda: 0}, "state[3]: function"),
        ([Scaler], "state[0]: type"),
        (Scaler(), "state: test_checkpoints.Scaler"),
        ({"t": {Scaler()}}, 'an entry of state["t"]: test_checkpoints.Scaler'),
        ({Path("x"): 1}, "a key of state: pathlib.PosixPath"),
        ({"d": collections.deque([1])}, 'state["d"]: collections.deque'),
        (torch.nn.Linear(1, 1), "pass checkpoint=model.state_dict (no parentheses"),
    ],
)
def test_a_state_that_cant_be_read_back_is_refused_by_the_name_of_its_entry(
    tmp_path: Path, state: object, message: str
) -> None:
    with pytest.raises(CheckpointError) as raised:
        write(tmp_path, state)
    assert message in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_state_whose_reduction_raises_its_error_from_itself_is_refused(tmp_path: Path) -> None:
    class Round:
        def __reduce__(self) -> str:
            error = ValueError("round and round")
            raise error from error

    with pytest.raises(CheckpointError, match=r'state\["wheel"\]'):
        write(tmp_path, {"wheel": Round()})


def test_a_type_is_named_as_users_import_it(tmp_path: Path) -> None:
    from sklearn.preprocessing import StandardScaler

    with pytest.raises(CheckpointError) as raised:
        write(tmp_path, {"scaler": StandardScaler()})
    assert str(raised.value) == (
        'state["scaler"]: sklearn.preprocessing.StandardScaler can\'t be read back with weights_only=True; '
        "save its numbers as tensors or lists, or write a directory"
    )


def test_a_directory_is_copied_so_that_the_user_may_write_to_it_again(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "sub").mkdir(parents=True)
    (mine / "sub" / "weights").write_bytes(b"one")
    checkpoint = write(tmp_path, mine)
    (mine / "sub" / "weights").write_bytes(b"two")
    path = checkpoints.read_state(checkpoint)
    assert path == checkpoints.user_path(checkpoint) == checkpoint / "files"
    assert files_below(path) == {"sub/weights": b"one"}


def test_a_single_file_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(b"not one of ours")
    checkpoint = write(tmp_path, str(tmp_path / "state.pt"))
    path = checkpoints.read_state(checkpoint)
    assert path == checkpoint / "file" / "state.pt"
    assert path.read_bytes() == b"not one of ours"


def test_the_path_of_a_state_is_its_file(tmp_path: Path) -> None:
    assert checkpoints.user_path(write(tmp_path, {"a": 1})).name == "state.pt"


def test_a_path_that_isnt_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no 'best'"):
        write(tmp_path, "best")


def test_the_trials_own_directory_cant_be_its_checkpoint(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path.parent):
        with pytest.raises(CheckpointError, match="a directory of its own"):
            write(tmp_path, path)


@pytest.mark.parametrize("name", ["state.pt", "random.pt"])
def test_a_damaged_checkpoint_is_refused_with_its_path(tmp_path: Path, name: str) -> None:
    checkpoint = write(tmp_path, {"a": 1})
    (checkpoint / name).write_bytes(b"\0" * 40)
    read = checkpoints.read_state if name == "state.pt" else checkpoints.read_random_state
    with pytest.raises(CheckpointError, match=name):
        read(checkpoint)


@pytest.mark.exhaustive
def test_a_byte_that_isnt_as_it_was_written_changes_no_weight_in_silence(tmp_path: Path) -> None:
    weights = torch.arange(20.0)
    checkpoint = write(tmp_path, {"weights": weights, "names": ["a"]})
    file = checkpoint / "state.pt"
    whole, refusals = file.read_bytes(), []
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            read = checkpoints.read_state(checkpoint)
        except UnreadableCheckpointError as error:
            refusals.append(str(error))
        else:  # what fills it up is of no meaning
            assert torch.equal(read["weights"], weights)
            assert read["names"] == ["a"]
    assert len(refusals) > len(whole) / 3
    assert all(str(file) in said for said in refusals)


def test_a_weight_of_another_value_is_refused_by_its_file_and_what_to_do(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, {"weights": torch.full((1000,), 0.5)})
    file = checkpoint / "state.pt"
    whole, half = file.read_bytes(), b"\x00\x00\x00\x3f"
    place = whole.index(half * 500)
    file.write_bytes(whole[:place] + b"\x00\x00\x80\x3f" + whole[place + 4 :])
    assert torch.load(file, weights_only=True)["weights"][0] == 1.0  # torch says nothing
    with pytest.raises(UnreadableCheckpointError, match=r"state\.pt is damaged: .*checksum.*an earlier one may"):
        checkpoints.read_state(checkpoint)


def test_checksums_are_written_where_the_users_code_wants_none(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        checkpoint = write(tmp_path, {"a": torch.ones(3)})
        assert not torch.serialization.get_crc32_options()
    finally:
        torch.serialization.set_crc32_options(True)
    assert torch.equal(checkpoints.read_state(checkpoint)["a"], torch.ones(3))


def test_a_missing_checkpoint_is_refused_with_its_path(tmp_path: Path) -> None:
    for read in (checkpoints.read_state, checkpoints.read_random_state):
        with pytest.raises(CheckpointError, match="hpsearch-checkpoint-9, but there is none"):
            read(tmp_path / "hpsearch-checkpoint-9")


def test_packing_and_unpacking_gives_the_same_files(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "sub").mkdir(parents=True)
    (mine / "sub" / "weights").write_bytes(b"one")
    checkpoint = write(tmp_path, mine)
    there = tmp_path / "elsewhere" / "trials" / "hpsearch-checkpoint-3"
    for _ in range(2):  # the second replaces the first
        checkpoints.unpack(checkpoints.pack(checkpoint), there)
    assert files_below(there) == files_below(checkpoint)
    assert [path.name for path in there.parent.iterdir()] == ["hpsearch-checkpoint-3"]


def archive_of(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    """Return an archive with one entry."""
    buffer, member = io.BytesIO(), tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "packed",
    [
        b"no archive",
        archive_of("../outside"),
        archive_of("files/../../outside"),
        archive_of("/tmp/outside"),
        archive_of("state.pt", tarfile.SYMTYPE, "inside"),
        archive_of("state.pt", tarfile.SYMTYPE, "/etc/passwd"),
        archive_of("state.pt", tarfile.LNKTYPE, "../study.db"),
        archive_of("state.pt", tarfile.FIFOTYPE),
        archive_of("state.pt", tarfile.CHRTYPE),
    ],
)
def test_an_archive_of_anything_but_files_in_its_directory_is_refused(tmp_path: Path, packed: bytes) -> None:
    with pytest.raises(CheckpointError, match="can't be unpacked"):
        checkpoints.unpack(packed, tmp_path / "study" / "hpsearch-checkpoint-1")
    assert files_below(tmp_path) == {}


# What was written, and is gone or something else since.

READ = [checkpoints.read_state, checkpoints.read_random_state, checkpoints.user_path, checkpoints.pack]


@pytest.fixture
def offered(tmp_path: Path) -> Path:
    """A directory to save as a checkpoint."""
    mine = tmp_path / "mine"
    (mine / "sub").mkdir(parents=True)
    (mine / "sub" / "weights").write_bytes(b"some weights")
    return mine


def without_manifest(checkpoint: Path) -> Path:
    """Leave of it what `unzip` writes out of a pack."""
    (checkpoint / "manifest.json").unlink()
    return checkpoint


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("part", ["state.pt", "random.pt"])
def test_a_state_that_lost_a_part_is_damaged(tmp_path: Path, read: Callable[[Path], object], part: str) -> None:
    for checkpoint in (write(tmp_path, {"a": 1}, 1), without_manifest(write(tmp_path, {"a": 1}, 2))):
        (checkpoint / part).unlink()
        with pytest.raises(UnreadableCheckpointError, match=str(checkpoint)):
            read(checkpoint)


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("part", ["random.pt", "files/sub/weights", "files"])
def test_a_directory_that_lost_a_part_is_damaged(
    tmp_path: Path, offered: Path, read: Callable[[Path], object], part: str
) -> None:
    checkpoint = write(tmp_path, offered)
    lost = checkpoint / part
    if lost.is_dir():
        shutil.rmtree(lost)
    else:
        lost.unlink()
    with pytest.raises(UnreadableCheckpointError, match=str(lost)):
        read(checkpoint)


@pytest.mark.parametrize("read", READ)
def test_a_file_of_the_users_that_was_cut_short_is_damage(
    tmp_path: Path, offered: Path, read: Callable[[Path], object]
) -> None:
    checkpoint = write(tmp_path, offered)
    os.truncate(checkpoint / "files" / "sub" / "weights", 5)
    with pytest.raises(UnreadableCheckpointError, match="weights must have 12 bytes, but has 5"):
        read(checkpoint)


def test_a_checkpoint_of_a_script_that_writes_lines_never_had_random_state(tmp_path: Path, offered: Path) -> None:
    checkpoint = tmp_path / checkpoints.write(tmp_path, 1, offered, None)
    for _ in range(2):
        assert checkpoints.read_random_state(checkpoint) is None
        assert checkpoints.user_path(checkpoint) == checkpoint / "files"
        without_manifest(checkpoint).joinpath("manifest.json").write_text('{"bytes": {"files/sub/weights": 12}}')


def test_a_manifest_that_names_what_no_file_can_be_called_is_damaged(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, {"a": 1}, 1)
    (checkpoint / "manifest.json").write_text('{"bytes": {"state\\u0000.pt": 3}}')
    with pytest.raises(UnreadableCheckpointError, match="must be a manifest, but isn't"):
        checkpoints.read_state(checkpoint)


def test_a_checkpoint_without_a_manifest_is_read_as_ever(tmp_path: Path, offered: Path) -> None:
    state = without_manifest(write(tmp_path, {"a": 1}, 1))
    assert checkpoints.read_state(state) == {"a": 1}
    assert checkpoints.read_random_state(state) is not None
    copied = without_manifest(write(tmp_path, offered, 2))
    assert checkpoints.read_state(copied) == copied / "files"
    assert checkpoints.read_random_state(copied) is not None


def test_a_manifest_that_names_no_random_state_doesnt_let_a_state_go_on_with_other_random_numbers(
    tmp_path: Path,
) -> None:
    checkpoint = write(tmp_path, {"a": 1})
    size = (checkpoint / "state.pt").stat().st_size
    (checkpoint / "manifest.json").write_text(json.dumps({"bytes": {"state.pt": size}}))
    assert checkpoints.read_random_state(checkpoint) is not None
    (checkpoint / "random.pt").unlink()
    with pytest.raises(UnreadableCheckpointError, match=r"random\.pt"):
        checkpoints.read_random_state(checkpoint)


@pytest.mark.parametrize("text", ["", "[]", '{"bytes": 3}', "{"])
def test_a_manifest_that_is_none_is_damage(tmp_path: Path, text: str) -> None:
    checkpoint = write(tmp_path, {"a": 1})
    (checkpoint / "manifest.json").write_text(text)
    with pytest.raises(UnreadableCheckpointError, match=r"manifest\.json must be a manifest"):
        checkpoints.read_state(checkpoint)


def put_a_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path may have 107 bytes
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)


INSTEAD: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a socket": put_a_socket,
    "a directory": Path.mkdir,
    "a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("instead", INSTEAD)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("part", ["state.pt", "random.pt"])
def test_something_else_in_a_parts_place_is_damage(
    tmp_path: Path, read: Callable[[Path], object], instead: str, known: bool, part: str
) -> None:
    checkpoint = write(tmp_path, {"a": 1})
    if not known:
        without_manifest(checkpoint)
    (checkpoint / part).unlink()
    INSTEAD[instead](checkpoint / part)
    with pytest.raises(UnreadableCheckpointError):
        read(checkpoint)


@pytest.mark.parametrize("read", READ)
def test_a_file_in_the_checkpoints_place_is_damage(tmp_path: Path, read: Callable[[Path], object]) -> None:
    (tmp_path / "hpsearch-checkpoint-3").write_text("a file")
    with pytest.raises(UnreadableCheckpointError, match="hpsearch-checkpoint-3"):
        read(tmp_path / "hpsearch-checkpoint-3")


# What the system refuses.


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Let the system refuse to open files of this name."""

    def refuse(name: str, number: int) -> None:
        real = io.open

        def opened(file: Any, *arguments: Any, **options: Any) -> Any:
            if Path(str(file)).name == name:
                raise OSError(number, os.strerror(number), str(file))
            return real(file, *arguments, **options)

        monkeypatch.setattr(io, "open", opened)

    return refuse


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM, errno.EMFILE])
@pytest.mark.parametrize("name", ["weights", "random.pt", "manifest.json"])
def test_what_the_storage_doesnt_give_isnt_damage(
    tmp_path: Path,
    offered: Path,
    refuse: Callable[[str, int], None],
    read: Callable[[Path], object],
    number: int,
    name: str,
) -> None:
    checkpoint = write(tmp_path, offered)
    refuse(name, number)
    with pytest.raises(StorageError, match=rf"{os.strerror(number)}.*{name}.*See that it can be read, then resume\."):
        read(checkpoint)


def test_an_error_in_the_middle_of_reading_isnt_damage(tmp_path: Path) -> None:
    checkpoint = without_manifest(write(tmp_path, {"a": 1}))
    (checkpoint / "state.pt").unlink()
    (checkpoint / "state.pt").symlink_to("/proc/self/mem")  # opens, and gives EIO
    with pytest.raises(StorageError, match="Input/output error"):
        checkpoints.read_state(checkpoint)


def test_a_disk_that_is_full_is_the_storages_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = io.open
    for name in ("state.pt", "random.pt"):
        monkeypatch.setattr(
            io,
            "open",
            lambda file, *rest, name=name, **more: real(
                "/dev/full" if Path(str(file)).name == name else file, *rest, **more
            ),
        )
        with pytest.raises(StorageError, match=r"No space left on device.*Make room, then resume\."):
            write(tmp_path, {"a": torch.zeros(100_000)})
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_anywhere_in_a_checkpoint_is_the_storages_fault(tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk: writing beyond it is an OSError as well."""
    written = write(tmp_path / "whole", {"a": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in range(0, (written / "random.pt").stat().st_size, 300):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            with pytest.raises(StorageError, match=r"File too large.*Make room, then resume\."):
                write(tmp_path / "full", {"a": 1})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_the_storages_errors_in_copying_are_the_storages_fault(
    tmp_path: Path, offered: Path, refuse: Callable[[str, int], None], number: int
) -> None:
    refuse("manifest.json", number)
    with pytest.raises(StorageError, match=os.strerror(number)):
        write(tmp_path, offered)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.ETXTBSY])
def test_any_other_error_in_writing_is_the_trials_own_and_names_the_file(
    tmp_path: Path, refuse: Callable[[str, int], None], number: int
) -> None:
    refuse("state.pt", number)
    with pytest.raises(UnwritableError, match=rf"{os.strerror(number)}.*state\.pt"):
        write(tmp_path, {"a": 1})
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_too_long_is_the_trials_own_mistake(tmp_path: Path) -> None:
    with pytest.raises(UnwritableError, match="File name too long: 'xxx"):
        write(tmp_path, "x" * 300)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("a FIFO", "is a FIFO"),
        ("a socket", "is a socket"),
        ("a link that leads nowhere", "is a link that leads nowhere"),
    ],
)
def test_what_cant_be_copied_is_refused_by_its_path(tmp_path: Path, offered: Path, what: str, says: str) -> None:
    INSTEAD[what](offered / "sub" / "odd")
    with pytest.raises(CheckpointError, match=rf"{offered}/sub/odd {says}"):
        write(tmp_path, offered)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_link_back_up_is_refused_by_its_path(tmp_path: Path, offered: Path) -> None:
    (offered / "sub" / "up").symlink_to("..")
    with pytest.raises(CheckpointError, match="sub/up is a link to a directory that it lies in"):
        write(tmp_path, offered)


def test_links_are_followed_so_that_the_copy_stands_by_itself(tmp_path: Path, offered: Path) -> None:
    (offered / "latest").symlink_to("sub")
    (offered / "best").symlink_to("sub/weights")
    path = checkpoints.read_state(write(tmp_path, offered))
    shutil.rmtree(offered)
    assert files_below(path) == dict.fromkeys(["best", "latest/weights", "sub/weights"], b"some weights")
