"""Models behind one protocol. Imports nothing by itself."""
