"""`hpsearch agent`: run trials of a sweep that runs elsewhere with `--backend agents`."""

from __future__ import annotations

import argparse
import re
import secrets
from pathlib import Path

from hpsearch.backends.agents.agent import Agent, DriverLink
from hpsearch.backends.agents.folder import AgentFolder
from hpsearch.backends.agents.http import AgentClient, Client
from hpsearch.cli.arguments import amount
from hpsearch.errors import HpsearchError
from hpsearch.run.interrupts import Interrupts
from hpsearch.serving.access import client_token

_PATIENCE = 600.0


def agent_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch agent`."""
    text = "the study's directory, on a disk that the sweep's machine shares; or the address that the sweep prints"
    command.add_argument("driver", metavar="DIR|URL", help=text)
    text = "folder of the trainable's code, the same as the sweep's; nothing else is run (default: the current one)"
    command.add_argument("--code", type=Path, default=Path(), metavar="FOLDER", help=text)
    text = "how long to wait for a sweep that doesn't answer (default: %(default)g)"
    command.add_argument("--patience", type=amount, default=_PATIENCE, metavar="SECONDS", help=text)
    command.add_argument("--insecure", action="store_true", help="send the token to another machine without TLS")
    command.add_argument("-q", "--quiet", action="store_true", help="print errors alone")


def agent(args: argparse.Namespace) -> int:
    """Run trials until the sweep ends, or a signal comes."""
    if not args.code.is_dir():
        raise HpsearchError(f"--code {args.code}: must be the folder of the trainable's code, but there is none")
    name = secrets.token_hex(16)
    link: DriverLink
    if re.match("https?://", args.driver):
        client = Client(args.driver, client_token("agent"), name)
        if not (args.insecure or client.is_safe):
            raise HpsearchError(
                f"{args.driver}: anyone on the way could read the token: use https, or a tunnel (ssh -L) to 127.0.0.1, "
                "or add --insecure on a network that you trust"
            )
        link = AgentClient(client)
    else:
        link = AgentFolder(Path(args.driver), name)

    def say(text: str) -> None:
        if not args.quiet:
            print(f"hpsearch agent: {text}", flush=True)

    say(f"waiting for the sweep in {link.where}")
    with Interrupts() as interrupts:
        say(Agent(link, name, args.code, args.patience, say).run(lambda: interrupts.count > 0))
    return 0
