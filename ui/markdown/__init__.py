"""Markdown of replies as values: parsing only, no Qt."""
