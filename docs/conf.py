"""How Sphinx builds the site from the pages in this folder: `scripts/site`."""

project = "pytest-llmbench"
author = "The pytest-llmbench developers"
html_title = project

extensions = ["myst_parser", "sphinx_copybutton", "sphinx_external_toc"]
external_toc_path = "navigation.yml"

myst_heading_anchors = 4  # links such as page.md#heading, as code hosts make them
copybutton_prompt_text = "$ "  # copies the command without its prompt or its output
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"
copybutton_here_doc_delimiter = "EOF"

html_theme = "furo"
html_show_sphinx = False
html_copy_source = False
