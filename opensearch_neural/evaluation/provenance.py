"""Where a result comes from: command, code and machine, without credentials and without paths of this machine."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from opensearch_neural import __version__

Machine = dict[str, str | int | float]


_SECRET_WORD = r"(?:password|passwd|token|secret|api[-_]?key|access[-_]?key|credentials?)"
_USER_INFO = re.compile(r"(?<=://)[^/\s]*@")
_SECRET_VALUE = re.compile(rf"(?i)((?:^|[\s?&'\"]|--?)[\w-]*{_SECRET_WORD}=)(?!\*\*\*)[^\s&'\"]+")
_SECRET_OPTION = re.compile(rf"(?i)(--[\w-]*{_SECRET_WORD})(?:\s+(?!\*\*\*|--)\S+)?")
# An absolute path is at the start, or after one of = : , or a quote; the // of a URL is not a path.
_ABSOLUTE_PATH = re.compile(r"(?<![^\s=:,'\"(\[{])/(?!/)[^\s,'\"]+")


def command_line(argv: Sequence[str] | None = None) -> str:
    """The command in a form that others can use: the program's name and its arguments, shell-quoted.

    Credentials become ***, the home directory becomes "~", and a path below the current directory becomes relative. Any
    other absolute path is cut to its last part (".../scifact").
    """
    argv = sys.argv if argv is None else list(argv)
    name = Path(argv[0]).name if argv else "osn"
    words, hide = [], False
    for argument in argv[1:]:
        hidden = hide and not argument.startswith("--")
        words.append("***" if hidden else _quoted(clean_argument(argument)))
        hide = bool(_SECRET_OPTION.fullmatch(argument))
    return " ".join([name, *words])


def clean_argument(argument: str) -> str:
    """An argument without credentials and without absolute paths of this machine, see `command_line`."""
    option, equals, value = argument.rpartition("=") if argument.startswith("--") else ("", "", argument)
    if value.startswith("/"):  # all of it is one path, including blanks
        return f"{option}{equals}{_clean_path(value)}"
    argument = _USER_INFO.sub("", argument)
    argument = _SECRET_VALUE.sub(r"\1***", argument)
    argument = _SECRET_OPTION.sub(lambda match: match[1] if match[0] == match[1] else f"{match[1]} ***", argument)
    return _ABSOLUTE_PATH.sub(lambda match: _clean_path(match[0]), argument)


def _quoted(word: str) -> str:
    # The shell does not expand a quoted ~.
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


def _clean_path(text: str) -> str:
    path = Path(text)
    for base, instead in ((Path.cwd(), Path()), (Path.home(), Path("~"))):
        if path == base or (base in path.parents and base != Path("/")):
            return (instead / path.relative_to(base)).as_posix()
    return f".../{path.name}"


def code_commit() -> str:
    """The commit of this code, with "-dirty" if tracked files other than results differ from it.

    "opensearch-neural VERSION" if the package is installed and does not run from its repository.
    """
    root = Path(__file__).resolve().parents[2]
    inside = _git(root, "ls-files", "--error-unmatch", "opensearch_neural/evaluation/provenance.py")
    commit = _git(root, "rev-parse", "HEAD") if inside else None
    if not commit:
        return f"opensearch-neural {__version__}"
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return f"{commit}-dirty" if changed else commit


def machine_facts() -> Machine:
    """The facts that are needed to judge times: processor, cores, memory, versions. No host name, no path.

    The version of torch and the GPU are included only if the experiment has imported torch.
    """
    facts: Machine = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "python": platform.python_version(),
        "opensearch_neural": __version__,
    }
    for module in ("numpy", "torch", "transformers", "sentence_transformers", "opensearchpy", "faiss", "bm25s"):
        loaded = sys.modules.get(module)
        version = getattr(loaded, "__versionstr__", None) or getattr(loaded, "__version__", None)
        if version:
            facts[module] = str(version)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return 0.0
