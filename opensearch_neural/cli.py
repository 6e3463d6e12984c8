"""The `osn` command.

Subcommands are found by entry point (group `osn.commands`) and imported only when they run, so `osn search` never loads
torch, and other packages can add subcommands.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

import click

from opensearch_neural import __version__
from opensearch_neural.commands.groups import OWN_PACKAGES, EntryPointGroup
from opensearch_neural.errors import InputError, OsnError

SECTIONS = {
    "Start": ("node", "doctor", "demo"),
    "Index": ("ingest", "encode", "documents", "index"),
    "Search and measure": ("search", "ui", "eval", "tune", "lint", "bench"),
    "Train": ("train", "data", "model"),
    "Research": ("paper",),
}
"""How `osn --help` lists the commands. Commands in no section come last."""
MOVED = {
    **dict.fromkeys(("lexical", "idf", "urls", "export"), "model"),
    **dict.fromkeys(("mine", "teach", "generate-queries", "leaks", "corpus"), "data"),
    "models": "model list",
}
"""{former command of `osn`: its group now, then its new name if that changed}. Old names still work but are not listed."""


def check_utf8(arguments: Sequence[str]) -> None:
    """Raises InputError for an argument that is not UTF-8, which JSON and URLs cannot carry. Names of files may be."""
    for text in arguments:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            if os.path.exists(text):  # noqa: PTH110 (Path would not be imported for anything else here)
                continue
            raise InputError(
                f"{text.encode('utf-8', 'backslashreplace').decode()!r} is not UTF-8 at character {error.start + 1}",
                "the terminal, or the program that calls osn, uses another encoding",
            ) from None


@click.group(
    cls=EntryPointGroup,
    group="osn.commands",
    sections=SECTIONS,
    moved=MOVED,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="osn")
@click.option("-v", "--verbose", is_flag=True, help="Log more details to stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Log warnings and errors only.")
def osn(verbose: bool, quiet: bool) -> None:
    """Neural retrieval for a plain OpenSearch cluster: train, ingest, search, measure.

    \b
    osn node start                                              a local OpenSearch for trying things
    osn ingest docs.jsonl.gz --index docs --sparse MODEL        encode and write a corpus
    osn search --index docs "what causes a rainbow"             search it
    osn eval --index docs --data BEIR_DIR                       measure it against BM25
    """
    log_to_stderr(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    check_utf8(sys.argv[1:])


def log_to_stderr(level: int) -> None:
    """Show what this project's own packages log; other libraries show their warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    for package in OWN_PACKAGES:
        logger = logging.getLogger(package)
        logger.setLevel(level)
        logger.propagate = False
        logger.handlers = [handler]


def main() -> None:
    # Waiting threads of torch and faiss must sleep, not spin: on a busy machine, spinning made encoding a single query
    # 40 times slower. The libraries read this when they are loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # SIGTERM, which stops a container, acts like Ctrl-C: work in progress is finished and kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # a caller closed it; a file opened later must not take its place
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A document may hold half a surrogate pair, which no encoding has, and a terminal may know few characters.
        codecs.register_error("json-escape", _escaped)
        sys.stdout.reconfigure(errors="json-escape")
    try:
        status = osn(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Abort:  # click raises this for Ctrl-C
        _exit_at_once(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except OsnError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # a folder that cannot be written to, a full disk
        if error.strerror is None:
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"error: {place}{error.strerror}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        # To safetensors, which writes models and is not always installed, a full disk is no OSError.
        if type(error).__name__ != "SafetensorError" or "Error while serializing" not in str(error):
            raise
        print(f"error: a model cannot be written: {error}", file=sys.stderr)
        sys.exit(1)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that the terminal's encoding lacks, as JSON writes and reads them: \\u2192."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _exit_at_once(status: int) -> None:
    """Exit without joining threads that still wait for a server's answer; Python's own exit would join them."""
    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        sys.exit(status)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
