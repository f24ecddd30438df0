"""Quire's engine: runs a language model inside this process. Imports nothing by itself."""
