"""Everything right of the sidebar but the messages. Imports nothing by itself."""
