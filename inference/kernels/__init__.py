"""The CPU kernels and how Python calls them. Imports nothing by itself."""
