"""`hpsearch serve`: the studies of a folder in a browser."""

from __future__ import annotations

import argparse
import os
import socket
import threading
from pathlib import Path

from hpsearch.cli.signals import ends_in_good_order
from hpsearch.config.import_paths import installing, is_installed
from hpsearch.errors import HpsearchError

_PORT = 8642


def serve_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch serve`."""
    text = "a folder of studies, or a study (default: runs)"
    command.add_argument("folder", type=Path, nargs="?", default=Path("runs"), metavar="FOLDER", help=text)
    text = "address to listen on (default: %(default)s, this machine alone)"
    command.add_argument("--host", default="127.0.0.1", help=text)
    command.add_argument("--port", type=int, default=_PORT, help="0: any free port (default: %(default)s)")
    command.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate in PEM, for TLS")
    command.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, if it isn't in the same file")
    command.add_argument("--insecure", action="store_true", help="let other machines in without TLS")
    text = "a name of this server in addresses, besides localhost and the host's name; may be repeated"
    command.add_argument("--name", action="append", default=[], metavar="NAME", help=text)


def serve(args: argparse.Namespace) -> int:
    """Serve the studies of a folder until Ctrl-C."""
    for package in ("starlette", "uvicorn"):
        if not is_installed(package):
            raise HpsearchError(f"serve: needs {package}, which isn't installed: {installing('serve')}")
    from hpsearch.serve.app import application
    from hpsearch.serve.live import Studies
    from hpsearch.serving.access import VARIABLES, load_tokens, token_file
    from hpsearch.serving.server import Listen, running

    listen = Listen(args.host, args.port, args.tls_cert, args.tls_key, args.insecure)
    if not args.folder.is_dir():
        raise HpsearchError(f"{args.folder}: expected a folder with studies, but there is none")
    tokens = load_tokens()
    names = frozenset(name.lower() for name in ("localhost", socket.gethostname(), args.host, *args.name))
    with ends_in_good_order(), Studies(args.folder) as studies:
        app = application(
            studies, tokens, is_local=listen.is_local, is_secure=listen.certificate is not None, names=names
        )
        with running(app, listen) as port:
            source = "the environment" if all(map(os.environ.get, VARIABLES.values())) else token_file()
            print(f"studies of {args.folder}: {listen.url(port)}/")
            needed = "to steer" if listen.is_local else "to read or to steer"
            print(f"{needed}, sign in with a token from {source}")
            print("Ctrl-C ends it", flush=True)
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                print()
            finally:
                studies.is_over.set()  # so that open pages let the server end
    return 0
