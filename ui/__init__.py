"""Quire's window: Qt widgets only. Imports nothing by itself."""
