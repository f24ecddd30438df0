"""Quire's application layer: conversations, settings, the worker thread. Imports nothing by itself."""
