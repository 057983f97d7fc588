"""TensorBoard itself, in this process."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from hpsearch.errors import HpsearchError

__all__ = ["serve"]


def serve(folder: Path, host: str, port: int) -> str:
    """Let TensorBoard serve a folder on threads of this process until it ends; give its address.

    Args:
        folder: Its `--logdir`.
        host: On which address.
        port: 0: any free one.

    Raises:
        HpsearchError: It can't be served there.
    """
    from tensorboard import program

    told = io.StringIO()  # that its data server is new
    try:
        with contextlib.redirect_stderr(told):
            board = program.TensorBoard()
            board.configure(logdir=str(folder), host=host, port=port)
            address: str = board.launch()
    except program.TensorBoardServerException as error:
        raise HpsearchError(f"--host {host}, --port {port}: TensorBoard can't be reached there: {error.msg}") from error
    except (OSError, SystemExit) as error:
        raise HpsearchError(f"TensorBoard doesn't start: {told.getvalue().strip() or error}") from error
    return address
