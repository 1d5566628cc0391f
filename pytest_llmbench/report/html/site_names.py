"""The names that all pages of `llmbench site` share."""

INDEX = "index.html"

ENDING = "llmbench site"
"""The end of the title of each page, by which a later site recognises its own files."""
