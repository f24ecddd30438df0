"""Attention over blocks. Imports nothing by itself."""
