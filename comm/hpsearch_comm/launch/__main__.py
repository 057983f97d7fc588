"""The command `python -m hpsearch_comm.launch`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.launch.command_line import make_parser, read_job
from hpsearch_comm.launch.errors import LaunchError
from hpsearch_comm.launch.launcher import Launcher
from hpsearch_comm.launch.streams import Writer


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Returns:
        The exit code of the rank that failed first, or 128 plus the signal that killed it; 0 if all ranks succeeded; 1
        if ranks couldn't be started or a host was lost; 2 if the command line is invalid.
    """
    _open_standard_streams()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, agents' exit codes would be lost
    try:
        return _run(argv)
    except KeyboardInterrupt:  # before the launcher runs, or after it, while a pager blocks the output
        return 128 + signal.SIGINT


def _run(argv: Sequence[str] | None) -> int:
    parser = make_parser()
    try:
        job = read_job(parser.parse_args(argv), os.environ)
    except ConfigurationError as error:
        parser.error(str(error))
    writer = Writer()
    try:
        code = Launcher(job, writer).run()
    except LaunchError as error:
        writer.write(2, f"hpsearch_comm.launch: error: {error}\n".encode("utf-8", "replace"))
        code = error.exit_code
    except SystemExit as interrupted:
        code = int(interrupted.code or 0)
    writer.finish()
    if isinstance(writer.error, BrokenPipeError):
        return 128 + signal.SIGPIPE  # the reader has closed the pipe, as `| head` does
    if writer.error is not None:
        print(f"hpsearch_comm.launch: error: expected to write the ranks' output, got: {writer.error}", file=sys.stderr)
        return 1
    return code


def _open_standard_streams() -> None:
    """Open /dev/null for closed standard streams. Otherwise a file or a socket could get one of their descriptors."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor


if __name__ == "__main__":
    sys.exit(main())
