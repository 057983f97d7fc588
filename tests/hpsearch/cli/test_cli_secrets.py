"""Secrets stay where they were given: no command line that is recorded and no page holds them."""

from __future__ import annotations

import sys

import hpsearch
from tests.hpsearch.support.command_line import write_sweep

SECRET = "sekret"


def test_no_page_holds_one_and_the_stored_sweep_does(here, hpsearch_command, monkeypatch):
    for name in ("HPSEARCH_DB_PASSWORD", "HPSEARCH_API_KEY", "PYTHON_KEYRING_PASSWORD", "NCCL_DSN"):
        monkeypatch.setenv(name, SECRET)
    write_sweep(here / "sweep.yaml")
    words = ["run", "sweep.yaml", "--backend", "inline", "--dir", "study", "--set"]
    words.append(f"parameters.api_key={{value: {SECRET}}}")
    monkeypatch.setattr(sys, "orig_argv", ["hpsearch", *words])
    assert hpsearch_command(*words).code == 0
    study = hpsearch.load("study")
    assert SECRET not in str(study.provenance)
    assert SECRET not in str(study.history())
    assert study.provenance["command"].endswith("--set 'parameters.api_key=***'")
    assert study.best_trial.params["api_key"] == SECRET
    assert hpsearch_command("report", "study").code == 0
    html = (here / "study" / "report.html").read_text("utf-8")
    assert SECRET not in html
    assert "api_key = ***" in html
    assert "The values of keys that look like secrets are written as ***." in html
