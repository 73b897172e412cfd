"""What a person sees of the results: rows, sentences, and tables in the terminal, in Markdown and on a page."""
