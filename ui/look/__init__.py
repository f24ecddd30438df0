"""How the window looks: colours, type, icons, painting. Imports nothing by itself."""
