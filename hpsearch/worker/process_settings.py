"""Restore settings of the whole process that a trainable may change, after each segment.

Otherwise later trials would run with them, and the table would depend on which worker ran which trial.
"""

from __future__ import annotations

# Not `signal`, which converts each handler to an enum, at ten times the cost.
import _signal  # type: ignore[import-not-found]
import contextlib
import functools
import gc
import locale
import multiprocessing
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Not SIGCHLD: torch's data loaders set a handler for it, once per process."""

_PRECISIONS = (
    ("generic", "all"),
    *((library, operation) for library in ("cuda", "mkldnn") for operation in ("all", "matmul", "conv", "rnn")),
)
"""Backends and operations with a float32 precision in torch's newer interface, the wider ones first."""

_START_METHOD = multiprocessing.get_all_start_methods()[0]
"""The default. Using it once, as data loaders do, sets it and isn't a change."""

_CUDNN = ("enabled", "benchmark", "deterministic")

_SDP = ("flash", "mem_efficient", "math", "cudnn")

_OF_LIBRARIES = frozenset(
    {
        *(b"CUDA_MODULE_LOADING", b"TORCHINDUCTOR_CACHE_DIR", b"TRITON_CACHE_DIR"),
        *(b"WANDB_SERVICE", b"_MLFLOW_TELEMETRY_SESSION_ID"),
    }
)
"""Variables that torch sets on its own, at the first use of CUDA or an optimizer; and W&B and MLflow, for the process.

Observers use the latter on their own threads, while any trial runs.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the process."""

    name: str
    """For the user: "torch's default dtype"."""
    get: Callable[[], Any]
    """Returns a value that compares equal as long as nothing has changed."""
    put: Callable[[Any], object]
    """Sets a value that `get` returned."""
    is_reported: bool = True
    """False: imports change it, too, so changes aren't reported."""


@dataclass(slots=True)
class Kept:
    """Settings that a block changed. The fields are filled at the end of the block."""

    changed: tuple[str, ...] = ()
    """Names of the settings that it changed, as far as they are reported."""
    stuck: tuple[str, ...] = ()
    """Changed settings that couldn't be restored, with the reason."""
    _before: Mapping[str, Any] = field(default_factory=dict)

    def changes(self) -> dict[str, Any]:
        """Return the current values of the settings that differ from those before the block, by name."""
        return {name: value for name, value in _values().items() if value != self._before[name]}

    def reported(self) -> tuple[str, ...]:
        """Return the names of the settings that differ from those before the block, as far as they are reported."""
        changes = self.changes()
        return tuple(setting.name for setting in all_settings() if setting.is_reported and setting.name in changes)

    def put_back(self) -> None:
        """Restore the settings from before the block."""
        if changes := self.changes():
            self.changed = self.reported()
            self.stuck = tuple(_apply_settings({name: self._before[name] for name in changes}))


@contextlib.contextmanager
def restored_settings() -> Iterator[Kept]:
    """Restore every setting that changes within the block at its end."""
    settings = Kept(_before=_values())
    try:
        yield settings
    finally:
        settings.put_back()


def apply(values: Mapping[str, Any]) -> None:
    """Apply settings from `Kept.changes`."""
    for stuck in _apply_settings(values):
        raise RuntimeError(f"a setting of the trial's object can't be made again: {stuck}")


def notes_on_settings(settings: Kept) -> str:
    """Return log lines on the settings that a segment changed, and on those that couldn't be restored."""
    if not settings.changed:
        return ""
    stuck = f"; this couldn't be put back: {', '.join(settings.stuck)}" if settings.stuck else ""
    return f"hpsearch: changed in this segment, and put back after it: {', '.join(settings.changed)}{stuck}\n"


def _apply_settings(values: Mapping[str, Any]) -> list[str]:
    stuck = []
    for setting in all_settings():
        if setting.name in values:
            try:
                setting.put(values[setting.name])
            except Exception as error:  # a folder was deleted, or a library refuses
                stuck.append(f"{setting.name} ({error})")
    return stuck


@functools.cache
def all_settings() -> tuple[Setting, ...]:
    """Return all settings; the first call imports torch."""
    return (*_of_python(), *_of_torch(), *_of_numpy())


def _values() -> dict[str, Any]:
    return {setting.name: setting.get() for setting in all_settings()}


def _of_python() -> Iterator[Setting]:
    yield Setting("the working directory", _directory, os.chdir)
    yield Setting("environment variables", _environment, _put_environment)
    yield Setting("sys.path", lambda: list(sys.path), _put_path)
    yield Setting("the umask", _umask, os.umask)
    yield Setting("signal handlers", lambda: list(map(_signal.getsignal, _SIGNALS)), _put_handlers)
    # A pending alarm would fire in another trial; the caller's own (True before) is no longer known.
    yield Setting("a pending alarm", lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, _put_alarm)
    yield Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit)
    yield Setting("warnings filters", lambda: list(warnings.filters), _put_filters, is_reported=False)
    yield Setting(
        "the locale", lambda: locale.setlocale(locale.LC_ALL), lambda value: locale.setlocale(locale.LC_ALL, value)
    )
    yield Setting("the garbage collector", lambda: (gc.isenabled(), gc.get_threshold()), _put_gc)
    yield Setting("the sockets' default timeout", socket.getdefaulttimeout, socket.setdefaulttimeout)
    yield Setting(
        "multiprocessing's start method",
        lambda: multiprocessing.get_start_method(allow_none=True) or _START_METHOD,
        lambda value: multiprocessing.set_start_method(None if value == _START_METHOD else value, force=True),
    )


def _of_torch() -> Iterator[Setting]:
    import torch

    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    yield Setting("torch's threads", torch.get_num_threads, torch.set_num_threads)
    yield Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield Setting("torch's default device", _default_device, torch.set_default_device)
    yield Setting("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled)
    yield Setting(
        "torch's deterministic algorithms", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode
    )
    yield Setting("torch's float32 precision", _precision, _put_precision)
    yield Setting(
        "torch's cudnn flags",
        lambda: [getattr(cudnn, flag) for flag in _CUDNN],
        lambda value: _put_attributes(cudnn, _CUDNN, value),
    )
    yield Setting(
        "torch's attention backends",
        lambda: [getattr(cuda, f"{name}_sdp_enabled")() for name in _SDP],
        lambda value: [getattr(cuda, f"enable_{name}_sdp")(on) for name, on in zip(_SDP, value, strict=True)],
    )
    yield Setting("torch's autocast", _autocast, _put_autocast)
    yield Setting(
        "torch's anomaly mode",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.autograd.set_detect_anomaly(*value),
    )
    # The processor's own flag: a denormal number is zero, or it isn't.
    yield Setting("torch's flushing of denormal numbers", lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal)
    yield Setting("torch's CUDA device", _cuda_device, _put_cuda_device)


def _of_numpy() -> Iterator[Setting]:
    import numpy

    yield Setting("NumPy's handling of errors", numpy.geterr, lambda value: numpy.seterr(**value))


def _put_attributes(owner: object, names: Sequence[str], values: Sequence[Any]) -> None:
    for name, value in zip(names, values, strict=True):
        setattr(owner, name, value)


def _directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 (a Path costs several times as much)
    except FileNotFoundError:  # it was deleted
        return ""


def _environment() -> dict[bytes, bytes]:
    # The mapping's internal table: a copy through the mapping decodes each entry, at a hundred times the cost.
    environment: dict[bytes, bytes] = vars(os.environ)["_data"].copy()
    for key in _OF_LIBRARIES:
        environment.pop(key, None)
    return environment


def _put_environment(value: Mapping[bytes, bytes]) -> None:
    for key in _environment().keys() - value.keys():
        del os.environb[key]
    os.environb.update(value)


def _put_path(value: list[str]) -> None:
    sys.path[:] = value


def _umask() -> int:
    # It can only be read by setting it. A file that another thread creates in between gets no excess permissions.
    value = os.umask(0o077)
    os.umask(value)
    return value


def _put_handlers(value: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, value, strict=True):
        if handler is not None and handler != _signal.getsignal(number):  # None: not set from Python
            signal.signal(number, handler)


def _put_alarm(pending: bool) -> None:
    if not pending:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _put_filters(value: list[Any]) -> None:
    warnings.simplefilter("default")  # makes Python show warnings again that were already shown
    warnings.filters[:] = value  # type: ignore[index]


def _put_gc(value: tuple[bool, tuple[int, int, int]]) -> None:
    enabled, threshold = value
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


def _default_device() -> Any:
    import torch

    # get_default_device() creates a tensor to find the index, which may fail; None: it was never set.
    context = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return None if context is None else context.device


def _precision() -> Any:
    """Return the precision from both of torch's interfaces; the older one raises if they were mixed."""
    import torch

    # Through torch's internal functions: the public attributes cost ten times as much.
    bindings = torch._C
    try:
        older = (
            bindings._get_float32_matmul_precision(),
            bindings._get_cublas_allow_tf32(),
            bindings._get_cudnn_allow_tf32(),
        )
    except RuntimeError:
        older = None
    get = getattr(bindings, "_get_fp32_precision_getter", None)
    return older, [] if get is None else [get(*of) for of in _PRECISIONS]


def _put_precision(value: Any) -> None:
    import torch

    older, newer = value
    if older is not None:  # first, because it sets some of the others
        torch.set_float32_matmul_precision(older[0])
        torch.backends.cuda.matmul.allow_tf32 = older[1]
        torch.backends.cudnn.allow_tf32 = older[2]
    for of, precision in zip(_PRECISIONS, newer, strict=False):  # none before torch 2.9
        torch._C._set_fp32_precision_setter(*of, precision)


def _autocast() -> Any:
    import torch

    kinds = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return kinds, torch.is_autocast_cache_enabled()


def _put_autocast(value: Any) -> None:
    import torch

    kinds, cache = value
    for kind, enabled, dtype in kinds:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(cache)


def _cuda_device() -> int:
    import torch

    return torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]


def _put_cuda_device(device: int) -> None:
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_device(device)
