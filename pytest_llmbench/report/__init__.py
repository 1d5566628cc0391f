"""Outcome documents and the reports made from them: terminal, JUnit, JSON, HTML, GitHub
and chat."""
