"""`osn` as a user gives it, but in this process: a process of its own takes a second to import what it needs."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from unittest import mock

from click.testing import CliRunner

from opensearch_neural.cli import main
from opensearch_neural.commands.groups import OWN_PACKAGES


def osn_command(
    *arguments: str, input: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `osn` printed and how it ended. What it changes in its process is as before afterwards."""
    loggers = [logging.getLogger(package) for package in OWN_PACKAGES]
    before = [(logger.level, logger.propagate, logger.handlers) for logger in loggers]
    on_terminate = signal.getsignal(signal.SIGTERM)
    status: int | str | None = 0
    with CliRunner().isolation(input=input, env=environment) as (stdout, stderr, _):
        try:
            with mock.patch.object(sys, "argv", ["osn", *arguments]):
                main()
        except SystemExit as ended:
            status = ended.code
        except Exception:
            traceback.print_exc()
            status = 1
        finally:
            for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
                logger.setLevel(level)
                logger.propagate, logger.handlers = propagate, handlers
            signal.signal(signal.SIGTERM, on_terminate)
            sys.stdout.flush()
            sys.stderr.flush()
        told = [stream.getvalue().decode() for stream in (stdout, stderr)]
    return subprocess.CompletedProcess(arguments, int(status or 0), *told)
