from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpsearch.worker.output import OutputRedirect

ALL_WAYS = """
import ctypes, os, sys
from pathlib import Path
from hpsearch.worker.output import OutputRedirect

libc = ctypes.CDLL(None)
redirect = OutputRedirect()
for name in ("a", "b"):
    print("terminal, Python", name)
    libc.puts(b"terminal, C")
    with redirect.to(Path(sys.argv[1], name)):
        print("log, Python", name)
        libc.puts(b"log, C")
        os.system("echo log, child; echo log, its stderr >&2")
"""


def test_python_c_and_children_are_turned_to_the_file_and_back(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", ALL_WAYS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert sorted(ran.stdout.splitlines()) == ["terminal, C"] * 2 + ["terminal, Python a", "terminal, Python b"]
    for name in ("a", "b"):
        expected = ["log, C", f"log, Python {name}", "log, child", "log, its stderr"]
        assert sorted((tmp_path / name).read_text().splitlines()) == expected


def test_streams_that_lead_elsewhere_are_swapped_and_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = io.StringIO()
    monkeypatch.setattr(sys, "stdout", notebook)
    print("cell")
    with OutputRedirect().to(tmp_path / "log"):
        print("trial")
    print("cell again")
    assert notebook.getvalue() == "cell\ncell again\n"
    assert (tmp_path / "log").read_text() == "trial\n"


def test_what_is_printed_is_in_the_file_before_the_end(tmp_path: Path) -> None:
    with OutputRedirect().to(tmp_path / "log"):
        print("a line")
        assert (tmp_path / "log").read_text() == "a line\n"


def test_what_a_full_disk_does_not_take_is_not_in_the_next_file(tmp_path: Path) -> None:
    redirect = OutputRedirect()
    with redirect.to(Path("/dev/full")):
        print("too much", end="")
        print("of both streams", end="", file=sys.stderr)
    with redirect.to(tmp_path / "log"):
        print("the next trial's")
    with redirect.to(tmp_path / "log"):
        print("and its errors", file=sys.stderr)
    assert (tmp_path / "log").read_text() == "the next trial's\nand its errors\n"


def test_the_file_is_appended_to(tmp_path: Path) -> None:
    redirect = OutputRedirect()
    for word in ("one", "two"):
        with redirect.to(tmp_path / "log"):
            os.write(1, word.encode())
    assert (tmp_path / "log").read_text() == "onetwo"


def test_an_exception_passes_and_the_streams_are_put_back(tmp_path: Path) -> None:
    before = sys.stdout, sys.stderr, os.stat(1), os.stat(2)
    with pytest.raises(ValueError, match="mine"), OutputRedirect().to(tmp_path / "log"):
        raise ValueError("mine")
    assert (sys.stdout, sys.stderr, os.stat(1), os.stat(2)) == before


@pytest.mark.parametrize("closed", ["1", "2", "1, 2", "0, 1, 2"])
def test_a_process_without_standard_streams_still_logs(tmp_path: Path, closed: str) -> None:
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from hpsearch.worker.output import OutputRedirect\n"
        f"for number in ({closed},): os.close(number)\n"
        "sys.stdout = sys.stderr = None\n"
        "redirect = OutputRedirect()\n"
        "before = sorted(os.listdir('/proc/self/fd'))\n"
        "with redirect.to(Path(sys.argv[1])):\n"
        "    print('heard')\n"
        "    os.system('echo by a child')\n"
        "assert sorted(os.listdir('/proc/self/fd')) == before\n"
    )
    log = tmp_path / "output.log"
    subprocess.run([sys.executable, "-c", script, str(log)], check=True, stderr=subprocess.DEVNULL)
    assert log.read_text() == "heard\nby a child\n"


def test_a_process_with_too_many_open_files_keeps_its_streams(tmp_path: Path) -> None:
    script = (
        "import os, resource, sys\n"
        "from pathlib import Path\n"
        "from hpsearch.worker.output import OutputRedirect\n"
        "redirect = OutputRedirect()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (5, 5))\n"  # enough for the file, not for what 1 and 2 lead to
        "try:\n"
        "    with redirect.to(Path(sys.argv[1])):\n"
        "        pass\n"
        "except OSError as error:\n"
        "    os.write(2, error.strerror.encode())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "log")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stderr == "Too many open files"
