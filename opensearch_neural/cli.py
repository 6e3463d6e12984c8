"""The `osn` command.

Subcommands are found by entry point (group `osn.commands`) and imported only when they run, so `osn search` never pays
for torch, and another package can add a subcommand without this one knowing it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

import click

from opensearch_neural import __version__
from opensearch_neural.commands.groups import EntryPointGroup
from opensearch_neural.commands.outline import OWN_PACKAGES
from opensearch_neural.errors import InputError, OsnError

SECTIONS = {
    "Start": ("node", "doctor", "demo"),
    "Index": ("ingest", "encode", "documents", "index"),
    "Search and measure": ("search", "ui", "eval", "tune", "lint", "bench"),
    "Train": ("train", "data", "model"),
    "Research": ("paper",),
}
"""How `osn --help` lists the commands. What is in no section comes last."""
MOVED = {
    **dict.fromkeys(("lexical", "idf", "urls", "export"), "model"),
    **dict.fromkeys(("mine", "teach", "generate-queries", "leaks", "corpus"), "data"),
    "models": "model list",
}
"""{former command of `osn`: the group that has it now, and its name there if that is another}. The old name still works and
is not listed."""


def check_utf8(arguments: Sequence[str]) -> None:
    """Raises InputError for an argument whose bytes are not UTF-8, unless it is a file: no JSON and no URL can carry it."""
    for text in arguments:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            if os.path.exists(text):  # noqa: PTH110 (Path would not be imported for anything else here)
                continue
            raise InputError(
                f"{text.encode('utf-8', 'backslashreplace').decode()!r} is not UTF-8 at character {error.start + 1}",
                "the terminal, or what calls osn, writes another encoding",
            ) from None


@click.group(
    cls=EntryPointGroup,
    group="osn.commands",
    sections=SECTIONS,
    moved=MOVED,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="osn")
@click.option("-v", "--verbose", is_flag=True, help="Say more about what happens, on stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Say warnings and errors only.")
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
    # Threads of torch and faiss that wait for each other are to sleep, not to spin: on a machine that does other work
    # too, spinning made a single query's encoding 40 times slower. Read when these libraries are first loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # What stops a container ends a command as Ctrl-C does: what is on its way is finished and kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = osn(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Abort:  # what click makes of Ctrl-C
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


def _exit_at_once(status: int) -> None:
    """Exit without waiting for threads that still wait for a server's answer: Python would join them."""
    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        sys.exit(status)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
