"""Studies in a bucket of a real server, on the command line."""

from __future__ import annotations

import json

import pytest

from tests.hpsearch.support.command_line import call, write_sweep


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.exhaustive
def test_a_study_is_looked_at_and_resumed_where_only_its_bucket_is(s3, tmp_path, capsys):
    sweep = write_sweep(tmp_path / "digits.yaml", storage=f"{s3.url}/", observers=[])
    ran = call(capsys, "run", sweep, "--backend", "inline")
    assert (ran.code, ran.err) == (0, "")
    url = f"{s3.url}/digits-1"
    assert f"copied to {url}\n" in ran.out
    table = call(capsys, "trials", "runs/digits-1", "--format", "csv").out
    assert len(table.splitlines()) == 5
    (tmp_path / "runs").rename(tmp_path / "gone")

    listed = call(capsys, "list", s3.url, "--format", "json")
    (record,) = json.loads(listed.out)
    assert (record["directory"], record["state"], record["trials"]) == (url, "finished", 4)
    assert call(capsys, "list", url, "--format", "json").out == listed.out
    assert f" {url} " in call(capsys, "list", s3.url).out
    assert call(capsys, "status", url).out.startswith(f"digits  {url}\nstate       finished\n")
    assert call(capsys, "trials", url, "--format", "csv").out == table
    assert "in the bucket: `hpsearch resume" in call(capsys, "best", url).out
    assert call(capsys, "trial", url, 2).code == call(capsys, "history", url).code == 0
    assert call(capsys, "report", url).out == "digits-1-report.html\n"
    assert (tmp_path / "digits-1-report.html").read_text().startswith("<!DOCTYPE html>")

    more = call(capsys, "resume", url, "--set", "run_cap=6", "--backend", "inline")
    assert (more.code, more.err) == (0, "")
    assert len(call(capsys, "trials", "runs/digits-1", "--format", "csv").out.splitlines()) == 7
    assert len(call(capsys, "trials", url, "--format", "csv").out.splitlines()) == 7
    again = call(capsys, "run", sweep, "--backend", "inline")
    assert f"copied to {s3.url}/digits-2\n" in again.out


def test_mistakes_are_named_before_anything_runs(s3, tmp_path, capsys):
    sweep = write_sweep(tmp_path / "digits.yaml", storage="/mnt/studies")
    problem = call(capsys, "plan", sweep)
    assert f"{sweep}:" in problem.err
    assert "storage: must be a folder of an S3 bucket, s3://bucket/folder, got '/mnt/studies'" in problem.err
    sweep = write_sweep(tmp_path / "digits.yaml", storage=s3.url)
    s3.proxy.decide = lambda *_: "refuse"
    refused = call(capsys, "run", sweep, "--backend", "inline")
    assert refused.code == 1
    assert "InvalidAccessKeyId" in refused.err
    assert not (tmp_path / "runs").exists()
    s3.proxy.decide = lambda *_: "pass"
    assert "no study in" in call(capsys, "list", s3.url).out
    assert f"{s3.url}/x: expected a study in this folder" in call(capsys, "status", f"{s3.url}/x").err
    for command in ("stop", "extend", "logs", "watch", "rm"):
        answer = call(capsys, command, f"{s3.url}/x", *(["--run-cap", 9] if command == "extend" else []))
        assert answer.code == 1, command
    assert "expected a directory on this machine, got a bucket" in call(capsys, "stop", f"{s3.url}/x").err
    assert "--dir there: names where to resume" in call(capsys, "resume", "runs/x", "--dir", "there").err


def test_a_study_has_the_storage_that_it_was_created_with(s3, tmp_path, capsys):
    sweep = write_sweep(tmp_path / "digits.yaml", observers=[])
    assert call(capsys, "run", sweep, "--dir", "study", "--backend", "inline").code == 0
    sweep = write_sweep(tmp_path / "digits.yaml", observers=[], storage=s3.url)
    other = call(capsys, "run", sweep, "--dir", "study", "--backend", "inline")
    assert other.code == 1
    assert "storage: " in other.err
    assert "storage" in call(capsys, "resume", "study", "--set", f"storage={s3.url}").err


@pytest.mark.exhaustive
def test_a_copy_is_not_run(s3, tmp_path, capsys):
    sweep = write_sweep(tmp_path / "digits.yaml", observers=[], storage=s3.url)
    assert call(capsys, "run", sweep, "--backend", "inline").code == 0
    assert call(capsys, "status", f"{s3.url}/digits-1").code == 0
    (journal,) = (tmp_path / "cache").rglob("study.db")
    answer = call(capsys, "retry", journal.parent, "--backend", "inline")
    assert answer.code == 1
    assert f"this is a copy of {s3.url}/digits-1, to be read. Resume that one." in answer.err
