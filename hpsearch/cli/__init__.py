"""The `hpsearch` command and its subcommands."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import time
from collections.abc import Sequence

from hpsearch.cli.parser import build_parser
from hpsearch.errors import HpsearchError

__all__ = ["main"]

ERROR = 1
USAGE = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code (docs/commands.md lists the codes)."""
    began = time.time()  # before the command's own modules are imported
    own_process = arguments is None
    argv = sys.argv[1:] if arguments is None else arguments
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(
                stream, io.TextIOWrapper
            ):  # the user's texts may contain characters that the terminal can't show
                stream.reconfigure(errors="backslashreplace")
        command = next((command for command in argv if not command.startswith("-")), "")
        parser = build_parser(command, first=command in argv[:1])
        if not argv:
            parser.print_help(sys.stderr)
            return USAGE
        args = parser.parse_args(argv)
        args.own_process, args.began = own_process, began
        code: int = args.command(args)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except HpsearchError as error:
        print(f"hpsearch: {error}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):  # EIO: the terminal was closed
            raise
        # The reader of our output has ended (`| head`). Prevent an error of Python at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    finally:
        if own_process and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # The command is finished: a Ctrl-C while Python shuts down ends the process without a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
