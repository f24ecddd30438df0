"""Windows that ask or tell one thing. Imports nothing by itself."""
