"""Messages: bubbles, replies block by block, the scrolling column. Imports nothing by itself."""
