from __future__ import annotations

from pathlib import Path

from hpsearch_comm.cuda.nccl_candidates import candidates, loaded_copies, wheel_conflict
from hpsearch_comm.cuda.nccl_wheels import NcclWheel

LIBRARY = "nvidia/nccl/lib/libnccl.so.2"


def make_wheel(folder: Path, cuda: int, version: str = "2.30.7") -> NcclWheel:
    file = folder / LIBRARY
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return NcclWheel(f"nvidia-nccl-cu{cuda}", version, (LIBRARY, "nvidia/nccl/include/nccl.h"), folder)


def origins(*arguments) -> list[str]:
    return [candidate.origin for candidate in candidates(*arguments)]


def test_variable_is_the_only_place_where_it_is_set(tmp_path):
    wheel = make_wheel(tmp_path, 12)
    found = candidates({"HPSEARCH_COMM_NCCL": "/opt/nccl.so"}, ["/usr/lib/libnccl.so.2"], [wheel], "12.8", tmp_path)
    assert [(candidate.path, candidate.origin) for candidate in found] == [("/opt/nccl.so", "HPSEARCH_COMM_NCCL")]


def test_copy_that_is_loaded_already_comes_first(tmp_path):
    wheel = make_wheel(tmp_path, 12)
    found = candidates({}, ["/usr/lib/libnccl.so.2.20.5"], [wheel], "12.8", tmp_path)
    assert [candidate.path for candidate in found] == [
        "/usr/lib/libnccl.so.2.20.5",
        str(tmp_path / LIBRARY),
        "libnccl.so.2",
    ]


def test_wheel_that_fits_the_cuda_of_torch_comes_first(tmp_path):
    wheels = [make_wheel(tmp_path / str(cuda), cuda) for cuda in (11, 12, 13)]
    assert origins({}, [], wheels, "12.8", tmp_path)[:3] == [f"nvidia-nccl-cu{cuda} 2.30.7" for cuda in (12, 11, 13)]
    assert origins({}, [], wheels, "13.0", tmp_path)[:3] == [f"nvidia-nccl-cu{cuda} 2.30.7" for cuda in (13, 12, 11)]
    assert origins({}, [], wheels, None, tmp_path)[0] == "nvidia-nccl-cu13 2.30.7"


def test_one_file_of_two_wheels_is_tried_once(tmp_path):
    wheels = [make_wheel(tmp_path, 12), make_wheel(tmp_path, 13, "2.28.9")]
    assert len(candidates({}, [str(tmp_path / LIBRARY)], wheels, "12.8", tmp_path)) == 2


def test_wheel_without_its_file_is_passed_over(tmp_path):
    wheel = make_wheel(tmp_path, 12)
    (tmp_path / LIBRARY).unlink()
    assert origins({}, [], [wheel], "12.8", tmp_path) == ["the system's"]


def test_copy_in_the_folder_of_torch_is_found(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnccl.so.2").touch()
    assert origins({}, [], [], "12.8", tmp_path) == ["torch's own", "the system's"]


def test_loaded_copies_are_read_from_the_memory_map():
    maps = [
        "7f00-7f10 r--p 00000000 08:01 123                        /usr/lib/with space/libnccl.so.2.20.5",
        "7f10-7f20 r-xp 00010000 08:01 123                        /usr/lib/with space/libnccl.so.2.20.5",
        "7f20-7f30 r--p 00000000 08:01 124                        /usr/lib/libnccl-net.so",
        "7f30-7f40 rw-p 00000000 00:00 0 ",
        "7f40-7f50 rw-p 00000000 00:00 0                          [heap]",
        "7f50-7f60 r--p 00000000 08:01 125                        /opt/libnccl.so",
    ]
    assert loaded_copies(maps) == ("/usr/lib/with space/libnccl.so.2.20.5", "/opt/libnccl.so")
    assert all(Path(path).name.startswith("libnccl.so") for path in loaded_copies())


def test_wheels_that_overwrite_each_other_are_named_with_the_way_out(tmp_path):
    wheels = [make_wheel(tmp_path, 12), make_wheel(tmp_path, 13, "2.28.9")]
    text = wheel_conflict(wheels, "nvidia-nccl-cu13==2.28.9")
    assert text == (
        f"nvidia-nccl-cu12 2.30.7 and nvidia-nccl-cu13 2.28.9 both install {LIBRARY}, so whichever came last is the "
        "one that is loaded: uninstall both, and install nvidia-nccl-cu13==2.28.9"
    )
    assert wheel_conflict(wheels[:1]) is None
