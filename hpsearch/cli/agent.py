"""`hpsearch agent`: run trials of a sweep that runs elsewhere with `--backend agents`."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

from hpsearch.backends.agents.agent import Agent
from hpsearch.backends.agents.folder import AgentFolder
from hpsearch.cli.arguments import amount
from hpsearch.errors import HpsearchError
from hpsearch.run.interrupts import Interrupts

_PATIENCE = 600.0


def agent_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch agent`."""
    text = "the study's directory, on a disk that the sweep's machine shares"
    command.add_argument("driver", metavar="DIR", help=text)
    text = "folder of the trainable's code, the same as the sweep's; nothing else is run (default: the current one)"
    command.add_argument("--code", type=Path, default=Path(), metavar="FOLDER", help=text)
    text = "how long to wait for a sweep that doesn't answer (default: %(default)g)"
    command.add_argument("--patience", type=amount, default=_PATIENCE, metavar="SECONDS", help=text)
    command.add_argument("-q", "--quiet", action="store_true", help="print errors alone")


def agent(args: argparse.Namespace) -> int:
    """Run trials until the sweep ends, or a signal comes."""
    if not args.code.is_dir():
        raise HpsearchError(f"--code {args.code}: must be the folder of the trainable's code, but there is none")
    name = secrets.token_hex(16)
    link = AgentFolder(Path(args.driver), name)

    def say(text: str) -> None:
        if not args.quiet:
            print(f"hpsearch agent: {text}", flush=True)

    say(f"waiting for the sweep in {link.where}")
    with Interrupts() as interrupts:
        say(Agent(link, name, args.code, args.patience, say).run(lambda: interrupts.count > 0))
    return 0
