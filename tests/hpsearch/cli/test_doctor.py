from __future__ import annotations

from pathlib import Path

import pytest

from hpsearch.cli.doctor import Finding, diagnose, format_findings
from hpsearch.journal.filesystem import filesystem_of, is_network_kind


def install(site: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
    """Write the metadata that pip leaves behind."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (folder / "METADATA").write_text("\n".join([*head, *(f"Requires-Dist: {line}" for line in requires), "", ""]))


def findings_in(site: Path, place: Path) -> dict[str, Finding]:
    return {finding.name: finding for finding in diagnose(place, [str(site)])}


@pytest.fixture(autouse=True)
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the user have no token, and this machine no cluster, whatever runs here."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    place = tmp_path / "site"
    requires = ("ray>=2.40", "rich>=13.0", "torch>=2.4", 'mypy>=1.11; extra == "dev"')
    install(place, "hpsearch", "0.1.0", requires=requires)
    return place


def test_missing_and_old_packages_are_errors_that_name_the_pip_line(site, tmp_path):
    install(site, "ray", "2.9.3")
    install(site, "rich", "13.7.1")
    found = findings_in(site, tmp_path)
    assert (found["rich"].level, found["rich"].text) == ("ok", "13.7.1")
    assert found["ray"].level == "error"
    assert found["ray"].text == "2.9.3, but hpsearch needs >=2.40; pip install 'ray>=2.40'"
    assert (found["torch"].level, found["torch"].text) == ("error", "is missing; pip install 'torch>=2.4'")
    assert "mypy" not in found


def test_two_nccl_wheels_are_an_error_that_names_both_and_the_way_out(site, tmp_path):
    line = 'nvidia-nccl-cu13==2.28.9; platform_system == "Linux"'
    install(site, "torch", "2.13.0", requires=(line,))
    install(site, "nvidia-nccl-cu12", "2.30.7")
    install(site, "nvidia-nccl-cu13", "2.28.9")
    nccl = findings_in(site, tmp_path)["nccl"]
    assert nccl.level == "error"
    assert "nvidia-nccl-cu12 2.30.7 and nvidia-nccl-cu13 2.28.9" in nccl.text
    assert "both install libnccl.so.2" in nccl.text
    mend = "pip uninstall -y nvidia-nccl-cu12 nvidia-nccl-cu13 && pip install 'nvidia-nccl-cu13==2.28.9'"
    assert nccl.text.endswith(mend)


def test_an_nccl_of_another_cuda_than_torchs_is_an_error(site, tmp_path):
    install(site, "torch", "2.13.0", requires=("nvidia-nccl-cu13==2.28.9",))
    install(site, "nvidia-nccl-cu12", "2.30.7")
    nccl = findings_in(site, tmp_path)["nccl"]
    assert nccl.level == "error"
    assert "torch needs nvidia-nccl-cu13==2.28.9, but nvidia-nccl-cu12 2.30.7 is installed" in nccl.text


def test_one_nccl_wheel_is_fine(site, tmp_path):
    install(site, "nvidia_nccl_cu12", "2.30.7")
    install(site, "nvidia-nccl-extras", "1.0")
    install(site, "torch", "2.13.0+cpu", requires=("filelock",))
    nccl = findings_in(site, tmp_path)["nccl"]
    assert (nccl.level, nccl.text) == ("ok", "nvidia-nccl-cu12 2.30.7")


def test_hpsearch_that_was_not_installed_is_an_error(tmp_path):
    found = findings_in(tmp_path / "empty", tmp_path)
    assert found["hpsearch"].level == "error"
    assert "pip install -e ." in found["hpsearch"].text


def test_place_that_is_gone_is_a_finding_and_no_traceback(site, tmp_path):
    disk = findings_in(site, tmp_path / "gone")["disk"]
    assert disk.level == "warning"
    assert "could not be looked at: FileNotFoundError" in disk.text


def test_this_installation_is_looked_at_from_end_to_end(tmp_path):
    found = {finding.name for finding in diagnose(tmp_path)}
    assert found >= {"python", "hpsearch", "torch", "ray", "nccl", "cores", "memory", "/dev/shm", "disk"}


def test_findings_are_lined_up_and_counted():
    findings = [Finding("ok", "ray", "2.60.0"), Finding("error", "nccl", "two wheels")]
    assert format_findings(findings) == ("ok       ray   2.60.0\nerror    nccl  two wheels\n\n1 errors, 0 warnings\n")
    assert format_findings(findings[:1]).endswith("\n\nall is well\n")


def test_file_system_of_the_innermost_mount_counts(tmp_path):
    mounts = tmp_path / "mounts"
    shared = f"{tmp_path}/with\\040space"
    mounts.write_text(
        "/dev/vda / ext4 rw 0 0\n"
        f"server:/a {tmp_path}/na nfs4 rw 0 0\n"
        f"server:/a {shared} nfs4 rw 0 0\n"
        f"tmpfs {shared}/inner tmpfs rw 0 0\n"
        f"old {tmp_path}/twice xfs rw 0 0\n"
        f"new {tmp_path}/twice fuse.sshfs rw 0 0\n"
    )

    def kind(path: str) -> str:
        return filesystem_of(tmp_path / path, mounts)

    assert kind("elsewhere") == "ext4"
    assert kind("name") == "ext4"  # not below na
    assert kind("with space/runs/x") == "nfs4"
    assert kind("with space/inner/x") == "tmpfs"
    assert kind("twice") == "fuse.sshfs"
    assert filesystem_of(tmp_path, tmp_path / "no mounts") == ""


def test_network_file_systems_are_told_from_local_ones():
    assert all(map(is_network_kind, ["nfs", "nfs4", "cifs", "lustre", "fuse.sshfs", "fuse.gcsfuse", "9p"]))
    assert not any(map(is_network_kind, ["", "ext4", "xfs", "tmpfs", "overlay", "fuseblk"]))


def test_a_token_that_others_can_read_is_a_warning(site, tmp_path):
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("f00")
    token.chmod(0o644)
    found = findings_in(site, tmp_path)
    assert found["token"].level == "warning"
    assert found["token"].text.endswith(f"; chmod 600 {token}")
    token.chmod(0o600)
    assert "token" not in findings_in(site, tmp_path)


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.parametrize("noted", [True, False])
def test_a_cluster_that_asks_for_no_token_is_a_warning(site, tmp_path, monkeypatch, ray_cluster, noted):
    assert findings_in(site, tmp_path)["cluster"].level == "ok"
    if noted:  # as `ray start` does
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(ray_cluster.address)
    else:
        monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    cluster = findings_in(site, tmp_path)["cluster"]
    assert cluster.level == "warning"
    assert cluster.text.startswith(f"the cluster at {ray_cluster.address} asks for no token")
    assert "`ray get-auth-token --generate`" in cluster.text
