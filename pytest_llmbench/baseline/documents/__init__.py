"""Recipe documents: their Markdown tables and what their text states, as a draft of a baseline file."""
