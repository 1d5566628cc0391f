"""Questions next to the gate: one folder each, which no other tool imports."""
