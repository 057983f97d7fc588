from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpsearch.journal.provenance import command_line, process_name, provenance


def git(directory: Path, *arguments: str) -> str:
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "train.py").write_text("pass\n")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_the_commit_and_whether_files_of_it_were_changed(repository):
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "runs").mkdir()
    (repository / "runs" / "study.db").write_text("what a sweep writes is no change of the code")
    assert provenance(repository)["git"] == {"commit": commit, "changed": False}
    (repository / "train.py").write_text("raise SystemExit\n")
    assert provenance(repository)["git"] == {"commit": commit, "changed": True}


def test_without_a_repository_a_commit_or_git_itself_there_is_none(tmp_path, monkeypatch):
    assert provenance(tmp_path)["git"] is None
    git(tmp_path, "init", "--quiet")
    assert provenance(tmp_path)["git"] is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance(tmp_path)["git"] is None


def test_it_is_plain_json_and_names_versions_and_process(tmp_path):
    found = provenance(tmp_path)
    assert json.loads(json.dumps(found)) == found
    assert found["directory"] == str(tmp_path)
    assert found["packages"]["hpsearch"]
    assert found["packages"]["numpy"]
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["process"] == process_name()
    assert process_name().endswith(f":{os.getpid()}")


def test_secrets_in_the_environment_stay_there(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HPSEARCH_API_TOKEN", "hunter2")
    monkeypatch.setenv("NCCL_SECRET", "hunter2")
    for name in ("AWS_ACCESS_KEY_ID", "HPSEARCH_DB_PASSWORD", "HPSEARCH_API_KEY", "PYTHON_KEYRING_PASSWORD"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("HPSEARCH_DSN", "postgres://me:hunter2@db")  # its name says nothing
    words = ["hpsearch", "run", "s.yaml", "--set", "parameters.api_key.value=hunter2", "--set", "max_tokens=5"]
    monkeypatch.setattr(sys, "orig_argv", words)
    found = provenance(tmp_path)
    assert found["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert "hunter2" not in json.dumps(found)
    assert found["command"] == "hpsearch run s.yaml --set 'parameters.api_key.value=***' --set max_tokens=5"


def test_the_command_line_can_be_given_to_a_shell():
    code = "from hpsearch.journal.provenance import command_line; print(command_line())"
    told = subprocess.run([sys.executable, "-c", code, "a b", "c'd"], capture_output=True, text=True, check=True).stdout
    again = subprocess.run(told, shell=True, capture_output=True, text=True, check=True).stdout
    assert again == told
    assert command_line()


def test_a_user_without_a_name_is_a_number(monkeypatch):
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert process_name().startswith(f"{os.getuid()}@")
