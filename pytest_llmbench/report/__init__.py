"""Outcome dictionaries, and all that is made from them: terminal, JUnit, JSON, GitHub,
chat, the page."""
