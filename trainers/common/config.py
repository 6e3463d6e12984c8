"""Configuration as dataclasses: read from YAML, overridden from the command line, saved beside the model.

    osn train dense --config dense.yaml --set training.learning_rate=2e-5 --set encoder.pooling=cls

A field that does not exist, or a value of the wrong type, is named with its file and line.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import math
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
import yaml

from opensearch_neural.errors import InputError
from opensearch_neural.files import expanded, write_text
from trainers.common.precision import flushed_denormals

C = TypeVar("C")

MISSING = "…"
"""A printed configuration shows this in place of a required value."""
EITHER: Mapping[str, Any] = types.MappingProxyType({"either": True})
"""The metadata of alternative fields: exactly one of them must be given."""


def load_config(
    kind: type[C],
    path: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    texts: Mapping[str, str] | None = None,
    defaults: C | None = None,
    fill: bool = False,
) -> C:
    """The dataclass `kind` from a YAML file, or from its defaults, with `overrides` ("training.seed=7") applied.

    texts: {dotted field: its value}, applied last; each is taken as it is, where an override is read as YAML. defaults: a
    configuration to change, in place of `path`; a section that an override gives is replaced as a whole. fill: put `MISSING`
    in place of a required value that is missing, to show all fields.
    Raises InputError with the file, line and field of a value that does not fit.
    """
    node, place = None, "the configuration"
    with _not_endless(str(path)):
        if path is not None:
            node, place = _compose(path), str(path)
        elif defaults is not None:
            node = yaml.compose(to_yaml(defaults), Loader=yaml.SafeLoader)
        tree = _Tree({}, place) if node is None else _Tree.of_node(node, place, lines=path is not None)
    if not isinstance(tree.value, dict):
        raise InputError(f"{tree.place}: expected fields with values, found {_described(tree.value)}")
    for override in overrides:
        with _not_endless(f"--set {override[:40]}"):
            _override(tree, override)
    for name, text in (texts or {}).items():
        _put(tree, name, _Tree(text, f"--set {name}"))
    if fill:
        _fill(kind, tree)
    loaded: C = _build(kind, tree, "")
    return loaded


def to_dict(config: Any) -> Any:
    """A dataclass as plain values that YAML and JSON can hold; paths become strings, tuples lists."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {field.name: to_dict(getattr(config, field.name)) for field in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(key): to_dict(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [to_dict(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def to_yaml(config: Any) -> str:
    """`config` as YAML, fields in the order of the dataclass; `load_config` reads it back to an equal configuration."""
    text: str = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True, width=120)
    return text


def explained_yaml(config: Any) -> str:
    """`to_yaml(config)` with comments: what each dataclass and its fields mean, before the first field that holds it."""
    lines = _comment(type(config))
    seen: set[type[Any]] = set()
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        for kind in _dataclasses_in(hints[field.name]):
            if kind not in seen:
                seen.add(kind)
                lines += ["", *_comment(kind)]
        lines.append(to_yaml({field.name: getattr(config, field.name)}).rstrip("\n"))
    return "\n".join(lines) + "\n"


def _comment(kind: type[Any]) -> list[str]:
    text = inspect.getdoc(kind) or ""
    # A dataclass without a docstring gets its signature as one.
    lines = [] if text.startswith(f"{kind.__name__}(") else text.splitlines()
    for name, meaning in _field_meanings(kind).items():
        lines += textwrap.wrap(f"{name}: {meaning}", 118, initial_indent="  ", subsequent_indent="    ")
    return [f"# {line}".rstrip() for line in lines]


def _field_meanings(kind: type[Any]) -> dict[str, str]:
    """{field: the string under it} of a dataclass and of the dataclasses that it derives from."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in pairwise(definition.body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                match following:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        meanings[statement.target.id] = " ".join(text.split())
    return meanings


def _dataclasses_in(hint: Any) -> list[type[Any]]:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return [hint]
    return [kind for argument in get_args(hint) for kind in _dataclasses_in(argument)]


def _fill(kind: type[Any], tree: _Tree) -> None:
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    either = [field for field in fields if field.metadata == EITHER]
    chosen = any(field.name in tree.value for field in either)
    for field in fields:
        if _required(field) or (field in either and not chosen):
            tree.value.setdefault(field.name, _missing(hints[field.name]))


def _missing(hint: Any) -> _Tree:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (choice for choice in get_args(hint) if choice is not type(None))
    if get_origin(hint) is list:
        return _Tree([_missing(get_args(hint)[0])], MISSING)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        tree = _Tree({}, MISSING)
        _fill(hint, tree)
        return tree
    return _Tree(MISSING, MISSING)


def save_config(config: Any, folder: Path) -> Path:
    """Write `config` into `folder`, beside the model."""
    path = folder / "training.yaml"
    write_text(path, to_yaml(config))
    return path


def fingerprint(*parts: Any) -> str:
    """16 hex digits that change when any of `parts` (dataclasses or plain values) does.

    A field that is None counts as absent, so that a new setting does not change the fingerprints of older files.
    """
    text = json.dumps([_without_none(to_dict(part)) for part in parts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(part) for key, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list | tuple) else value


def config_options(
    kind: type[Any], *, shortcuts: Mapping[str, tuple[str, str]] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command `--config`, `--set`, `--output`, `--print-config` and `--dry-run`.

    The command is called with `config`, a `kind` (which has a field `output: Path`), and `dry_run`, which asks it to
    build everything and take two steps on a few rows. shortcuts: {option: (dotted field, help)}, options that each set
    one field, as `--set` does, but take a text as it is; "null" means no value.
    """
    options_of = shortcuts or {}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--config",
            "config_path",
            type=click.Path(path_type=Path),
            help="YAML file with the fields of the configuration, or the name of a recipe; see --print-config.",
        )
        @click.option(
            "--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Override one field; repeatable."
        )
        @click.option("--output", type=click.Path(path_type=Path), help="The model directory to write.")
        @click.option("--dry-run", is_flag=True, help="Build everything, take two steps on a few rows, keep nothing.")
        @click.option("--print-config", is_flag=True, help="Print every field as YAML, explained, and stop.")
        @functools.wraps(command)
        def configured(
            config_path: Path | None,
            overrides: tuple[str, ...],
            output: Path | None,
            dry_run: bool,
            print_config: bool,
            **options: Any,
        ) -> None:
            changes = list(overrides)
            texts = {} if output is None else {"output": str(output)}
            for option, (field, _) in options_of.items():
                value = options.pop(option)
                if value in ("", "null"):
                    changes.append(f"{field}=null")
                elif value is not None:
                    texts[field] = value
            path = _recipe_or_file(config_path)
            if print_config:
                click.echo(explained_yaml(load_config(kind, path, changes, texts=texts, fill=True)), nl=False)
                return
            config = load_config(kind, path, changes, texts=texts)
            # Before torch starts its threads: they take over the setting.
            with flushed_denormals():
                command(config=config, dry_run=dry_run, **options)

        decorated: Callable[..., None] = configured
        for option, (field, text) in reversed(list(options_of.items())):
            decorated = click.option(f"--{option}", metavar=option.upper(), help=f"{text} (--set {field})")(decorated)
        return decorated

    return decorate


def backbone_option(field: str) -> dict[str, tuple[str, str]]:
    """The shortcut --backbone of trainings that start from a backbone; it sets `field` of their configuration."""
    return {"backbone": (field, "Directory or hub id to start from; the output of a pre-training, too.")}


def recipe(name: str) -> Path:
    """The YAML file of a recipe of this package. Raises InputError, with a list of all recipes, for another name."""
    folder = Path(__file__).parents[1] / "recipes"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        raise InputError(f"there is no file and no recipe {name!r}", f"recipes: {names}")
    return path


def _recipe_or_file(path: Path | None) -> Path | None:
    if path is None or path.exists() or path.suffix in (".yaml", ".yml"):
        return path
    return recipe(str(path))


@dataclasses.dataclass(slots=True)
class _Tree:
    """A YAML value with its place in the file."""

    value: Any
    """A scalar, a list of _Tree, or a dict of _Tree."""
    file: str
    """Where it was written: a path, or an option such as --set."""
    line: int | None = None
    """None: not known."""
    key_line: int | None = None
    """The line of its name, if it has a name."""

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}, line {self.line}"

    @property
    def named(self) -> str:
        return self.place if self.line is None or self.key_line is None else f"{self.file}, line {self.key_line}"

    @classmethod
    def of_node(cls, node: yaml.Node, file: str, *, lines: bool = True) -> _Tree:
        line = node.start_mark.line + 1 if lines else None
        if isinstance(node, yaml.MappingNode):
            fields: dict[str, _Tree] = {}
            for key, child in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise InputError(f"{file}, line {key.start_mark.line + 1}: a field's name must be a word")
                if key.value in fields:
                    raise InputError(f"{file}, line {key.start_mark.line + 1}: the field {key.value!r} is given twice")
                fields[str(key.value)] = cls.of_node(child, file, lines=lines)
                fields[str(key.value)].key_line = key.start_mark.line + 1
            return cls(fields, file, line)
        if isinstance(node, yaml.SequenceNode):
            return cls([cls.of_node(child, file, lines=lines) for child in node.value], file, line)
        try:
            return cls(yaml.constructor.SafeConstructor().construct_object(node), file, line)
        except (ValueError, yaml.YAMLError) as error:
            raise InputError(f"{file}, line {node.start_mark.line + 1}: {error}") from None


def _compose(path: Path) -> yaml.Node | None:
    try:
        with path.open(encoding="utf-8") as file:
            return yaml.compose(file, Loader=yaml.SafeLoader)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise InputError(f"{path}{line}: not valid YAML ({error.problem})") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not valid YAML ({error})") from None


@contextmanager
def _not_endless(place: str) -> Iterator[None]:
    """Raises InputError for YAML that Python cannot follow to its end."""
    try:
        yield
    except RecursionError:
        raise InputError(f"{place}: a value is nested too deeply, or holds itself") from None


def _override(tree: _Tree, override: str) -> None:
    name, separator, text = override.partition("=")
    if not separator or not name:
        raise InputError(f"--set {override}: expected FIELD=VALUE, such as training.learning_rate=2e-5")
    where = f"--set {name}"
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: {text!r} is not valid YAML ({error})") from None
    _put(tree, name, _Tree(None, where) if node is None else _Tree.of_node(node, where, lines=False))


def _put(tree: _Tree, name: str, value: _Tree) -> None:
    """Set the field with the dotted `name`."""
    first, dot, rest = name.partition(".")
    if not isinstance(tree.value, dict):
        tree.value = {}
    if dot:
        _put(tree.value.setdefault(first, _Tree({}, value.file)), rest, value)
    else:
        tree.value[first] = value


def _build(kind: Any, tree: _Tree, field: str, default: Any = None) -> Any:
    """The value of `tree` as `kind`; `field` is its dotted name, for errors. default: if `kind` is a dataclass, has the
    values of the fields that `tree` lacks; None takes the defaults of `kind`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _build_union(arguments, tree, field, default)
    if origin is Literal:
        if tree.value in arguments:
            return tree.value
        raise _unfit(tree, field, "one of " + ", ".join(map(str, arguments)))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build_dataclass(kind, tree, field, default)
    if origin is list:
        if not isinstance(tree.value, list):
            raise _unfit(tree, field, "a list")
        return [_build(arguments[0], item, f"{field}[{at}]") for at, item in enumerate(tree.value)]
    return _build_scalar(kind, tree, field)


def _build_union(arguments: tuple[Any, ...], tree: _Tree, field: str, default: Any) -> Any:
    if tree.value is None and type(None) in arguments:
        return None
    choices = [argument for argument in arguments if argument is not type(None)]
    if len(choices) == 1:
        return _build(choices[0], tree, field, default)
    # An integer must not become a float only because a float fits too.
    exact = [choice for choice in choices if choice not in (int, float, str, bool) or type(tree.value) is choice]
    for choice in (*exact, *choices):
        with suppress(InputError):
            return _build(choice, tree, field)
    raise _unfit(tree, field, " or ".join(getattr(choice, "__name__", str(choice)) for choice in choices))


def _build_dataclass(kind: type[Any], tree: _Tree, field: str, default: Any) -> Any:
    value = {} if tree.value is None else tree.value
    if not isinstance(value, dict):
        raise _unfit(tree, field, "fields with values")
    hints = get_type_hints(kind)
    fields = {declared.name: declared for declared in dataclasses.fields(kind) if declared.init}
    for name, child in value.items():
        if name not in fields:
            raise InputError(
                f"{child.named}: there is no field {_dotted(field, name)!r}", "fields here: " + ", ".join(fields)
            )
    defaults = {} if default is None else {name: getattr(default, name) for name in fields}
    for name, of_name in fields.items():
        if of_name.default_factory is not dataclasses.MISSING:
            defaults.setdefault(name, of_name.default_factory())
        if _required(of_name) and name not in defaults and name not in value:
            raise InputError(
                f"{tree.place}: the field {_dotted(field, name)!r} is missing",
                f"give it in the file, or as --set {_dotted(field, name)}=…",
            )
    built = {
        name: _build(hints[name], child, _dotted(field, name), defaults.get(name)) for name, child in value.items()
    }
    try:
        return kind(**(defaults | built))
    except (ValueError, InputError) as error:
        # With several --set options it is not known here which value does not fit.
        place = "--set" if tree.line is None and tree.place.startswith("--set ") else tree.place
        raise InputError(f"{place}: {field + ': ' if field else ''}{error}") from None


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _build_scalar(kind: Any, tree: _Tree, field: str) -> Any:
    value = tree.value
    if kind in (bool, int) and type(value) is kind:
        return value
    if kind is float and not isinstance(value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value)  # YAML 1.1 reads 2e-5 as a string.
            if math.isfinite(number):
                return number
    if kind is str and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    if kind is Path and isinstance(value, str) and value:
        return expanded(value)
    expected = {bool: "true or false", int: "an integer", float: "a number", str: "text", Path: "a path"}
    raise _unfit(tree, field, expected.get(kind, getattr(kind, "__name__", str(kind))))


def _unfit(tree: _Tree, field: str, expected: str) -> InputError:
    place = tree.place if tree.place == f"--set {field}" else f"{tree.place}: {field}"
    return InputError(f"{place}: expected {expected}, found {_described(tree.value)}")


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "fields with values"
    return "a list" if isinstance(value, list) else repr(value)


def _dotted(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
