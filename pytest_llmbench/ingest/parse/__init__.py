"""What a log says: one search for all markers, and the dialects that read what stands there."""
