"""What we tell ctypes about NCCL, against the header that lies beside the library. No GPU is needed."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import textwrap
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

import pytest
import torch

from hpsearch_comm.cuda.nccl_library import (
    DATATYPES,
    IN_PROGRESS,
    LEAST_VERSION,
    OPERATORS,
    SIGNATURES,
    SUCCESS,
    NcclConfig,
    NcclLibrary,
    UniqueId,
    load_nccl,
    version_text,
)
from hpsearch_comm.cuda.nccl_wheels import NcclWheel, installed_nccl_wheels
from hpsearch_comm.errors import NcclError

C_TYPES = {
    "int": c_int,
    "unsigned int": c_uint,
    "size_t": c_size_t,
    "ncclResult_t": c_int,
    "ncclDataType_t": c_int,
    "ncclRedOp_t": c_int,
    "ncclComm_t": c_void_p,
    "cudaStream_t": c_void_p,
    "void*": c_void_p,
    "char*": c_char_p,
    "ncclUniqueId": UniqueId,
    "int*": POINTER(c_int),
    "ncclResult_t*": POINTER(c_int),
    "ncclComm_t*": POINTER(c_void_p),
    "ncclUniqueId*": POINTER(UniqueId),
    "ncclConfig_t*": POINTER(NcclConfig),
}


@pytest.fixture(scope="module")
def wheel() -> NcclWheel:
    wheels = [wheel for wheel in installed_nccl_wheels() if wheel.libraries]
    if not wheels:
        pytest.skip("no nvidia-nccl wheel is installed")
    return wheels[0]


@pytest.fixture(scope="module")
def header(wheel: NcclWheel) -> str:
    found = [file for file in wheel.files if file.endswith("nccl/include/nccl.h")]
    if not found:
        pytest.skip(f"{wheel.name} {wheel.version} brings no header")
    text = (wheel.folder / found[0]).read_text()
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def library(wheel: NcclWheel) -> NcclLibrary:
    return load_nccl({"HPSEARCH_COMM_NCCL": str(wheel.folder / wheel.libraries[0])})


def c_type(text: str) -> object:
    name = re.sub(r"\bconst\b", "", text).strip()
    return C_TYPES[re.sub(r"\s*\*\s*", "*", " ".join(name.split()))]


def test_functions_are_declared_as_in_the_header(header):
    for name, (result, arguments) in SIGNATURES.items():
        declared = re.search(rf"^\s*([\w\s*]+?)\s*\b{name}\s*\(([^)]*)\)\s*;", header, re.MULTILINE)
        assert declared is not None, name
        # The argument's own name comes last.
        texts = [re.sub(r"\w+$", "", part.strip()) for part in declared[2].split(",") if part.strip()]
        assert c_type(declared[1]) is result, name
        assert [c_type(text) for text in texts] == list(arguments), name


def test_numbers_are_those_of_the_header(header):
    def number(enumerator: str) -> int:
        found = re.search(rf"\b{enumerator}\s*=\s*(\d+)", header)
        assert found is not None, enumerator
        return int(found[1])

    names = {"sum": "ncclSum", "product": "ncclProd", "max": "ncclMax", "min": "ncclMin", "mean": "ncclAvg"}
    assert {op: number(name) for op, name in names.items()} == OPERATORS
    for dtype, code in DATATYPES.items():
        assert number("nccl" + str(dtype).removeprefix("torch.").capitalize()) == code
    assert (number("ncclSuccess"), number("ncclInProgress")) == (SUCCESS, IN_PROGRESS)
    assert number("ncclInvalidArgument") == 4
    assert number("ncclInvalidUsage") == 5
    assert number("ncclRemoteError") == 6
    bytes_of_id = re.search(r"#define NCCL_UNIQUE_ID_BYTES (\d+)", header)
    assert bytes_of_id is not None
    assert int(bytes_of_id[1]) == ctypes.sizeof(UniqueId)


def test_config_begins_as_in_the_header(header):
    body = re.search(r"typedef struct ncclConfig_v\d+ \{(.*?)\} ncclConfig_t;", header, re.DOTALL)
    assert body is not None
    declared = [re.fullmatch(r"\s*(.*?)(\w+)\s*", line) for line in body[1].split(";") if line.strip()]
    fields = [(found[2], c_type(found[1])) for found in declared if found is not None]
    assert fields[: len(NcclConfig._fields_)] == list(NcclConfig._fields_)
    # So long that a newer library doesn't read past its end, with no gap that it would read as a field.
    assert sum(ctypes.sizeof(kind) for _, kind in NcclConfig._fields_) == ctypes.sizeof(NcclConfig) == 48


def test_config_is_understood_by_every_version():
    config = NcclConfig.nonblocking(max_ctas=4)
    assert (config.size, config.magic, config.version) == (48, 0xCAFEBEEF, LEAST_VERSION)
    assert (config.blocking, config.maxCTAs, config.netName) == (0, 4, None)
    unset = (config.cgaClusterSize, config.minCTAs, config.splitShare, config.trafficClass)
    assert unset == (-(2**31),) * 4
    assert NcclConfig.nonblocking().maxCTAs == -(2**31)


def test_library_loads_without_a_gpu(library, wheel):
    assert version_text(library.version) == wheel.version
    assert library.ncclGetErrorString(SUCCESS) == b"no error"
    assert library.path == str(wheel.folder / wheel.libraries[0])


def test_error_names_function_code_text_place_and_advice(library):
    error = library.error("ncclAllReduce", 6, "allreduce (sum of float32 [3])")
    assert re.fullmatch(
        r"ncclAllReduce failed in allreduce \(sum of float32 \[3\]\): remote process exited or there was a network "
        r"error \(6\).*: a peer has ended or can't be reached: look at its output, and at NCCL_SOCKET_IFNAME",
        str(error),
    )
    assert "(run with" not in str(library.error("ncclSend", 1))


def test_calls_reach_the_library_and_its_words_come_back(library):
    with pytest.raises(NcclError, match=r"ncclAllReduce failed: invalid argument \(4\); NCCL says: .*comm argument"):
        library.check("ncclAllReduce", library.ncclAllReduce(None, None, 1, 7, 0, None, None))
    assert library.ncclGroupStart() == SUCCESS
    assert library.ncclGroupEnd() == SUCCESS
    assert library.ncclCommAbort(None) == SUCCESS
    assert library.ncclCommDestroy(None) == SUCCESS


@pytest.mark.exhaustive
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_communicator_without_a_gpu_is_a_clear_error_and_leaves_the_thread_usable(wheel):
    # In a process of its own: rank 0's listener lives on until all ranks have come.
    script = """
        import os
        from hpsearch_comm.cuda.nccl_library import load_nccl
        from hpsearch_comm.errors import NcclError

        library = load_nccl()
        identity = library.unique_id()
        assert len(identity) == 128 and any(identity) and library.unique_id() != identity
        try:
            library.init_rank(2, identity, 0)
        except NcclError as error:
            print(error)
        assert library.ncclGroupEnd() == 5, "no group is left open"
    """
    environ = dict(os.environ, HPSEARCH_COMM_NCCL=str(wheel.folder / wheel.libraries[0]))
    environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("ncclCommInitRankConfig failed: unhandled cuda error (1); NCCL says: Cuda failure")
    assert "look at nvidia-smi" in done.stdout


def test_library_is_found_and_loaded_once(wheel, monkeypatch):
    monkeypatch.delenv("HPSEARCH_COMM_NCCL", raising=False)
    found = load_nccl()
    assert found is load_nccl()
    assert Path(found.path).name.startswith("libnccl.so")


def test_file_that_is_no_nccl_is_refused(tmp_path):
    missing = str(tmp_path / "libnccl.so.2")
    with pytest.raises(NcclError, match=rf"Tried {missing} \(HPSEARCH_COMM_NCCL\): .*: cannot open shared object file"):
        load_nccl({"HPSEARCH_COMM_NCCL": missing})
    with pytest.raises(NcclError, match=r"libc\.so\.6 must be NCCL 2\.18\.0 or newer, but it has no function nccl"):
        load_nccl({"HPSEARCH_COMM_NCCL": "libc.so.6"})
