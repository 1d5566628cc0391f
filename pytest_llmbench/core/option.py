"""What is declared of one option. An idle session imports this: nothing costly."""

from __future__ import annotations


class Option:
    """One command line option, and its ini key where a repository may decide it."""

    # A plain class: making a NamedTuple or a dataclass compiles code, in every session of everybody's pytest.
    def __init__(
        self,
        usage: str,
        meaning: str,
        *,
        default: str = "",
        shown: str = "",
        repeats: bool = False,
        ini: str = "",
        choices: tuple[str, ...] = (),
        alone: str = "",
        parse: str = "",
        resolve: str = "",
        more: str = "",
    ) -> None:
        """Keep what is declared; texts for people are in argparse's way, with `%%` for a percent sign."""
        self.flag, _, self.metavar = usage.partition("=")
        self.dest = name_destination(self.flag)
        self.meaning = meaning
        self.default = default
        """As a user would write it; empty where nothing, or another file, decides."""
        self.shown = shown or default.replace("%", "%%") or ("none" if self.metavar else "no")
        """The default in words."""
        self.help = f"{meaning} (default: {self.shown})."
        self.is_flag = not self.metavar
        self.repeats, self.choices = repeats, choices
        self.ini = ini
        """pytest's type of its ini key, empty where only a command line may say it."""
        self.alone = alone
        """The value of an option that may stand without one."""
        self.parse = parse
        """The function of `pipeline.option_parsers` from a text to the value; ValueError for a wrong one."""
        self.resolve = resolve
        """The function of `pipeline.option_values` from all values, flag and directory, where a text is not enough.

        Both by name, and loaded on use: an idle session imports no stage.
        """
        self.more = more
        """The page of docs/ that says more."""


def name_destination(flag: str) -> str:
    """Return the name under which the value of an option is stored; its ini key is the same."""
    return flag.removeprefix("--").replace("-", "_")
