"""Every setting of the table is put back; what it is like before doesn't matter."""

from __future__ import annotations

import gc
import locale
import multiprocessing
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

from hpsearch.worker.process_settings import all_settings, apply, restored_settings

backends = torch.backends


def _replace_filters() -> None:
    warnings.filters[:] = []  # type: ignore[index]


def _cudnn_off() -> None:
    backends.cudnn.enabled = False


def _benchmark() -> None:
    backends.cudnn.benchmark = True


def _deterministic_cudnn() -> None:
    backends.cudnn.deterministic = True


def _tf32() -> None:
    backends.cuda.matmul.allow_tf32 = True


def _no_cudnn_tf32() -> None:
    backends.cudnn.allow_tf32 = False


def _newer_tf32() -> None:
    torch._C._set_fp32_precision_setter("mkldnn", "matmul", "bf16")


CHANGES: list[tuple[str, Callable[[], object]]] = [
    ("the working directory", lambda: os.chdir("/")),
    ("environment variables", lambda: os.environ.update(HPSEARCH_TEST="1")),
    ("environment variables", lambda: os.environ.pop("HOME")),
    ("sys.path", lambda: sys.path.append("/nowhere")),
    ("the umask", lambda: os.umask(0o123)),
    ("signal handlers", lambda: signal.signal(signal.SIGUSR1, lambda *_: None)),
    ("the recursion limit", lambda: sys.setrecursionlimit(5000)),
    ("warnings filters", lambda: warnings.simplefilter("ignore")),
    ("warnings filters", _replace_filters),
    ("the locale", lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8")),
    ("the garbage collector", gc.disable),
    ("the garbage collector", lambda: gc.set_threshold(5)),
    ("the sockets' default timeout", lambda: socket.setdefaulttimeout(3.0)),
    ("multiprocessing's start method", lambda: multiprocessing.set_start_method("spawn", force=True)),
    ("torch's threads", lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    ("torch's default dtype", lambda: torch.set_default_dtype(torch.float64)),
    ("torch's default device", lambda: torch.set_default_device("meta")),
    ("torch's grad mode", lambda: torch.set_grad_enabled(False)),
    ("torch's deterministic algorithms", lambda: torch.use_deterministic_algorithms(True)),
    ("torch's deterministic algorithms", lambda: torch.use_deterministic_algorithms(True, warn_only=True)),
    ("torch's float32 precision", lambda: torch.set_float32_matmul_precision("medium")),
    ("torch's float32 precision", _tf32),
    ("torch's float32 precision", _no_cudnn_tf32),
    ("torch's cudnn flags", _cudnn_off),
    ("torch's cudnn flags", _benchmark),
    ("torch's cudnn flags", _deterministic_cudnn),
    ("torch's attention backends", lambda: backends.cuda.enable_math_sdp(False)),
    ("torch's autocast", lambda: torch.set_autocast_enabled("cpu", True)),
    ("torch's autocast", lambda: torch.set_autocast_dtype("cpu", torch.float16)),
    ("torch's anomaly mode", lambda: torch.autograd.set_detect_anomaly(True)),
    ("torch's flushing of denormal numbers", lambda: torch.set_flush_denormal(True)),
    ("NumPy's handling of errors", lambda: numpy.seterr(all="ignore")),
]
if hasattr(torch._C, "_set_fp32_precision_setter"):
    CHANGES.append(("torch's float32 precision", _newer_tf32))


@pytest.mark.parametrize(("name", "change"), CHANGES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_change_is_named_and_put_back(name: str, change: Callable[[], object]) -> None:
    before = {setting.name: setting.get() for setting in all_settings()}
    with restored_settings() as settings:
        change()
    assert (settings.changed, settings.stuck) == (() if name == "warnings filters" else (name,), ())
    assert {setting.name: setting.get() for setting in all_settings()} == before


def test_every_setting_but_the_callers_alarm_and_device_is_tried_here() -> None:
    tried = {name for name, _ in CHANGES} | {"a pending alarm", "torch's CUDA device"}
    assert tried == {setting.name for setting in all_settings()}


def test_an_alarm_that_is_left_pending_is_called_off() -> None:
    callers = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        with restored_settings() as settings:
            signal.alarm(1000)
        assert settings.changed == ("a pending alarm",)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *callers)


def test_changes_are_put_back_from_a_folder_that_is_gone(tmp_path: Path) -> None:
    before = Path.cwd()
    with restored_settings() as settings:
        os.chdir(tmp_path)
        tmp_path.rmdir()
    assert settings.changed == ("the working directory",)
    assert Path.cwd() == before


def test_a_process_that_is_started_is_no_change_of_the_start_method() -> None:
    multiprocessing.set_start_method(None, force=True)
    with restored_settings() as settings:
        process = multiprocessing.Process(target=int)
        process.start()
        process.join()
    assert settings.changed == ()


def test_changes_can_be_made_again() -> None:
    with restored_settings() as settings:
        torch.set_default_dtype(torch.float64)
        os.environ["HPSEARCH_TEST"] = "1"
        changes = settings.changes()
    with restored_settings() as again:
        apply(changes)
        assert torch.get_default_dtype() is torch.float64
        assert os.environ["HPSEARCH_TEST"] == "1"
    assert again.changed == settings.changed == tuple(changes)
