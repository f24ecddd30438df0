"""Between text and token ids. Imports nothing by itself."""
