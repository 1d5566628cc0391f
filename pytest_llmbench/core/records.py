"""Frozen records whose classes are cheap to create.

Other records are msgspec structs, which are as cheap but cannot define `__init__`, as
`CodedStatement` does.
"""

from __future__ import annotations

from typing import Any, dataclass_transform


@dataclass_transform(frozen_default=True)
class Record:
    """A frozen record, whose fields are the annotations of its class."""

    def __init__(self, *values: Any, **keywords: Any) -> None:
        """Set the fields, in their order or by name. Raises TypeError."""
        names = type(self).__annotations__
        self.__dict__.update(zip(names, values, strict=False), **keywords)
        # Positional values for all fields are the usual case and need no check.
        count = len(values) + len(keywords)
        if count != len(names) or keywords:
            self._check_fields(tuple(names), len(values), keywords)

    def _check_fields(
        self, names: tuple[str, ...], positional: int, keywords: dict[str, Any]
    ) -> None:
        """Raise TypeError for a missing, unknown or repeated field.

        A field with a default may be omitted. `positional` is the number of positional
        values.
        """
        missing = [name for name in names if not hasattr(self, name)]
        remaining_names = names[positional:]
        wrong = [name for name in keywords if name not in remaining_names]
        if missing or wrong or positional > len(names):
            problem = f"found {positional + len(keywords)} values"
            if missing:
                problem += f", without {', '.join(missing)}"
            if wrong:
                problem += f", wrongly {', '.join(wrong)}"
            raise TypeError(f"{type(self).__name__}: {problem}, expected {len(names)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is frozen")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, type(self))
            and self._list_values() == other._list_values()
        )

    def __hash__(self) -> int:
        return hash((type(self), *self._list_values()))

    def __repr__(self) -> str:
        pairs = zip(type(self).__annotations__, self._list_values(), strict=True)
        fields = ", ".join(f"{name}={value!r}" for name, value in pairs)
        return f"{type(self).__name__}({fields})"

    def _list_values(self) -> list[Any]:
        """Return the values of all fields, in declaration order."""
        return [getattr(self, name) for name in type(self).__annotations__]
