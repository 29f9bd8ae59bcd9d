"""Values of a configuration from a command line and from a TOML file; every mistake is a UsageError of one line.

The fields of plain dataclasses are the flags. Their annotations choose the kind of value; tyro splits the command
line and writes the help, and both sources go through the same kinds.
"""

import difflib
import functools
import json
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import tyro

from meshes.errors import UsageError
from training.kinds import NONE, Kind, kind

Form = TypeVar("Form")


@dataclass(frozen=True)
class Misread:
    """Stands for the value of a flag that could not be read."""

    problem: str


def parse(form: type[Form], argv: Sequence[str], values: Mapping[str, Any], *, prog: str, description: str) -> Form:
    """Read a command line.

    Args:
        form: a dataclass of sections, each a dataclass of flags.
        argv: the command line without the program's name.
        values: values of fields, by name, that stand in for the defaults.
        prog, description: for the help, which `--help` prints before it exits.

    Errors:
        UsageError: an unknown flag, or a value of the wrong kind.
    """
    sections = typing.get_type_hints(form)
    default = form(**{name: section(**_of_section(section, values)) for name, section in sections.items()})
    parsed, unknown = tyro.cli(
        form,
        args=list(argv),
        default=default,
        prog=prog,
        description=description,
        config=(tyro.conf.OmitArgPrefixes,),
        registry=_registry(),
        return_unknown_args=True,
    )
    if unknown:
        raise UsageError(_unknown_flag(unknown[0], names(form)))
    for name, value in flatten(parsed).items():
        if isinstance(value, Misread):
            raise UsageError(f"--{name.replace('_', '-')} {value.problem}")
    return parsed


def read_toml(form: type, path: Path) -> dict[str, Any]:
    """Values of fields, by name, from a TOML file whose keys are names of flags.

    Errors:
        UsageError: not a readable TOML file, an unknown key, a key given twice, a value of the wrong kind.
    """
    hints = {name: hint for section in typing.get_type_hints(form).values() for name, hint in hints_of(section)}
    values: dict[str, Any] = {}
    for key, value in _load_toml(path).items():
        name = key.replace("-", "_")
        if isinstance(value, dict):
            raise UsageError(f"{path}: [{key}] is a table: write its keys at the top level, without tables")
        if name not in hints:
            raise UsageError(f"{path}: unknown key {key!r}{suggestion(name, hints)}")
        if name in values:
            raise UsageError(f"{path}: {key!r} is given twice, with a dash and with an underscore: keep one")
        wanted = kind(hints[name])
        try:
            values[name] = wanted.take(value)
        except (ValueError, OverflowError):
            raise UsageError(f"{path}: {key} = {_short(value)}: expected {wanted.expected}") from None
    return values


def to_toml(form: type, values: Mapping[str, Any]) -> str:
    """Text of a TOML file that `read_toml` reads back; None, which TOML cannot say, is left out."""
    lines = []
    for section in typing.get_type_hints(form).values():
        lines += ["", f"# {(section.__doc__ or '').splitlines()[0]}"]
        given = _of_section(section, values)
        lines += [f"{name} = {_toml(value)}" for name, value in given.items() if value is not None]
    return "\n".join(lines[1:]) + "\n"


def flatten(form: Any) -> dict[str, Any]:
    """Values of all flags of a form, by name."""
    sections = (getattr(form, field.name) for field in fields(form))
    return {field.name: getattr(section, field.name) for section in sections for field in fields(section)}


def names(form: type) -> list[str]:
    """Names of all flags of a form, with underscores."""
    return [field.name for section in typing.get_type_hints(form).values() for field in fields(section)]


def hints_of(section: type) -> Iterable[tuple[str, Any]]:
    """Names and annotations of the flags of a section."""
    return typing.get_type_hints(section).items()


# What people of other programs would write.
SYNONYMS = {
    "learning_rate": "lr", "num_layers": "layers", "n_layers": "layers", "num_heads": "heads", "n_heads": "heads",
    "num_kv_heads": "kv_heads", "n_kv_heads": "kv_heads", "hidden_size": "d_model", "dim": "d_model",
    "embedding_size": "d_model", "ffn_size": "d_ff", "intermediate_size": "d_ff", "max_steps": "steps",
    "iterations": "steps", "warmup_steps": "warmup", "sequence_length": "seq_len", "context_length": "seq_len",
    "block_size": "seq_len", "output_dir": "run_dir", "dataset": "data", "dp": "data_groups",
    "grad_clip": "clip_norm", "max_grad_norm": "clip_norm", "precision": "dtype", "num_devices": "devices",
}  # fmt: skip


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or nothing."""
    targets = {n: n for n in known}
    targets |= {word: target for word, target in SYNONYMS.items() if target in targets}
    near = difflib.get_close_matches(name.lower(), targets, n=1, cutoff=0.6)
    return f": did you mean {targets[near[0]].replace('_', '-')!r}?" if near else ""


# tyro and TOML.


def _registry() -> tyro.constructors.ConstructorRegistry:
    """tyro's constructors, with ours for everything but switches and sections."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec | None:
        if info.type is bool or is_dataclass(info.type):
            return None
        try:
            wanted = kind(info.type)
        except KeyError:  # a member of an annotation, which tyro asks about too
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*",  # so that a missing or a second value gets our message
            metavar=wanted.metavar,
            instance_from_str=functools.partial(_read, wanted),
            is_instance=lambda value: True,
            str_from_instance=lambda value: [_shown(value)],
        )

    return registry


def _read(wanted: Kind, words: list[str]) -> Any:
    if len(words) != 1:
        got = f"{_visible(' '.join(words))}: takes one value, not {len(words)}" if words else "needs a value"
        return Misread(f"{got}: expected {wanted.expected}")
    try:
        return wanted.read(words[0])
    except (ValueError, OverflowError):
        return Misread(f"{_visible(words[0])}: expected {wanted.expected}")


def _unknown_flag(word: str, known: list[str]) -> str:
    if not word.startswith("-"):
        return (
            f"unexpected argument {word!r}: a value follows its flag, and a switch takes none (--no-NAME turns it off)"
        )
    flag = word.partition("=")[0]
    name = flag.lstrip("-").replace("-", "_")
    near = suggestion(name, known).replace("'", "'--", 1)
    return f"unknown flag {flag!r}{near or ': --help lists the flags'}"


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--config {path} is not a TOML file: {error}") from None


def _of_section(section: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: values[field.name] for field in fields(section) if field.name in values}


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    return NONE if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _visible(text: str) -> str:
    """Text as it is, or quoted where it would not show."""
    return text if text.strip() and text.isprintable() else repr(text)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
