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
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click
from click.shell_completion import CompletionItem

from opensearch_neural import __version__
from opensearch_neural.commands.outline import OWN_PACKAGES, docstring_of, missing_module
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


class EntryPointGroup(click.Group):
    """A click group whose commands are the entry points of one group name.

    sections: {title: names of commands}, for the help; without them all commands stand under one title
    moved: {former name of a command here: the group of `osn` that has it now, and its name there if that is another}
    """

    def __init__(
        self,
        *args: Any,
        group: str,
        sections: Mapping[str, Sequence[str]] | None = None,
        moved: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.entry_point_group = group
        self.sections = sections or {}
        self.moved = moved or {}

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=self.entry_point_group)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._entry_points(), *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entry_points().get(cmd_name)
        if entry is None and cmd_name in self.moved:
            group, _, name = self.moved[cmd_name].partition(" ")
            now_in = osn.get_command(ctx, group)
            return now_in.get_command(ctx, name or cmd_name) if isinstance(now_in, click.Group) else now_in
        if entry is None:
            return super().get_command(ctx, cmd_name)
        try:
            return entry.load()
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in OWN_PACKAGES:
                raise
            # A subcommand whose extra is not installed must not take the others down with it.
            return _unavailable(cmd_name, error.name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click lists them, in sections, without importing those that say in their source what they are."""
        commands = self._listing(ctx)
        if not commands:
            return
        limit = formatter.width - 6 - max(map(len, commands))
        sections = {title: [name for name in names if name in commands] for title, names in self.sections.items()}
        listed = {name for names in sections.values() for name in names}
        sections["More" if listed else "Commands"] = [name for name in commands if name not in listed]
        for title, names in sections.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, commands[name].get_short_help_str(limit)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options that begin so. Commands are not imported for it: a shell waits for the answer."""
        commands = self._listing(ctx).items()
        items = [CompletionItem(name, help=each.get_short_help_str()) for name, each in commands]
        return [
            *(item for item in items if item.value.startswith(incomplete)),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def _listing(self, ctx: click.Context) -> dict[str, click.Command]:
        """{name: command} of those that are shown, each able to say what it does."""
        entries, commands = self._entry_points(), {}
        for name in self.list_commands(ctx):
            text = docstring_of(entries[name]) if name in entries else None
            command = self.get_command(ctx, name) if text is None else _listed(entries[name], text)
            if command is not None and not command.hidden:
                commands[name] = command
        return commands

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # `osn search … | head` closes the pipe early, which is no error; click would make it one.
            # What is left in the buffer goes nowhere at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)


def _listed(entry: EntryPoint, text: str) -> click.Command:
    missing = missing_module(entry.module)
    return click.Command(entry.name, help=text) if missing is None else _unavailable(entry.name, missing)


def _unavailable(name: str, module: str | None) -> click.Command:
    def run(**_: Any) -> None:
        raise OsnError(f"`osn {name}` needs the module {module!r}", 'pip install "opensearch-neural[all]"')

    return click.Command(
        name,
        callback=run,
        help=f"(not installed: needs {module})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )


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
