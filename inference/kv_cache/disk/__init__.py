"""The disk tier of the KV memory: files that outlive the program. Standard library only."""
