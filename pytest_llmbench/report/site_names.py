"""Names that all pages of `llmbench site` share."""

INDEX = "index.html"

ENDING = "llmbench site"
"""The suffix of every page title, which identifies the files of a site."""
