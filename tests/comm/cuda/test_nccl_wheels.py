from __future__ import annotations

from pathlib import Path

from hpsearch_comm.cuda.nccl_wheels import (
    NcclWheel,
    installed_nccl_wheels,
    nccl_required_by_torch,
    shared_files,
)

LIBRARY = "nvidia/nccl/lib/libnccl.so.2"


def install(site: Path, name: str, version: str, files: tuple[str, ...] = (), requires: tuple[str, ...] = ()):
    """Write the metadata that pip leaves behind."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    head = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {line}" for line in requires),
    ]
    (folder / "METADATA").write_text("\n".join([*head, "", ""]))
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_two_wheels_that_install_one_library_are_found(tmp_path):
    install(tmp_path, "nvidia-nccl-cu13", "2.28.9", (LIBRARY, "nvidia/nccl/include/nccl.h"))
    install(tmp_path, "nvidia_nccl_cu12", "2.30.7", (LIBRARY, "nvidia/nccl/__init__.py"))
    install(tmp_path, "nvidia-nccl-extras", "1.0", (LIBRARY,))
    wheels = installed_nccl_wheels([str(tmp_path)])
    assert [(wheel.name, wheel.version) for wheel in wheels] == [
        ("nvidia-nccl-cu12", "2.30.7"),
        ("nvidia-nccl-cu13", "2.28.9"),
    ]
    assert shared_files(wheels) == (LIBRARY,)


def test_one_wheel_shares_nothing(tmp_path):
    install(tmp_path, "nvidia-nccl-cu12", "2.30.7", (LIBRARY,))
    wheels = installed_nccl_wheels([str(tmp_path)])
    assert wheels == (NcclWheel("nvidia-nccl-cu12", "2.30.7", (LIBRARY,)),)
    assert shared_files(wheels) == ()


def test_files_besides_the_library_may_be_shared():
    wheels = [NcclWheel(f"nvidia-nccl-cu{cuda}", "2", ("nvidia/__init__.py",)) for cuda in (12, 13)]
    assert shared_files(wheels) == ()


def test_first_folder_on_the_path_wins(tmp_path):
    install(tmp_path / "a", "nvidia-nccl-cu12", "2.30.7", (LIBRARY,))
    install(tmp_path / "b", "nvidia-nccl-cu12", "2.20.5", (LIBRARY,))
    wheels = installed_nccl_wheels([str(tmp_path / "a"), str(tmp_path / "b")])
    assert [wheel.version for wheel in wheels] == ["2.30.7"]


def test_torch_names_the_wheel_that_it_needs(tmp_path):
    line = 'nvidia-nccl-cu13==2.28.9; platform_system == "Linux"'
    install(tmp_path / "gpu", "torch", "2.13.0", requires=("filelock", line))
    install(tmp_path / "cpu", "torch", "2.13.0+cpu", requires=("filelock",))
    assert nccl_required_by_torch([str(tmp_path / "gpu")]) == "nvidia-nccl-cu13==2.28.9"
    assert nccl_required_by_torch([str(tmp_path / "cpu")]) is None
    assert nccl_required_by_torch([str(tmp_path)]) is None


def test_no_init_stands_directly_inside_comm():
    comm = Path(__file__).parents[3] / "comm"
    assert (comm / "hpsearch_comm" / "__init__.py").is_file()
    assert not (comm / "__init__.py").exists()
