"""`llmbench site`: write a history as static HTML pages."""
