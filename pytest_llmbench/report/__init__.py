"""Terminal, JUnit and tables, all made from outcome dictionaries."""
