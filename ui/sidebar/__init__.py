"""The list of chats. Imports nothing by itself."""
