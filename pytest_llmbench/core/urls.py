"""URLs of remote files, and the paths under which they are known here.

A remote path is kept as a Path whose first part is the protocol with its colon, `s3:/bucket/runs`; no path of this
machine is, since those are absolute.
"""

from __future__ import annotations

import re
from pathlib import Path

URL = re.compile(r"(?P<protocol>[A-Za-z][\w+.-]*(?:::[A-Za-z][\w+.-]*)*)://(?P<rest>.*)", re.DOTALL)
_LOCAL = ("file", "local")


def is_url(text: str) -> bool:
    """Whether a text names a protocol."""
    return URL.fullmatch(text) is not None


def is_remote(path: Path) -> bool:
    """Whether a path is one of `path_of`."""
    return not path.is_absolute() and bool(path.parts) and path.parts[0].endswith(":")


def to_path(url: str) -> Path:
    """Return the path under which a URL is known here."""
    match = URL.fullmatch(url)
    if match is None:
        raise ValueError(f"{url} names no protocol")
    return Path(f"{match['protocol']}:", *(part for part in match["rest"].split("/") if part))


def to_url(path: Path) -> str:
    """Return the URL of a remote path."""
    protocol = path.parts[0].removesuffix(":")
    rooted = "/" if protocol.rpartition("::")[2] in _LOCAL else ""
    return f"{protocol}://{rooted}{'/'.join(path.parts[1:])}"
