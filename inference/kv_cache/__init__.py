"""KV memory in blocks. Imports nothing by itself."""
