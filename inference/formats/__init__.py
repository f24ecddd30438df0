"""Readers of model files. Imports nothing by itself."""
