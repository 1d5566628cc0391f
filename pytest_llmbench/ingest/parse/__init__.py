"""One module per log dialect, over one scanner."""
