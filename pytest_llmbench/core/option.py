"""What a row of the table of options is, and a record whose fields are such rows.

An idle session of pytest imports this module: the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Option:
    """One row: a command line option, and its ini key if a repository may set it."""

    def __init__(
        self,
        usage: str,
        meaning: str,
        *,
        default: str = "",
        shown: str = "",
        unset: Any = None,
        repeats: bool = False,
        ini: str = "",
        choices: tuple[str, ...] = (),
        alone: str = "",
        parse: Callable[[str], Any] | None = None,
        find: Callable[..., Any] | None = None,
        more: str = "",
    ) -> None:
        """`usage` begins with the flag, or with the ini key if there is no flag.

        Texts follow argparse: `%%` is a percent sign.
        """
        self.flag, _, self.metavar = usage.partition("=")
        self.has_flag = usage.startswith("--")
        self.dest = name_destination(self.flag)
        """The name under which pytest stores the value; its ini key is the same."""
        self.meaning = meaning
        self.default = default
        """As a user would write it, or empty."""
        self.shown = shown or default.replace("%", "%%")
        """The default in words."""
        self.shown = self.shown or ("none" if self.metavar else "no")
        self.help = f"{meaning} (default: {self.shown})."
        self.is_flag = not self.metavar
        self.unset = () if repeats else False if self.is_flag else unset
        """The value of the field without an option, an ini key and a default."""
        self.repeats = repeats
        self.choices = choices
        self.ini = ini
        """The type of its ini key for pytest; empty for a command line option only."""
        self.alone = alone
        """The value of an option that is typed without a value."""
        self.parse = parse
        """Converts a text; raises ValueError for an invalid one."""
        self.find = find
        """Converts what needs more than one text, such as a path; raises SettingsError.

        It is called with all values, this row and the folder of relative paths.
        """
        self.more = more
        """The page of docs/ with details."""

    def make_default(self) -> Any:
        """Return the value of the field if the option is not given."""
        if not self.default:
            return self.unset
        return self.parse(self.default) if self.parse else self.default


def name_destination(flag: str) -> str:
    """Return the name under which pytest stores the value of an option."""
    return flag.removeprefix("--").replace("-", "_")


def declare(usage: str, meaning: str, **properties: Any) -> Any:
    """Declare a field of `OptionRecord` by its row; Any, since the field has its
    type."""
    return Option(usage, meaning, **properties)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class OptionRecord:  # noqa: PLW1641 (no key of a dictionary)
    """A frozen record whose fields are options, or annotated class attributes.

    A dataclass would compile code in every session of everybody's pytest: with the
    fields of this module 27 million instructions, half as much again as the whole
    plugin needs in an idle session.
    """

    def __init__(self, **values: Any) -> None:
        """Set the fields; those without a value get their default."""
        defaults = list_defaults(type(self))
        if unknown := values.keys() - defaults.keys():
            raise TypeError(f"{type(self).__name__} has no field {min(unknown)}")
        self.__dict__.update(defaults, **values)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed fields."""
        return type(self)(**{**self.__dict__, **changes})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __repr__(self) -> str:
        defaults = list_defaults(type(self))
        changed = {
            name: value
            for name, value in self.__dict__.items()
            if value != defaults[name]
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")


def list_defaults(kind: type[OptionRecord]) -> Mapping[str, Any]:
    """Return the default of each field of a record, in the order of declaration."""
    bases = [base for base in reversed(kind.__mro__) if issubclass(base, OptionRecord)]
    declared = {
        name: getattr(kind, name) for base in bases for name in base.__annotations__
    }
    return {
        name: value.make_default() if isinstance(value, Option) else value
        for name, value in declared.items()
    }


def list_rows(kind: type[OptionRecord]) -> dict[str, Option]:
    """Return the rows of a record by the name of the field."""
    bases = [vars(base) for base in reversed(kind.__mro__)]
    return {
        name: row
        for base in bases
        for name, row in base.items()
        if isinstance(row, Option)
    }
